"""Coverage of central predictive intervals by method, beside the exact posterior's own and the nominal one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fsvi_bench.presenting.report.appearance import INK, MUTED, PAPER, look
from fsvi_bench.presenting.report.strips import draw_strips, say
from fsvi_bench.presenting.report.study import Entry, Study

LEVELS = ("50", "90", "95")
SHADES = {"50": 0.0, "90": 0.35, "95": 1.0}  #: how full a mark is


def mean_coverage(study: Study, dataset: str, entry: Entry) -> dict[str, float] | None:
    """Level -> share of test targets inside, over splits (seeds averaged first); None where it does not apply."""
    found: dict[int, list[dict[str, float]]] = {}
    for record in study.finished(dataset, entry):
        if record.scores is None or record.scores.coverage is None:
            return None
        found.setdefault(record.split, []).append(record.scores.coverage)
    return _means(list(found.values()))


def exact_coverage(study: Study, dataset: str) -> dict[str, float] | None:
    """The same of the exact posterior, over all splits on which anything finished."""
    found = {
        record.split: [record.scores.coverage_exact]
        for (name, entry) in study.rows
        if name == dataset
        for record in study.finished(name, entry)
        if record.scores is not None
    }
    return _means([found[split] for split in sorted(found)])


def _means(splits: Sequence[Sequence[dict[str, float]]]) -> dict[str, float] | None:
    if not splits:
        return None
    return {level: fmean(fmean(seed[level] for seed in split) for split in splits) for level in LEVELS}


def draw_calibration(study: Study, datasets: Sequence[str]) -> Figure:
    """Open, half and full marks for 50, 90 and 95 %; dotted lines at these levels, solid ones at the exact's own."""
    entries = [e for e in study.entries if any((d, e) in study.rows for d in datasets)]
    label = "share of test targets within the central 50 % (open), 90 % (tinted) and 95 % (full) intervals"
    strips = draw_strips(study, datasets, entries, label, partial(_paint, study))
    for dataset, axes in strips.panels.items():
        axes.set_xlim(_lowest(study, dataset, entries), 1.02)
        axes.set_xticks([int(level) / 100 for level in LEVELS], ["50 %", "90", "95"])
        exact = exact_coverage(study, dataset)
        for level in LEVELS:
            axes.axvline(int(level) / 100, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
            if exact is not None:
                axes.axvline(exact[level], color=INK, linewidth=0.7, zorder=1)
    return strips.figure


def _lowest(study: Study, dataset: str, entries: Sequence[Entry]) -> float:
    found = [coverage["50"] for e in entries if (coverage := mean_coverage(study, dataset, e)) is not None]
    return max(min([0.45, *found]) - 0.05, -0.02)


def _paint(study: Study, axes: Axes, y: float, dataset: str, entry: Entry) -> None:
    coverage = mean_coverage(study, dataset, entry)
    if coverage is None:
        say(axes, 0.5, y, "unknown", "center")
        return
    seen = look(entry.method)
    axes.plot([coverage["50"], coverage["95"]], [y, y], color=seen.light, linewidth=0.7, alpha=0.5)
    for level in LEVELS:
        place = ([coverage[level]], [y], seen.marker)
        axes.plot(*place, color=seen.light, markersize=5.2, markerfacecolor=PAPER)
        if SHADES[level]:
            axes.plot(*place, color=seen.light, markersize=5.2, markeredgewidth=0, alpha=SHADES[level])
