"""Figures of traces: what a score was along the way, its mean and spread over cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fsvi_bench.presenting.figures import BLUE, SMALL, new_figure, tidy
from fsvi_bench.presenting.traces import TRACED, Spread, spread_by_step
from fsvi_bench.training.trace import Trace

LABELS = {
    "kl": "KL(q ‖ exact), nats",
    "nlpd": "NLPD, nats per point",
    "kl_moment_matched": "KL of q's moments, nats",
    "nlpd_moment_matched": "NLPD of q's moments",
    "loss": "loss, nats",
}
LOGARITHMIC_FROM = 20.0  #: a curve of positive values that span a larger factor has a logarithmic axis


def shown_scores(traces: Sequence[Trace]) -> list[str]:
    """The scores of which curves can be drawn, in two places at least; those of the moments only if q's cannot."""

    def curve_of(score: str) -> list[float]:
        return [spread.mean for _, spread in spread_by_step(traces, score) if np.isfinite(spread.median)]

    there = {score for score in TRACED if len(curve_of(score)) > 1}
    return [s for s in TRACED if s in there and s.removesuffix("_moment_matched") not in there - {s}]


def curves_figure(traces: Sequence[Trace], title: str) -> Figure | None:
    """Scores against steps, one panel each; None if there is no curve to draw."""
    scores = shown_scores(traces)
    if not scores:
        return None
    figure, panels = new_figure(len(scores), 3.2 * len(scores), 2.9)
    for axes, score in zip(panels, scores, strict=True):
        draw_spread(axes, spread_by_step(traces, score))
        axes.set_xlabel("steps", fontsize=SMALL)
        axes.set_ylabel(LABELS[score], fontsize=SMALL)
    panels[0].legend(fontsize=SMALL, frameon=False)
    figure.suptitle(title, fontsize=SMALL + 1)
    return figure


def draw_spread(axes: Axes, curve: Sequence[tuple[float, Spread]], colour: str = BLUE) -> None:
    """Median, mean, quartiles and extremes. What is infinite is left out; the start is where the axis begins."""
    x = np.array([place for place, _ in curve])
    positive = x[x > 0]
    if len(positive):
        axes.set_xscale("symlog", linthresh=float(positive.min()))

    def values(name: str) -> np.ndarray:
        found = np.array([getattr(spread, name) for _, spread in curve])
        return np.where(np.isfinite(found), found, np.nan)

    several = any(spread.smallest < spread.largest for _, spread in curve)
    if several:
        axes.fill_between(x, values("smallest"), values("largest"), color=colour, alpha=0.12, linewidth=0)
        quartiles = values("lower_quartile"), values("upper_quartile")
        axes.fill_between(x, *quartiles, color=colour, alpha=0.25, linewidth=0, label="quartiles, extremes")
        axes.plot(x, values("mean"), color="black", linewidth=0.9, linestyle=(0, (4, 3)), label="mean")
    axes.plot(x, values("median"), color=colour, linewidth=1.6, label="median")
    low, high = np.nanmin(values("smallest")), np.nanmax(values("median"))
    if low > 0 and high / low > LOGARITHMIC_FROM:
        axes.set_yscale("log")
    tidy(axes, SMALL)
