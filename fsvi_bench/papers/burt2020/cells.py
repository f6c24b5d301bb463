"""What the figures of Burt et al. (2020) share: cells as a tidy frame, spreads by line, and words for settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fsvi_bench.methods.registry import load_method
from fsvi_bench.papers.places import Cells
from fsvi_bench.presenting import frames
from fsvi_bench.presenting.traces import spread_of

NAMED = ["dataset", "split", "seed", "method", "family"]
SETTINGS = {"M": "Int64", "kl_jitter": "float64", "max_steps": "Int64"}  #: <NA> or NaN for what a method does not have
LINE = ["dataset", "method", "family", "M", "kl_jitter"]  #: the columns that make one line of tables and one mark
SHOWN = [*NAMED, *SETTINGS, "settings", "task_sha256", "cell", "status", "reason", "kl", "kl_mean_term", "nlpd"]


def frame_of(cells: Cells) -> pd.DataFrame:
    """A row per planned cell: names, settings, status ("missing" without a record), KL (nats) and NLPD (nats per test
    point in the target's original unit)."""
    planned: list[Any] = [*cells.records, *cells.missing]
    found = frames.frame_of(planned).rename(columns=lambda name: name.removeprefix("settings."))
    found = found.assign(cell=[each.cell for each in planned]).reindex(columns=SHOWN)
    return found.astype({**SETTINGS, "kl": "float64", "kl_mean_term": "float64", "nlpd": "float64"})


def spread_by_line(cells: pd.DataFrame, score: str) -> pd.DataFrame:
    """Of each line: median, quartiles, mean and its standard error over splits, and how many are finished and planned.

    NaN where nothing finished, and for the standard error of one split and of infinite values.
    """
    lines = [
        dict(zip(LINE, line, strict=True))
        | _spread(group[score].dropna())
        | {"finished": group["status"].eq("ok").sum(), "planned": len(group)}
        for line, group in cells.groupby(LINE, sort=False, dropna=False)
    ]
    return pd.DataFrame(lines).astype({"M": SETTINGS["M"]})


def _spread(values: pd.Series) -> dict[str, float | None]:
    if values.empty:
        return dict.fromkeys(("median", "lower", "upper", "mean", "error"), np.nan)
    spread = spread_of(values.to_numpy())
    error = spread.standard_deviation / np.sqrt(len(values))
    quartiles = {"lower": spread.lower_quartile, "upper": spread.upper_quartile}
    return {"median": spread.median, **quartiles, "mean": spread.mean, "error": error}


def title_of(method: str) -> str:
    """A method's name in print."""
    return load_method(method).defaults.title


def in_words(jitter: float) -> str:
    """A jitter, such as `1e-6`."""
    return f"{jitter:g}".replace("e-0", "e-")


def settings_in_words(cells: pd.DataFrame, quick: bool) -> dict[str, Any]:
    """What titles say of the cells: how many there are, sizes of A, steps, splits, jitters."""
    there, planned = cells["status"].ne("missing").sum(), len(cells)
    words = f"{'quick look: ' if quick else ''}{there:,}{f' of {planned:,}' if there < planned else ''} cells"
    return {
        "cells": words,
        "steps": _steps_in_words(cells),
        "sizes": ", ".join(map(str, sorted(cells["M"].dropna().unique()))),
        "splits": cells["split"].nunique(),
    }


def _steps_in_words(cells: pd.DataFrame) -> str:
    """The steps that most methods may take, and which take others; nothing if none takes steps."""
    takers = cells.dropna(subset="max_steps").groupby("max_steps", sort=False)["method"].unique()
    if takers.empty:
        return ""
    usual = takers.map(len).idxmax()
    others = [f"{title_of(name)}: {steps:,}" for steps, names in takers.drop(usual).items() for name in names]
    return f"up to {usual:,} steps" + (f" ({'; '.join(others)})" if others else "")
