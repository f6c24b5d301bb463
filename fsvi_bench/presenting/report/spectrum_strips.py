"""The spectrum of S*^(-1/2) S S*^(-1/2) by method: in which directions q is over- or underconfident, and how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fsvi_bench.presenting.report.appearance import INK, PAPER, look
from fsvi_bench.presenting.report.strips import draw_strips, label_count, logarithmic, say
from fsvi_bench.presenting.report.study import Entry, Study

LOWEST = 1e-6  #: what is less is drawn as a line to the edge: the variance of q is gone
STEPS = 20  #: between the 21 quantiles of a record


def median_spectrum(study: Study, dataset: str, entry: Entry) -> list[float] | None:
    """Each quantile of the spectrum (0, 5, ..., 100 %), its median over the cells; None if nothing finished."""
    found = [r.scores.overconfidence.quantiles for r in study.finished(dataset, entry) if r.scores is not None]
    return np.median(np.asarray(found), axis=0).tolist() if found else None


def draw_spectrum(study: Study, datasets: Sequence[str]) -> Figure:
    """A line from the least to the greatest quantile, thick from 25 to 75 %, with a mark at the median."""
    entries = [e for e in study.entries if any((d, e) in study.rows for d in datasets)]
    label = "variance of q over the exact one, by direction (S*⁻¹ᐟ² S S*⁻¹ᐟ²)"
    limits = _limits(study, datasets, entries)
    strips = draw_strips(study, datasets, entries, label, partial(_paint, study, limits))
    for axes in strips.panels.values():
        logarithmic(axes, *limits, label_count(len(datasets)))
        axes.axvline(1.0, color=INK, linewidth=0.8, zorder=1)
    return strips.figure


def _limits(study: Study, datasets: Sequence[str], entries: Sequence[Entry]) -> tuple[float, float]:
    spectra = [median_spectrum(study, dataset, entry) for dataset in datasets for entry in entries]
    values = [v for spectrum in spectra if spectrum is not None for v in spectrum if math.isfinite(v) and v > LOWEST]
    return min([0.1, *values]) / 1.5, min(max([10.0, *values]), 1e6) * 1.5


def _paint(study: Study, limits: tuple[float, float], axes: Axes, y: float, dataset: str, entry: Entry) -> None:
    spectrum = median_spectrum(study, dataset, entry)
    if spectrum is None:
        return
    seen, (low, high) = look(entry.method), limits
    if spectrum[-1] < low:
        say(axes, 0.015, y, "◂ 0", colour=seen.light)
        return
    least, lower, middle, upper, greatest = (
        min(max(spectrum[round(STEPS * share)], low), high) for share in (0, 0.25, 0.5, 0.75, 1)
    )
    axes.plot([least, greatest], [y, y], color=seen.light, linewidth=1.0, solid_capstyle="butt")
    axes.plot([lower, upper], [y, y], color=seen.light, linewidth=4.6, alpha=0.42, solid_capstyle="butt")
    axes.plot([middle], [y], seen.marker, color=seen.light, markersize=6.4, markeredgecolor=PAPER, markeredgewidth=0.7)
