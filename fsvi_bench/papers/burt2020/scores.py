"""Figures 2 to 4 of Burt et al. (2020): KL and NLPD of every method; figures 3 and 4 by size of A."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fsvi_bench.papers.burt2020.cells import (
    FAINT,
    finished_in_words,
    frame_of,
    settings_in_words,
    spread_by_line,
    title_of,
)
from fsvi_bench.papers.experiment import ExperimentContext, Frames, Scale
from fsvi_bench.running.options import Request

DEFAULT = 80  #: size whose mark is used for methods without a size, such as EXACT
LOWEST = 0.1  #: a smaller KL is an arrow at the lower edge, since with M ≥ k some methods reach 0 up to rounding
OFF_AXIS = 10.0  #: a mean KL more than this factor above all quartiles is off the axis, since few splits dominate it
BLOCK = {"full": -0.24, "ffg": 0.24}  #: a family's place in a method's column of width 1
WIDTH = 0.42  #: of a family's block, which contains the sizes, and to their right those with jitter
LARGEST_STEP = 0.12  #: between the marks of two sizes
MEAN_OFFSET = 0.043  #: of the mean to the right of its median


def compare_scores(request: Request, context: ExperimentContext) -> Frames:
    """Scores by data set, method, family, size of A and jitter, over splits."""
    cells = frame_of(context.cells)
    return {"scores": scores_by_line(cells, context.workspace.scale), "cells": cells}


def scores_by_line(cells: pd.DataFrame, scale: Scale) -> pd.DataFrame:
    """One row per line and score: its spread over splits, and the place and style of its mark."""
    lines = pd.concat([spread_by_line(cells, score).assign(score=score) for score in ("kl", "nlpd")], ignore_index=True)
    of_methods = lines[lines["score"] == "kl"].groupby(["dataset", "method"]).apply(_column).rename("column")
    of_datasets = cells.groupby("dataset").apply(_panel, sorted(cells["M"].dropna().unique())).rename("panel")
    lines = _drawn(lines).merge(of_methods, on=["dataset", "method"]).merge(of_datasets, on="dataset")
    lines = lines.sort_values("dataset", kind="stable")
    lines.attrs.update(settings_in_words(cells, scale))
    return lines


def _drawn(lines: pd.DataFrame) -> pd.DataFrame:
    """Adds the place and style of each mark."""
    of_kl, quartiles = lines["score"].eq("kl"), lines["upper"].where(np.isfinite(lines["upper"]))
    highest = quartiles.groupby([lines["dataset"], lines["score"]]).transform("max")
    slots = lines[lines["M"].notna()].groupby(["kl_jitter", "M"]).ngroup().reindex(lines.index)
    step = (slots - slots.max() / 2).fillna(0.0)  # methods without a size are in the middle
    shift = lines["family"].map(BLOCK) + step * min(LARGEST_STEP, WIDTH / (slots.max() + 1))
    return lines.assign(
        mean_low=lines["mean"] - lines["error"],
        mean_high=lines["mean"] + lines["error"],
        far=of_kl & (lines["mean"] > OFF_AXIS * highest),
        level=lines["method"].eq("exact") & (~of_kl | lines["median"].ge(LOWEST)),
        place=pd.factorize(lines["method"])[0],
        shift=shift,
        mean_shift=shift + MEAN_OFFSET,
        size=lines["family"] + ", M = " + lines["M"].fillna(DEFAULT).astype(str),
        fill=np.where(lines["kl_jitter"] > 0, 0.0, 1.0),
        opacity=np.where(lines["finished"] < lines["planned"], FAINT, 1.0),
    )


def _column(lines: pd.DataFrame) -> str:
    """A method's name; unless all cells finished, also the numbers of finished splits and of lost cells (✗)."""
    name = title_of(lines.name[1]).replace(", natural gradients", "\nnat. grad.")
    lost = f"{lines['lost'].sum()} ✗" if lines["lost"].any() else ""
    return "\n".join(filter(None, [name, finished_in_words(lines, "/"), lost]))


def _panel(cells: pd.DataFrame, sizes: list[int]) -> str:
    """A data set's name, and its sizes of A if other data sets have more."""
    own = sorted(cells["M"].dropna().unique())
    return f"{cells.name}" + (f", M = {', '.join(map(str, own))} only" if own and own != sizes else "")
