"""Figures 2 to 4 of Burt et al. (2020): KL and NLPD of every method, in figures 3 and 4 by size of A."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fsvi_bench.papers.burt2020.cells import frame_of, settings_in_words, spread_by_line, title_of
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.presenting.figures import FAINT, span
from fsvi_bench.running.plan import Request

DEFAULT = 80  #: what has no size, as EXACT, looks like this one
LOWEST = 0.1  #: a KL below this is an arrow at the lower edge: with M ≥ k some methods reach 0 but for rounding
FAR = 10.0  #: a mean KL so many times above all quartiles is off the axis: few splits made it
BLOCK = {"full": -0.24, "ffg": 0.24}  #: a family's place in a method's column of width 1
WIDTH = 0.42  #: of the block, in which sizes stand side by side, and to their right those with jitter
APART = 0.12  #: of two sizes at most
BESIDE = 0.043  #: a mean's place, to the right of its median


def compare_scores(request: Request, laboratory: Laboratory) -> Findings:
    """Scores by data set, method, family, size of A and jitter, over splits."""
    cells = frame_of(laboratory.cells)
    return Findings(frames={"scores": scores_by_line(cells, laboratory.quick), "cells": cells})


def scores_by_line(cells: pd.DataFrame, quick: bool) -> pd.DataFrame:
    """A row per line and score: its spread over splits, and where and how its mark stands."""
    lines = pd.concat([spread_by_line(cells, score).assign(score=score) for score in ("kl", "nlpd")], ignore_index=True)
    by_method, by_dataset = cells.groupby(["dataset", "method"], sort=False), cells.groupby("dataset")
    lines = lines.merge(by_method.apply(_column).rename("column"), on=["dataset", "method"])
    lines = lines.merge(by_dataset.apply(_panel, sorted(cells["M"].dropna().unique())).rename("panel"), on="dataset")
    sized, exact = lines["M"].notna(), lines["method"].eq("exact")
    slots = lines.loc[sized].groupby(["kl_jitter", "M"]).ngroup().reindex(lines.index)
    step = slots - slots.max() / 2
    highest = lines["upper"].where(np.isfinite(lines["upper"])).groupby([lines["dataset"], lines["score"]])
    lines = lines.assign(
        far=lines["score"].eq("kl") & (lines["mean"] > FAR * highest.transform("max")),
        mean_low=lines["mean"] - lines["error"],
        mean_high=lines["mean"] + lines["error"],
        size=lines["family"] + ", M = " + lines["M"].fillna(DEFAULT).astype(str),
        place=lines["method"].map({method: place for place, method in enumerate(cells["method"].unique())}),
        shift=lines["family"].map(BLOCK) + min(APART, WIDTH / (slots.max() + 1)) * step.fillna(0.0),
        fill=np.where(lines["kl_jitter"] > 0, 0.0, 1.0),
        opacity=np.where(lines["finished"] < lines["planned"], FAINT, 1.0),
        level=exact & (lines["score"].ne("kl") | lines["median"].ge(LOWEST)),
    ).sort_values("dataset", kind="stable")
    lines["beside"] = lines["shift"] + BESIDE
    lines.attrs = settings_in_words(cells, quick)
    return lines


def _column(cells: pd.DataFrame) -> str:
    """A method's name, and how many of the planned splits finished, and how many cells did not (✗), unless all did."""
    name = title_of(cells.name[1]).replace(", natural gradients", "\nnat. grad.")
    if cells["status"].eq("ok").all():
        return name
    finished = cells["status"].eq("ok").groupby([cells["family"], cells["M"], cells["kl_jitter"]], dropna=False).agg(["sum", "size"])
    lost = cells["status"].isin(["diverged", "failed"]).sum()
    counts = f"{span(finished['sum'].tolist())}/{span(finished['size'].tolist())}"
    return "\n".join([name, counts, *([f"{lost} ✗"] if lost else [])])


def _panel(cells: pd.DataFrame, sizes: list[int]) -> str:
    """A data set's name, and its sizes where others have more."""
    own = sorted(cells["M"].dropna().unique())
    return f"{cells.name}" + (f", M = {', '.join(map(str, own))} only" if own and own != sizes else "")


BURT2020_FIG2 = Experiment("burt2020-fig2", Request, compare_scores)
BURT2020_FIG3 = Experiment("burt2020-fig3", Request, compare_scores, takes_days=True)
BURT2020_FIG4 = Experiment("burt2020-fig4", Request, compare_scores, takes_days=True)
