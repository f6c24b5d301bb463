"""Records to rows: one row per data set, method, family and settings, averaged over splits."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json
from fsvi_bench.running.cell import Record

SCORES = (
    "kl", "kl_moment_matched", "kl_mean_term", "reverse_kl", "w2_moments", "predictive_kl_test", "predictive_kl_box",
    "nlpd", "nlpd_moment_matched", "rmse",
)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """A mean over splits and its standard error (None with one split)."""

    mean: float
    standard_error: float | None


@dataclass(frozen=True)
class Row:
    """One line of the result table. `cells` counts the records, `finished` those that went into the means, `diverged`
    those of the others that did not fail."""

    dataset: str
    method: str
    family: str
    hyperparameters: dict[str, object]
    cells: int
    finished: int
    splits: int
    scores: dict[str, Estimate]  #: without those that do not apply to some record
    diverged: int = 0


def summarise(records: Sequence[Record]) -> list[Row]:
    """Rows by data set, in the records' order. Seeds are averaged within a split first: each split weighs the same.

    The standard error is over splits; they overlap, so it understates what a fresh data set would show.

    Raises:
        InputError: results of two tasks, or of two versions of the code, stand in for one cell: they are never mixed.
    """
    _refuse_mixtures(records)
    groups: dict[tuple[str, str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        settings = canonical_json(record.hyperparameters)
        groups[record.dataset, record.method, record.family, settings].append(record)
    datasets = list(dict.fromkeys(record.dataset for record in records))
    return [_row(group) for group in sorted(groups.values(), key=lambda group: datasets.index(group[0].dataset))]


def _refuse_mixtures(records: Sequence[Record]) -> None:
    tasks: dict[tuple[str, int], str] = {}
    cells: set[tuple[object, ...]] = set()
    for r in records:
        if r.task_sha256 is not None and tasks.setdefault((r.dataset, r.split), r.task_sha256) != r.task_sha256:
            raise InputError(f"the records hold two tasks of {r.dataset} split {r.split}; show their results apart")
        cell = (r.dataset, r.split, r.method, r.family, canonical_json(r.hyperparameters), r.seed)
        if cell in cells:
            name = f"{r.dataset} split {r.split} {r.method} {r.family} seed {r.seed}"
            raise InputError(
                f"the records hold {name} twice, from two versions of the code or sets of kernels; show their results "
                "apart"
            )
        cells.add(cell)


def _row(group: Sequence[Record]) -> Row:
    first = group[0]
    finished = [record for record in group if record.scores is not None]
    by_split: dict[int, list[Record]] = defaultdict(list)
    for record in finished:
        by_split[record.split].append(record)
    estimates = {}
    for name in SCORES if finished else ():
        values = [[getattr(record.scores, name) for record in records] for records in by_split.values()]
        if not any(value is None for of_split in values for value in of_split):
            estimates[name] = estimate([fmean(of_split) for of_split in values])
    return Row(
        dataset=first.dataset,
        method=first.method,
        family=first.family,
        hyperparameters=first.hyperparameters,
        cells=len(group),
        finished=len(finished),
        splits=len(by_split),
        scores=estimates,
        diverged=sum(record.status == "diverged" for record in group),
    )


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and standard error of the mean; an infinite value makes the mean infinite and the error unknown."""
    array = np.asarray(values)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(array.mean())
        if len(values) < 2 or not np.isfinite(array).all():
            return Estimate(mean, None)
        error = float(array.std(ddof=1) / math.sqrt(len(values)))
    return Estimate(mean, error if math.isfinite(error) else None)
