"""The report's figures: the frames for `assets/figures.yaml`, and the size of each figure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fsvi_bench.presenting.looks import SPECS, looks
from fsvi_bench.presenting.plots import FigureSpec
from fsvi_bench.presenting.report.study import FAMILIES, REFERENCE, Entry, Study
from fsvi_bench.presenting.tables import ROUNDING
from fsvi_bench.presenting.traces import spread_along
from fsvi_bench.running.options import setting
from fsvi_bench.training.trace import Trace, TracePoint

WIDTH = 12.0  #: inches; the text width of the page
WIDEST = 5.2  #: maximum width of a panel, inches
LINE, METHOD_GAP = 0.2, 0.45  #: inches per line; the gap between methods as a fraction of it
AROUND = 1.0  #: inches above and below strips, in total
LETTER = 0.068  #: approximate width of a letter in labels, inches
MOST_LETTERS = 65  #: maximum length of labels; longer ones are truncated (the tables show them in full)
LEVELS = ("50", "90", "95")  #: levels of predictive intervals, in %
QUANTILES = {
    "least": 0,
    "lower": 5,
    "middle": 10,
    "upper": 15,
    "greatest": 20,
}  #: quantiles of a spectrum, in steps of 5%
PER_DECADE = 10  #: maximum number of points per decade of a curve; more cannot be distinguished at this width
DASHES = ("-", "--", ":", "-.")  #: line styles for different settings of a method
LINE_OF = ["dataset", "entry"]


def draw_strips(name: str, lines: pd.DataFrame, exact: pd.DataFrame) -> Figure:
    """The figure `kl`, `nlpd`, `spectrum` or `calibration`, with a panel for each data set."""
    letters, columns = lines["name"].str.len().max(), min(SPECS[name]["columns"], lines["dataset"].nunique())
    height, width = AROUND + LINE * lines["place"].max(), min(WIDTH, LETTER * letters + 0.5 + WIDEST * columns)
    return FigureSpec(**SPECS[name], height=LINE, row_height=height, width=width).of({"lines": lines, "exact": exact})


def lines_of(study: Study) -> pd.DataFrame:
    """The content of strips: one row per data set and entry, with the position of its line, or text for missing scores.

    Data sets without finished cells are left out.
    """
    summary = study.summary[study.summary.groupby("dataset")["ok"].transform("max") > 0]
    scores = {score: lines.set_index(LINE_OF) for score, lines in summary.groupby("score")}
    own = np.isfinite(scores["kl"]["mean"])
    scores["kl"] = scores["kl"].where(own, scores["kl_moment_matched"])
    lines = scores["kl"][["method", "family", "cells", "ok"]].assign(kl_own=own.astype(float), one=1.0)
    for score in ("kl", "nlpd"):
        low, median, high = (scores[score][part] for part in ("lower_quartile", "median", "upper_quartile"))
        high = high.where(np.isfinite(high), median)
        lines = lines.assign(**{score: median, f"{score}_low": low, f"{score}_high": high})
    inside = coverage(study.finished, "coverage", LINE_OF).add_prefix("inside_")
    lines = lines.join([_spectra(study.finished), inside]).sort_index().reset_index()
    lines["missing"] = np.where(lines["ok"] > 0, "unknown", "none finished")
    unfinished = (lines["cells"] - lines["ok"]).astype(str) + "/" + lines["cells"].astype(str)
    lines["unfinished"] = unfinished.where((lines["ok"] > 0) & (lines["ok"] < lines["cells"]), "")
    return lines.join(looks(lines["method"])).merge(_places(lines), on="entry")


def _places(lines: pd.DataFrame) -> pd.DataFrame:
    """The position of each entry's line, and its label."""
    entries = lines[["entry", "method"]].drop_duplicates().sort_values("entry", ignore_index=True)
    names = pd.Series([f"{each.method}   {each.family} {each.label}".strip() for each in entries["entry"]], dtype=str)
    short = names.str[: MOST_LETTERS - 1].str.rstrip() + "…"
    place = entries.index + METHOD_GAP * entries.groupby("method", sort=False).ngroup()
    return entries[["entry"]].assign(place=place, name=names.where(names.str.len() <= MOST_LETTERS, short))


def _spectra(finished: pd.DataFrame) -> pd.DataFrame:
    """The `QUANTILES` of the spectra: medians over the cells."""
    spectra = finished["overconfidence.quantiles"]
    parts = {name: spectra.str[place].astype(float) for name, place in QUANTILES.items()}
    return pd.DataFrame(parts).groupby([finished[name] for name in LINE_OF]).median()


def exact_lines(study: Study) -> pd.DataFrame:
    """The exact posterior's median NLPD and the coverage of its intervals, over all splits with finished cells."""
    inside = coverage(study.finished, "coverage_exact", ["dataset"]).reset_index().melt("dataset")
    of_splits = study.finished.groupby(["dataset", "split"])["nlpd_exact"].median()
    nlpd = of_splits.groupby("dataset").median().reset_index(name="value")
    return pd.concat([inside.assign(score="coverage"), nlpd.assign(score="nlpd")])


def coverage(finished: pd.DataFrame, of: str, by: list[str]) -> pd.DataFrame:
    """% of test targets inside the intervals by level, averaged over seeds, then splits; missing if not applicable."""
    shares = 100 * finished[[f"{of}.{level}" for level in LEVELS]].set_axis(LEVELS, axis=1).astype(float)
    splits = shares.groupby([finished[name] for name in (*by, "split")]).mean(skipna=False)
    return splits.groupby(level=by).mean(skipna=False)


def draw_curves(study: Study, dataset: str, curves: pd.DataFrame) -> Figure:
    """A row of panels for each family (and each M, if there are several), against steps and against seconds.

    The dashed line is the KL of the best q of the family, if it is not 0.
    """
    summary = study.summary
    best = summary[(summary["dataset"] == dataset) & (summary["method"] == REFERENCE) & (summary["score"] == "kl")]
    panels = curves[["panel", "family"]].drop_duplicates()
    families = panels["family"].nunique()
    columns = 2 * (families if len(panels) > families else 1)
    spec = FigureSpec(**SPECS["curves"], width=min(WIDTH, WIDEST * columns), columns=columns)
    return spec.of({"curves": curves, "best": best[best["median"] > ROUNDING].merge(panels)})


def curves_of(study: Study, dataset: str) -> pd.DataFrame:
    """The KL of each entry with traces, at places greater than 0; that of q's moments if the KL of q is infinite.

    Cells that diverged count as infinite from there on. An entry without measurement points is shown in the panels of
    all M.
    """
    cells = study.cells[(study.cells["dataset"] == dataset) & (study.cells["status"] != "failed")]
    by_entry: Any = cells.groupby("entry")[["cell", "status"]]
    traces = {
        entry: [t for cell in of.itertuples() if (t := _trace(study.of_cells.get(cell.cell), cell.status)).points]
        for entry, of in by_entry
    }
    courses = [_course(entry, own) for entry, own in traces.items() if own]
    if not courses:
        return pd.DataFrame()
    curves = pd.concat(courses)
    curves = curves[np.isfinite(curves["median"])]
    if curves.empty:  # all diverged
        return curves
    shown = ["lower_quartile", "median", "upper_quartile"]
    curves[shown] = curves[shown].clip(ROUNDING, 1.5 * curves["median"].max())  # bands may be far wider
    turns = curves.groupby("method")["name"].transform(lambda names: pd.factorize(names)[0])
    curves["style"] = np.take(DASHES, turns, mode="wrap")
    sizes = sorted(curves["size"].dropna().unique()) or [math.nan]
    curves["size"] = [sizes if math.isnan(size) else [size] for size in curves["size"]]
    curves = curves.explode("size", ignore_index=True)
    moments = curves.groupby(["size", "family"], dropna=False)["of_moments"].transform("any")
    curves["panel"] = curves["family"] + np.where(moments, " (q’s moments)", "")
    if len(sizes) > 1:
        curves["panel"] += "; M = " + curves["size"].map("{:g}".format)
    curves = curves.join(looks(curves["method"]))
    return curves.sort_values(["size", "family"], key=lambda of: of.replace(FAMILIES, range(len(FAMILIES))))


def _trace(trace: Trace | None, status: str) -> Trace:
    """The trace of a cell, which ends with NaN if it diverged; without points if it has none and did not."""
    points = trace.points if trace else []
    if status != "diverged":
        return Trace(points)
    *before, last = points or [TracePoint(0, 0.0, math.nan, None, math.nan, math.nan)]
    return Trace([*before, replace(last, kl=math.nan, kl_moment_matched=math.nan)])


def _course(entry: Entry, traces: list[Trace]) -> pd.DataFrame:
    """The curve of an entry, without the point at 0, and thinned to about `PER_DECADE` points per decade."""
    M = entry.hyperparameters.get("M")
    told_by_panels = isinstance(M, int | float)
    words = [word for word in entry.label.split() if not (told_by_panels and word == setting("M", M))]
    singular = any(math.isinf(trace.points[-1].kl) for trace in traces)
    score = "kl_moment_matched" if singular else "kl"
    axes: list[Literal["steps", "seconds"]] = ["steps", "seconds"]
    curve = pd.concat(spread_along(traces, score, axis).reset_index().assign(along=axis) for axis in axes)
    curve = curve[curve["place"] > 0]
    decades = (PER_DECADE * np.log10(curve["place"])).round()
    curve = curve[~curve.assign(place=decades).duplicated(["along", "place"], keep="last")]
    return curve.assign(
        family=entry.family,
        method=entry.method,
        name=" ".join([entry.method, *words]),
        size=M if told_by_panels else math.nan,
        of_moments=singular,
    )
