"""How far the study is, and what it lacks: cells by data set, lines that are begun, and lines that are not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from fsvi_bench.papers.burt2020.numbers import title_of
from fsvi_bench.papers.burt2020.study.summary import Cells, datasets_of, entries_of, jitter_words, words_of
from fsvi_bench.papers.burt2020.study.table import Entry, of_entry
from fsvi_bench.presenting.tables import Table


def progress_table(cells: Cells) -> Table:
    """How far the study is, by data set."""
    rows: list[tuple[str | int, ...]] = []
    for dataset in [*datasets_of(cells), "all"]:
        count = Counter(cell.status for cell in cells if dataset in (cell.dataset, "all"))
        rows.append((dataset, count.total(), *(count[s] for s in ("ok", "diverged", "failed", "missing"))))
    columns = ("data set", "planned", "ok", "diverged", "failed", "missing")
    return Table(title="Cells", columns=columns, rows=tuple(rows))


def missing_table(cells: Cells) -> Table:
    """Lines that are begun and lack something."""
    rows = []
    for dataset in datasets_of(cells):
        for entry in entries_of(cells):
            group = of_entry(cells, dataset, entry)
            lacking = [cell for cell in group if cell.status != "ok"]
            if lacking and _is_begun(group):
                reasons = _in_groups([cell.reason for cell in lacking if cell.reason]).replace("|", "¦")
                counts = Counter(cell.status for cell in lacking)
                counted = (counts["missing"], counts["diverged"] + counts["failed"])
                rows.append((dataset, *words_of(entry), len(group), *counted, reasons))
    columns = ("data set", "method", "M", "jitter", "planned", "missing", "diverged or failed", "reasons")
    return Table(title="Lines that lack cells", columns=columns, rows=tuple(rows))


def _in_groups(reasons: Sequence[str]) -> str:
    """Each reason once, with how often and from which step to which where only the number of a step differs."""
    groups: dict[str, list[int]] = {}
    for reason in reasons:
        found = re.search(r"step (\d+)", reason)
        words = reason if found is None else f"{reason[: found.start()]}step …{reason[found.end() :]}"
        groups.setdefault(words, []).append(int(found[1]) if found else 0)
    told = []
    for words, steps in groups.items():
        least, most = min(steps), max(steps)
        span = f"step {least:,}" if least == most else f"steps {least:,} to {most:,}"
        told.append(words[:200].replace("step …", span) + (f" ({len(steps)})" if len(steps) > 1 else ""))
    return "; ".join(told)


def unbegun_table(cells: Cells) -> Table:
    """Data sets with lines of which no cell has been run: how many, and at which settings."""
    rows = []
    for dataset in datasets_of(cells):
        groups = {entry: of_entry(cells, dataset, entry) for entry in entries_of(cells)}
        planned = [entry for entry, group in groups.items() if group]
        unbegun = [entry for entry in planned if not _is_begun(groups[entry])]
        if unbegun:
            which = "all" if unbegun == planned else _settings_in_words(unbegun, planned)
            rows.append((dataset, f"{len(unbegun)} of {len(planned)}", which))
    columns = ("data set", "lines not begun", "which")
    return Table(title="Lines that have not begun", columns=columns, rows=tuple(rows))


def _is_begun(group: Cells) -> bool:
    return any(cell.status != "missing" for cell in group)


def _settings_in_words(unbegun: list[Entry], planned: list[Entry]) -> str:
    """By M and jitter: the setting where all of its lines are meant, else its lines."""
    words = []
    for setting in sorted({_setting(entry) for entry in unbegun}):
        size, jitter = setting
        here = [entry for entry in unbegun if _setting(entry) == setting]
        name = f"M = {size}" + (f" with jitter {jitter_words(jitter)}" if jitter else "")
        lines = ", ".join(f"{title_of(entry.method)} {entry.family}" for entry in here)
        whole = len(here) == sum(_setting(entry) == setting for entry in planned)
        words.append(lines if not size else name if whole else f"{name}: {lines}")
    return "; ".join(words)


def _setting(entry: Entry) -> tuple[int, float]:
    """M and jitter; 0 where there is none."""
    return entry.M or 0, entry.kl_jitter or 0.0
