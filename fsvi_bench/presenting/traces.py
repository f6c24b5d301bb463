"""Many cells' traces to one curve: mean and spread of a score after so many steps, or so many seconds.

A trace that ended early keeps its last point: its method's posterior stays what it was. A cell whose posterior has
diverged has NaN for its scores; here it counts as infinite, since every traced score is the better the less it is.
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

#: The scores that a trace follows, and what figures call them.
TRACED = {
    "kl": "KL(q ‖ exact), nats",
    "nlpd": "NLPD, nats per point",
    "kl_moment_matched": "KL of q's moments, nats",
    "nlpd_moment_matched": "NLPD of q's moments",
    "loss": "loss, nats",
}
MAX_SECONDS = 200  #: points of a curve against seconds; with more, they are thinned evenly by rank
MAX_SERIES = 300  #: curves of single traces that a logger is given
SHORT = ["mean", "sd", "min", "q25", "median", "q75", "max"]  #: for the fields of `Spread`
HUGE = 1e300  #: stands for infinity in quantiles: between infinite neighbours NumPy's are NaN
LOGARITHMIC_FROM = 20.0  #: a curve of positive values that span a larger factor has a logarithmic axis


class Spread(NamedTuple):
    """One score over cells at one place.

    The standard deviation (n − 1 in the denominator) is NaN for a single cell and where some cell's score is infinite.
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
    """The spread of one score's values over cells; infinite ones are allowed."""
    quantiles = np.quantile(np.minimum(values, HUGE), np.linspace(0, 1, 5)).tolist()
    infinite = [math.inf if each > HUGE / 10 else each for each in quantiles]
    with np.errstate(invalid="ignore", over="ignore"):
        return Spread(pd.Series(values).mean(), pd.Series(values).std(), *infinite)


def spread_along(traces: Sequence[Trace], score: str, along: Literal["steps", "seconds"] = "steps") -> pd.DataFrame:
    """The spread over the traces, one row for each place at which some trace has a point.

    Between its points a trace keeps the last one: what is known at a time is what was last looked at. Left out are
    places before some trace begins, and those where some trace lacks the score, as a mixture's NLPD before the end or
    the loss of a method that has none. Of more than `MAX_SECONDS` times, so many are kept, both ends among them.

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
    """Rows for a logger of curves: the traces' spread against steps and against seconds, and each trace's own points.

    Their names are `by_steps/kl/median`, `by_seconds/nlpd/q25`, `problem/NAME/loss` and so on, with the place itself as
    `steps` or `seconds`. Of many traces only the first have curves of their own, `MAX_SERIES` in all.
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
    """Scores against steps, one panel each: median, mean, quartiles and extremes; None if there is no curve to draw.

    A curve has two places at least. Those of the moments are drawn only if q's cannot be, and what is infinite is left
    out.
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
