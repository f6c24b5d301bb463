"""The tables of the study's page, from the study's table: medians and means over splits, and how many there are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

import numpy as np

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.numbers import title_of
from fsvi_bench.papers.burt2020.study.claims import MEASUREMENT_POINTS
from fsvi_bench.papers.burt2020.study.collect import entry_order
from fsvi_bench.papers.burt2020.study.table import Entry, StudyCell, of_entry
from fsvi_bench.presenting.figures import NO_LOGARITHM
from fsvi_bench.presenting.summary import Row, estimate
from fsvi_bench.presenting.tables import Table
from fsvi_bench.presenting.traces import spread_of

Cells = Sequence[StudyCell]
Value = Callable[[StudyCell], float | None]
ROUNDING = 1e-30  #: of ratios of variances, squares of singular values that are known to some 1e-16 of the largest


def datasets_of(cells: Cells) -> list[str]:
    """Sorted."""
    return sorted({cell.dataset for cell in cells})


def begun_datasets(cells: Cells) -> list[str]:
    """Those with a cell that has been run."""
    return datasets_of([cell for cell in cells if cell.status != "missing"])


def entries_of(cells: Cells, keep: Callable[[Entry], bool] = lambda entry: True) -> list[Entry]:
    """Lines in the page's order."""
    return sorted({cell.entry for cell in cells if keep(cell.entry)}, key=entry_order)


def at_the_papers_setting(entry: Entry) -> bool:
    """M = 80 without jitter, as far as it has such settings."""
    return entry.M in (None, MEASUREMENT_POINTS) and not entry.kl_jitter


def at_another_size(entry: Entry) -> bool:
    """Any other M, without jitter."""
    return entry.M not in (None, MEASUREMENT_POINTS) and not entry.kl_jitter


def require_one_cell_each(cells: Cells) -> None:
    """Refuses a table in which a cell stands twice (with other steps or another seed, too), or a split has two tasks:
    splits are what is averaged and paired here.

    Raises:
        InputError: it does.
    """
    places = Counter((c.dataset, c.split, c.entry) for c in cells)
    twice = [place for place, count in places.items() if count > 1]
    if twice:
        dataset, split, entry = twice[0]
        raise InputError(f"the study's table holds {dataset} split {split} {entry.method} twice; make it again")
    tasks: dict[tuple[str, int], str] = {}
    for cell in cells:
        if cell.task and tasks.setdefault((cell.dataset, cell.split), cell.task) != cell.task:
            raise InputError(
                f"the study's table holds {cell.dataset} split {cell.split} on two tasks; keep the records of one"
            )


def words_of(entry: Entry) -> tuple[str, str, str]:
    """Method with family, M and jitter, as they stand in tables."""
    size = "–" if entry.M is None else str(entry.M)
    return f"{title_of(entry.method)} {entry.family}", size, jitter_words(entry.kl_jitter)


def jitter_words(kl_jitter: float | None) -> str:
    """As 1e-6; a dash for what has none."""
    return "–" if kl_jitter is None else f"{kl_jitter:g}".replace("e-0", "e-")


def results_table(cells: Cells) -> Table:
    """Scores at the paper's setting."""
    return _per_line(
        cells,
        "Scores at M = 80 without jitter",
        {
            "KL, median [quartiles]": lambda group: _quartiles(group, lambda c: rounded_to_zero(c.kl)),
            "KL, mean ± s.e.": lambda group: _mean(group, lambda c: rounded_to_zero(c.kl)),
            "mean term, median": lambda group: _median(group, lambda c: rounded_to_zero(c.kl_mean_term)),
            "predictive KL, test": lambda group: _median(group, lambda c: c.predictive_kl_test),
            "predictive KL, box": lambda group: _median(group, lambda c: c.predictive_kl_box),
            "NLPD, mean ± s.e.": lambda group: _mean(group, lambda c: c.nlpd),
            "RMSE, mean ± s.e.": lambda group: _mean(group, lambda c: c.rmse),
        },
    )


def overview_table(cells: Cells) -> Table:
    """Median KLs at the paper's setting, a line per method and a column per data set."""
    datasets = begun_datasets(cells)
    rows = []
    for entry in entries_of(cells, lambda e: at_the_papers_setting(e) and (e.method, e.family) != ("exact", "full")):
        groups = [of_entry(cells, dataset, entry) for dataset in datasets]
        if any(cell.status != "missing" for group in groups for cell in group):
            rows.append((words_of(entry)[0], *(_median_of_all(group) for group in groups)))
    return Table(title="Median KL at M = 80", columns=("method", *datasets), rows=tuple(rows))


def _median_of_all(group: Cells) -> str:
    """The median KL, infinite where a cell diverged or failed; in brackets of how many splits if some are missing."""
    finished = [cell for cell in group if cell.status != "missing"]
    if not finished:
        return "–"
    kls = [math.inf if cell.kl is None else max(cell.kl, 0.0) for cell in finished]
    return number(median(kls)) + (f" (of {len(kls)})" if len(kls) < len(group) else "")


def spectrum_table(cells: Cells) -> Table:
    """The variance of q over the exact one, by direction."""
    columns: dict[str, Callable[[Cells], str]] = {
        f"{percent} %": lambda group, name=f"spectrum_{percent}": _ratio(group, name)  # type: ignore[misc]
        for percent in (0, 5, 50, 95, 100)
    }
    return _per_line(cells, "Quantiles of the variance ratio by direction, medians over splits", columns)


def optimum_table(cells: Cells, keep: Callable[[Entry], bool] = at_the_papers_setting) -> Table:
    """Where a method is, where its objective's optimum is, and what lies between."""
    return _per_line(
        cells,
        "Distance from the objective's optimum, medians over splits",
        {
            "KL": lambda group: _known(_with_optimum(group), lambda c: rounded_to_zero(c.kl)),
            "KL at the optimum": lambda group: _optima(_with_optimum(group)),
            "objective above it [nats]": lambda group: _gap(_with_optimum(group)),
            "KL on the other splits": lambda group: _median(_without_optimum(group), lambda c: c.kl),
        },
        lambda entry: keep(entry) and entry.method != "exact",
        sized=any(cell.M not in (None, MEASUREMENT_POINTS) and keep(cell.entry) for cell in cells),
        counted=("optimum known", lambda group: sum(c.kl_at_objective_optimum is not None for c in group)),
    )


def sizes_table(cells: Cells) -> Table:
    """Median KL by M, of lines with results at more than one."""
    rows = []
    sizes = sorted({cell.M for cell in cells if cell.M is not None and cell.status == "ok"})
    for dataset in datasets_of(cells):
        for entry in entries_of(cells, lambda e: at_the_papers_setting(e) and e.M is not None):
            groups = [of_entry(cells, dataset, entry._replace(M=size)) for size in sizes]
            if sum(any(cell.kl is not None for cell in group) for group in groups) > 1:
                rows.append(
                    (dataset, words_of(entry)[0], *(_known(g, lambda c: rounded_to_zero(c.kl)) for g in groups))
                )
    columns = ("data set", "method", *(f"M = {size}" for size in sizes))
    return Table(title="KL by size of A, medians over splits", columns=columns, rows=tuple(rows))


def rising_words(cells: Cells) -> str:
    """Lines whose median KL is greater at one M than at the next smaller one, both being complete."""
    told = []
    sizes = sorted({cell.M for cell in cells if cell.M is not None})
    for dataset in datasets_of(cells):
        for entry in entries_of(cells, lambda e: at_the_papers_setting(e) and e.M is not None):
            for small, large in pairwise(sizes):
                medians = []
                for size in (small, large):
                    kls = [c.kl for c in of_entry(cells, dataset, entry._replace(M=size)) if c.status != "missing"]
                    planned = len(of_entry(cells, dataset, entry._replace(M=size)))
                    if kls and len(kls) == planned:
                        medians.append(median([math.inf if kl is None else max(kl, 0.0) for kl in kls]))
                if len(medians) == 2 and medians[1] > max(medians[0], NO_LOGARITHM):
                    told.append(f"{words_of(entry)[0]} on {dataset} from M = {small} to {large}")
    return "; ".join(told)


def alike_words(cells: Cells) -> str:
    """Of each other size, how many pairs with M = 80 (one split, method, family) are of one code and machine."""
    told = []
    for size in sorted({cell.M for cell in cells if cell.M is not None and cell.status == "ok"} - {MEASUREMENT_POINTS}):
        pairs = [
            pair
            for dataset in datasets_of(cells)
            for entry in entries_of(cells, lambda e: at_the_papers_setting(e) and e.M is not None)
            for pair in pairs_of(cells, dataset, entry._replace(M=size), entry)
        ]
        if pairs:
            told.append(f"M = {size} on {sum(map(are_alike, pairs))} of {len(pairs)}")
    return ", ".join(told)


def are_alike(pair: tuple[StudyCell, StudyCell]) -> bool:
    """Of the same code and machine."""
    one, other = pair
    return (one.hardware, one.code) == (other.hardware, other.code)


def jitter_table(cells: Cells) -> Table:
    """What jitter does: ratios of KLs and differences of NLPDs, paired by split; how many pairs differ in no more."""
    rows = []
    for dataset in datasets_of(cells):
        for entry in entries_of(cells, lambda e: bool(e.kl_jitter)):
            pairs = pairs_of(cells, dataset, entry, entry._replace(kl_jitter=0.0))
            ratios = [ratio for a, b in pairs if (ratio := kl_ratio(a, b)) is not None]
            nlpd = [above for a, b in pairs if (above := _nlpd_above(a, b)) is not None]
            if pairs:
                planned = len(of_entry(cells, dataset, entry))
                extremes = f"{number(min(ratios))} to {number(max(ratios))}" if ratios else "–"
                alike = sum(map(are_alike, pairs))
                told = (_spread(ratios, planned), extremes, _spread(nlpd, planned), f"{alike} of {len(pairs)}")
                rows.append((dataset, *words_of(entry), *told))
    words_ratio, words_above = "KL over that without: median [quartiles]", "NLPD above that without: median [quartiles]"
    columns = ("data set", "method", "M", "jitter", words_ratio, "least to most", words_above, "same code and machine")
    return Table(title="Jitter, paired by split", columns=columns, rows=tuple(rows))


def provenance_table(cells: Cells) -> Table:
    """Which versions of the code all cells of a method are of, and what one costs at the paper's setting."""
    rows = []
    for entry in entries_of(cells, at_the_papers_setting):
        finished = [cell for cell in cells if cell.status != "missing"]
        group = [cell for cell in finished if (cell.method, cell.family) == (entry.method, entry.family)]
        if group:
            versions = Counter(cell.code for cell in group if cell.code)
            written = ", ".join(f"{code} ({count})" for code, count in versions.most_common()) or "–"
            typical = [cell for cell in group if cell.entry == entry]
            cost = (_median(typical, lambda c: c.gradients), _median(typical, lambda c: c.train_seconds))
            rows.append((words_of(entry)[0], len(group), written, *cost))
    columns = ("method", "cells", "sources (cells)", "M = 80: gradients, median", "M = 80: seconds a cell, median")
    return Table(title="What was run", columns=columns, rows=tuple(rows))


def size_rows(cells: Cells, datasets: Sequence[str]) -> list[tuple[Row, int]]:
    """Rows for figures 3 and 4, each with how many of its cells are missing."""
    rows = []
    for dataset in datasets:
        for entry in entries_of(cells):
            group = of_entry(cells, dataset, entry)
            finished = [cell for cell in group if cell.status == "ok"]
            missing = sum(cell.status == "missing" for cell in group)
            scores = {}
            for name in ("kl", "nlpd") if finished else ():
                if values := [value for cell in finished if (value := getattr(cell, name)) is not None]:
                    scores[name] = estimate(values)
            if group:
                settings = {"M": entry.M, "kl_jitter": entry.kl_jitter, "max_steps": group[0].max_steps}
                own: dict[str, object] = {name: value for name, value in settings.items() if value is not None}
                there, splits = len(group) - missing, len({cell.split for cell in finished})
                row = Row(dataset, entry.method, entry.family, own, there, len(finished), splits, scores)
                rows.append((row, missing))
    return rows


def number(value: float) -> str:
    """Three significant digits, more of large ones, with a true minus. Rounding errors about 0 are not hidden."""
    if math.isnan(value):
        return "–"
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    words = f"{value:,.0f}" if 999.5 <= abs(value) < 999_999.5 else f"{value + 0.0:.3g}"
    return words.replace("e+0", "e").replace("e+", "e").replace("e-0", "e-").replace("-", "−")


def rounded_to_zero(kl: float | None) -> float | None:
    """A KL that is 0 but for rounding."""
    return 0.0 if kl is not None and abs(kl) < NO_LOGARITHM else kl


def pairs_of(cells: Cells, dataset: str, one: Entry, other: Entry) -> list[tuple[StudyCell, StudyCell]]:
    """Finished cells of two lines on the same splits."""
    others = {cell.split: cell for cell in of_entry(cells, dataset, other) if cell.status == "ok"}
    mine = [cell for cell in of_entry(cells, dataset, one) if cell.status == "ok"]
    return [(cell, others[cell.split]) for cell in mine if cell.split in others]


def kl_ratio(one: StudyCell, other: StudyCell) -> float | None:
    """None of KLs that are rounding, and of two infinities."""
    if not one.kl or not other.kl or other.kl <= NO_LOGARITHM or one.kl == other.kl == math.inf:
        return None
    return one.kl / other.kl


def _nlpd_above(one: StudyCell, other: StudyCell) -> float | None:
    if one.nlpd is None or other.nlpd is None or one.nlpd == other.nlpd == math.inf:
        return None
    return one.nlpd - other.nlpd


def _per_line(
    cells: Cells,
    title: str,
    columns: dict[str, Callable[[Cells], str]],
    keep: Callable[[Entry], bool] = at_the_papers_setting,
    counted: tuple[str, Callable[[Cells], int]] = ("splits", len),
    sized: bool = False,
) -> Table:
    """A row per data set and line that has something, if asked with its M; before the values a column counts of how
    many of its splits."""
    name, count = counted
    rows = []
    for dataset in datasets_of(cells):
        for entry in entries_of(cells, keep):
            group = of_entry(cells, dataset, entry)
            finished = [cell for cell in group if cell.status == "ok"]
            if finished:
                share = f"{count(finished)} of {len(group)}"
                line = words_of(entry)[: 2 if sized else 1]
                rows.append((dataset, *line, share, *(of(finished) for of in columns.values())))
    heads = ("data set", "method", *(["M"] if sized else []), name, *columns)
    return Table(title=title, columns=heads, rows=tuple(rows))


def _values(group: Cells, value: Value) -> list[float]:
    return [each for cell in group if (each := value(cell)) is not None]


def _median(group: Cells, value: Value) -> str:
    values = _values(group, value)
    return number(median(values)) if values else "–"


def _known(group: Cells, value: Value) -> str:
    """A median with how many splits it is of, where some do not know."""
    values = _values(group, value)
    return _median(group, value) + (f" (of {len(values)})" if 0 < len(values) < len(group) else "")


def _ratio(group: Cells, name: str) -> str:
    """A median ratio of variances; what is less than rounding of the largest singular value squared is not told."""
    values = _values(group, lambda cell: getattr(cell, name))
    if values and median(values) < ROUNDING:
        return f"< {number(ROUNDING)}"
    return number(median(values)) if values else "–"


def _with_optimum(group: Cells) -> Cells:
    """Those of which the objective's optimum is known; all, where that of none is."""
    return [cell for cell in group if cell.kl_at_objective_optimum is not None] or group


def _without_optimum(group: Cells) -> Cells:
    """What `_with_optimum` leaves out."""
    used = _with_optimum(group)
    return [cell for cell in group if cell not in used]


def _optima(group: Cells) -> str:
    """The median KL at the optimum, ∞ if that is at infinity on half of the splits or more; and how many do not fit."""
    values = _values(group, lambda cell: rounded_to_zero(cell.kl_at_objective_optimum))
    words, infinite = number(median(values)) if values else "–", values.count(math.inf)
    if not 0 < infinite < len(values):
        return words
    return f"∞ (finite on {len(values) - infinite})" if 2 * infinite >= len(values) else f"{words} (∞ on {infinite})"


def _gap(group: Cells) -> str:
    """How far the objective is above its optimum: at least so far, where only the best that was found is known."""
    words = _known(group, lambda cell: cell.objective_gap)
    unknown = any(cell.objective_gap is not None and cell.kl_at_objective_optimum is None for cell in group)
    return f"≥ {words}" if unknown else words


def _quartiles(group: Cells, value: Value) -> str:
    return _spread(_values(group, value), len(group))


def _mean(group: Cells, value: Value) -> str:
    values = _values(group, value)
    if not values:
        return "–"
    found = estimate(values)
    return number(found.mean) + (f" ± {number(found.standard_error)}" if found.standard_error is not None else "")


def _spread(values: Sequence[float], planned: int) -> str:
    """Median and quartiles, with how many values they are of where some are lacking."""
    if not values:
        return "–"
    spread = spread_of(np.asarray(values, dtype=float))
    words = f"{number(spread.median)} [{number(spread.lower_quartile)}, {number(spread.upper_quartile)}]"
    return words + (f" (of {len(values)})" if len(values) < planned else "")
