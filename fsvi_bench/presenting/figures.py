"""Figures: legible in print, safe for colour-blind readers (Okabe and Ito's palette), without a display."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from fsvi_bench.files import write_atomically
from fsvi_bench.maths.blr import predictive_variance
from fsvi_bench.posteriors.base import Family, Posterior
from fsvi_bench.presenting.summary import Estimate
from fsvi_bench.tasks.task import Task

Array = NDArray[np.float64]
Dashes = tuple[float, tuple[float, ...]]  #: matplotlib's offset, and lengths of dashes and gaps

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
PALETTE = (BLUE, VERMILLION, GREEN, PURPLE)
PAGE_WIDTH = 7.0  #: inches of a printed page's text; at this width no letter is smaller than 8 points
SMALL, NORMAL, LARGE = 8.0, 9.0, 10.0  #: points
DOTS_PER_INCH = 200
STYLE = Path(__file__).parent / "assets" / "figures.mplstyle"  #: Matplotlib's settings for every figure
#: Colour and marker.
FAMILY_STYLE: dict[Family, tuple[str, str]] = {
    "full": (BLUE, "o"),
    "ffg": (VERMILLION, "s"),
    "bernoulli": (GREEN, "^"),
    "spike-slab": (PURPLE, "D"),
}
#: Within a column of width 1.
FAMILY_PLACE: dict[Family, float] = {"full": -0.2, "ffg": 0.2, "bernoulli": 0.2, "spike-slab": 0.2}
FAINT = 0.4  #: opacity of what is over fewer cells than planned
LEVEL_LINE: Dashes = (0, (4, 3))
NO_LOGARITHM = 1e-9  #: a KL below this is 0 but for rounding, which a logarithmic axis cannot show


@dataclass(frozen=True)
class Curve:
    """Mean and standard deviation of f (without noise) at inputs in rising order."""

    x: Array
    mean: Array
    sd: Array


def curve(problem: Task, q: Posterior) -> Curve:
    """f under q at a problem's test inputs.

    Raises:
        ValueError: the problem's inputs have more than one dimension.
    """
    if problem.X.shape[1] != 1:
        raise ValueError(f"inputs have {problem.X.shape[1]} dimensions, only one can be drawn")
    order = problem.X_test[:, 0].argsort()
    Phi, no_noise = problem.Phi_test[order], torch.zeros((), dtype=torch.float64)
    deviation = predictive_variance(Phi, q.covariance_tril(), no_noise).sqrt()
    return Curve(problem.X_test[order, 0].numpy(), (Phi @ q.mean).numpy(), deviation.numpy())


def draw_posteriors(axes: Axes, problem: Task, posteriors: Mapping[str, Posterior]) -> None:
    """Training data and, for each posterior, the mean of f with a band of ±2 standard deviations of f (no noise).

    Raises:
        ValueError: the problem's inputs have more than one dimension.
    """
    for (label, q), colour in zip(posteriors.items(), PALETTE, strict=False):
        draw_band(axes, curve(problem, q), colour, label)
    draw_training_data(axes, problem)


def draw_band(axes: Axes, of: Curve, colour: str, label: str = "", width: float = 1.8) -> None:
    """A mean and, filled, two standard deviations on both sides of it."""
    low, high = of.mean - 2 * of.sd, of.mean + 2 * of.sd
    axes.fill_between(of.x, low, high, color=colour, alpha=0.18, linewidth=0)
    for edge in (low, high):
        axes.plot(of.x, edge, color=colour, linewidth=0.45 * width)
    axes.plot(of.x, of.mean, color=colour, linewidth=width, label=label)


def draw_outline(axes: Axes, of: Curve, colour: str, style: Dashes) -> None:
    """The same, thin and not filled, to be laid over a band."""
    for line in (of.mean - 2 * of.sd, of.mean, of.mean + 2 * of.sd):
        axes.plot(of.x, line, color=colour, linewidth=0.9, linestyle=style)


def draw_training_data(axes: Axes, problem: Task, size: float = 5) -> None:
    """The training points of a problem with one input."""
    axes.plot(problem.X[:, 0], problem.y, ".", color="black", markersize=size, label="training data")
    tidy(axes)


@dataclass(frozen=True)
class Mark:
    """One point of `draw_marks`: in which column, of which family, filled or open. No estimate: nothing finished."""

    column: str
    family: Family
    filled: bool
    estimate: Estimate | None
    finished: int = 1
    cells: int = 1
    missing: int = 0  #: cells that have yet to be computed

    @property
    def planned(self) -> int:
        return self.cells + self.missing

    @property
    def opacity(self) -> float:
        return 1.0 if self.finished == self.planned else FAINT


def draw_marks(axes: Axes, marks: Sequence[Mark], logarithmic: bool = False) -> None:
    """Means with standard errors; within each column families side by side, and within each family the fillings.

    What the axis cannot show is said at its edge: 0 (to rounding) on a logarithmic axis, and infinity. A mark that
    lacks cells is faint, and beneath its column stands how many of the planned cells finished (and how many failed).
    """
    columns = list(dict.fromkeys(mark.column for mark in marks))
    shown = [m.estimate.mean for m in marks if m.estimate is not None and _on_axis(m.estimate.mean, logarithmic)]
    if logarithmic:
        _set_logarithmic(axes, shown)
    for mark in marks:
        twins = sum((m.column, m.family) == (mark.column, mark.family) for m in marks)
        apart = (-0.08 if mark.filled else 0.08) if twins > 1 else 0.0
        _draw_mark(axes, mark, columns.index(mark.column) + FAMILY_PLACE[mark.family] + apart, logarithmic)
    axes.set_xticks(range(len(columns)), [_column_label(name, marks) for name in columns])
    axes.set_xlim(-0.5, len(columns) - 0.5)
    for edge in range(1, len(columns)):
        axes.axvline(edge - 0.5, color="0.88", linewidth=0.6, zorder=0)
    if not any(mark.estimate for mark in marks):
        unlabelled(axes)
    tidy(axes, SMALL)


def draw_level(axes: Axes, value: float, family: Family, opacity: float = 1.0) -> None:
    """A thin line for comparison across the columns, in a family's colour."""
    colour = FAMILY_STYLE[family][0]
    axes.axhline(value, color=colour, linewidth=0.8, linestyle=LEVEL_LINE, zorder=1, alpha=opacity)


def unlabelled(axes: Axes) -> None:
    """An axis on which nothing stands has no numbers."""
    axes.yaxis.set_major_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())


def counted_words(marks: Sequence[Mark]) -> list[str]:
    """How many of the planned cells went into marks, and how many failed (✗), as `3/20` and `1 ✗`; nothing if whole."""
    words = []
    if any(mark.finished < mark.planned for mark in marks):
        words.append(f"{span([m.finished for m in marks])}/{span([m.planned for m in marks])}")
    if any(mark.finished < mark.cells for mark in marks):
        words.append(f"{span([m.cells - m.finished for m in marks])} ✗")
    return words


def _column_label(name: str, marks: Sequence[Mark]) -> str:
    return "\n".join([name, *counted_words([mark for mark in marks if mark.column == name])])


def span(values: Sequence[int]) -> str:
    """From the least to the greatest, as `3–20`; one number if they are equal."""
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low}–{high}"


def _set_logarithmic(axes: Axes, shown: Sequence[float]) -> None:
    """Room below for what is 0."""
    axes.set_yscale("log", nonpositive="clip")
    if shown:
        axes.set_ylim(min(shown) / 5, max(shown) * 2.2)
    label_logarithmic(axes)


def label_logarithmic(axes: Axes) -> None:
    """Labels of a y axis that has its limits: between powers of ten also 2 and 5, if few powers are in view."""
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_formatter(NullFormatter())
    if high / low < 1e3:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _on_axis(value: float, logarithmic: bool) -> bool:
    return math.isfinite(value) and (value >= NO_LOGARITHM or not logarithmic)


def _draw_mark(axes: Axes, mark: Mark, x: float, logarithmic: bool) -> None:
    if mark.estimate is None:
        return
    colour, marker = FAMILY_STYLE[mark.family]
    look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5.0, "linestyle": ""}
    look |= {"markerfacecolor": colour if mark.filled else "white", "alpha": mark.opacity}
    value = mark.estimate
    if _on_axis(value.mean, logarithmic):
        axes.errorbar(x, value.mean, yerr=value.standard_error, capsize=2, elinewidth=1, **look)
        return
    words, edge, inwards = ("= 0", 0.0, 1) if value.mean < NO_LOGARITHM else ("= ∞", 1.0, -1)
    draw_arrow(axes, x, edge + inwards * 0.13, edge, look)
    _say_at_edge(axes, x, edge + inwards * 0.17, words, colour)


def draw_arrow(axes: Axes, x: float, tail: float, edge: float, look: Mapping[str, Any], size: float = 10) -> None:
    """A mark near an edge with an arrow to it: its value lies beyond. Places as shares of the axis's height.

    Args:
        look: the mark's, with `color` and `alpha`.
        size: of the arrow's head, in points.
    """
    arrow = {"arrowstyle": "-|>", "color": look["color"], "alpha": look["alpha"], "mutation_scale": size}
    across = axes.get_xaxis_transform()
    arrow |= {"shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=(x, edge), xytext=(x, tail), xycoords=across, arrowprops=arrow)
    axes.plot([x], [tail], transform=across, **look)


def _say_at_edge(axes: Axes, x: float, y: float, words: str, colour: str) -> None:
    """Words at an axis's lower or upper edge; `y` as a share of its height."""
    axes.text(
        x,
        y,
        words,
        transform=axes.get_xaxis_transform(),
        color=colour,
        fontsize=SMALL,
        ha="center",
        va="bottom" if y < 0.5 else "top",
        bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5},
    )


def tidy(axes: Axes, size: float = NORMAL) -> None:
    """No frame above and to the right, and ticks in letters of that size (points)."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(which="both", labelsize=size)
    axes.title.set_fontsize(11)


def new_figure(
    columns: int, width: float, height: float, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure apart from pyplot's global state, with its axes from left to right."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False, width_ratios=ratios)
    return figure, list(axes[0])


def write_figure(figure: Figure, stem: Path, dots_per_inch: int = DOTS_PER_INCH) -> list[Path]:
    """Writes `stem`.png and `stem`.svg, each whole or not at all; equal figures give equal bytes.

    Raises:
        InputError: the folder cannot be written.
    """
    paths = []
    for kind, metadata in (("png", {}), ("svg", {"Date": None})):
        content, path = io.BytesIO(), stem.with_name(f"{stem.name}.{kind}")
        with matplotlib.rc_context({"svg.hashsalt": stem.name}):
            figure.savefig(content, format=kind, dpi=dots_per_inch, metadata=metadata)
        write_atomically(path, content.getvalue())
        paths.append(path)
    return paths
