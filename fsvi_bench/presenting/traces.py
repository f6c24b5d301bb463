"""Combines the traces of many cells into one curve: mean and spread of a score against steps or seconds.

A trace that ended early keeps its last point, since its posterior no longer changes. A cell whose posterior has
diverged has NaN scores; they count as infinite here, since lower is better for every traced score.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice, product
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fsvi_bench.training.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Scores of traces -> their labels in figures.
TRACED = {
    "kl": "KL(q ‖ exact), nats",
    "nlpd": "NLPD, nats per point",
    "kl_moment_matched": "KL of q's moments, nats",
    "nlpd_moment_matched": "NLPD of q's moments",
    "loss": "loss, nats",
}
MAX_SECONDS = 200  #: maximum number of points of a curve against seconds; more are thinned evenly by rank
MAX_SERIES = 300  #: maximum number of curves of single traces for a logger
SHORT = ["mean", "sd", "min", "q25", "median", "q75", "max"]  #: short names for the fields of `Spread`
HUGE = 1e300  #: replaces infinity in quantiles, where NumPy returns NaN between infinite neighbours
LOGARITHMIC_FROM = 20.0  #: a curve of positive values with a larger range has a logarithmic axis


class Spread(NamedTuple):
    """The spread of one score over cells.

    The standard deviation (with n − 1 in the denominator) is NaN for a single cell, and if a score is infinite.
    Quartiles are linear interpolations between order statistics.
    """

    mean: float
    standard_deviation: float
    smallest: float
    lower_quartile: float
    median: float
    upper_quartile: float
    largest: float


def spread_of(values: NDArray[np.float64]) -> Spread:
    """The spread of one score over cells; infinite values are allowed."""
    quantiles = np.quantile(np.minimum(values, HUGE), np.linspace(0, 1, 5)).tolist()
    infinite = [math.inf if each > HUGE / 10 else each for each in quantiles]
    with np.errstate(invalid="ignore", over="ignore"):
        return Spread(pd.Series(values).mean(), pd.Series(values).std(), *infinite)


def spread_along(traces: Sequence[Trace], score: str, along: Literal["steps", "seconds"] = "steps") -> pd.DataFrame:
    """The spread over traces, with one row for each place (step or second) at which some trace has a point.

    Between its points, a trace keeps the value of the last one. Places are left out before all traces have started, and
    where a trace lacks the score, such as the NLPD of a mixture before the end, or the loss of a method without one. At
    most `MAX_SECONDS` times are kept, including both ends.

    Args:
        score: one of `TRACED`.
    """
    points = [{getattr(point, along): getattr(point, score) for point in trace.points} for trace in traces]
    known = [{place: math.inf if value != value else value for place, value in each.items()} for each in points]
    table = pd.DataFrame(dict(enumerate(pd.Series(each, dtype=float) for each in known))).sort_index().ffill().dropna()
    if along == "seconds":
        kept = np.linspace(0, len(table) - 1, min(len(table), MAX_SECONDS)).round()
        table = table.iloc[np.unique(kept).astype(int)]
    rows = map(spread_of, table.to_numpy())
    return pd.DataFrame(rows, table.index.rename("place"), columns=Spread._fields, dtype=float)


def curve_rows(traces: Mapping[str, Trace]) -> list[dict[str, float]]:
    """Rows for a logger of curves: the spread of traces against steps and seconds, and the points of each trace.

    The names are `by_steps/kl/median`, `by_seconds/nlpd/q25`, `problem/NAME/loss` and so on, with the place as `steps`
    or `seconds`. Only the first traces have separate curves, `MAX_SERIES` in total.
    """
    rows: dict[tuple[str, float], dict[str, float]] = defaultdict(dict)
    for axis, score in product(("steps", "seconds"), TRACED):
        curve = spread_along(list(traces.values()), score, axis).set_axis(SHORT, axis=1)  # type: ignore[arg-type]
        for place, spread in curve.add_prefix(f"by_{axis}/{score}/").T.items():
            rows[axis, place] |= {axis: place, **spread.dropna()}  # type: ignore[index,dict-item]
    for name, trace in islice(traces.items(), MAX_SERIES // len(TRACED)):
        for point in trace.points:
            scores = {f"problem/{name}/{score}": getattr(point, score) for score in TRACED}
            known = {name: value for name, value in scores.items() if value is not None}
            rows["steps", point.steps] |= {"steps": point.steps, **known}
    return [rows[place] for place in sorted(rows)]


def curves_figure(traces: Sequence[Trace], title: str) -> Figure | None:
    """Scores against steps, one panel each: median, mean, quartiles and extremes; None if there is nothing to draw.

    A curve needs at least two places. Scores of the moments are drawn only if those of q cannot be, and infinite values
    are left out.
    """
    from fsvi_bench.presenting.looks import SPECS
    from fsvi_bench.presenting.plots import FigureSpec

    curves = {score: _drawable(traces, score) for score in TRACED}
    curves = {score: curve for score, curve in curves.items() if curve["median"].count() > 1}
    shown = [curve for s, curve in curves.items() if s.removesuffix("_moment_matched") not in curves.keys() - {s}]
    if not shown:
        return None
    spec = FigureSpec(**SPECS["scores"], width=3.2 * len(shown), columns=len(shown), title=title)
    return spec.of({"curves": pd.concat(shown)})


def _drawable(traces: Sequence[Trace], score: str) -> pd.DataFrame:
    curve = spread_along(traces, score).reset_index()
    several = (curve["smallest"] < curve["largest"]).any()
    curve = curve.replace([np.inf, -np.inf], np.nan)
    low, high = curve["smallest"].min(), curve["median"].max()
    scale = "log" if low > 0 and high / low > LOGARITHMIC_FROM else "linear"
    return curve.assign(score=TRACED[score], cells="several" if several else "one", scale=scale)
