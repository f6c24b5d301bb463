"""Many cells' traces to one curve: mean and spread of a score after so many steps, or so many seconds.

A trace that ended early keeps its last point: its method's posterior stays what it was. A cell whose posterior has
diverged has NaN for its scores; here it counts as infinite, since every traced score is the better the less it is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fsvi_bench.training.trace import Trace

#: The scores that a trace follows.
TRACED = ("kl", "nlpd", "kl_moment_matched", "nlpd_moment_matched", "loss")
MAX_SECONDS = 200  #: points of a curve against seconds; with more, they are thinned evenly by rank
MAX_SERIES = 300  #: curves of single traces that a logger is given
SHORT = ("mean", "sd", "min", "q25", "median", "q75", "max")  #: for the fields of `Spread`
HUGE = 1e300  #: stands for infinity in quantiles: between infinite neighbours NumPy's are NaN


@dataclass(frozen=True)
class Spread:
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


def spread_by_step(traces: Sequence[Trace], score: str) -> list[tuple[int, Spread]]:
    """(steps, spread over the traces) at every number of steps that some trace has.

    Left out are steps before some trace begins, and those where some trace lacks the score, as a mixture's NLPD before
    the end or the loss of a method that has none.

    Args:
        score: one of `TRACED`.
    """
    return _spreads(_table(traces, score, "steps"))


def spread_by_second(traces: Sequence[Trace], score: str) -> list[tuple[float, Spread]]:
    """(seconds of training, spread over the traces) likewise, at the times at which some trace has a point.

    Between its points a trace keeps the last one: what is known at a time is what was last looked at. Of more than
    `MAX_SECONDS` times, so many are kept, the first and the last among them.
    """
    table = _table(traces, score, "seconds")
    kept = np.unique(np.linspace(0, len(table) - 1, min(len(table), MAX_SECONDS)).round().astype(int))
    return _spreads(table.iloc[kept])


def curve_rows(traces: Mapping[str, Trace]) -> list[dict[str, float]]:
    """Rows for a logger of curves: the traces' spread against steps and against seconds, and each trace's own points.

    Their names are `by_steps/kl/median`, `by_seconds/nlpd/q25`, `problem/NAME/loss` and so on, with the place itself as
    `steps` or `seconds`. Of many traces only the first have curves of their own, `MAX_SERIES` in all.
    """
    rows: dict[tuple[str, float], dict[str, float]] = defaultdict(dict)
    for axis, spreads in (("steps", spread_by_step), ("seconds", spread_by_second)):
        for score in TRACED:
            for place, spread in spreads(list(traces.values()), score):
                numbers = zip(SHORT, astuple(spread), strict=True)
                values = {f"by_{axis}/{score}/{name}": value for name, value in numbers if not math.isnan(value)}
                rows[axis, place] |= {axis: place, **values}
    for name, trace in islice(traces.items(), MAX_SERIES // len(TRACED)):
        for point in trace.points:
            scores = {score: getattr(point, score) for score in TRACED}
            values = {f"problem/{name}/{score}": value for score, value in scores.items() if value is not None}
            rows["steps", point.steps] |= {"steps": point.steps, **values}
    return [rows[place] for place in sorted(rows)]


def _table(traces: Sequence[Trace], score: str, along: str) -> pd.DataFrame:
    """A column per trace: its last score at each place at which some trace has a point and no trace lacks the score."""
    if score not in TRACED:
        raise ValueError(f"no trace follows '{score}', expected one of {', '.join(TRACED)}")
    points = [{getattr(point, along): getattr(point, score) for point in trace.points} for trace in traces]
    known = [{place: math.inf if value != value else value for place, value in each.items()} for each in points]
    return pd.DataFrame(dict(enumerate(pd.Series(each, dtype=float) for each in known))).sort_index().ffill().dropna()


def _spreads(table: pd.DataFrame) -> list[tuple[Any, Spread]]:
    return list(zip(table.index.tolist(), map(spread_of, table.to_numpy()), strict=True))


def spread_of(values: NDArray[np.float64]) -> Spread:
    """The spread of one score's values over cells; infinite ones are allowed."""
    quantiles = np.quantile(np.minimum(values, HUGE), np.linspace(0, 1, 5)).tolist()
    infinite = [math.inf if each > HUGE / 10 else each for each in quantiles]
    with np.errstate(invalid="ignore", over="ignore"):
        return Spread(pd.Series(values).mean(), pd.Series(values).std(), *infinite)
