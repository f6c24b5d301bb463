"""Median KL along the way: against steps and time for every method, against steps by size of A for FIXEDA."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import CARETDOWN, CARETUP
from matplotlib.patches import Patch

from fsvi_bench.papers.burt2020.numbers import title_of
from fsvi_bench.papers.burt2020.sizes import LOWEST, SIZES, TINTS
from fsvi_bench.papers.burt2020.study.claims import MEASUREMENT_POINTS
from fsvi_bench.papers.burt2020.study.collect import entry_order
from fsvi_bench.papers.burt2020.study.panels import ACROSS, MEDIANS, finish, opacity, small_panels
from fsvi_bench.papers.burt2020.study.table import CurvePoint, Entry
from fsvi_bench.presenting.figures import SMALL, unlabelled
from fsvi_bench.presenting.report.appearance import look

DASHES: dict[str, Any] = {"full": "-", "ffg": (0, (3, 1.5))}
HEIGHT = 1.75  #: of a panel, inches
CARET: dict[str, Any] = {"linestyle": "", "markersize": 4.5, "markeredgewidth": 0.6}
STACKED = 0.055  #: of an axis's height, from one curve's carets to the next one's
APART = 0.11  #: of two numbers at the ends of curves, as a share of the axis's height
Planned = Mapping[tuple[str, Entry], int]  #: cells by data set and line


class _Style(NamedTuple):
    colour: str
    family: str
    opacity: float
    quartiles: bool

    def own(self) -> dict[str, Any]:
        """What a line and its carets share. Dashes lie on top: a line that they hide would be hidden whole."""
        return {"color": self.colour, "alpha": self.opacity, "zorder": 3 if self.family == "ffg" else 2}


def draw_steps(points: Sequence[CurvePoint], planned: Planned) -> Figure:
    """Median KL against steps; no machine comes into it."""
    return _draw_methods(points, planned, lambda p: p.steps, "steps")


def draw_time(points: Sequence[CurvePoint], planned: Planned) -> Figure:
    """Median KL against median seconds of training at the same number of steps."""
    return _draw_methods(points, planned, lambda p: p.seconds, "seconds per cell")


def _draw_methods(
    points: Sequence[CurvePoint], planned: Planned, along: Callable[[CurvePoint], float], across: str
) -> Figure:
    figure = _draw(points, planned, along, lambda e: look(e.method).light, quartiles=False)
    _label(figure, across)
    methods = list(dict.fromkeys(e.method for e in sorted({p.entry for p in points}, key=entry_order)))
    handles: list[Line2D | Patch] = [Line2D([], [], color=look(m).light, label=title_of(m)) for m in methods]
    handles += [Line2D([], [], color="0.3", linestyle=style, label=name) for name, style in DASHES.items()]
    beyond = _beyond_handles(points)
    _legend(figure, [*handles, *beyond], 4 if beyond else 6)
    figure.suptitle(f"{MEDIANS}; M = {MEASUREMENT_POINTS} without jitter", fontsize=SMALL)
    return figure


def draw_drift(points: Sequence[CurvePoint], planned: Planned) -> Figure:
    """KL against steps with its quartiles, a line per size of figures 3 and 4."""
    figure = _draw(points, planned, lambda p: p.steps, _tint, quartiles=True)
    _label(figure, "steps of L-BFGS")
    handles: list[Line2D | Patch] = [
        Patch(color=_tint(entry), label=f"{entry.family}, M = {entry.M}")
        for entry in sorted({point.entry for point in points}, key=lambda e: (e.M or 0, e.family != "full"))
    ]
    beyond = _beyond_handles(points)
    _legend(figure, [*handles, *beyond], 5 if beyond else 4)
    figure.suptitle(f"{MEDIANS}; shaded: quartiles", fontsize=SMALL)
    return figure


def _tint(entry: Entry) -> str:
    return TINTS[entry.family][SIZES.index(entry.M or 0)]


def _draw(
    points: Sequence[CurvePoint],
    planned: Planned,
    along: Callable[[CurvePoint], float],
    colour: Callable[[Entry], str],
    quartiles: bool,
) -> Figure:
    """A panel per planned data set, of lines that are there and lines that are not."""
    datasets = sorted({*(dataset for dataset, _ in planned), *(point.dataset for point in points)})
    figure, panels = small_panels(len(datasets), HEIGHT)
    for axes, dataset in zip(panels, datasets, strict=False):
        here = [p for p in points if p.dataset == dataset and p.steps > 0 and along(p) > 0]
        axes.set(xscale="log", yscale="log")
        _set_limits(axes, here, quartiles)
        counts, ends = [], []
        here_or_planned = {*(p.entry for p in here), *(entry for name, entry in planned if name == dataset)}
        for entry in sorted(here_or_planned, key=entry_order, reverse=True):  # SSGE's begin beneath RANDA's
            own = sorted((p for p in here if p.entry == entry), key=lambda p: p.steps)
            found = own[-1].cells if own else 0
            counts.append((found, max(planned.get((dataset, entry), 0), found)))
            if own:
                style = _Style(colour(entry), entry.family, opacity(*counts[-1]), quartiles)
                _draw_curve(axes, own, [along(p) for p in own], style)
                ends += [(along(own[-1]), own[-1], style)] if style.opacity < 1.0 else []
        if len({found for found, _ in counts if found}) > 1:
            _say_cells(axes, ends)
        finish(axes, dataset, counts)
    return figure


def _set_limits(axes: Axes, points: Sequence[CurvePoint], quartiles: bool) -> None:
    """About all finite values that are not below `LOWEST`; without any, an axis without numbers."""
    if not points:
        axes.set_xticks([])
        axes.set_xticks([], minor=True)
    names = ("kl", "kl_lower_quartile", "kl_upper_quartile") if quartiles else ("kl",)
    values = [value for p in points for name in names if math.isfinite(value := getattr(p, name))]
    shown = [value for value in values if value >= LOWEST]
    if not shown:
        unlabelled(axes)
        return
    cut = any(p.kl < LOWEST for p in points)
    axes.set_ylim(LOWEST if cut else max(min(shown) / 1.5, LOWEST / 1.5), max(shown) * 1.5)


def _draw_curve(axes: Axes, points: Sequence[CurvePoint], x: Sequence[float], style: _Style) -> None:
    """What is infinite is a caret at the top, too small a KL one at the foot."""
    low, high = axes.get_ylim()
    y = [max(p.kl, LOWEST) if math.isfinite(p.kl) else math.nan for p in points]
    axes.plot(x, y, linewidth=1.3, linestyle=DASHES[style.family], **style.own())
    alone = [i for i in range(len(y)) if all(math.isnan(v) for v in [*y[max(i - 1, 0) : i], *y[i + 1 : i + 2]])]
    axes.plot([x[i] for i in alone], [y[i] for i in alone], ".", markersize=3, **style.own())
    _draw_carets(axes, [place for place, p in zip(x, points, strict=True) if not math.isfinite(p.kl)], 1.0, style)
    _draw_carets(axes, [place for place, p in zip(x, points, strict=True) if p.kl < LOWEST], 0.0, style)
    if style.quartiles:
        lower, upper = (
            [min(max(getattr(p, name), low / 2), high * 2) for p in points]
            for name in ("kl_lower_quartile", "kl_upper_quartile")
        )
        axes.fill_between(x, lower, upper, color=style.colour, alpha=0.15 * style.opacity, linewidth=0)


def _draw_carets(axes: Axes, x: Sequence[float], edge: float, style: _Style) -> None:
    """At the top (1) or the foot (0), inside of those of the curves before; open for ffg, whose colour is full's."""
    if not x:
        return
    caret, across = (CARETUP if edge else CARETDOWN), axes.get_xaxis_transform()
    before = sum(line.get_marker() == caret for line in axes.lines)
    y = edge + (-STACKED if edge else STACKED) * before
    face = "white" if style.family == "ffg" else style.colour
    look = {**CARET, **style.own(), "markerfacecolor": face, "clip_on": False}
    axes.plot(x, [y] * len(x), marker=caret, transform=across, **look)


def _say_cells(axes: Axes, ends: Sequence[tuple[float, CurvePoint, _Style]]) -> None:
    """Behind curves that lack cells, of how many they are; moved apart where they would stand on each other."""
    low, high = (math.log(limit) for limit in axes.get_ylim())
    heights = []
    for _, point, _ in ends:
        value = min(max(point.kl, LOWEST), math.exp(high)) if math.isfinite(point.kl) else math.exp(high)
        heights.append((math.log(value) - low) / (high - low))
    places = moved_apart(heights, APART)
    across = axes.get_xaxis_transform()
    for (x, point, style), place in zip(ends, places, strict=True):
        axes.annotate(
            f"{point.cells}", (x, place), xycoords=across, xytext=(3, 0), textcoords="offset points", fontsize=SMALL,
            va="center", color=style.colour, annotation_clip=False,
        )  # fmt: skip


def moved_apart(places: Sequence[float], least: float) -> list[float]:
    """Places at least so far apart, in the same order, none above 1 unless all would not fit, and moved little."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for below, index in pairwise(order):
        moved[index] = max(moved[index], moved[below] + least)
    ceiling = 1.0
    for index in reversed(order):
        moved[index] = min(moved[index], ceiling)
        ceiling = moved[index] - least
    return moved


def _label(figure: Figure, across: str) -> None:
    """Beneath the lowest panel of each column: a figure's own label would stand in the legend."""
    panels = [axes for axes in figure.axes if axes.get_visible()]
    for axes in panels[max(len(panels) - ACROSS, 0) :]:
        axes.set_xlabel(across, fontsize=SMALL)
    figure.supylabel("KL(q ‖ exact) [nats]", fontsize=SMALL)


def _beyond_handles(points: Sequence[CurvePoint]) -> list[Line2D]:
    """What carets mean, if there are any."""
    taken = [point.kl for point in points if point.steps > 0]
    kinds: list[tuple[Any, str, bool]] = [(CARETUP, "infinite", any(not math.isfinite(kl) for kl in taken))]
    kinds.append((CARETDOWN, f"below {LOWEST:g}", any(kl < LOWEST for kl in taken)))
    return [Line2D([], [], color="0.3", marker=caret, label=name, **CARET) for caret, name, there in kinds if there]


def _legend(figure: Figure, handles: Sequence[Line2D | Patch], columns: int) -> None:
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=SMALL)
