"""The study's tables as tidy frames: spreads and medians by line, pivots by data set, and what figures show."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fsvi_bench.papers.burt2020.cells import FAINT, span, spread_by_line, title_of
from fsvi_bench.papers.burt2020.study.claims import M, verdict_table
from fsvi_bench.papers.burt2020.study.table import CLOSENESS, RATIOS, SCORES, Tables
from fsvi_bench.presenting.figures import NO_LOGARITHM

_OF_LINE = ["dataset", "line", "M", "kl_jitter"]


def frames_of(tables: Tables, judged: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What `tables.csv` and the figures show."""
    cells, curves = named(tables.cells), named(tables.curves)
    known = cells["kl_at_objective_optimum"].notna()
    cells["left_undone"] = cells["objective_gap"].where(known)  # what is above the best that was found is a lower bound
    cells["kl_where_no_optimum_is_known"] = cells["kl"].where(~known)
    lines = cells.groupby(_OF_LINE, sort=False, dropna=False)
    scores = [*SCORES, "left_undone", *CLOSENESS, *RATIOS, "gradients", "train_seconds", "kl_where_no_optimum_is_known"]
    sources = cells[cells["code"] != ""].groupby(["line", "code", "hardware"], sort=False).size()
    pairs = jitter_pairs(cells).groupby(["dataset", "line"], sort=False)[["ratio", "nlpd_above", "alike"]]
    plain = cells[~(cells["kl_jitter"] > 0)]
    usual = plain[plain["M"].fillna(M).eq(M)]
    return {
        "spreads": pd.concat(spread_by_line(cells, name).assign(score=name) for name in ("kl", "nlpd", "rmse")),
        "medians": lines[scores].median().reset_index(),
        "optima": lines["kl_at_objective_optimum"].count().reset_index(name="splits"),
        "courses": courses(curves),
        "jitter": _flat(pairs.agg(["median", "min", "max", "mean"])),
        "sources": sources.reset_index(name="cells"),
        "verdicts": judged,
        "curves": _drawn(curves[curves["M"] == M], usual),
        "drift": _drawn(curves[curves["method"] == "fixed-a"], plain[plain["method"] == "fixed-a"]),
        "spectrum": _spectrum(usual),
    }


def page_tables(tables: Tables, judged: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """A line per method and family and a column per data set: medians over splits at M = 80 without jitter, of some
    splits alone where it says so; what is lacking; and the verdicts."""
    cells, drift = named(tables.cells), courses(named(tables.curves))
    lost = cells["status"].isin(["diverged", "failed"])
    cells["kl"] = cells["kl"].mask(cells["kl"].abs() < NO_LOGARITHM, 0.0).mask(lost, math.inf)
    plain = cells[~(cells["kl_jitter"] > 0) & (cells["line"] != "EXACT full")]
    usual = plain[plain["M"].fillna(M).eq(M)]
    return {
        "overview": by_dataset(usual, "kl"),
        "largest": by_dataset(plain[plain["M"].eq(160)], "kl"),
        "optimum": by_dataset(usual[usual["method"].isin(["exact", "fixed-a", "rand-a"])], "kl_at_objective_optimum"),
        "ratios": by_dataset(usual, "spectrum_50"),
        "rises": by_dataset(drift[drift["M"].eq(M)], "rise"),
        "jitter": by_dataset(jitter_pairs(cells), "ratio"),
        "lacking": _lacking(cells[cells["status"] != "ok"]),
        "verdicts": verdict_table(judged),
    }


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """With the name of the method, and of the line that it makes with its family."""
    titles = frame["method"].map({method: title_of(method) for method in frame["method"].unique()})
    return frame.assign(title=titles, line=titles + " " + frame["family"])


def by_dataset(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Medians in words."""
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
    points = curves[curves["steps"] > 0]
    finite = points[np.isfinite(points["kl"])]
    two_thirds = finite[3 * finite["steps"] <= 2 * finite.groupby(_OF_LINE)["steps"].transform("max")]
    least = points.sort_values("kl", kind="stable").groupby(_OF_LINE).first()
    last, last_finite, earlier = (part.groupby(_OF_LINE, sort=False).last() for part in (points, finite, two_thirds))
    columns = {
        "least_kl": least["kl"],
        "at_step": least["steps"],
        "last_kl": last["kl"],
        "last_step": last["steps"],
        "cells": last["cells"],
        "rise": (last["kl"] / least["kl"]).where(least["kl"].between(NO_LOGARITHM, math.inf, inclusive="neither")),
        "fall": earlier["kl"] / last_finite["kl"],
    }
    return pd.DataFrame(columns, last.index).reset_index()


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


def _lacking(cells: pd.DataFrame) -> pd.DataFrame:
    """How many cells of a line are missing, diverged or failed, and the reasons."""
    lines = cells.groupby(["dataset", "line"], sort=False)
    counts = lines["status"].value_counts().unstack(fill_value=0).join(lines["reason"].agg(_reasons))
    return counts.rename_axis(index=["data set", "method"], columns=None).reset_index()


def _reasons(reasons: pd.Series) -> str:
    return "; ".join(reasons[reasons != ""].str.replace(r"step [\d,]+", "some step", regex=True).unique())


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_axis(["_".join(column) for column in frame.columns], axis=1).reset_index()


def _drawn(curves: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """What a figure of curves shows, backwards: what comes first in tables lies on top."""
    points = curves[(curves["steps"] > 0) & (curves["seconds"] > 0)][::-1].sort_values("dataset", kind="stable")
    return _with_panels(points.assign(size=points["family"] + ", M = " + points["M"].astype(str)), cells)


def _spectrum(cells: pd.DataFrame) -> pd.DataFrame:
    """Medians of the finished by line and quantile of the directions."""
    keys = ["dataset", "title", "line", "M"]
    lines = cells[cells["status"] == "ok"].groupby(keys, sort=False, dropna=False)
    ratios = lines[list(RATIOS)].median().reset_index().melt(keys, var_name="quantile", value_name="ratio")
    short = ratios["line"].str.replace(", natural gradients", " n.g.")
    return _with_panels(ratios.assign(short=short, place=pd.factorize(short)[0]), cells)


def _with_panels(frame: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Panels are called by their data sets, with how many splits finished if some did not: lines of such are faint."""
    line = ["dataset", "line", "M"]
    lines = cells.assign(finished=cells["status"] == "ok").groupby(line, sort=False, dropna=False)
    counts = lines["finished"].agg(finished="sum", planned="size").reset_index()
    panels = {
        dataset: f"{dataset}, {span([*of['finished']])} of {span([*of['planned']])}"
        for dataset, of in counts.groupby("dataset")
        if (of["finished"] < of["planned"]).any()
    }
    found = frame.merge(counts, "left", line)
    panel = found["dataset"].map(lambda name: panels.get(name, name))
    return found.assign(panel=panel, opacity=np.where(found["finished"] < found["planned"], FAINT, 1.0))
