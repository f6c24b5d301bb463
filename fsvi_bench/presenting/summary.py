"""Cells to rows over splits: one per data set, method, family, settings and score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

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
ROW = ["dataset", "method", "family", "settings"]  #: columns that tell rows of result tables apart
STATUSES = ["ok", "diverged", "failed"]
NUMBERS = [*(field.name for field in fields(Spread)), "standard_error"]


def cells_of(records: Sequence[Record]) -> pd.DataFrame:
    """The frame of records, with all scores of a summary; and in `words` the settings in which a method's rows differ.

    Raises:
        InputError: results of two tasks, or of two versions of the code, stand in for one cell: they are never mixed.
    """
    frame = frame_of(records)
    for (dataset, split), tasks in frame.groupby(["dataset", "split"])["task_sha256"]:
        if tasks.nunique() > 1:
            raise InputError(f"the records hold two tasks of {dataset} split {split}; show their results apart")
    for cell in frame[frame.duplicated([*CELL, "settings"])].itertuples():
        raise InputError(
            f"the records hold {cell.dataset} split {cell.split} {cell.method} {cell.family} seed {cell.seed} twice, "
            "from two versions of the code or sets of kernels; show their results apart"
        )
    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, *SCORES]))).astype(dict.fromkeys(SCORES, float))
    return frame.assign(words=_words(frame, records))


def _words(frame: pd.DataFrame, records: Sequence[Record]) -> pd.Series[str]:
    """`name=value` for each setting that varies, and whether the method's model has a prior of its own."""
    settings = [[f"{name}={value}" for name, value in record.hyperparameters.items()] for record in records]
    pairs = frame[["method"]].assign(pair=pd.Series(settings, dtype=object)).explode("pair")
    varies = pairs.groupby(["method", pairs["pair"].str.partition("=")[0]])["pair"].transform("nunique") > 1
    own_prior = pairs["pair"] == "prior=own"
    told = pairs["pair"].mask(own_prior & ~varies, "(own prior)")[varies | own_prior]
    return told.groupby(level=0).agg(" ".join).reindex(frame.index, fill_value="")


def summary_of(cells: pd.DataFrame) -> pd.DataFrame:
    """By data set, in the cells' order; each row has all `SCORES`, whether they apply or not.

    `cells` counts these, `ok`, `diverged` and `failed` what became of them, and `splits` those that have scores. Seeds
    are averaged within a split first, so that each split weighs the same. Mean and standard error are over the splits
    that have scores; these overlap, so that the error understates what a fresh data set would show. In medians,
    quartiles and ends of the range the KL of a split that diverged is infinite. All are missing where nothing finished,
    or a finished cell lacks the score. `repeats_kl`: it is the KL of q's moments, and q's own, as for every Gaussian.
    """
    lines = [
        line
        for _, of_dataset in cells.groupby("dataset", sort=False)
        for _, of_row in of_dataset.groupby(ROW, sort=False)
        for line in _lines(of_row)
    ]
    columns = [*ROW, "words", "cells", *STATUSES, "splits", "score", *NUMBERS]
    summary = pd.DataFrame(lines, columns=columns).astype(dict.fromkeys(NUMBERS, float))
    # The line before is that of q's own KL.
    repeats_kl = (summary["score"] == "kl_moment_matched") & (summary["mean"] == summary["mean"].shift())
    return summary.assign(repeats_kl=repeats_kl)


def _lines(cells: pd.DataFrame) -> Iterator[dict[str, Any]]:
    scores, finished = list(SCORES), cells[cells["status"] == "ok"]
    means = finished.groupby("split")[scores].mean()
    applies = finished[scores].notna().all() & (len(finished) > 0)
    lost = cells.loc[cells["status"] == "diverged", "split"].unique()
    counts = cells["status"].value_counts().reindex(STATUSES, fill_value=0)
    row = {**cells[[*ROW, "words"]].iloc[0], "cells": len(cells), **counts, "splits": len(means)}
    for score in scores:
        numbers: dict[str, float] = {}
        if applies[score]:
            ranked = finished_splits = means[score]
            if score in DIVERGES:
                ranked = pd.Series({**finished_splits, **dict.fromkeys(lost, math.inf)})
            spread = spread_of(finished_splits.to_numpy())
            error = spread.standard_deviation / math.sqrt(len(means))
            numbers = vars(spread_of(ranked.to_numpy())) | {"mean": spread.mean, "standard_error": error}
        yield row | {"score": score} | numbers
