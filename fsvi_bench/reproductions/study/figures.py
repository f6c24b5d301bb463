"""The study's figures, from its table: the paper's figures 3 and 4, spectra, KL against time, FIXEDA's drift."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fsvi_bench.reporting.figures import NO_LOGARITHM, NORMAL, PAGE_WIDTH, SMALL, tidy
from fsvi_bench.reporting.report.appearance import look
from fsvi_bench.reporting.summary import Row
from fsvi_bench.reproductions.burt2020_numbers import title_of
from fsvi_bench.reproductions.burt2020_sizes import LOWEST, SIZES, TINTS, draw_size_panels
from fsvi_bench.reproductions.study.collect import entry_order
from fsvi_bench.reproductions.study.summary import (
    DRIFTING,
    Cells,
    at_the_papers_setting,
    datasets_of,
    entries_of,
    size_rows,
)
from fsvi_bench.reproductions.study.table import CurvePoint, Entry, Tables, of_entry

PER_FIGURE = 4  #: data sets of figures 3 and 4, in alphabetic order, as in the paper
ACROSS = 4  #: panels in a row
LEAST_RATIO, GREATEST_RATIO = 1e-3, 1e3  #: of variances; what lies beyond is drawn as a line to the edge
FAMILY_DASHES = {"full": "-", "ffg": (0, (3, 1.5))}


def study_figures(tables: Tables, quick: bool) -> Iterator[tuple[str, Figure]]:
    """Every figure that there is something to draw for, with its name."""
    datasets = datasets_of(tables.cells)
    for place in range(0, len(datasets), PER_FIGURE):
        yield f"scores-{place // PER_FIGURE + 1}", _scores(tables.cells, datasets[place : place + PER_FIGURE], quick)
    if any(cell.status == "ok" for cell in tables.cells):
        yield "spectrum", _spectrum(tables.cells)
    settled = [point for point in tables.curves if at_the_papers_setting(point.entry)]
    if settled:
        yield "time", _time(settled)
    drifting = [point for point in tables.curves if point.method == DRIFTING]
    if drifting:
        yield "drift", _drift(drifting)


def _scores(cells: Cells, datasets: Sequence[str], quick: bool) -> Figure:
    here = [cell for cell in cells if cell.dataset in datasets]

    def scores(row: Row, score: str) -> list[float]:
        settings = (row.hyperparameters.get("M"), row.hyperparameters.get("kl_jitter"))
        group = of_entry(here, row.dataset, Entry(row.method, row.family, *settings))  # type: ignore[arg-type]
        return [value for c in group if c.status == "ok" and (value := getattr(c, score)) is not None]

    there = sum(cell.status != "missing" for cell in here)
    words = f"{there:,} of {len(here):,} cells"
    return draw_size_panels(size_rows(here, datasets), scores, words, quick)


def _panels(count: int, height: float, shared: bool = False) -> tuple[Figure, list[Axes]]:
    across, down = min(ACROSS, count), math.ceil(count / ACROSS)
    figure = Figure(figsize=(PAGE_WIDTH, height * down + 0.8), layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False, sharex=shared, sharey=shared).flat)
    for spare in panels[count:]:
        spare.set_visible(False)
    return figure, panels


def _spectrum(cells: Cells) -> Figure:
    """A line per method from 0 to 100 % of the directions, thick from 25 to 75 %, medians over splits."""
    datasets, entries = datasets_of(cells), entries_of(cells, at_the_papers_setting)
    figure, panels = _panels(len(datasets), 0.19 * len(entries) + 0.5, shared=True)
    for axes, dataset in zip(panels, datasets, strict=False):
        axes.set_xscale("log")
        axes.axvline(1.0, color="black", linewidth=0.8, zorder=1)
        for place, entry in enumerate(entries):
            finished = [cell for cell in of_entry(cells, dataset, entry) if cell.status == "ok"]
            if finished:
                _draw_spectrum(axes, -place, entry, finished)
        axes.set_xlim(LEAST_RATIO / 1.5, GREATEST_RATIO * 1.5)
        axes.set_ylim(-len(entries) + 0.4, 0.6)
        axes.set_yticks([-place for place in range(len(entries))], [_short(entry) for entry in entries])
        axes.set_title(dataset, fontsize=NORMAL, loc="left")
        _quiet(axes)
    figure.supxlabel("variance of q over the exact one, by direction: 0 to 100 %, thick 25 to 75 %", fontsize=SMALL)
    return figure


def _draw_spectrum(axes: Axes, y: float, entry: Entry, cells: Cells) -> None:
    def quantile(percent: int) -> float:
        value = median(getattr(cell, f"spectrum_{percent}") for cell in cells)
        return min(max(value, LEAST_RATIO / 1.5), GREATEST_RATIO * 1.5)

    seen = look(entry.method)
    axes.plot([quantile(0), quantile(100)], [y, y], color=seen.light, linewidth=1.0, solid_capstyle="butt")
    axes.plot([quantile(25), quantile(75)], [y, y], color=seen.light, linewidth=4.2, alpha=0.45, solid_capstyle="butt")
    axes.plot([quantile(50)], [y], seen.marker, color=seen.light, markersize=4)


def _time(points: Sequence[CurvePoint]) -> Figure:
    """Median KL against median seconds of training at the same number of steps."""
    datasets = sorted({point.dataset for point in points})
    figure, panels = _panels(len(datasets), 1.75)
    entries = sorted({point.entry for point in points}, key=entry_order)
    for axes, dataset in zip(panels, datasets, strict=False):
        for entry in entries:
            _draw_curve(axes, _of(points, dataset, entry), lambda p: p.seconds, look(entry.method).light, entry.family)
        _finish_curves(axes, dataset)
    _label(figure, panels, len(datasets), "seconds per cell")
    methods = list(dict.fromkeys(entry.method for entry in entries))
    handles = [Line2D([], [], color=look(m).light, label=title_of(m)) for m in methods]
    figure.legend(
        handles=[*handles, *_family_handles()], loc="outside lower center", ncols=6, frameon=False, fontsize=SMALL
    )
    return figure


def _drift(points: Sequence[CurvePoint]) -> Figure:
    """FIXEDA's KL against steps with its quartiles, a line per size."""
    datasets = sorted({point.dataset for point in points})
    figure, panels = _panels(len(datasets), 1.75)
    for axes, dataset in zip(panels, datasets, strict=False):
        for entry in sorted({point.entry for point in points}, key=entry_order):
            if entry.M in SIZES:
                colour = TINTS[entry.family][SIZES.index(entry.M)]
                _draw_curve(axes, _of(points, dataset, entry), lambda p: p.steps, colour, entry.family, quartiles=True)
        _finish_curves(axes, dataset)
    _label(figure, panels, len(datasets), "steps of L-BFGS")
    handles: list[Line2D | Patch] = [
        Patch(color=TINTS[family][place], label=f"{family}, M = {size}")
        for place, size in enumerate(SIZES)
        for family in ("full", "ffg")
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=SMALL)
    return figure


def _draw_curve(
    axes: Axes,
    points: Sequence[CurvePoint],
    along: Callable[[CurvePoint], float],
    colour: str,
    family: str,
    quartiles: bool = False,
) -> None:
    """Without the point before the first step, and without what is infinite or below what is shown."""
    shown = [p for p in points if p.steps > 0 and math.isfinite(p.kl) and along(p) > 0]
    x = [along(p) for p in shown]
    axes.plot(x, [max(p.kl, LOWEST) for p in shown], color=colour, linewidth=1.3, linestyle=FAMILY_DASHES[family])
    if quartiles:
        low, high = (
            [max(getattr(p, name), LOWEST) for p in shown] for name in ("kl_lower_quartile", "kl_upper_quartile")
        )
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _finish_curves(axes: Axes, dataset: str) -> None:
    axes.set(xscale="log", yscale="log")
    axes.set_ylim(bottom=max(axes.get_ylim()[0], LOWEST * 0.8, NO_LOGARITHM))
    axes.set_title(dataset, fontsize=NORMAL, loc="left")
    _quiet(axes)


def _label(figure: Figure, panels: Sequence[Axes], count: int, across: str) -> None:
    """Beneath the lowest panel of each column: a figure's own label would stand in the legend."""
    for axes in panels[max(count - ACROSS, 0) : count]:
        axes.set_xlabel(across, fontsize=SMALL)
    figure.supylabel("KL(q ‖ exact) [nats]", fontsize=SMALL)


def _family_handles() -> list[Line2D]:
    return [Line2D([], [], color="0.3", linestyle=style, label=name) for name, style in FAMILY_DASHES.items()]  # type: ignore[arg-type]


def _of(points: Sequence[CurvePoint], dataset: str, entry: Entry) -> list[CurvePoint]:
    return [point for point in points if point.dataset == dataset and point.entry == entry]


def _short(entry: Entry) -> str:
    return f"{title_of(entry.method).replace(', natural gradients', ' n.g.')} {entry.family}"


def _quiet(axes: Axes) -> None:
    """No frame, and few labels on a logarithmic axis this narrow."""
    title = axes.get_title(loc="left")
    tidy(axes, SMALL)
    axes.set_title(title, fontsize=NORMAL, loc="left")
    axes.tick_params(which="minor", labelbottom=False, labelleft=False)
