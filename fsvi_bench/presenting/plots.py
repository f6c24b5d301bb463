"""Figures specified over tidy frames: panels of lines, points, bands and intervals, drawn by Matplotlib."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict

from fsvi_bench.presenting.figures import BLUE, GREEN, LARGE, NORMAL, PAGE_WIDTH, PURPLE, SMALL, VERMILLION, tidy
from fsvi_bench.presenting.tables import Frames, select, worded

NAMED = {"blue": BLUE, "vermillion": VERMILLION, "green": GREEN, "purple": PURPLE}
STROKES = ("|", "_", "+", "x")  #: markers without a face
Scale = Literal["linear", "log"]
Drawings = Mapping[str, Callable[[Axes], None]]  #: what no layer can draw, by the name that a panel calls it by


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Layer(_Spec):
    """One kind of mark over the rows of a frame.

    A `line`, `points` or both (`linepoints`) at (x, y); a `bar` up to there, `width` wide in units of x; a `band` or
    `intervals` from `low` to `high`; a level across the panel (`hline` at y, `vline` at x), whose place is a number or
    a column.

    Args:
        optional: whether no row may be as `where` says.
        by: a column; each of its values is drawn by itself, with the next of the colours, markers and line styles.
        shades: one of Matplotlib's colour maps, of which these colours are taken evenly instead.
        take: one point per x, the maximum, median or another such aggregate of the y there.
        label: in the legend; `{}`, or `{:.2f}`, stands for the value of `by`.
        shift: how far to the right of x, so that several stand side by side.
        every: of a line, the marked points: every n-th; a pair is (first, step); below 1, a share of the axes.
        hollow: points are outlines.
        colour: of the values of `by` in turn, or by value.
        alpha: a number, or a column that holds one for each value of `by`.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)  # YAML reads the keys of colours as numbers
    kind: Literal["line", "points", "linepoints", "bar", "band", "intervals", "hline", "vline"] = "line"
    frame: str | None = None
    where: dict[str, Any] = {}
    optional: bool = False
    x: str | float = "x"
    y: str | float = "y"
    low: str = "low"
    high: str = "high"
    by: str | None = None
    take: str | None = None
    label: str | None = None
    colour: str | list[str] | dict[str, str] = [*NAMED, "black"]
    shades: str | None = None
    marker: str | list[str] = "o"
    style: str | list[str] = "-"
    width: float = 1.3
    size: float = 4.0
    alpha: float | str | None = None
    shift: float = 0.0
    every: int | float | tuple[int, int] | None = None
    hollow: bool = False

    def draw(self, axes: Axes, frames: Frames) -> None:
        """Raises KeyError for a frame or a column that is not there."""
        rows = select(frames[self.frame], self.where, self.optional) if self.frame else pd.DataFrame()
        parts = list(self._parts(rows))
        colours = _cycled(self.colour)
        if self.shades is not None:
            colours = map(to_hex, colormaps[self.shades](np.linspace(0, 0.95, len(parts))))
        looks = zip(colours, _cycled(self.marker), _cycled(self.style), strict=False)
        for (value, part), (colour, marker, style) in zip(parts, looks, strict=False):
            label = self.label if self.by is None or self.label is None else _filled(self.label, value)
            alpha = next(iter(part[self.alpha]), None) if isinstance(self.alpha, str) else self.alpha
            colour = self.colour[str(value)] if isinstance(self.colour, dict) else colour
            look = {"color": NAMED.get(colour, colour), "alpha": alpha, "label": label}
            self._draw(axes, part, look, marker, style)

    def _parts(self, rows: pd.DataFrame) -> Iterator[tuple[Any, pd.DataFrame]]:
        if self.by is None:
            yield "", rows
        else:
            yield from rows.groupby(self.by, sort=False)

    def _draw(self, axes: Axes, rows: pd.DataFrame, look: dict[str, Any], marker: str, style: str) -> None:
        line: dict[str, Any] = {"linewidth": self.width, "linestyle": style}
        dot: dict[str, Any] = {"marker": marker, "markersize": self.size, "markevery": self.every}
        if self.kind in ("hline", "vline"):
            at = self.y if self.kind == "hline" else self.x
            for place in [at] if isinstance(at, float) else rows[at].unique():
                (axes.axhline if self.kind == "hline" else axes.axvline)(place, zorder=1, **line, **look)
            return
        if self.take:
            rows = rows.groupby(self.x, sort=False)[[self.y]].agg(self.take).reset_index()
        x = rows[self.x] + self.shift if self.shift else rows[self.x]
        if self.kind == "band":
            axes.fill_between(x, rows[self.low], rows[self.high], linewidth=0, **{"alpha": 0.15} | _given(look))
        elif self.kind == "bar":
            axes.bar(x, rows[self.y], width=self.width, **look)
        elif self.kind == "intervals":
            y = rows[self.y]
            ends = [y - rows[self.low], rows[self.high] - y]
            axes.errorbar(x, y, ends, fmt=marker, markersize=self.size, elinewidth=1, capsize=2, **look)
        elif self.kind == "points":
            dot |= {"markeredgewidth": 1.0 if self.hollow or marker in STROKES else 0.0}
            dot |= {"fillstyle": "none"} if self.hollow else {}
            axes.plot(x, rows[self.y], linestyle="", **dot, **look)
        else:
            axes.plot(x, rows[self.y], **line, **(dot if self.kind == "linepoints" else {}), **look)


class Panel(_Spec):
    """A panel's words, axes and layers; `draw` names what is drawn beside the layers by a function of its own.

    `{column}` in title, x and y stands for that column's value in the first row of the first layer's frame.
    `legend_look` has further arguments of Matplotlib's `legend`.
    """

    title: str = ""
    x: str = ""
    y: str = ""
    xscale: Scale = "linear"
    yscale: Scale = "linear"
    xlim: tuple[float | None, float | None] | None = None
    ylim: tuple[float | None, float | None] | None = None
    xticks: list[float] | None = None  #: written as numbers on any scale; those beside what is drawn are left out
    yticks: list[float] | None = None
    minor_ticks: bool = True  #: over many decades they are a grey bar
    equal: bool = False  #: units of x and y are as long
    legend: str | None = "best"
    legend_columns: int = 1
    legend_title: str | None = None
    legend_look: dict[str, Any] = {}
    layers: tuple[Layer, ...] = ()
    draw: str | None = None

    def draw_on(self, axes: Axes, frames: Frames, drawings: Drawings) -> None:
        """Raises KeyError for a frame, a column or a drawing that is not there."""
        for layer in self.layers:
            layer.draw(axes, frames)
        scales = {"xscale": self.xscale, "yscale": self.yscale}
        # Setting a linear scale, which is there already, would replace words at ticks by numbers.
        axes.set(**{axis: scale for axis, scale in scales.items() if scale != "linear"})
        if self.draw is not None:
            drawings[self.draw](axes)
        if self.equal:
            axes.set_aspect("equal")
        if self.xticks is not None:
            shown = axes.get_xlim()
            axes.set_xticks(self.xticks, [f"{tick:g}" for tick in self.xticks])
            axes.set_xticks([], minor=True)
            axes.set_xlim(shown)
        if not self.minor_ticks:
            axes.minorticks_off()
        axes.set(**_given({"yticks": self.yticks, "xlim": self.xlim, "ylim": self.ylim}))
        first = next((frames[layer.frame] for layer in self.layers if layer.frame), pd.DataFrame())
        dress(axes, *(worded(words, first) for words in (self.title, self.x, self.y)))
        if self.legend and axes.get_legend_handles_labels()[0]:
            look: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "title_fontsize": SMALL, "handlelength": 1.6}
            look |= {"loc": self.legend, "ncols": self.legend_columns, "title": self.legend_title}
            axes.legend(**look | self.legend_look)


class FigureSpec(_Spec):
    """Panels row by row; a legend of all of them below, if `legend` is how many columns it has.

    Args:
        each: a column; the one panel is drawn for each of its values in its layers' first frame, with it as title.
    """

    height: float
    width: float = PAGE_WIDTH
    columns: int = 1
    sharex: Literal["none", "all", "row", "col"] = "none"
    sharey: Literal["none", "all", "row", "col"] = "none"
    title: str = ""
    legend: int = 0
    each: str | None = None
    panels: tuple[Panel, ...]

    def of(self, frames: Frames, drawings: Drawings | None = None) -> Figure:
        """Raises KeyError for a frame, a column or a drawing that is not there."""
        figure = Figure(figsize=(self.width, self.height), layout="constrained")
        panels = self.panels if self.each is None else self._repeated(self.each, frames)
        columns = min(self.columns, len(panels))
        rows = math.ceil(len(panels) / columns)
        grid = list(figure.subplots(rows, columns, squeeze=False, sharex=self.sharex, sharey=self.sharey).flat)
        for axes, panel in zip(grid, panels, strict=False):
            panel.draw_on(axes, frames, drawings or {})
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        if self.legend:
            entries = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
            named = {label: handle for each in entries for handle, label in each}
            look: dict[str, Any] = {"ncols": self.legend, "frameon": False, "fontsize": SMALL}
            figure.legend(list(named.values()), list(named), loc="outside lower center", **look)
        if self.title:
            figure.suptitle(self.title, fontsize=NORMAL)
        return figure

    def _repeated(self, column: str, frames: Frames) -> tuple[Panel, ...]:
        """Axes are labelled at the figure's left and at the foot of each column."""
        (panel,) = self.panels
        frame = next((layer.frame for layer in panel.layers if layer.frame), "")
        values = list(frames[frame][column].unique())
        panels = []
        for place, value in enumerate(values):
            layers = [layer.model_copy(update={"where": {**layer.where, column: value}}) for layer in panel.layers]
            labels = {"x": panel.x if place + self.columns >= len(values) else ""}
            labels["y"] = "" if place % self.columns else panel.y
            panels.append(panel.model_copy(update={"title": str(value), "layers": tuple(layers), **labels}))
        return tuple(panels)


def dress(axes: Axes, title: str, x: str, y: str) -> None:
    """Title to the left and axis labels."""
    tidy(axes, SMALL)
    axes.set_title(title, loc="left", fontsize=LARGE)
    axes.set_xlabel(x, fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)


def _cycled(given: str | list[str] | dict[str, str]) -> Iterator[str]:
    """What a layer gives, round and round."""
    return cycle([given] if isinstance(given, str) else given)


def _filled(label: str, value: Any) -> str:
    """Only `{}` and `{:spec}` stand for the value: other braces are TeX's."""
    return re.sub(r"\{(?::([^{}]*))?\}", lambda found: format(value, found[1] or ""), label)


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
