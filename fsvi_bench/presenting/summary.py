"""Records as one tidy frame, a row per cell; and cells to rows over splits, one per line of a table and score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json
from fsvi_bench.presenting.traces import Spread, spread_of
from fsvi_bench.resources import read_yaml
from fsvi_bench.running.cell import Record
from fsvi_bench.scoring.predictive import LEVELS
from fsvi_bench.scoring.scores import Scores

#: Columns of result tables: name -> heading, meaning, and whether a narrow table has it.
SHOWN: dict[str, dict[str, Any]] = read_yaml(Path(__file__).parent / "assets" / "scores.yaml")  # type: ignore[assignment]
SCORES = list(dict.fromkeys([*SHOWN, "reverse_kl", "w2_moments", "nlpd_moment_matched"]))
DIVERGES = [name for name in SCORES if "kl" in name]  #: infinite where q diverged
ROW = ["dataset", "method", "family", "settings"]  #: columns that tell rows of result tables apart
CELL = ["dataset", "split", "method", "family", "seed"]
FACTS = [*CELL, "settings", "status", "reason", "task_sha256", "seconds"]
STATUSES = ["ok", "diverged", "failed"]
NUMBERS = [*(field.name for field in fields(Spread)), "standard_error"]


def frame_of(records: Sequence[Record]) -> pd.DataFrame:
    """One row per record, in their order. Columns: see `fsvi_bench.results`."""
    return pd.DataFrame(list(map(_row, records)), columns=None if records else FACTS)


def _row(record: Record) -> dict[str, Any]:
    row = {name: getattr(record, name, None) for name in FACTS}
    row |= {"settings": canonical_json(record.hyperparameters), "seconds": record.seconds and record.seconds.train}
    return row | unnested({"settings": record.hyperparameters}) | (flat(record.scores) if record.scores else {})


def flat(scores: Scores) -> dict[str, Any]:
    """Scores by their names, nested ones with a dot."""
    named = scores.model_dump(exclude=None if scores.intervals else {"intervals"})  # which only samples have
    return unnested(named | {"coverage": named["coverage"] or dict.fromkeys(LEVELS)})


def unnested(values: Mapping[str, Any], between: str = ".") -> dict[str, Any]:
    """One entry per key of mappings within mappings. `pandas.json_normalize` turns integers into floats."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= {f"{name}{between}{key}": each for key, each in unnested(value, between).items()}
        else:
            found[name] = value
    return found


def shared(frame: pd.DataFrame) -> dict[str, Any]:
    """What the rows of each column share, or a list of all their different values."""
    found = {str(name): column[~column.astype(str).duplicated()].dropna().tolist() for name, column in frame.items()}
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


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
    frame = frame.reindex(columns=frame.columns.union(SCORES, sort=False)).astype(dict.fromkeys(SCORES, float))
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
    own = summary["mean"].where(summary["score"] == "kl").groupby([summary[name] for name in ROW]).transform("first")
    repeats_kl = (summary["score"] == "kl_moment_matched") & (summary["mean"] == own)
    return summary.assign(repeats_kl=repeats_kl)


def _lines(cells: pd.DataFrame) -> Iterator[dict[str, Any]]:
    finished = cells[cells["status"] == "ok"]
    means = finished.groupby("split")[SCORES].mean()
    counts = cells["status"].value_counts().reindex(STATUSES, fill_value=0)
    row = {**cells[[*ROW, "words"]].iloc[0], "cells": len(cells), **counts, "splits": len(means)}
    lost = dict.fromkeys(cells.loc[cells["status"] == "diverged", "split"], math.inf)
    for score in SCORES:
        numbers: dict[str, float] = {}
        if len(finished) and finished[score].notna().all():
            ranked = pd.Series({**means[score], **(lost if score in DIVERGES else {})})
            spread = spread_of(means[score].to_numpy())
            error = spread.standard_deviation / math.sqrt(len(means))
            numbers = vars(spread_of(ranked.to_numpy())) | {"mean": spread.mean, "standard_error": error}
        yield row | {"score": score} | numbers
