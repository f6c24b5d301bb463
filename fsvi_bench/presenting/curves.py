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
MEDIAN = Layer(y="median", x="place", label="median", width=1.6)
OVER_CELLS = (
    Layer(kind="band", x="place", low="smallest", high="largest", alpha=0.12),
    Layer(kind="band", x="place", low="lower_quartile", high="upper_quartile", alpha=0.25, label="quartiles, extremes"),
    Layer(x="place", y="mean", colour="black", width=0.9, style="--", label="mean"),
)


def curves_figure(traces: Sequence[Trace], title: str) -> Figure | None:
    """Scores against steps, one panel each: median, mean, quartiles and extremes; None if there is no curve to draw.

    A curve has two places at least. Those of the moments are drawn only if q's cannot be, and what is infinite is left
    out.
    """
    found = {score: spread_frame(spread_by_step(traces, score)) for score in LABELS}
    curves = {score: curve for score, curve in found.items() if np.isfinite(curve["median"]).sum() > 1}
    shown = [s for s in curves if s.removesuffix("_moment_matched") not in curves.keys() - {s}]
    if not shown:
        return None
    panels = tuple(_panel(curves[score], score, legend=score == shown[0]) for score in shown)
    spec = FigureSpec(height=2.9, width=3.2 * len(shown), columns=len(shown), title=title, panels=panels)
    return spec.of({score: curve.replace([np.inf, -np.inf], np.nan) for score, curve in curves.items()})


def spread_frame(spreads: Sequence[tuple[float, Spread]]) -> pd.DataFrame:
    """A row for each place of a curve."""
    rows = [{"place": place, **vars(spread)} for place, spread in spreads]
    return pd.DataFrame(rows, columns=["place", *Spread.__dataclass_fields__], dtype=float)


def _panel(curve: pd.DataFrame, score: str, legend: bool) -> Panel:
    several = (curve["smallest"] < curve["largest"]).any()
    low, high = curve["smallest"].min(), curve.loc[np.isfinite(curve["median"]), "median"].max()
    return Panel(
        x="steps",
        y=LABELS[score],
        xscale="symlog",
        yscale="log" if low > 0 and high / low > LOGARITHMIC_FROM else "linear",
        legend="best" if legend else None,
        layers=tuple(
            layer.model_copy(update={"frame": score}) for layer in (*OVER_CELLS, MEDIAN) if several or layer is MEDIAN
        ),
    )
