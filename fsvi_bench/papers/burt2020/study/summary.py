"""The study's tables as tidy frames: spreads and medians by line, pivots by data set, and what figures show."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fsvi_bench.papers.burt2020.cells import spread_by_line, title_of
from fsvi_bench.papers.burt2020.scores import LOWEST
from fsvi_bench.papers.burt2020.study.claims import M
from fsvi_bench.papers.burt2020.study.table import CLOSENESS, RATIOS, SCORES, Tables
from fsvi_bench.presenting.figures import FAINT, NO_LOGARITHM, span

SPECTRUM_EDGES = (1e-5, 1e3)  #: ratios of variances; what lies beyond is marked at the edge
_OF_LINE = ["dataset", "line", "M", "kl_jitter"]


def frames_of(tables: Tables, judged: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What `tables.csv` and the figures show."""
    cells = named(tables.cells)
    known = cells["kl_at_objective_optimum"].notna()
    cells["left_undone"] = cells["objective_gap"].where(known)  # what is above the best that was found is a lower bound
    lines = cells.groupby(_OF_LINE, sort=False, dropna=False)
    scores = [*SCORES, "left_undone", *CLOSENESS, *RATIOS, "gradients", "train_seconds"]
    sources = cells[cells["code"] != ""].groupby(["line", "code", "hardware"], sort=False).size()
    plain = cells[cells["M"].fillna(M).eq(M) & ~(cells["kl_jitter"] > 0)]
    curves, drifting = named(tables.curves), cells["method"].eq("fixed-a") & ~(cells["kl_jitter"] > 0)
    return {
        "spreads": pd.concat(spread_by_line(cells, name).assign(score=name) for name in ("kl", "nlpd", "rmse")),
        "medians": lines[scores].median().reset_index(),
        "optima": lines["kl_at_objective_optimum"].count().reset_index(name="splits"),
        "courses": courses(curves),
        "jitter": jitter_pairs(cells).groupby(["dataset", "line"], sort=False)[["ratio", "nlpd_above", "alike"]]
        .agg(["median", "min", "max", "mean"]).pipe(_flat),
        "sources": sources.reset_index(name="cells"),
        "verdicts": judged,
        "curves": _drawn(curves[curves["M"] == M], plain),
        "drift": _drawn(curves[curves["method"] == "fixed-a"], cells[drifting]),
        "spectrum": _spectrum(plain),
    }  # fmt: skip


def page_tables(tables: Tables) -> dict[str, pd.DataFrame]:
    """A line per method and family and a column per data set: medians over splits at M = 80 without jitter, of some
    splits alone where it says so; and what is lacking."""
    cells = named(tables.cells)
    lost = cells["status"].isin(["diverged", "failed"])
    cells["kl"] = cells["kl"].mask(cells["kl"].abs() < NO_LOGARITHM, 0.0).mask(lost, math.inf)
    plain = cells[~(cells["kl_jitter"] > 0) & (cells["line"] != "EXACT full")]
    usual = plain[plain["M"].fillna(M).eq(M)]
    drift = courses(named(tables.curves))
    lacking = cells[cells["status"] != "ok"]
    return {
        "overview": by_dataset(usual, "kl"),
        "largest": by_dataset(plain[plain["M"].eq(160)], "kl"),
        "optimum": by_dataset(usual[usual["method"].isin(["exact", "fixed-a", "rand-a"])], "kl_at_objective_optimum"),
        "ratios": by_dataset(usual, "spectrum_50"),
        "rises": by_dataset(drift[drift["M"].eq(M)], "rise"),
        "jitter": by_dataset(jitter_pairs(cells), "ratio"),
        "lacking": lacking.groupby(["dataset", "line"], sort=False)["status"].value_counts().unstack(fill_value=0)
        .join(lacking.groupby(["dataset", "line"])["reason"].agg(_reasons))
        .rename_axis(index=["data set", "method"], columns=None).reset_index(),
    }  # fmt: skip


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """With the name of the method, and of the line that it makes with its family."""
    titles = frame["method"].map({method: title_of(method) for method in frame["method"].unique()})
    return frame.assign(title=titles, line=titles + " " + frame["family"])


def by_dataset(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Medians in words."""
    if frame.empty:
        return pd.DataFrame()
    words = frame.pivot_table(column, "line", "dataset", _median_in_words, sort=False, fill_value="–")
    return words.sort_index(axis=1).rename_axis(index="method", columns=None).reset_index()


def _median_in_words(values: pd.Series) -> str:
    known = values.dropna()
    return number(known.median()) + (f" (of {len(known)})" if 0 < len(known) < len(values) else "")


def number(value: float) -> str:
    """Three significant digits, more of large ones, with a true minus. Rounding errors about 0 are not hidden."""
    if math.isnan(value):
        return "–"
    words = f"{value:,.0f}" if 999.5 <= abs(value) < 999_999.5 else f"{value + 0.0:.3g}"
    return words.replace("inf", "∞").replace("e+0", "e").replace("e+", "e").replace("e-0", "e-").replace("-", "−")


def courses(curves: pd.DataFrame) -> pd.DataFrame:
    """Of each line's median KL after the first step: its least and its last, how many times the least the last is, and
    how many times the last finite one the one at two thirds of these steps."""
    rows = []
    for _, points in curves[curves["steps"] > 0].groupby(_OF_LINE, sort=False):
        least, last, finite = points.iloc[points["kl"].argmin()], points.iloc[-1], points[np.isfinite(points["kl"])]
        earlier = finite.loc[3 * finite["steps"] <= 2 * finite["steps"].max(), "kl"]
        row = {name: last[name] for name in _OF_LINE} | {"least_kl": least["kl"], "at_step": least["steps"]}
        row |= {"last_kl": last["kl"], "last_step": last["steps"], "cells": last["cells"]}
        row["rise"] = last["kl"] / least["kl"] if NO_LOGARITHM < least["kl"] < math.inf else math.nan
        row["fall"] = earlier.iloc[-1] / finite["kl"].iloc[-1] if len(earlier) else math.nan
        rows.append(row)
    return pd.DataFrame(
        rows, columns=[*_OF_LINE, "least_kl", "at_step", "last_kl", "last_step", "cells", "rise", "fall"]
    )


def jitter_pairs(cells: pd.DataFrame) -> pd.DataFrame:
    """Finished cells with jitter beside those without on the same split; `alike` are of the same code and machine."""
    ok = cells[cells["status"] == "ok"]
    on = ["dataset", "split", "line", "M"]
    pairs = ok[ok["kl_jitter"] > 0].merge(ok[ok["kl_jitter"] == 0], on=on, suffixes=("", "_without"))
    return pairs.assign(
        ratio=(pairs["kl"] / pairs["kl_without"]).where(pairs["kl_without"] > NO_LOGARITHM),
        nlpd_above=pairs["nlpd"] - pairs["nlpd_without"],
        alike=(pairs["code"] == pairs["code_without"]) & (pairs["hardware"] == pairs["hardware_without"]),
    )


def _reasons(reasons: pd.Series) -> str:
    return "; ".join(reasons[reasons != ""].str.replace(r"step [\d,]+", "some step", regex=True).unique())


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_axis(["_".join(column) for column in frame.columns], axis=1).reset_index()


def _drawn(curves: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """What a figure of curves shows; `edge` tells the KLs that are infinite or too small, and stand at an end."""
    # Backwards: what comes first in tables lies on top.
    points = curves[(curves["steps"] > 0) & (curves["seconds"] > 0)][::-1].sort_values("dataset", kind="stable")
    top = points["kl"].where(np.isfinite(points["kl"])).groupby(points["dataset"]).transform("max").fillna(1.0)
    names = {"shown": "kl", "lower": "kl_lower_quartile", "upper": "kl_upper_quartile"}
    clipped = {shown: points[name].clip(LOWEST, top) for shown, name in names.items()}
    edge = np.select([points["kl"] > top, points["kl"] < LOWEST], ["above", "below"], "")
    size = points["family"] + ", M = " + points["M"].astype(str)
    return _with_panels(points.assign(**clipped, edge=edge, size=size), cells)


def _spectrum(cells: pd.DataFrame) -> pd.DataFrame:
    """Medians of the finished by line and quantile of the directions."""
    keys = ["dataset", "title", "line", "M"]
    lines = cells[cells["status"] == "ok"].groupby(keys, sort=False, dropna=False)
    ratios = lines[list(RATIOS)].median().reset_index().melt(keys, var_name="quantile", value_name="ratio")
    low, high = SPECTRUM_EDGES
    edge = np.select([ratios["ratio"] < low, ratios["ratio"] > high], ["below", "above"], "")
    short = ratios["line"].str.replace(", natural gradients", " n.g.")
    return _with_panels(ratios.assign(shown=ratios["ratio"].clip(low, high), edge=edge, short=short), cells)


def _with_panels(frame: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Panels are called by their data sets, with how many splits finished if some did not: lines of such are faint."""
    status = cells.groupby(["dataset", "line", "M"], sort=False, dropna=False)["status"]
    counts = status.agg(finished=lambda column: column.eq("ok").sum(), planned="size").reset_index()
    counts = counts.astype({"finished": int, "planned": int})
    panels = {}
    for name, of in counts.groupby("dataset"):
        words = f"{name}, {span(of['finished'].tolist())} of {span(of['planned'].tolist())}"
        panels[name] = name if (of["finished"] == of["planned"]).all() else words
    found = frame.merge(counts, "left", ["dataset", "line", "M"])
    faint = found["finished"] < found["planned"]
    return found.assign(panel=found["dataset"].map(panels), opacity=np.where(faint, FAINT, 1.0))
