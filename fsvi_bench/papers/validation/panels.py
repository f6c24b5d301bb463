"""The validation's figure: others' NLPD and RMSE against the exact posterior's, split by split."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fsvi_bench.papers.validation.numbers import Numbers, SplitNumbers
from fsvi_bench.presenting.figures import BLUE, GREEN, LARGE, NORMAL, PAGE_WIDTH, SMALL, VERMILLION, tidy

ROW_HEIGHT = 0.62  #: inches per data set
LINEAR_TO = 0.1  #: nats, where the NLPD axis turns logarithmic
NLPD_TICKS = (-10, -3, -1, -0.3, -0.1, 0, 0.1, 0.3, 1, 3, 10)
RMSE_TICKS = (0.1, 0.2, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)
DROPOUT, GPFLOW, TITSIAS = -0.28, 0.0, 0.28  #: lines of a data set's band, whose middle is 0
LOOK = {
    DROPOUT: {"marker": "o", "color": BLUE, "label": "MC dropout, as published"},
    GPFLOW: {"marker": "D", "color": VERMILLION, "label": "GPflow's sparse GP"},
    TITSIAS: {"marker": "|", "color": GREEN, "label": "Titsias prediction of our task"},
}


def draw(numbers: Numbers) -> Figure:
    """A band per data set, a line of points in it per source, a point per split; the exact posterior is at the line."""
    height = 1.25 + ROW_HEIGHT * len(numbers.datasets)
    figure = Figure(figsize=(PAGE_WIDTH, height), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    left.set_xscale("symlog", linthresh=LINEAR_TO)
    right.set_xscale("log")
    for axes, origin in ((left, 0), (right, 1)):
        _bands(axes, numbers, origin)
    for band, dataset in enumerate(numbers.datasets):
        for row in numbers.of(dataset):
            _nlpd_points(left, band, row)
            _rmse_points(right, band, row)
    _ticks(left, NLPD_TICKS, lambda value: f"{value:+g}" if value else "0")
    _ticks(right, RMSE_TICKS, lambda value: f"{value:g}")
    left.set_title("NLPD less the exact posterior's", fontsize=LARGE, loc="left")
    right.set_title("RMSE over the exact posterior's", fontsize=LARGE, loc="left")
    left.set_xlabel(f"nats per test point, logarithmic beyond ±{LINEAR_TO}", fontsize=NORMAL)
    right.set_xlabel("ratio, logarithmic", fontsize=NORMAL)
    handles = [Line2D([], [], linestyle="", **look) for look in LOOK.values()]  # type: ignore[arg-type]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=SMALL)
    return figure


def _bands(axes: Axes, numbers: Numbers, origin: float) -> None:
    tidy(axes, SMALL)
    axes.margins(x=0.04)
    axes.axvline(origin, color="black", linewidth=0.8)
    for band in range(1, len(numbers.datasets)):
        axes.axhline(band - 0.5, color="0.85", linewidth=0.6)
    axes.set_yticks(range(len(numbers.datasets)), numbers.datasets)
    axes.set_ylim(len(numbers.datasets) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelsize=NORMAL)


def _nlpd_points(axes: Axes, band: int, row: SplitNumbers) -> None:
    titsias = row.titsias.nlpd - row.exact.nlpd
    _point(axes, titsias, band, TITSIAS)
    if row.dropout is not None:
        _point(axes, row.dropout.nlpd - row.exact.nlpd, band, DROPOUT)
    if row.gpflow is not None:
        gpflow = row.gpflow.nlpd - row.exact.nlpd
        axes.plot([gpflow, titsias], [band + GPFLOW, band + TITSIAS], color="0.6", linewidth=0.7, zorder=1)
        _point(axes, gpflow, band, GPFLOW)


def _rmse_points(axes: Axes, band: int, row: SplitNumbers) -> None:
    """The Titsias prediction's RMSE is the exact posterior's: not drawn."""
    if row.dropout is not None:
        _point(axes, row.dropout.rmse / row.exact.rmse, band, DROPOUT)
    if row.gpflow is not None:
        _point(axes, row.gpflow.rmse / row.exact.rmse, band, GPFLOW)


def _point(axes: Axes, x: float, band: int, line: float) -> None:
    look = LOOK[line]
    size = 5 if look["marker"] == "|" else 3.4
    axes.plot([x], [band + line], look["marker"], color=look["color"], markersize=size, alpha=0.65, markeredgewidth=0.9)


def _ticks(axes: Axes, places: Sequence[float], words: Callable[[float], str]) -> None:
    low, high = axes.get_xlim()
    shown = [place for place in places if low <= place <= high]
    axes.set_xticks(shown, [words(place) for place in shown])
    axes.set_xticks([], minor=True)
    axes.set_xlim(low, high)
