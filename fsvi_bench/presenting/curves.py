"""Figures of traces: what a score was along the way, its mean and spread over cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fsvi_bench.presenting.figures import SPECS
from fsvi_bench.presenting.plots import FigureSpec
from fsvi_bench.presenting.traces import Spread, spread_by_step
from fsvi_bench.training.trace import Trace

LABELS = {
    "kl": "KL(q ‖ exact), nats",
    "nlpd": "NLPD, nats per point",
    "kl_moment_matched": "KL of q's moments, nats",
    "nlpd_moment_matched": "NLPD of q's moments",
    "loss": "loss, nats",
}
LOGARITHMIC_FROM = 20.0  #: a curve of positive values that span a larger factor has a logarithmic axis


def curves_figure(traces: Sequence[Trace], title: str) -> Figure | None:
    """Scores against steps, one panel each: median, mean, quartiles and extremes; None if there is no curve to draw.

    A curve has two places at least. Those of the moments are drawn only if q's cannot be, and what is infinite is left
    out.
    """
    found = {score: _curve(traces, score) for score in LABELS}
    curves = {score: curve for score, curve in found.items() if curve["median"].count() > 1}
    shown = [curve for s, curve in curves.items() if s.removesuffix("_moment_matched") not in curves.keys() - {s}]
    if not shown:
        return None
    spec = FigureSpec(**SPECS["scores"], width=3.2 * len(shown), columns=len(shown), title=title)
    return spec.of({"curves": pd.concat(shown)})


def spread_frame(spreads: Sequence[tuple[float, Spread]]) -> pd.DataFrame:
    """A row for each place of a curve."""
    rows = [{"place": place, **vars(spread)} for place, spread in spreads]
    return pd.DataFrame(rows, columns=["place", *Spread.__dataclass_fields__], dtype=float)


def _curve(traces: Sequence[Trace], score: str) -> pd.DataFrame:
    curve = spread_frame(spread_by_step(traces, score))
    several = (curve["smallest"] < curve["largest"]).any()
    curve = curve.replace([np.inf, -np.inf], np.nan)
    low, high = curve["smallest"].min(), curve["median"].max()
    scale = "log" if low > 0 and high / low > LOGARITHMIC_FROM else "linear"
    return curve.assign(score=LABELS[score], cells="several" if several else "one", scale=scale)
