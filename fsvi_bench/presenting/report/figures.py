"""The report's figures: the frames that `assets/figures.yaml` is about, and how large each figure is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fsvi_bench.presenting.curves import spread_frame
from fsvi_bench.presenting.figures import NO_LOGARITHM
from fsvi_bench.presenting.plots import FigureSpec
from fsvi_bench.presenting.report.appearance import ASSETS, look
from fsvi_bench.presenting.report.study import FAMILIES, REFERENCE, Entry, Study
from fsvi_bench.presenting.traces import spread_by_second, spread_by_step
from fsvi_bench.resources import read_yaml

SPECS: dict[str, dict[str, Any]] = read_yaml(ASSETS / "figures.yaml")  # type: ignore[assignment]
WIDTH = 12.0  #: inches; the page's text is as wide
WIDEST = 5.2  #: inches of a panel
LINE, METHOD_GAP = 0.2, 0.45  #: inches per line; the gap between methods as a share of it
AROUND = 1.0  #: inches above and below strips
LETTER = 0.068  #: inches, about, of a letter beside a line
MOST_LETTERS = 65  #: of names beside the lines; longer ones are cut short (the tables have them whole)
LEVELS = ("50", "90", "95")  #: of predictive intervals, in %
MOST_POINTS = 40  #: of a curve; more cannot be told apart at this width
DASHES = ("-", "--", ":", "-.")  #: of a method's several settings
COURSE = 2.6  #: inches of a panel of curves


def draw_strips(name: str, study: Study, datasets: Sequence[str]) -> Figure:
    """A figure of `page.STRIPS` with panels for these data sets side by side."""
    lines = lines_of(study, datasets)
    exact = [{"dataset": name, "level": level} for name in datasets for level in exact_coverage(study, name)]
    spec = FigureSpec(
        **SPECS[name],
        height=AROUND + LINE * (lines["place"].max() + 1),
        width=min(WIDTH, LETTER * lines["name"].str.len().max() + 0.5 + WIDEST * len(datasets)),
        columns=len(datasets),
    )
    return spec.of({"lines": lines, "exact": pd.DataFrame(exact)})


def lines_of(study: Study, datasets: Sequence[str]) -> pd.DataFrame:
    """What strips show: a row per data set and entry, with the place of its line; words where a score is missing."""
    entries = study.entries_on(*datasets)
    methods = [entry.method for entry in entries]
    places = pd.DataFrame({"entry": entries, "method": methods, "family": [entry.family for entry in entries]})
    places["place"] = places.index + METHOD_GAP * places.groupby("method", sort=False).ngroup()
    # A method's name stands beside its first line only.
    names = places["method"].mask(places.duplicated("method"), "") + [f"   {entry.variant}" for entry in entries]
    places["name"] = [shorten(name.strip(), MOST_LETTERS) for name in names]
    rows = [_line(study, dataset, entry) for dataset in datasets for entry in study.entries_on(dataset)]
    lines = pd.DataFrame(rows).merge(places, on="entry").assign(one=1.0)
    for score in ("kl", "nlpd", "middle", "inside_50"):
        missing = [~lines["any_finished"], lines[score].isna()]
        lines[f"{score}_words"] = np.select(missing, ["none finished", "unknown"], "")
    return lines


def _line(study: Study, dataset: str, entry: Entry) -> dict[str, Any]:
    row, finished = study.rows[dataset, entry], study.finished(dataset, entry)
    own = row.scores.get("kl")
    whole = own is not None and math.isfinite(own.mean)
    line = {"dataset": dataset, "entry": entry, "any_finished": row.finished > 0, "kl_own": float(whole)}
    line |= {"colour": look(entry.method).light, "marker": look(entry.method).marker}
    line["lacking"] = f"{row.cells - row.finished}/{row.cells}" if 0 < row.finished < row.cells else ""
    estimates = {"kl": own if whole else row.scores.get("kl_moment_matched"), "nlpd": row.scores.get("nlpd")}
    for score, estimate in estimates.items():
        mean, error = (math.nan, None) if estimate is None else (estimate.mean, estimate.standard_error)
        low, high = (mean, mean) if error is None else (mean - error, mean + error)
        line |= {score: mean, f"{score}_low": low, f"{score}_high": high}
    if row.finished:
        # Every fifth of the 21 quantiles: 0, 25, 50, 75 and 100 %.
        line |= dict(
            zip(("least", "lower", "middle", "upper", "greatest"), median_spectrum(finished)[::5], strict=True)
        )
        line |= mean_coverage(finished).add_prefix("inside_")
    return line


def median_spectrum(cells: pd.DataFrame) -> NDArray[np.float64]:
    """Each quantile of the spectrum (0, 5, ..., 100 %), its median over the cells."""
    return np.median(cells["overconfidence.quantiles"].tolist(), axis=0)


def mean_coverage(cells: pd.DataFrame, of: str = "coverage") -> pd.Series[float]:
    """Level -> % of test targets inside, over splits (seeds averaged first); missing where it does not apply."""
    shares = cells[[f"{of}.{level}" for level in LEVELS]].set_axis(LEVELS, axis=1).astype(float)
    return 100 * shares.groupby(cells["split"]).mean().mean().where(shares.notna().all())


def exact_coverage(study: Study, dataset: str) -> pd.Series[float]:
    """The same of the exact posterior, over all splits on which anything finished."""
    finished = pd.concat([study.finished(dataset, entry) for entry in study.entries_on(dataset)])
    return mean_coverage(finished.drop_duplicates("split"), "coverage_exact")


def shorten(words: str, letters: int) -> str:
    """Words of at most so many letters, the last an ellipsis where some are cut off."""
    return words if len(words) <= letters else f"{words[: letters - 1].rstrip()}…"


def draw_curves(study: Study, dataset: str, curves: pd.DataFrame) -> Figure:
    """A row of panels for each family, against steps and against seconds; with several M, a row for each of them.

    The dashed line is the KL of the best q of the family, where that is not 0.
    """
    panels = curves[["panel", "family"]].drop_duplicates()
    kls = [
        (e.family, study.rows[dataset, e].scores.get("kl")) for e in study.entries_on(dataset) if e.method == REFERENCE
    ]
    found = [(family, kl.mean) for family, kl in kls if kl is not None and kl.mean > NO_LOGARITHM]
    best = pd.DataFrame(found, columns=["family", "kl"]).merge(panels)
    families = panels["family"].nunique()
    columns = 2 * (families if len(panels) > families else 1)
    spec = FigureSpec(**SPECS["curves"], row_height=COURSE, width=min(WIDTH, WIDEST * columns), columns=columns)
    return spec.of({"curves": curves, "best": best})


def curves_of(study: Study, dataset: str) -> pd.DataFrame:
    """The KL of each entry that has traces, at places greater than 0; of q's moments where its own is infinite.

    An entry without measurement points stands in the panels of every number of them.
    """
    curves = pd.concat([_course(study, dataset, entry) for entry in study.entries_on(dataset)])
    curves = curves[np.isfinite(curves["median"])]
    shown = ["lower_quartile", "median", "upper_quartile"]
    curves[shown] = (
        curves[shown].replace(np.inf, np.nan).clip(NO_LOGARITHM, 1.5 * curves["median"].max())
    )  # bands may be far wider
    settings = curves.drop_duplicates("name")
    styles = [DASHES[place % len(DASHES)] for place in settings.groupby("method").cumcount()]
    curves["style"] = curves["name"].map(dict(zip(settings["name"], styles, strict=True)))
    sizes = sorted(curves["size"].dropna().unique()) or [math.nan]
    panels = []
    for size, family in product(sizes, FAMILIES):
        own = curves[(curves["family"] == family) & curves["size"].isin([size, math.nan])]
        title = family + (" (q’s moments)" if own["of_moments"].any() else "")
        panels.append(own.assign(panel=f"{title}; M = {size:g}" if len(sizes) > 1 else title))
    return pd.concat(panels, ignore_index=True)


def _course(study: Study, dataset: str, entry: Entry) -> pd.DataFrame:
    traces, M = study.traces(dataset, entry), entry.hyperparameters.get("M")
    told_by_panels = f"M={M}" if isinstance(M, int | float) else None
    singular = any(math.isinf(trace.points[-1].kl) for trace in traces)
    score = "kl_moment_matched" if singular else "kl"
    steps, seconds = (spread_frame(spread(traces, score)) for spread in (spread_by_step, spread_by_second))
    curves = pd.concat([_thinned(steps).assign(along="steps"), _thinned(seconds).assign(along="seconds")])
    return curves.assign(
        family=entry.family,
        method=entry.method,
        name=" ".join([entry.method, *(word for word in entry.settings.split() if word != told_by_panels)]),
        size=M if told_by_panels else math.nan,
        of_moments=singular,
        colour=look(entry.method).light,
        marker=look(entry.method).marker,
        every=pd.Series([(sum(entry.method.encode()) % 5, 6)] * len(curves), curves.index, dtype=object),
    )


def _thinned(curve: pd.DataFrame) -> pd.DataFrame:
    """At most so many points, evenly on a logarithmic axis; the last one stays, and what lies at 0 has no place."""
    curve = curve[curve["place"] > 0]
    if len(curve) <= MOST_POINTS:
        return curve
    along = np.log(curve["place"] / curve["place"].iloc[0])
    return curve[~(along / along.iloc[-1] * (MOST_POINTS - 1)).round().duplicated(keep="last")]
