"""Shared by the figures of Burt et al. (2020): cells as a tidy frame, spreads by line, and text for settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.methods.registry import load_method
from fsvi_bench.papers.workspace import Cells, Scale
from fsvi_bench.presenting import summary
from fsvi_bench.presenting.traces import spread_of
from fsvi_bench.running.cell import Record
from fsvi_bench.tasks.official import find_task
from fsvi_bench.tasks.task import Task, bind_task

SAID: dict[Scale, str] = {"quick": "preview: ", "medium": "medium scale: ", "paper": ""}  #: in titles
FAINT = 0.4  #: opacity of marks with fewer cells than planned
NAMED = ["dataset", "split", "seed", "method", "family"]
SETTINGS = {"M": "Int64", "kl_jitter": "float64", "max_steps": "Int64"}  #: missing if a method has no such setting
SPREAD = ["median", "lower", "upper", "mean", "error", "finished", "lost", "planned"]
LOST = ["diverged", "failed"]  #: statuses of cells that ran but have no score
LINE = ["dataset", "method", "family", "M", "kl_jitter"]  #: the columns that identify a line of tables, or a mark
SHOWN = [*NAMED, *SETTINGS, "settings", "task_sha256", "cell", "status", "reason", "kl", "kl_mean_term", "nlpd"]


def frame_of(cells: Cells) -> pd.DataFrame:
    """One row per planned cell: names, settings, status ("missing" without a record), KL (nats) and NLPD (nats per test
    point in the target's original unit)."""
    planned: list[Any] = [*cells.records, *cells.missing]
    found = summary.frame_of(planned).rename(columns=lambda name: name.removeprefix("settings."))
    found = found.assign(cell=[each.cell for each in planned]).reindex(columns=SHOWN)
    return found.astype({**SETTINGS, "kl": "float64", "kl_mean_term": "float64", "nlpd": "float64"})


def problem_of(record: Record, data_dir: Path | None) -> Task:
    """The task of a record, with its data.

    Raises:
        InputError: the task or its raw data are not available.
    """
    certified = find_task(record.dataset, record.split)
    if certified is None or certified.task.sha256 != record.task_sha256:
        raise InputError(
            f"the records of {record.dataset} split {record.split} are of task {str(record.task_sha256)[:12]}, which "
            "is neither official nor cached; rerun them here, or copy the cache from the machine of that run"
        )
    return bind_task(certified.task, data_dir)


def spread_by_line(cells: pd.DataFrame, score: str) -> pd.DataFrame:
    """By line, the median, quartiles, mean and its standard error over splits, and the numbers of finished, lost
    (diverged or failed) and planned cells.

    Values are NaN if no cell has finished; the standard error is NaN for one split and for infinite values.
    """
    rows = []
    for line, group in cells.groupby(LINE, sort=False, dropna=False):
        known, status = group[score].dropna(), group["status"]
        spread = spread_of(known.to_numpy() if len(known) else np.array([np.nan]))
        error = spread.standard_deviation / np.sqrt(len(known))
        values = [spread.median, spread.lower_quartile, spread.upper_quartile, spread.mean, error]
        rows.append([*line, *values, status.eq("ok").sum(), status.isin(LOST).sum(), len(status)])
    return pd.DataFrame(rows, columns=[*LINE, *SPREAD]).astype({"M": SETTINGS["M"]})


def finished_in_words(lines: pd.DataFrame, of: str) -> str:
    """How many of the planned splits have finished, such as `3–20/20`; empty if all have."""
    if lines["finished"].equals(lines["planned"]):
        return ""
    ends = lines[["finished", "planned"]].agg(["min", "max"])
    return of.join("–".join(map(str, ends[name].unique())) for name in ends)


def title_of(method: str) -> str:
    """A method's display name."""
    return load_method(method).defaults.title


def in_words(jitter: float) -> str:
    """A jitter as text, such as `1e-6`."""
    return f"{jitter:g}".replace("e-0", "e-")


def settings_in_words(cells: pd.DataFrame, scale: Scale) -> dict[str, Any]:
    """Text for titles: the number of cells, sizes of A, steps and splits."""
    there, planned = cells["status"].ne("missing").sum(), len(cells)
    words = f"{SAID[scale]}{there:,}{f' of {planned:,}' if there < planned else ''} cells"
    return {
        "cells": words,
        "steps": _steps_in_words(cells),
        "sizes": ", ".join(map(str, sorted(cells["M"].dropna().unique()))),
        "splits": cells["split"].nunique(),
    }


def _steps_in_words(cells: pd.DataFrame) -> str:
    """The number of steps of most methods, and of the others; empty if no method takes steps."""
    takers = cells.dropna(subset="max_steps").groupby("max_steps", sort=False)["method"].unique()
    if takers.empty:
        return ""
    usual = takers.map(len).idxmax()
    others = [f"{title_of(name)}: {steps:,}" for steps, names in takers.drop(usual).items() for name in names]
    return f"up to {usual:,} steps" + (f" ({'; '.join(others)})" if others else "")
