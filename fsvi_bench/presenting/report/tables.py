"""The result table of a data set as a page shows it: numbers, what they are sorted by, and which are best."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from fsvi_bench.presenting.report.comparison import held_out_ratio, supported_best
from fsvi_bench.presenting.report.study import FAMILIES, REFERENCE, Entry, Study
from fsvi_bench.presenting.summary import SHOWN
from fsvi_bench.presenting.table import (
    OWN_PRIOR,
    count_words,
    format_estimate,
    same_as_kl,
    score_columns,
    unfinished_word,
)
from fsvi_bench.statistics.resampled_t import corrected_interval
from fsvi_bench.tasks.card import card_names, load_card

SECONDS = "seconds"
MEANINGS = {name: score["meaning"] for name, score in SHOWN.items()}
MEANINGS[SECONDS] = "training seconds of one cell, its batch’s divided by the batch’s size"


@dataclass(frozen=True)
class Number:
    """A cell of the table. `sort` is a number, `Infinity`, or empty where there is none."""

    text: str
    sort: str = ""
    interval: str = ""
    best: bool = False


@dataclass(frozen=True)
class Line:
    """One entry on one data set."""

    entry: Entry
    splits: str
    finished: int
    numbers: list[Number]


@dataclass(frozen=True)
class ResultTable:
    """Lines of the exact posterior apart from the others."""

    dataset: str
    target: str  #: what is predicted, in its unit
    columns: dict[str, str]  #: headings by score
    reference: list[Line]
    lines: list[Line]
    own_prior: str


def result_tables(study: Study) -> list[ResultTable]:
    """One per data set, in order."""
    return [_result_table(study, dataset) for dataset in study.datasets]


def _result_table(study: Study, dataset: str) -> ResultTable:
    rows = {entry: study.rows[dataset, entry] for entry in study.entries_on(dataset)}
    scores = score_columns(list(rows.values()))
    best = {(family, score): supported_best(study, dataset, family, score) for family in FAMILIES for score in scores}
    lines = []
    for entry, row in rows.items():
        numbers = [_number(study, dataset, entry, score, best[entry.family, score] == entry) for score in scores]
        seconds = _seconds(study.finished(dataset, entry)) if row.finished else Number(unfinished_word(row))
        lines.append(Line(entry, count_words(row), row.splits, [*numbers, seconds]))
    target = load_card(dataset).target if dataset in card_names() else None
    return ResultTable(
        dataset=dataset,
        target="" if target is None else f"{target.meaning} ({target.unit})",
        columns=scores | {SECONDS: "train, s"},
        reference=[line for line in lines if line.entry.method == REFERENCE],
        lines=[line for line in lines if line.entry.method != REFERENCE],
        own_prior=OWN_PRIOR if any(row.hyperparameters.get("prior") == "own" for row in rows.values()) else "",
    )


def _number(study: Study, dataset: str, entry: Entry, score: str, best: bool) -> Number:
    row = study.rows[dataset, entry]
    if score not in row.scores:
        return Number("–" if row.finished else unfinished_word(row))
    value = row.scores[score]
    values = study.splits[dataset, entry][score].dropna()
    # The mean is over all finished cells: where a split lacks a seed, an interval of whole splits is not that mean's.
    interval = _interval(values, held_out_ratio(dataset)) if len(values) == row.splits else ""
    return Number("=" if same_as_kl(row, score) else format_estimate(value), sort_key(value.mean), interval, best)


def _seconds(finished: pd.DataFrame) -> Number:
    mean = finished.groupby("split")["seconds"].mean().mean()
    return Number("–") if math.isnan(mean) else Number(f"{mean:.3g}", sort_key(mean))


def sort_key(value: float) -> str:
    """All digits, or the word that a page's script reads as infinity."""
    return repr(float(value)).replace("inf", "Infinity")


def _interval(values: pd.Series[float], ratio: float) -> str:
    """Nadeau and Bengio's 95 % interval in as many digits as its width asks for."""
    _, low, high = corrected_interval(values, ratio)
    if low is None or high is None:
        return ""
    if low == high or max(abs(low), abs(high)) < 1e-3:
        return f"{low:.2g} to {high:.2g}"
    decimals = max(0, 1 - math.floor(math.log10(high - low)))
    return f"{low:.{decimals}f} to {high:.{decimals}f}"
