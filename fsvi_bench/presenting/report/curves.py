"""KL against steps and against seconds on one data set: median over cells, band between the quartiles."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fsvi_bench.posteriors.base import Family
from fsvi_bench.presenting.figures import NO_LOGARITHM, SMALL
from fsvi_bench.presenting.report.appearance import BAND, INK, MUTED, RULE, look
from fsvi_bench.presenting.report.strips import WIDTH, power
from fsvi_bench.presenting.report.study import FAMILIES, REFERENCE, Entry, Study
from fsvi_bench.presenting.traces import Spread, spread_by_second, spread_by_step

KL, OF_MOMENTS = "kl", "kl_moment_matched"
MOST_POINTS = 40  #: of a curve; more cannot be told apart at this width
DASHES = ("-", (0, (5, 2)), (0, (2, 1.5)), (0, (1, 1)))  #: of a method's several settings
TALL, LOW, WIDEST = 2.5, 1.8, 5.6  #: inches of a panel
ALONG = ("steps", "seconds")
LEGEND_COLUMNS = 5
LEFT, RIGHT, TOP, BOTTOM, BETWEEN = 0.62, 0.12, 0.34, 0.46, 0.24


@dataclass(frozen=True)
class Curve:
    """One entry's KL as (place, spread), at places greater than 0; of q's moments where its own is infinite."""

    entry: Entry
    of_moments: bool
    by_step: list[tuple[float, Spread]]
    by_second: list[tuple[float, Spread]]


def curves_of(study: Study, dataset: str) -> list[Curve]:
    """Curves of all entries that have traces."""
    curves = []
    for entry in study.entries_on(dataset):
        if not (traces := study.traces(dataset, entry)):
            continue
        singular = any(math.isinf(trace.points[-1].kl) for trace in traces)
        score = OF_MOMENTS if singular else KL
        by_step = [(float(step), spread) for step, spread in spread_by_step(traces, score)]
        curves.append(Curve(entry, singular, _thinned(by_step), _thinned(spread_by_second(traces, score))))
    return curves


def _thinned(points: Sequence[tuple[float, Spread]]) -> list[tuple[float, Spread]]:
    """At most so many points, evenly on a logarithmic axis; the last one stays, and what lies at 0 has no place."""
    positive = [point for point in points if point[0] > 0]
    if len(positive) <= MOST_POINTS:
        return positive
    step = math.log(positive[-1][0] / positive[0][0]) / (MOST_POINTS - 1)
    kept: dict[int, tuple[float, Spread]] = {}
    for point in positive:
        kept[round(math.log(point[0] / positive[0][0]) / step)] = point
    return list(kept.values())


def draw_curves(study: Study, dataset: str, curves: Sequence[Curve]) -> Figure:
    """Families from left to right, against steps above and against seconds below; with several M, a row for each."""
    families = [family for family in FAMILIES if any(curve.entry.family == family for curve in curves)]
    sizes = _measurement_sizes(curves)
    rows: list[list[Place]] = [[Place(family, along, None) for family in families] for along in ALONG]
    if len(sizes) > 1:
        rows = [[Place(family, along, size) for family in families for along in ALONG] for size in sizes]
    figure, panels = _panels(len(rows), len(rows[0]), _legend_lines(curves))
    limits, dashes = _limits(curves), _dashes(curves)
    for row, (places, all_axes) in enumerate(zip(rows, panels, strict=True)):
        for column, (place, axes) in enumerate(zip(places, all_axes, strict=True)):
            here = [curve for curve in curves if place.holds(curve.entry)]
            for curve in here:
                _draw_curve(axes, curve, place.along, dashes[_name(curve.entry)])
            _draw_optimum(study, axes, dataset, place.family)
            _lay_out(axes, limits, place.along, short=len(places) > 4)
            if row == 0 and (place.along == ALONG[0] or len(sizes) < 2):
                axes.set_title(_title(place.family, here), loc="left", fontsize=SMALL + 0.5, fontweight="bold")
            if column == 0:
                words = "KL, nats" if place.size is None else f"KL, nats; M = {place.size}"
                axes.set_ylabel(words, fontsize=SMALL, color=MUTED)
            else:
                axes.tick_params(labelleft=False)
    _legend(figure, curves)
    return figure


@dataclass(frozen=True)
class Place:
    """What a panel shows: a family, against what, and which number of measurement points if they are told apart."""

    family: Family
    along: str
    size: int | None

    def holds(self, entry: Entry) -> bool:
        """An entry without measurement points stands in the panels of every number of them."""
        return entry.family == self.family and (self.size is None or _size(entry) in (None, self.size))


def _size(entry: Entry) -> int | None:
    return json.loads(entry.hyperparameters).get("M")


def _measurement_sizes(curves: Sequence[Curve]) -> list[int]:
    return sorted({size for curve in curves if (size := _size(curve.entry)) is not None})


def _panels(rows: int, columns: int, legend_lines: int) -> tuple[Figure, list[list[Axes]]]:
    legend = 0.1 + 0.2 * legend_lines
    across = min((WIDTH - LEFT - RIGHT + BETWEEN) / columns, WIDEST)
    down = TALL if rows <= len(ALONG) else LOW
    width = LEFT + RIGHT + across * columns - BETWEEN
    height = TOP + rows * (down + BOTTOM) + legend
    figure = Figure(figsize=(width, height))
    panels = []
    for row in range(rows):
        bottom = legend + BOTTOM + (rows - 1 - row) * (down + BOTTOM)
        boxes = [
            ((LEFT + column * across) / width, bottom / height, (across - BETWEEN) / width, down / height)
            for column in range(columns)
        ]
        panels.append([figure.add_axes(box) for box in boxes])
    return figure, panels


def _limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """From the least quartile to the greatest median: wide bands above may leave the panel."""
    spreads = [spread for curve in curves for _, spread in (*curve.by_step, *curve.by_second)]
    lows = [s.lower_quartile for s in spreads if s.lower_quartile > NO_LOGARITHM and math.isfinite(s.lower_quartile)]
    highs = [s.median for s in spreads if s.median > NO_LOGARITHM and math.isfinite(s.median)]
    return (min(lows) / 1.5, max(highs) * 1.5) if lows and highs else (0.1, 10.0)


def _draw_curve(axes: Axes, curve: Curve, along: str, dashes: object) -> None:
    points = curve.by_step if along == "steps" else curve.by_second
    points = [(place, s) for place, s in points if math.isfinite(s.median)]
    if not points:
        return
    seen = look(curve.entry.method)
    places = [place for place, _ in points]
    low, high = [s.lower_quartile for _, s in points], [s.upper_quartile for _, s in points]
    axes.fill_between(places, low, high, color=seen.light, alpha=0.13, linewidth=0)
    axes.plot(
        places,
        [s.median for _, s in points],
        color=seen.light,
        linewidth=1.4,
        linestyle=dashes,  # type: ignore[arg-type]
        marker=seen.marker,
        markersize=4,
        markevery=(sum(curve.entry.method.encode()) % 5, 6),
    )


def _name(entry: Entry) -> tuple[str, str]:
    """Method and settings, M apart: panels tell that, lines tell the rest."""
    return entry.method, " ".join(word for word in entry.settings.split() if not word.startswith("M="))


def _dashes(curves: Sequence[Curve]) -> dict[tuple[str, str], object]:
    """Solid for the first of a method's settings, others for the next."""
    names = list(dict.fromkeys(_name(curve.entry) for curve in curves))
    own = {method: [name for name in names if name[0] == method] for method, _ in names}
    return {name: DASHES[own[name[0]].index(name) % len(DASHES)] for name in names}


def _draw_optimum(study: Study, axes: Axes, dataset: str, family: Family) -> None:
    """The KL of the best q of the family, where that is not 0."""
    for entry in study.entries_on(dataset):
        if (entry.method, entry.family) != (REFERENCE, family):
            continue
        value = study.rows[dataset, entry].scores.get(KL)
        if value is not None and value.mean > NO_LOGARITHM:
            axes.axhline(value.mean, color=look(REFERENCE).light, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)


def _lay_out(axes: Axes, limits: tuple[float, float], along: str, short: bool) -> None:
    axes.set_facecolor(BAND)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xscale("log")
    axes.set_yscale("log", nonpositive="clip")
    axes.set_ylim(*limits)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=4 if short else 6))
        axis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
        axis.set_minor_locator(NullLocator())
    axes.grid(color=RULE)
    axes.tick_params(labelsize=SMALL, length=3)
    words = "steps" if along == "steps" else "seconds per cell"
    axes.set_xlabel(words if short else f"training {words}", fontsize=SMALL, color=MUTED, labelpad=2)


def _title(family: Family, curves: Sequence[Curve]) -> str:
    return f"{family}: KL of q’s moments" if any(curve.of_moments for curve in curves) else family


def _legend_lines(curves: Sequence[Curve]) -> int:
    return math.ceil(len({_name(curve.entry) for curve in curves}) / LEGEND_COLUMNS)


def _legend(figure: Figure, curves: Sequence[Curve]) -> None:
    handles = [
        Line2D(
            [],
            [],
            color=look(name[0]).light,
            marker=look(name[0]).marker,
            linestyle=dashes,  # type: ignore[arg-type]
            markersize=4.5,
            linewidth=1.4,
            label=" ".join(name).strip(),
        )
        for name, dashes in _dashes(curves).items()
    ]
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=LEGEND_COLUMNS,
        frameon=False,
        fontsize=SMALL,
        handlelength=2.2,
        columnspacing=1.6,
        labelcolor=INK,
        borderaxespad=0.1,
    )
