"""The study's tables as tidy frames: spreads and medians by line, pivots by data set, and data for figures."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fsvi_bench.papers.burt2020.cells import FAINT, LOST, finished_in_words, spread_by_line, title_of
from fsvi_bench.papers.burt2020.study.claims import M, verdict_table
from fsvi_bench.papers.burt2020.study.table import CLOSENESS, RATIOS, SCORES, Tables
from fsvi_bench.presenting.frames import Frames
from fsvi_bench.presenting.tables import ROUNDING

_OF_LINE = ["dataset", "line", "M", "kl_jitter"]


def frames_of(tables: Tables, judged: pd.DataFrame) -> Frames:
    """Frames for `tables.csv`, the figures and the page."""
    cells, curves = named(tables.cells), named(tables.curves)
    known, lost = cells["kl_at_objective_optimum"].notna(), cells["status"].isin(LOST)
    cells = cells.assign(
        known_objective_gap=cells["objective_gap"].where(known),  # relative to the best value found it is a lower bound
        kl_without_known_optimum=cells["kl"].where(~known),
        distance=cells["kl"].mask(cells["kl"].abs() < ROUNDING, 0.0).mask(lost, math.inf),
    )
    plain = cells[~(cells["kl_jitter"] > 0)]
    usual = plain[plain["M"].fillna(M).eq(M)]
    pairs, course = jitter_pairs(cells), courses(curves)
    return {
        **_by_line(cells, pairs),
        **_by_dataset(plain, usual),
        "courses": course,
        "rises": by_dataset(course[course["M"].eq(M)], "rise"),
        "jitter": by_dataset(pairs, "ratio"),
        "without_scores": _without_scores(cells[cells["status"] != "ok"]),
        "judged": judged,
        "verdicts": verdict_table(judged),
        "curves": _drawn(curves[curves["M"] == M], usual),
        "drift": _drawn(curves[curves["method"] == "fixed-a"], plain[plain["method"] == "fixed-a"]),
        "spectrum": _spectrum(usual),
    }


def _by_line(cells: pd.DataFrame, pairs: pd.DataFrame) -> Frames:
    lines = cells.groupby(_OF_LINE, sort=False, dropna=False)
    scores = [
        *SCORES,
        "known_objective_gap",
        *CLOSENESS,
        *RATIOS,
        "gradients",
        "train_seconds",
        "kl_without_known_optimum",
    ]
    run = cells[cells["code"] != ""].groupby(["line", "code", "hardware"], sort=False)
    paired = pairs.groupby(["dataset", "line"], sort=False)[["ratio", "nlpd_above", "same_version"]]
    jitter = paired.agg(["median", "min", "max", "mean"])
    return {
        "spreads": pd.concat(spread_by_line(cells, name).assign(score=name) for name in ("kl", "nlpd", "rmse")),
        "medians": lines[scores].median().reset_index(),
        "optima": lines["kl_at_objective_optimum"].count().reset_index(name="splits"),
        "jitter by line": jitter.set_axis(jitter.columns.map("_".join), axis=1).reset_index(),
        "sources": run.size().reset_index(name="cells"),
    }


def _by_dataset(plain: pd.DataFrame, usual: pd.DataFrame) -> Frames:
    """Medians over splits without jitter, at M = 80 except for the largest A."""
    inexact = usual[usual["line"] != "EXACT full"]
    of_objectives = inexact[inexact["method"].isin(["exact", "fixed-a", "rand-a"])]
    return {
        "overview": by_dataset(inexact, "distance"),
        "largest": by_dataset(plain[plain["M"].eq(160)], "distance"),
        "optimum": by_dataset(of_objectives, "kl_at_objective_optimum"),
        "ratios": by_dataset(inexact, "spectrum_50"),
    }


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """Adds the method's title, and the name of the line of method and family."""
    titles = frame["method"].map({method: title_of(method) for method in frame["method"].unique()})
    return frame.assign(title=titles, line=titles + " " + frame["family"])


def by_dataset(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Medians as text: a line per method and family, a column per data set; entries over fewer splits are marked."""
    words = frame.pivot_table(column, "line", "dataset", _median_in_words, sort=False, fill_value="–")
    return words.sort_index(axis=1).rename_axis(index="method", columns=None).reset_index()


def _median_in_words(values: pd.Series) -> str:
    known = values.dropna()
    return number(known.median()) + (f" (of {len(known)})" if 0 < len(known) < len(values) else "")


def number(value: float) -> str:
    """Three significant digits, more for large numbers, with a minus sign. Rounding errors around 0 are not hidden."""
    if math.isnan(value):
        return "–"
    words = f"{value:,.0f}" if 999.5 <= abs(value) < 999_999.5 else f"{value + 0.0:.3g}"
    return words.replace("inf", "∞").replace("e+0", "e").replace("e+", "e").replace("e-0", "e-").replace("-", "−")


def courses(curves: pd.DataFrame) -> pd.DataFrame:
    """For each line's median KL after the first step: the smallest and the last value, their ratio, and the ratio of
    the value at two thirds of the steps to the last finite one."""
    points = curves[curves["steps"] > 0]
    finite = points[np.isfinite(points["kl"])]
    two_thirds = finite[3 * finite["steps"] <= 2 * finite.groupby(_OF_LINE)["steps"].transform("max")]
    rising = points.sort_values("kl", kind="stable").groupby(_OF_LINE)
    least = rising.agg(least_kl=("kl", "first"), at_step=("steps", "first"))
    last, last_finite, earlier = (part.groupby(_OF_LINE, sort=False).last() for part in (points, finite, two_thirds))
    ends = last[["kl", "steps", "cells"]].set_axis(["last_kl", "last_step", "cells"], axis=1)
    found = least.join(ends, how="right")
    above = found["last_kl"] / found["least_kl"]
    found["rise"] = above.where(found["least_kl"].between(ROUNDING, math.inf, inclusive="neither"))
    found["fall"] = earlier["kl"] / last_finite["kl"]
    return found.reset_index()


def jitter_pairs(cells: pd.DataFrame) -> pd.DataFrame:
    """Finished cells with jitter paired with those without, by split; `same_version`: the same code and machine."""
    ok = cells[cells["status"] == "ok"]
    on = ["dataset", "split", "line", "M"]
    pairs = ok[ok["kl_jitter"] > 0].merge(ok[ok["kl_jitter"] == 0], on=on, suffixes=("", "_without"))
    return pairs.assign(
        ratio=(pairs["kl"] / pairs["kl_without"]).where(pairs["kl_without"] > ROUNDING),
        nlpd_above=pairs["nlpd"] - pairs["nlpd_without"],
        same_version=(pairs["code"] == pairs["code_without"]) & (pairs["hardware"] == pairs["hardware_without"]),
    )


def _without_scores(cells: pd.DataFrame) -> pd.DataFrame:
    """The numbers of missing, diverged and failed cells of each line, and the reasons."""
    lines = cells.groupby(["dataset", "line"], sort=False)
    counts = lines["status"].value_counts().unstack(fill_value=0).join(lines["reason"].agg(_reasons))
    return counts.rename_axis(index=["data set", "method"], columns=None).reset_index()


def _reasons(reasons: pd.Series) -> str:
    return "; ".join(reasons[reasons != ""].str.replace(r"step [\d,]+", "some step", regex=True).unique())


def _drawn(curves: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Data for a figure of curves, in reverse order, so that dashes of lines with the same start do not overlap."""
    points = curves[(curves["steps"] > 0) & (curves["seconds"] > 0)][::-1].sort_values("dataset", kind="stable")
    return _with_panels(points.assign(size=points["family"] + ", M = " + points["M"].astype(str)), cells)


def _spectrum(cells: pd.DataFrame) -> pd.DataFrame:
    """Medians over finished cells, by line and quantile of the directions."""
    keys = ["dataset", "method", "family", "line", "M"]
    lines = cells[cells["status"] == "ok"].groupby(keys, sort=False, dropna=False)
    ratios = lines[list(RATIOS)].median().reset_index().melt(keys, var_name="quantile", value_name="ratio")
    short = ratios["line"].str.replace(", natural gradients", " n.g.")
    return _with_panels(ratios.assign(short=short, place=pd.factorize(short)[0]), cells)


def _with_panels(frame: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Adds panel titles: data sets, with the number of finished splits if not all finished. Such lines are faint."""
    line = ["dataset", "method", "family", "M"]
    counts = spread_by_line(cells, "kl")[[*line, "finished", "planned"]]
    panels = counts.groupby("dataset")[["finished", "planned"]].apply(_panel).rename("panel")
    found = frame.merge(counts, "left", line).merge(panels, on="dataset")
    return found.assign(opacity=np.where(found["finished"] < found["planned"], FAINT, 1.0))


def _panel(lines: pd.DataFrame) -> str:
    return ", ".join(filter(None, [str(lines.name), finished_in_words(lines, " of ")]))
