"""The result table of a data set as a page shows it: numbers, what they are sorted by, and which are best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fsvi_bench.presenting.report.comparison import held_out_ratio, supported_best
from fsvi_bench.presenting.report.study import FAMILIES, REFERENCE, Entry, Study
from fsvi_bench.presenting.summary import estimate
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
MEANINGS = {
    "kl": "Kullback–Leibler divergence from q to the exact posterior over the weights, nats",
    "kl_moment_matched": "KL of the Gaussian with q’s moments, nats: a lower bound for any q with a density",
    "kl_mean_term": "the part of the KL that the means make, nats",
    "predictive_kl_test": "mean KL from the exact predictive to q’s over the test inputs, nats",
    "predictive_kl_box": "the same over 1,000 fixed inputs in the bounding box of the training inputs, nats",
    "nlpd": "negative log predictive density, nats per test point in the target’s own unit",
    "rmse": "root mean square error of the predictive mean in the target’s own unit",
    SECONDS: "training seconds of one cell, its batch’s divided by the batch’s size",
}


@dataclass(frozen=True)
class Column:
    """A heading and what it means; `kind` is how it is sorted."""

    key: str
    heading: str
    meaning: str
    kind: str = "number"


@dataclass(frozen=True)
class Number:
    """A cell of the table. `sort` is a number, `Infinity`, or empty where there is none."""

    text: str
    sort: str
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
    columns: list[Column]
    reference: list[Line]
    lines: list[Line]
    own_prior: str


def result_tables(study: Study) -> list[ResultTable]:
    """One per data set, in order."""
    return [_result_table(study, dataset) for dataset in study.datasets]


def _result_table(study: Study, dataset: str) -> ResultTable:
    entries = study.entries_on(dataset)
    rows = {entry: study.rows[dataset, entry] for entry in entries}
    columns = {**score_columns(list(rows.values())), SECONDS: "train, s"}
    best = {
        (family, score): supported_best(study, dataset, family, score)
        for family in FAMILIES
        for score in columns
        if score != SECONDS
    }
    ratio = held_out_ratio(dataset)
    lines = [
        Line(
            entry,
            count_words(row),
            row.splits,
            [_number(study, dataset, entry, score, ratio, best.get((entry.family, score))) for score in columns],
        )
        for entry, row in rows.items()
    ]
    own = any(row.hyperparameters.get("prior") == "own" for row in rows.values())
    return ResultTable(
        dataset=dataset,
        target=_target(dataset),
        columns=[Column(key, heading, MEANINGS[key]) for key, heading in columns.items()],
        reference=[line for line in lines if line.entry.method == REFERENCE],
        lines=[line for line in lines if line.entry.method != REFERENCE],
        own_prior=OWN_PRIOR if own else "",
    )


def _number(study: Study, dataset: str, entry: Entry, score: str, ratio: float, best: Entry | None) -> Number:
    row = study.rows[dataset, entry]
    if not row.finished:
        return Number(unfinished_word(row), "")
    if score == SECONDS:
        return _seconds(study, dataset, entry)
    if score not in row.scores:
        return Number("–", "")
    value = row.scores[score]
    values = study.by_split(dataset, entry, score)
    # The mean is over all finished cells: where a split lacks a seed, an interval of whole splits is not that mean's.
    interval = _interval(list(values.values()), ratio) if len(values) == row.splits else ""
    text = "=" if same_as_kl(row, score) else format_estimate(value)
    return Number(text, sort_key(value.mean), interval, best == entry)


def _seconds(study: Study, dataset: str, entry: Entry) -> Number:
    by_split: dict[int, list[float]] = {}
    for record in study.finished(dataset, entry):
        if record.seconds is not None:
            by_split.setdefault(record.split, []).append(record.seconds.train)
    if not by_split:
        return Number("–", "")
    value = estimate([fmean(seeds) for seeds in by_split.values()])
    return Number(f"{value.mean:.3g}", sort_key(value.mean))


def sort_key(value: float) -> str:
    """All digits, or the word that a page's script reads as infinity."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _interval(values: Sequence[float], ratio: float) -> str:
    """Nadeau and Bengio's 95 % interval in as many digits as its width asks for."""
    if not values:
        return ""
    interval = corrected_interval(values, ratio)
    if interval.low is None or interval.high is None:
        return ""
    return f"{_digits(interval.low, interval)} to {_digits(interval.high, interval)}"


def _digits(end: float, interval: tuple[float, float | None, float | None]) -> str:
    _, low, high = interval
    width = (high or 0.0) - (low or 0.0)
    if not width or max(abs(high or 0.0), abs(low or 0.0)) < 1e-3:
        return f"{end:.2g}"
    return f"{end:.{max(0, 2 - math.floor(math.log10(width)) - 1)}f}"


def _target(dataset: str) -> str:
    if dataset not in card_names():
        return ""
    target = load_card(dataset).target
    return f"{target.meaning} ({target.unit})"
