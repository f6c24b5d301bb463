"""Figures 2 to 4 of Burt et al. (2020): KL and NLPD of every method, in figures 3 and 4 by size of A."""

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
from fsvi_bench.papers.experiment import Frames, Laboratory
from fsvi_bench.running.options import Request

DEFAULT = 80  #: what has no size, as EXACT, looks like this one
LOWEST = 0.1  #: a KL below this is an arrow at the lower edge: with M ≥ k some methods reach 0 but for rounding
FAR = 10.0  #: a mean KL so many times above all quartiles is off the axis: few splits made it
BLOCK = {"full": -0.24, "ffg": 0.24}  #: a family's place in a method's column of width 1
WIDTH = 0.42  #: of the block, in which sizes stand side by side, and to their right those with jitter
APART = 0.12  #: of two sizes at most
BESIDE = 0.043  #: a mean's place, to the right of its median


def compare_scores(request: Request, laboratory: Laboratory) -> Frames:
    """Scores by data set, method, family, size of A and jitter, over splits."""
    cells = frame_of(laboratory.cells)
    return {"scores": scores_by_line(cells, laboratory.workshop.quick), "cells": cells}


def scores_by_line(cells: pd.DataFrame, quick: bool) -> pd.DataFrame:
    """A row per line and score: its spread over splits, and where and how its mark stands."""
    lines = pd.concat([spread_by_line(cells, score).assign(score=score) for score in ("kl", "nlpd")], ignore_index=True)
    of_methods = lines[lines["score"] == "kl"].groupby(["dataset", "method"]).apply(_column).rename("column")
    of_datasets = cells.groupby("dataset").apply(_panel, sorted(cells["M"].dropna().unique())).rename("panel")
    lines = _drawn(lines).merge(of_methods, on=["dataset", "method"]).merge(of_datasets, on="dataset")
    lines = lines.sort_values("dataset", kind="stable")
    lines.attrs.update(settings_in_words(cells, quick))
    return lines


def _drawn(lines: pd.DataFrame) -> pd.DataFrame:
    """With the place and the look of each mark."""
    of_kl, quartiles = lines["score"].eq("kl"), lines["upper"].where(np.isfinite(lines["upper"]))
    highest = quartiles.groupby([lines["dataset"], lines["score"]]).transform("max")
    slots = lines[lines["M"].notna()].groupby(["kl_jitter", "M"]).ngroup().reindex(lines.index)
    step = (slots - slots.max() / 2).fillna(0.0)  # what has no size stands in the middle
    shift = lines["family"].map(BLOCK) + step * min(APART, WIDTH / (slots.max() + 1))
    return lines.assign(
        mean_low=lines["mean"] - lines["error"],
        mean_high=lines["mean"] + lines["error"],
        far=of_kl & (lines["mean"] > FAR * highest),
        level=lines["method"].eq("exact") & (~of_kl | lines["median"].ge(LOWEST)),
        place=pd.factorize(lines["method"])[0],
        shift=shift,
        beside=shift + BESIDE,
        size=lines["family"] + ", M = " + lines["M"].fillna(DEFAULT).astype(str),
        fill=np.where(lines["kl_jitter"] > 0, 0.0, 1.0),
        opacity=np.where(lines["finished"] < lines["planned"], FAINT, 1.0),
    )


def _column(lines: pd.DataFrame) -> str:
    """A method's name, and how many of the planned splits finished, and how many cells did not (✗), unless all did."""
    name = title_of(lines.name[1]).replace(", natural gradients", "\nnat. grad.")
    lost = f"{lines['lost'].sum()} ✗" if lines["lost"].any() else ""
    return "\n".join(filter(None, [name, finished_in_words(lines, "/"), lost]))


def _panel(cells: pd.DataFrame, sizes: list[int]) -> str:
    """A data set's name, and its sizes where others have more."""
    own = sorted(cells["M"].dropna().unique())
    return f"{cells.name}" + (f", M = {', '.join(map(str, own))} only" if own and own != sizes else "")
