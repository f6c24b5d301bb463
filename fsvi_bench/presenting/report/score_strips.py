"""KL and NLPD by method, all data sets side by side, as in figures 2 to 4 of Burt et al. (2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fsvi_bench.presenting.figures import NO_LOGARITHM
from fsvi_bench.presenting.report.appearance import FAILED, MUTED, PAPER, look
from fsvi_bench.presenting.report.strips import draw_strips, label_count, linear, logarithmic, say
from fsvi_bench.presenting.report.study import REFERENCE, Entry, Study
from fsvi_bench.presenting.summary import Estimate

KL, OF_MOMENTS, NLPD = "kl", "kl_moment_matched", "nlpd"
ROOM_FOR_COUNTS = 0.3  #: of the axis, at its right end, where cells that did not finish are counted
OUTLIER = 5.0  #: times the distance from the best NLPD to the median one: what is farther is written, not drawn


def draw_kl(study: Study, datasets: Sequence[str]) -> Figure:
    """Mean KL with its standard error; open marks are KLs of the moments where q's own is infinite."""
    entries = [e for e in study.entries if any((d, e) in study.rows for d in datasets)]
    strips = draw_strips(study, datasets, entries, "KL(q ‖ exact posterior), nats", partial(_paint_kl, study))
    shown = [
        value.mean
        for dataset in datasets
        for entry in entries
        if (value := _kl_drawn(study, dataset, entry)[0]) is not None and _has_logarithm(value.mean)
    ]
    low, high = (min(shown) / 3, max(shown) * 3) if shown else (0.1, 10.0)
    if any(row.finished < row.cells for (dataset, _), row in study.rows.items() if dataset in datasets):
        high *= (high / low) ** ROOM_FOR_COUNTS
    for axes in strips.panels.values():
        logarithmic(axes, low, high, label_count(len(datasets)))
    return strips.figure


def _kl_drawn(study: Study, dataset: str, entry: Entry) -> tuple[Estimate | None, bool]:
    """The KL, or that of q's moments where it is infinite or unknown; and whether it is q's own."""
    row = study.rows.get((dataset, entry))
    own = None if row is None else row.scores.get(KL)
    if own is not None and math.isfinite(own.mean):
        return own, True
    return (None if row is None else row.scores.get(OF_MOMENTS)), False


def _has_logarithm(value: float) -> bool:
    return math.isfinite(value) and value >= NO_LOGARITHM


def _paint_kl(study: Study, axes: Axes, y: float, dataset: str, entry: Entry) -> None:
    value, own = _kl_drawn(study, dataset, entry)
    if value is None:
        say(axes, 0.5, y, "unknown", "center")
    elif _has_logarithm(value.mean):
        _mark(axes, y, entry, value, filled=own)
    elif math.isinf(value.mean):
        say(axes, 0.985, y, "∞ ▸", "right", look(entry.method).light)
    else:
        say(axes, 0.015, y, "◂ 0", colour=look(entry.method).light)
    _say_missing(study, axes, y, dataset, entry)


def _mark(axes: Axes, y: float, entry: Entry, value: Estimate, filled: bool = True) -> None:
    seen = look(entry.method)
    if (error := value.standard_error) is not None:
        # Matplotlib's `errorbar` takes six times as long, and there are hundreds.
        axes.plot([value.mean - error, value.mean + error], [y, y], color=seen.light, linewidth=1.1)
    face = seen.light if filled else PAPER
    axes.plot([value.mean], [y], seen.marker, color=seen.light, markersize=5.2, markerfacecolor=face)


def _say_missing(study: Study, axes: Axes, y: float, dataset: str, entry: Entry) -> None:
    row = study.rows[dataset, entry]
    if row.finished < row.cells:
        say(axes, 0.985, y, f"{row.cells - row.finished}/{row.cells}", "right", FAILED)


def draw_nlpd(study: Study, datasets: Sequence[str]) -> Figure:
    """Mean NLPD with its standard error on each data set's own axis; a line stands at the exact posterior's."""
    entries = [e for e in study.entries if any((d, e) in study.rows for d in datasets)]
    limits = {dataset: _nlpd_limits(study, dataset, entries) for dataset in datasets}
    label = "NLPD, nats per test point in the target's own unit"
    strips = draw_strips(study, datasets, entries, label, partial(_paint_nlpd, study, limits))
    for dataset, axes in strips.panels.items():
        linear(axes, *limits[dataset], label_count(len(datasets)))
        exact = [study.rows[d, e].scores.get(NLPD) for d, e in study.rows if d == dataset and _is_exact(e)]
        for value in exact:
            if value is not None:
                axes.axvline(value.mean, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    return strips.figure


def _is_exact(entry: Entry) -> bool:
    return entry.method == REFERENCE and entry.family == "full"


def _nlpd_limits(study: Study, dataset: str, entries: Sequence[Entry]) -> tuple[float, float]:
    """From the lowest mean on; what is far above the median would flatten the rest, and is written at the edge."""
    found = [study.rows[dataset, e].scores.get(NLPD) for e in entries if (dataset, e) in study.rows]
    values = [v for v in found if v is not None and math.isfinite(v.mean)]
    if not values:
        return 0.0, 1.0
    means = sorted(value.mean for value in values)
    reach = max(OUTLIER * (median(means) - means[0]), 1e-3 * abs(means[0]), 1e-9)
    low = high = means[0] + reach
    for _ in range(3):  # what falls within for the bars of others brings its own
        drawn = [value for value in values if value.mean <= high]
        low = min(value.mean - (value.standard_error or 0.0) for value in drawn)
        high = max(value.mean + (value.standard_error or 0.0) for value in drawn)
    margin = 0.06 * (high - low) or 0.05 * max(abs(low), 1.0)
    return low - margin, high + margin


def _paint_nlpd(
    study: Study, limits: dict[str, tuple[float, float]], axes: Axes, y: float, dataset: str, entry: Entry
) -> None:
    value = study.rows[dataset, entry].scores.get(NLPD)
    if value is None:
        say(axes, 0.5, y, "unknown", "center")
    elif value.mean > limits[dataset][1]:
        words = "∞" if math.isinf(value.mean) else f"{value.mean:.3g}"
        say(axes, 0.985, y, f"{words} ▸", "right", look(entry.method).light)
    else:
        _mark(axes, y, entry, value)
