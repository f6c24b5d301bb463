"""Cells to rows: one row per data set, method, family and settings, over splits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.presenting.frames import CELL, frame_of
from fsvi_bench.presenting.traces import Spread, spread_of
from fsvi_bench.resources import read_yaml
from fsvi_bench.running.cell import Record

#: Columns of result tables: name -> heading, meaning, and whether a narrow table has it.
SHOWN: dict[str, dict[str, str]] = read_yaml(Path(__file__).parent / "assets" / "scores.yaml")  # type: ignore[assignment]
SCORES = (*SHOWN, "reverse_kl", "w2_moments", "nlpd_moment_matched")
DIVERGES = [name for name in SCORES if "kl" in name]  #: infinite where q diverged
ROW = ["dataset", "method", "family", "settings"]  #: columns that tell rows apart


@dataclass(frozen=True)
class Estimate:
    """A mean over splits and its standard error (None with one split)."""

    mean: float
    standard_error: float | None


@dataclass(frozen=True)
class Row:
    """One line of the result table. `cells` counts the records, `finished` those that went into the scores, `diverged`
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
    #: Of the same scores; the KLs of splits that diverged are infinite here.
    spreads: Mapping[str, Spread] = field(default_factory=dict)


def summarise(records: Sequence[Record]) -> list[Row]:
    """Rows by data set, in the records' order. Seeds are averaged within a split first: each split weighs the same.

    The standard error is over splits; they overlap, so it understates what a fresh data set would show.

    Raises:
        InputError: results of two tasks, or of two versions of the code, stand in for one cell: they are never mixed.
    """
    frame = frame_of(records)
    _refuse_mixtures(frame)
    place = {name: place for place, name in enumerate(frame["dataset"].unique())}
    rows = [_row(cells) for _, cells in frame.groupby(ROW, sort=False)]
    return sorted(rows, key=lambda row: place[row.dataset])


def _refuse_mixtures(frame: pd.DataFrame) -> None:
    for (dataset, split), tasks in frame.groupby(["dataset", "split"])["task_sha256"]:
        if tasks.nunique() > 1:
            raise InputError(f"the records hold two tasks of {dataset} split {split}; show their results apart")
    for cell in frame[frame.duplicated([*CELL, "settings"])].itertuples():
        raise InputError(
            f"the records hold {cell.dataset} split {cell.split} {cell.method} {cell.family} seed {cell.seed} twice, "
            "from two versions of the code or sets of kernels; show their results apart"
        )


def _row(cells: pd.DataFrame) -> Row:
    dataset, method, family, settings = cells[ROW].iloc[0]
    finished = cells[cells["status"] == "ok"]
    whole = [name for name in SCORES if len(finished) and finished[name].notna().all()]
    by_split = finished.groupby("split")[whole].mean()
    lost = cells.loc[cells["status"] == "diverged", "split"]
    ordered = by_split.reindex(by_split.index.union(pd.Index(lost.unique())))
    ordered.loc[lost.unique(), by_split.columns.intersection(DIVERGES)] = math.inf
    return Row(
        dataset=dataset,
        method=method,
        family=family,
        hyperparameters=json.loads(settings),
        cells=len(cells),
        finished=len(finished),
        splits=len(by_split),
        scores={name: estimate(by_split[name]) for name in whole},
        diverged=len(lost),
        spreads={name: spread_of(ordered[name].dropna().to_numpy(float)) for name in whole},
    )


def estimate(values: Sequence[float] | pd.Series[float]) -> Estimate:
    """Mean and standard error of the mean; an infinite value makes the mean infinite and the error unknown."""
    array = np.asarray(values, dtype=float)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(array.mean())
        if len(array) < 2 or not np.isfinite(array).all():
            return Estimate(mean, None)
        error = float(array.std(ddof=1) / math.sqrt(len(array)))
    return Estimate(mean, error if math.isfinite(error) else None)
