"""Records as a tidy frame with one row per cell; summaries over splits, with one row per line of a table and score; and
how these are written: the result table on a terminal, and cells of tables there and in reports."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table as Terminal

from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json
from fsvi_bench.networks.scores import NetworkScores
from fsvi_bench.networks.task import network_name
from fsvi_bench.presenting.tables import ROUNDING, Cell, Table, Written, in_words
from fsvi_bench.presenting.traces import Spread, spread_of
from fsvi_bench.resources import read_yaml
from fsvi_bench.running.cell import Record
from fsvi_bench.running.options import setting
from fsvi_bench.scoring.scores import NESTED, Scores

ASSETS = Path(__file__).parent / "assets"
#: Columns of result tables: name -> heading, meaning, and whether narrow tables have it.
SHOWN: dict[str, dict[str, Any]] = read_yaml(ASSETS / "scores.yaml")  # type: ignore[assignment]
OF_NETWORKS: dict[str, dict[str, Any]] = read_yaml(ASSETS / "network_scores.yaml")  # type: ignore[assignment]
COLUMNS = OF_NETWORKS | SHOWN
SCORES = list(dict.fromkeys([*SHOWN, "reverse_kl", "w2_moments", "nlpd_moment_matched"]))
#: Scores that count as infinite if q diverged.
DIVERGES = [name for name in (*SCORES, *OF_NETWORKS) if "kl" in name or name.startswith(("energy_", "w2"))]
MARK = "energy_distance_20_test"  #: a score that every scored network has, and no linear task
EXACT_DRAWS = "exact draws"  #: the row of the floors
ROW = ["dataset", "method", "family", "settings"]  #: columns that identify a row of result tables
LONGEST_WORD = 20  #: of a name in tables on terminals, where longer ones continue on the next line
CELL = ["dataset", "split", "method", "family", "seed"]
FACTS = [*CELL, "settings", "status", "reason", "task_sha256", "code_sha256", "seconds"]
STATUSES = ["ok", "diverged", "failed"]
NUMBERS = [*Spread._fields, "standard_error"]
UNLIMITED = 10_000  #: characters
HUGE = 1e9  #: larger numbers are written with powers of ten
OWN_PRIOR = "Own prior: the method's model has a different prior from the task, which contributes to its KL."
UNITS = "KL in nats; NLPD in nats per test point and RMSE in the target's original unit."
UNITS_OF_NETWORKS = "KL in nats; NLPD in nats per test point in the target's original unit."
MEDIANS = "Medians over splits."
OVER_SPLITS, ONE_SPLIT = "Median and quartiles over splits.", "One split each."
FLOORS = (
    "Exact draws: what draws from the posterior itself score (NLPD: all of the reference); compare a method with the "
    "row of its number of functions."
)
DIVERGED = "Splits that diverged count as infinite KLs."
MEANS = "Means and standard errors: fsvi-bench report DIR --json."


def frame_of(records: Sequence[Record]) -> pd.DataFrame:
    """One row per record, in the same order. For the columns see `fsvi_bench.results`."""
    return pd.DataFrame(list(map(_row, records)), columns=None if records else FACTS)


def _row(record: Record) -> dict[str, Any]:
    row = {name: getattr(record, name, None) for name in FACTS}
    row |= {"settings": canonical_json(record.hyperparameters), "seconds": record.seconds and record.seconds.train}
    scores = flat(record.scores) if record.scores else flat_of_network(record.network_scores)
    return row | unnested({"settings": record.hyperparameters}) | scores


def flat(scores: Scores) -> dict[str, Any]:
    """Scores by name; names of nested scores have a dot."""
    named = scores.model_dump(exclude=None if scores.intervals else {"intervals"})  # only draws have intervals
    # An error is null as a whole wherever the score itself is a closed form.
    objects = {name: named[name] or keys for name, keys in NESTED.items() if not name.endswith("_error")}
    return unnested(named | objects)


def flat_of_network(found: NetworkScores | None) -> dict[str, Any]:
    """Scores by name, each with its parts `.error`, `.floor` and `.floor_error`, and the number of functions."""
    if found is None:
        return {}
    parts = {f"{name}.{part}": number for name, score in found.scores.items() for part, number in score}
    return {name.removesuffix(".value"): number for name, number in parts.items()} | {"functions": found.functions}


def unnested(values: Mapping[str, Any], between: str = ".") -> dict[str, Any]:
    """Flattens nested mappings. Unlike `pandas.json_normalize`, it keeps integers as they are."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= {f"{name}{between}{key}": each for key, each in unnested(value, between).items()}
        else:
            found[name] = value
    return found


def shared(frame: pd.DataFrame) -> dict[str, Any]:
    """For each column, the value that all rows share, or a list of the distinct values."""
    found = {str(name): column[~column.astype(str).duplicated()].dropna().tolist() for name, column in frame.items()}
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def cells_of(records: Sequence[Record]) -> pd.DataFrame:
    """The frame of records with all scores of a summary; `words` has the settings in which a method's rows differ.

    Raises:
        InputError: there are two tasks of one split, or two results of one cell. Rows may have cells of different
            `code_sha256`; reports and `status` say so.
    """
    frame = frame_of(records)
    for (dataset, split), tasks in frame.groupby(["dataset", "split"])["task_sha256"]:
        if tasks.nunique() > 1:
            raise InputError(
                f"the records are of two tasks of {dataset} split {split}; use a separate output folder for each"
            )
    for cell in frame[frame.duplicated([*CELL, "settings"])].itertuples():
        raise InputError(
            f"the records have {cell.dataset} split {cell.split} {cell.method} {cell.family} seed {cell.seed} twice, "
            "from two versions of the code, kernels or references; use a separate output folder for each"
        )
    scores = scores_in(frame)
    frame = frame.reindex(columns=frame.columns.union(scores, sort=False)).astype(dict.fromkeys(scores, float)).copy()
    return frame.assign(words=_words(frame, records))


def scores_in(frame: pd.DataFrame) -> list[str]:
    """The scores of summaries: `SCORES`, and those of networks if there are any."""
    return list(dict.fromkeys([*SCORES, *(OF_NETWORKS if MARK in frame else ())]))


def _words(frame: pd.DataFrame, records: Sequence[Record]) -> pd.Series[str]:
    """Each setting that varies, written as YAML, and a remark if the method's model has its own prior."""
    settings = [[_setting(name, json.dumps(value)) for name, value in r.hyperparameters.items()] for r in records]
    pairs = frame[["method"]].assign(pair=pd.Series(settings, dtype=object)).explode("pair")
    varies = pairs.groupby(["method", pairs["pair"].str.partition("=")[0]])["pair"].transform("nunique") > 1
    own_prior = pairs["pair"] == "prior=own"
    told = pairs["pair"].mask(own_prior & ~varies, "(own prior)")[varies | own_prior]
    return told.groupby(level=0).agg(" ".join).reindex(frame.index, fill_value="")


@cache
def _setting(name: str, value: str) -> str:
    """A setting from its value as JSON, in which 1, 1.0 and true differ."""
    return setting(name, json.loads(value))


def summary_of(cells: pd.DataFrame) -> pd.DataFrame:
    """Summaries over splits, by data set in the cells' order; one row per line of a table and score in `SCORES`.

    `cells` is the number of cells, `ok`, `diverged` and `failed` count them by status, `splits` is the number of
    splits with scores, and `judged` has the splits of which every cell finished or diverged. Seeds are averaged within
    a split first, so that all splits have equal weight. Mean and standard error are over the splits with scores; since
    these overlap, the error understates the variation on new data. In medians, quartiles and the range, the KL of a
    split that diverged is infinite, and so is any other distance. All are missing if no cell finished or a finished
    cell lacks the score. `repeats_kl`: the score is the KL of q's moments and equals that of q, as for every Gaussian.
    """
    by_dataset = cells.sort_values("dataset", key=lambda names: pd.factorize(names)[0], kind="stable")
    lines = [line for _, of_row in by_dataset.groupby(ROW, sort=False) for line in _lines(of_row)]
    columns = [*ROW, "words", "cells", *STATUSES, "splits", "judged", "score", *NUMBERS, "repeats_kl"]
    return pd.DataFrame(lines, columns=columns).astype(dict.fromkeys(NUMBERS, float) | {"repeats_kl": bool})


def _lines(cells: pd.DataFrame) -> Iterator[dict[str, Any]]:
    finished = cells[cells["status"] == "ok"]
    scores = scores_in(cells)
    means = finished.groupby("split")[scores].mean()
    counts = cells["status"].value_counts().reindex(STATUSES, fill_value=0)
    row = {**cells[[*ROW, "words"]].iloc[0], "cells": len(cells), **counts, "splits": len(means), "repeats_kl": False}
    lost = dict.fromkeys(cells.loc[cells["status"] == "diverged", "split"], math.inf)
    row["judged"] = frozenset({*means.index, *lost} - {*cells.loc[cells["status"] == "failed", "split"]})
    kl = math.nan
    for score in scores:
        line = row | {"score": score}
        if len(finished) and finished[score].notna().all():
            ranked = pd.Series({**means[score], **(lost if score in DIVERGES else {})})
            spread = spread_of(means[score].to_numpy())
            kl = spread.mean if score == "kl" else kl
            line |= spread_of(ranked.to_numpy())._asdict() | {"mean": spread.mean}
            line["standard_error"] = spread.standard_deviation / math.sqrt(len(means))
            line["repeats_kl"] = score == "kl_moment_matched" and spread.mean == kl
        yield line


def result_table(records: Sequence[Record], width: int) -> Terminal | Group:
    """Median and quartiles over splits, with one line per data set, method, family and settings.

    Networks have a table of their own. If `width` is too small, quartiles are left out first, and then columns. If the
    rest is too wide, so is the table: the terminal breaks its lines, but no number is cut.
    """
    parts: dict[bool, list[Record]] = {False: [], True: []}
    for record in records:
        parts[network_name(record.dataset, record.split) is not None].append(record)
    tables = [_result_table(part, width, networks) for networks, part in parts.items() if part]
    return tables[0] if len(tables) == 1 else Group(*tables)


def _result_table(records: Sequence[Record], width: int, networks: bool) -> Terminal:
    cells = cells_of(records)
    summary = summary_of(cells)
    whole = shown_scores(summary, networks)
    narrow = [score for score in whole if COLUMNS[score].get("narrow")]
    needed: list[int] = []
    for scores, quartiles in product((whole, narrow), (whole, ["kl"], [])):
        table = _terminal(summary, scores, quartiles, cells)
        needed.append(_least_width(table))
        if needed[-1] <= width:
            break
    table.width = needed[-1] if needed[-1] > width else None
    lost = (summary["diverged"] * summary["ok"]).any()
    several = lost or (summary["splits"] > 1).any()
    units = UNITS_OF_NETWORKS if networks else UNITS
    of_splits = (OVER_SPLITS if quartiles else MEDIANS) if several else ONE_SPLIT
    remarks = [of_splits if summary["splits"].any() else "", units, MEANS if several else ""]
    remarks += [DIVERGED if lost else "", own_prior(summary), FLOORS if MARK in cells else ""]
    if scores is narrow:
        remarks.append(f"A terminal of {needed[2]} columns shows all scores.")
    elif several and quartiles is not whole:
        remarks.append(f"A terminal of {needed[0]} columns shows all quartiles.")
    table.caption = " ".join(filter(None, remarks))
    return table


def posterior_table(posteriors: Sequence[tuple[str, str, Scores]], width: int) -> Terminal:
    """Data set and split, file, and scores of posterior files, with the columns and headings of `result_table`.

    If `width` is too small, it has only the columns that narrow tables have. If these are too wide, so is the table:
    the terminal breaks its lines, but no number is cut.
    """
    named = [(task, file, flat(scores)) for task, file, scores in posteriors]
    whole = _shown([scores["kl"] for _, _, scores in named])
    needed: list[int] = []
    for chosen in (whole, [score for score in whole if SHOWN[score].get("narrow")]):
        columns = ("task", "file", *(SHOWN[score]["heading"] for score in chosen))
        rows: list[list[Cell]] = [
            [task, file, *(_score(scores, score) for score in chosen)] for task, file, scores in named
        ]
        table = Table(columns=columns, rows=rows).terminal()
        _shape(table, columns, [file for _, file, _ in named])
        needed.append(_least_width(table))
        if needed[-1] <= width:
            break
    table.width = needed[-1] if needed[-1] > width else None
    remark = f" A terminal of {needed[0]} columns shows all scores." if len(needed) > 1 else ""
    table.caption = f"{UNITS}{remark}"
    return table


def _score(scores: Mapping[str, Any], name: str) -> Written:
    value = math.nan if scores[name] is None else scores[name]
    repeats_kl = name == "kl_moment_matched" and value == scores["kl"]
    text = "–" if math.isnan(value) else "=" if repeats_kl else three_digits(value, rounding_of(name))
    return Written(value, text)


def own_prior(summary: pd.DataFrame) -> str:
    """The remark for tables in which some rows have their own prior; else empty."""
    return OWN_PRIOR if summary["settings"].str.contains('"prior":"own"').any() else ""


def shown_scores(summary: pd.DataFrame, networks: bool) -> list[str]:
    """The scores that a table of these rows shows. The KL of the moments is left out if all are Gaussian."""
    if networks:
        known = set(summary.loc[summary["mean"].notna(), "score"]) or set(SCORES)  # nothing finished
        return [score for score in OF_NETWORKS if score in known]
    return _shown(summary[(summary["score"] == "kl") & (summary["ok"] > 0)]["mean"])


def _shown(kls: Iterable[float | None]) -> list[str]:
    gaussian = all(kl is not None and math.isfinite(kl) for kl in kls)
    return [score for score in SHOWN if score != "kl_moment_matched" or not gaussian]


def _terminal(summary: pd.DataFrame, scores: Sequence[str], quartiles: Sequence[str], cells: pd.DataFrame) -> Terminal:
    rows: list[Sequence[Cell]] = []
    for first, written in written_rows(summary, scores, lambda n: format_spread(n, n["score"] in quartiles)):
        if not rows or rows[-1][0] != first["dataset"]:
            found = floors(cells, first["dataset"], scores)
            rows += [(first["dataset"], f"{each.draws:,} {EXACT_DRAWS}{each.remark}", *each.cells) for each in found]
        rows.append((first["dataset"], " ".join(filter(None, first[["method", "family", "words"]])), *written))
    columns = ("data set", "method", *headings(scores))
    table = Table(columns=columns, rows=rows).terminal(sections=True)
    _shape(table, columns, [str(row[1]) for row in rows])
    return table


class Floors(NamedTuple):
    """What a number of exact draws score."""

    draws: int
    remark: str  #: the methods that have as many functions, in brackets; empty for the number that most have
    cells: list[Written]  #: of their row: the number of splits, and medians over these


def floors(cells: pd.DataFrame, dataset: str, scores: Sequence[str]) -> list[Floors]:
    """The floors of a network's scores, for each number of functions that a method has, the largest first.

    There are none for a linear task, or if no cell finished.
    """
    own = cells[cells["dataset"] == dataset].reindex(columns=[*cells.columns.union(["functions"])])
    own = own[own["functions"].notna()]
    usual = own.drop_duplicates(["method", "family", "settings"])["functions"].mode().max()
    names, found = [f"{score}.floor" for score in scores], list[Floors]()
    for functions in sorted(own["functions"].unique(), reverse=True):
        of_as_many = own[own["functions"] == functions]
        remark = "" if functions == usual else f" ({', '.join(sorted(of_as_many['method'].unique()))})"
        splits = of_as_many.drop_duplicates("split").reindex(columns=names)
        shown = [Written(value, "–" if math.isnan(value) else three_digits(value)) for value in splits.median()]
        found.append(Floors(int(functions), remark, [Written(len(splits), str(len(splits))), *shown]))
    return found


def _shape(table: Terminal, columns: Sequence[str], names: Sequence[str]) -> None:
    """Breaks the headings; of the cells, only the names in the second column may take several lines."""
    for column, lines in zip(table.columns, _broken(columns), strict=True):
        column.header, column.no_wrap = lines, True
    table.columns[1].no_wrap, table.columns[1].overflow = False, "fold"
    longest = max(len(word) for name in [columns[1], *names] for word in name.split())
    table.columns[1].min_width = min(longest, LONGEST_WORD)


def _broken(names: Sequence[str]) -> list[str]:
    """Headings of few characters per line, their last lines level with each other."""
    lines = [wrap(name, 8, break_long_words=False) for name in names]
    return ["\n" * (max(map(len, lines)) - len(each)) + "\n".join(each) for each in lines]


def _least_width(table: Terminal) -> int:
    """The least width of a table, with the methods' names on several lines."""
    names, console = table.columns[1], Console(width=UNLIMITED)
    names.max_width = names.min_width
    least = Measurement.get(console, console.options, table).maximum
    names.max_width = None
    return least


def headings(scores: Sequence[str]) -> list[str]:
    """The headings of the cells from `written_rows`."""
    return ["splits", *(COLUMNS[score]["heading"] for score in scores)]


def written_rows(
    summary: pd.DataFrame, scores: Sequence[str], form: Callable[[pd.Series], str]
) -> Iterator[tuple[pd.Series, list[Written]]]:
    """Yields the first summary line of each table row, and the cells of the row: its splits and these scores."""
    for _, lines in summary[summary["score"].isin(scores)].groupby(ROW, sort=False):
        lines = lines.sort_values("score", key=lambda names: names.map(list(scores).index))
        first = lines.iloc[0]
        lost = f"({first['cells'] - first['ok']} not ok)" if first["ok"] < first["cells"] else ""
        splits = Written(first["splits"], str(first["splits"]), lost)
        yield first, [splits, *(_written(line, form) for _, line in lines.iterrows())]


def _written(number: pd.Series, form: Callable[[pd.Series], str]) -> Written:
    """A line of a summary in this form, or its status, or a dash if the score does not apply."""
    if not number["ok"]:
        text = {0: "failed", number["cells"]: "diverged"}.get(number["diverged"], "not ok")
    elif math.isnan(number["mean"]):
        text = "–"
    else:
        text = "=" if number["repeats_kl"] else form(number)
    text, bracket, ends = text.partition(" [")
    note = f"{bracket}{ends}".strip()
    return Written(number["median"], text, note, number.get("interval", ""), number.get("best", False))


def rounding_of(score: str) -> float:
    """Values below it are rounding errors; none of a score in the target's unit, which may be as small as one likes."""
    return 0.0 if score == "rmse" else ROUNDING


def format_spread(number: pd.Series, quartiles: bool = True) -> str:
    """`36.7 [36.3, 37.1]`; only the median for equal numbers and those that are 0 up to rounding."""
    rounding = rounding_of(number["score"])
    median, *ends = (three_digits(number[name], rounding) for name in ("median", "lower_quartile", "upper_quartile"))
    if not quartiles or number["smallest"] == number["largest"] or set(ends) == {"0"}:
        return median
    return f"{median} [{', '.join(ends)}]"


def three_digits(value: float, rounding: float = ROUNDING) -> str:
    """`0.0123`, `36.7`, `12346`; 0 below `rounding`; small and large numbers with powers of ten."""
    if not math.isfinite(value):
        return in_words(value)
    if abs(value) < rounding or not value:
        return "0"
    size = abs(float(f"{value:.2e}"))  # as written: 99.95 has no decimals
    if not 1e-3 <= size < 1e6:
        return re.sub(r"e\+?(-?)0?", r"e\1", f"{value:.2e}")
    return f"{value:.{max(0, 2 - math.floor(math.log10(size)))}f}"


def format_mean(number: pd.Series) -> str:
    """`36.71 ± 0.42`, with two digits of the error; small and large numbers with powers of ten."""
    mean, error, rounding = number["mean"], number["standard_error"], rounding_of(number["score"])
    if not math.isfinite(mean):
        return in_words(mean)
    if abs(mean) < rounding or not mean:
        if not error >= rounding or not error:
            return "0"
        mean = 0.0
    if not 0 < error < math.inf:
        return f"{mean:#.4g}".removesuffix(".")
    last = math.floor(math.log10(float(f"{error:.1e}"))) - 1  # power of ten of the error's last digit, as it is written
    size = abs(round(mean, -last))
    exponent = math.floor(math.log10(size)) if 0 < size < 1e-3 or size >= HUGE else 0
    decimals = max(0, exponent - last)
    mantissas = f"{mean / 10**exponent:.{decimals}f} ± {error / 10**exponent:.{decimals}f}"
    return f"({mantissas})e{exponent}" if exponent else mantissas
