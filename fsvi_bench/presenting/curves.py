"""Figures of traces: what a score was along the way, its mean and spread over cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fsvi_bench.presenting.plots import FigureSpec, Layer, Panel
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
MEDIAN = Layer(y="median", x="steps", label="median", width=1.6)
OVER_CELLS = (
    Layer(kind="band", x="steps", low="smallest", high="largest", alpha=0.12),
    Layer(kind="band", x="steps", low="lower_quartile", high="upper_quartile", alpha=0.25, label="quartiles, extremes"),
    Layer(x="steps", y="mean", colour="black", width=0.9, style="--", label="mean"),
)


def curves_figure(traces: Sequence[Trace], title: str) -> Figure | None:
    """Scores against steps, one panel each: median, mean, quartiles and extremes; None if there is no curve to draw.

    A curve has two places at least. Those of the moments are drawn only if q's cannot be, and what is infinite is left
    out. The start is where the axis begins.
    """
    found = {score: _curve(traces, score) for score in LABELS}
    curves = {score: curve for score, curve in found.items() if curve["median"].notna().sum() > 1}
    shown = [s for s in curves if s.removesuffix("_moment_matched") not in curves.keys() - {s}]
    if not shown:
        return None
    panels = tuple(_panel(curves[score], score, legend=score == shown[0]) for score in shown)
    spec = FigureSpec(height=2.9, width=3.2 * len(shown), columns=len(shown), title=title, panels=panels)
    figure = spec.of(curves)
    for axes, score in zip(figure.axes, shown, strict=True):
        steps = curves[score]["steps"]
        axes.set_xscale("symlog", linthresh=float(steps[steps > 0].min()))
    return figure


def _curve(traces: Sequence[Trace], score: str) -> pd.DataFrame:
    spreads = [{"steps": step, **vars(spread)} for step, spread in spread_by_step(traces, score)]
    curve = pd.DataFrame(spreads, columns=["steps", *Spread.__dataclass_fields__])
    several = curve["smallest"] < curve["largest"]  # which what is infinite still tells
    return curve.replace([np.inf, -np.inf], np.nan).assign(several=several)


def _panel(curve: pd.DataFrame, score: str, legend: bool) -> Panel:
    layers = [*OVER_CELLS, MEDIAN] if curve["several"].any() else [MEDIAN]
    low, high = curve["smallest"].min(), curve["median"].max()
    return Panel(
        x="steps",
        y=LABELS[score],
        yscale="log" if low > 0 and high / low > LOGARITHMIC_FROM else "linear",
        legend="best" if legend else None,
        layers=tuple(layer.model_copy(update={"frame": score}) for layer in layers),
    )
