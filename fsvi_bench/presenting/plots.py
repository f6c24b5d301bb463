"""Figures specified over tidy frames: panels of lines, points, bands, intervals and words, drawn by Matplotlib.

A panel shows values along y over places along x; a `horizontal` one shows values along x beside places along y. Some
values have no place on their axis: 0 on a logarithmic one, infinity, an outlier that would flatten all others. A layer
with `beyond` shows these as arrows at the edge, with their numbers beside them.
"""

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
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fsvi_bench.presenting.figures import (
    BLUE,
    GREEN,
    LARGE,
    NO_LOGARITHM,
    NORMAL,
    PAGE_WIDTH,
    PURPLE,
    SMALL,
    VERMILLION,
    tidy,
)
from fsvi_bench.presenting.tables import Frames, select, worded

NAMED = {"blue": BLUE, "vermillion": VERMILLION, "green": GREEN, "purple": PURPLE}
STROKES = ("|", "_", "+", "x")  #: markers without a face
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FAR_OUT = 3.0  #: interquartile ranges above the upper quartile: Tukey's outer fence
FLATTENED = 5.0  #: outliers are cut off if with them the axis would be so many times as long
Scale = Literal["linear", "log", "symlog"]
Drawings = Mapping[str, Callable[[Axes], None]]  #: what no layer can draw, by the name that a panel calls it by
Look = dict[str, Any]  #: Matplotlib's settings of lines and points


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Layer(_Spec):
    """One kind of mark over the rows of a frame.

    A `line`, `points` or both (`linepoints`) at (x, y); a `bar` up to there, `width` wide in units of x; a `band` from
    `low` to `high`; `intervals` likewise, each through a point at (x, y); a level across the panel (`hline` at y,
    `vline` at x), whose place is a number or a column; `words`, those of the column `text`, at each place.

    Args:
        by: a column; each of its values is drawn by itself, with the next of the colours, markers and line styles.
        shades: one of Matplotlib's colour maps, of which these colours are taken evenly instead.
        take: one point per x, the maximum, median or another such aggregate of the y there.
        label: in the legend; `{}`, or `{:.2f}`, stands for the value of `by`.
        colour, marker, style: of the values of `by` in turn, or by value. The marker may be `none`.
        fill: how full points are, from 0 (an outline) to 1: a number or a column.
        edge: colour of the outline of full points.
        alpha: a number or a column.
        shift: how far along the axis of places, so that several stand side by side: a number or a column.
        every: of a line, the marked points: every n-th; a pair is (first, step); below 1, a share of the axes.
        caps: length of an interval's caps, in points.
        beyond: a column. Values outside the axis become arrows at its edge; beside those of each value of the column
            stand the least and the greatest of them.
        stretches: whether the values take part in the limits of an axis that leaves some beyond it.
        at: where words stand along the axis of values, from 0 to 1; beyond 1 they stand outside the panel.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)  # YAML reads the keys of colours as numbers
    kind: Literal["line", "points", "linepoints", "bar", "band", "intervals", "hline", "vline", "words"] = "line"
    frame: str | None = None
    where: dict[str, Any] = {}
    x: str | float = "x"
    y: str | float = "y"
    low: str = "low"
    high: str = "high"
    text: str = "text"
    by: str | None = None
    take: str | None = None
    label: str | None = None
    colour: str | list[str] | dict[str, str] = [*NAMED, "black"]
    shades: str | None = None
    marker: str | list[str] | dict[str, str] = "o"
    style: str | list[str] | dict[str, str] = "-"
    width: float = 1.3
    size: float = 4.0
    fill: float | str = 1.0
    edge: str | None = None
    alpha: float | str | None = None
    shift: float | str = 0.0
    every: int | float | tuple[int, int] | None = None
    caps: float = 2.0
    beyond: str | None = None
    stretches: bool = True
    at: float = 0.5

    def draw(self, axes: Axes, frames: Frames, horizontal: bool = False) -> None:
        """Raises KeyError for a frame or a column that is not there."""
        for rows, look in self._parts(frames):
            if self.kind in ("hline", "vline"):
                self._draw_levels(axes, rows, look)
            elif self.kind == "words":
                for place, words in zip(rows[self.y if horizontal else self.x], rows[self.text], strict=True):
                    _write(axes, words, self.at, place, look, horizontal)
            else:
                self._draw_marks(axes, rows, look, horizontal)

    def _draw_levels(self, axes: Axes, rows: pd.DataFrame, look: Look) -> None:
        draw, at = (axes.axhline, self.y) if self.kind == "hline" else (axes.axvline, self.x)
        for place in rows[at].unique() if isinstance(at, str) else [at]:
            draw(place, zorder=1, **look)

    def _draw_marks(self, axes: Axes, rows: pd.DataFrame, look: Look, horizontal: bool) -> None:
        if self.take:
            rows = rows.groupby(self.x, sort=False)[[self.y]].agg(self.take).reset_index()
        x = self._moved(rows)
        if self.kind == "band":
            axes.fill_between(x, rows[self.low], rows[self.high], **{"linewidth": 0, "alpha": 0.15} | _given(look))
        elif self.kind == "bar":
            axes.bar(x, rows[self.y], width=self.width, **look)
        elif self.kind == "intervals":
            value = x if horizontal else rows[self.y]
            ends = {"xerr" if horizontal else "yerr": [value - rows[self.low], rows[self.high] - value]}
            axes.errorbar(x, rows[self.y], **ends, elinewidth=self.width, capsize=self.caps, **look)
        else:
            axes.plot(x, rows[self.y], **look)

    def draw_beyond(self, axes: Axes, frames: Frames, horizontal: bool) -> None:
        """Arrows and numbers for what is outside the panel's limits, which stand by now."""
        rows = self._rows(frames)
        value = rows[self.x if horizontal else self.y]
        low, high = axes.get_xlim() if horizontal else axes.get_ylim()
        outside = {0: rows[value < low], 1: rows[value > high]}
        for edge, arrow in enumerate("◂▸" if horizontal else "▾▴"):
            words = pd.Series(arrow, outside[edge].index)
            for _, group in outside[edge].groupby(self.beyond, sort=False):
                said = [arrow, _reach(value[group.index], horizontal)]
                words[group.index[len(group) // 2]] = (" " if horizontal else "\n").join(
                    said[::-1] if edge == horizontal else said
                )
            for part, look in self._parts(frames):
                places = part[self.y] if horizontal else self._moved(part)
                for row in part.index.intersection(words.index):
                    _write(axes, words[row], (0.01, 0.99)[edge], places[row], look, horizontal)

    def values(self, frames: Frames, horizontal: bool) -> NDArray[np.float64]:
        """What the layer shows along the axis of values."""
        columns = [self.x if horizontal else self.y, *([self.low, self.high] if self.kind == "intervals" else [])]
        return self._rows(frames)[columns].to_numpy(dtype=float).ravel()

    def _rows(self, frames: Frames) -> pd.DataFrame:
        return select(frames[self.frame], self.where).reset_index(drop=True) if self.frame else pd.DataFrame()

    def _moved(self, rows: pd.DataFrame) -> pd.Series[Any]:
        """Where the rows stand along x."""
        shift = rows[self.shift] if isinstance(self.shift, str) else self.shift
        return rows[self.x] + shift if self.shift else rows[self.x]

    def _parts(self, frames: Frames) -> Iterator[tuple[pd.DataFrame, Look]]:
        """Rows that look alike, and how; the first of each value of `by` has its label."""
        rows = self._rows(frames)
        parts = [("", rows)] if self.by is None else list(rows.groupby(self.by, sort=False))
        values = [value for value, _ in parts]
        colours = self.colour
        if self.shades is not None:
            colours = [to_hex(shade) for shade in colormaps[self.shades](np.linspace(0, 0.95, len(parts)))]
        varying = [name for name in (self.alpha, self.fill) if isinstance(name, str)]
        looks = zip(parts, *(_each(of, values) for of in (colours, self.marker, self.style)), strict=False)
        for (value, part), colour, marker, style in looks:
            label = self.label if self.by is None or self.label is None else _filled(self.label, value)
            for _, alike in part.groupby(varying, sort=False) if varying and len(part) else [("", part)]:
                look = {"color": NAMED.get(colour, colour), "alpha": _of_all(alike, self.alpha), "label": label}
                yield alike, look | self._line_and_dot(look["color"], marker, style, _of_all(alike, self.fill))
                label = None

    def _line_and_dot(self, colour: str, marker: str, style: str, fill: float) -> Look:
        if self.kind in ("band", "bar", "words"):
            return {}
        look: Look = {"linewidth": self.width, "linestyle": "" if self.kind in ("points", "intervals") else style}
        if self.kind not in ("points", "linepoints", "intervals"):
            return look
        look |= {"marker": marker, "markersize": self.size, "markevery": self.every}
        if fill < 1:
            return look | {"markerfacecolor": to_rgba(colour, fill) if fill else "white", "markeredgecolor": colour}
        if self.edge:
            return look | {"markeredgecolor": self.edge}
        bare = self.kind == "points" and self.fill == 1 and marker not in STROKES
        return look | ({"markeredgewidth": 0.0} if bare else {})


class Panel(_Spec):
    """A panel's words, axes and layers; `draw` names what is drawn beside the layers by a function of its own.

    `{column}` in title, x and y stands for that column's value in the first row of the first layer's frame.

    Args:
        horizontal: values run along x.
        within: the least and the greatest value that have a place on the axis of values, if layers have some beyond it.
        fence: outliers have no place on it, either: `fence` says which they are.
        room: share of that axis that is kept free for arrows and numbers, where there are any.
        names: a column of the first layer's frame that names the places, as the axis's labels.
        groups: a column likewise; lines separate places of different groups.
        ticks: at most so many, with numbers as they are read.
        legend_look: further arguments of Matplotlib's `legend`.
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
    ticks: int | None = None
    minor_ticks: bool = True  #: over many decades they are a grey bar
    equal: bool = False  #: units of x and y are as long
    horizontal: bool = False
    within: tuple[float, float] | None = None
    fence: bool = False
    room: float = 0.0
    names: str | None = None
    groups: str | None = None
    legend: str | None = "best"
    legend_columns: int = 1
    legend_title: str | None = None
    legend_look: dict[str, Any] = {}
    layers: tuple[Layer, ...] = ()
    draw: str | None = None

    def draw_on(self, axes: Axes, frames: Frames, drawings: Drawings) -> None:
        """Raises KeyError for a frame, a column or a drawing that is not there."""
        for layer in self.layers:
            layer.draw(axes, frames, self.horizontal)
        scales = {"xscale": self.xscale, "yscale": self.yscale}
        # Setting a linear scale, which is there already, would replace words at ticks by numbers.
        axes.set(**{axis: scale for axis, scale in scales.items() if scale != "linear"})
        if self.draw is not None:
            drawings[self.draw](axes)
        if self.equal:
            axes.set_aspect("equal")
        if any(layer.beyond for layer in self.layers):
            self._fit(axes, frames)
        self._set_ticks(axes, frames)
        axes.set(**_given({"xlim": self.xlim, "ylim": self.ylim}))
        first = next((frames[layer.frame] for layer in self.layers if layer.frame), pd.DataFrame())
        dress(axes, *(worded(words, first) for words in (self.title, self.x, self.y)))
        if self.legend and axes.get_legend_handles_labels()[0]:
            look: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "title_fontsize": SMALL, "handlelength": 1.6}
            look |= {"loc": self.legend, "ncols": self.legend_columns, "title": self.legend_title}
            axes.legend(**look | self.legend_look)

    def finish(self, axes: Axes, frames: Frames) -> None:
        """Draws what needs the axes' limits, which panels may share."""
        for layer in self.layers:
            if layer.beyond:
                layer.draw_beyond(axes, frames, self.horizontal)
        named = axes.yaxis if self.horizontal else axes.xaxis
        for axis in {axes.xaxis, axes.yaxis} - ({named} if self.names else set()) if self.ticks else ():
            _number(axis, self.ticks)

    def _fit(self, axes: Axes, frames: Frames) -> None:
        """Limits around the values that have a place on their axis."""
        axis = axes.xaxis if self.horizontal else axes.yaxis
        least, greatest = self.within or (NO_LOGARITHM if axis.get_scale() == "log" else -math.inf, math.inf)
        layers = [layer for layer in self.layers if layer.beyond]
        values = [layer.values(frames, self.horizontal) for layer in layers]
        shown = np.concatenate([of for of, layer in zip(values, layers, strict=True) if layer.stretches])
        shown = shown[np.isfinite(shown) & (shown >= least) & (shown <= greatest)]
        shown = shown[shown <= fence(shown)] if self.fence else shown
        if not len(shown):
            axis.set_ticks([])
            return
        scale, all_values = axis.get_transform(), np.concatenate(values)
        ends = scale.transform([shown.min(), shown.max()])
        outside = np.array([(all_values < shown.min()).any(), (all_values > shown.max()).any()])
        ends = scale.inverted().transform(ends + [-1, 1] * outside * self.room * np.ptp(ends))
        axes.ignore_existing_data_limits = True
        axes.update_datalim(np.stack([ends, ends], axis=1), updatex=self.horizontal, updatey=not self.horizontal)
        axes.autoscale_view(scalex=self.horizontal, scaley=not self.horizontal)

    def _set_ticks(self, axes: Axes, frames: Frames) -> None:
        if self.names is not None:
            self._name_places(axes, frames)
        if self.xticks is not None:
            shown = axes.get_xlim()
            axes.set_xticks(self.xticks, [f"{tick:g}" for tick in self.xticks])
            axes.set_xticks([], minor=True)
            axes.set_xlim(shown)
        if not self.minor_ticks:
            axes.minorticks_off()
        axes.set(**_given({"yticks": self.yticks}))

    def _name_places(self, axes: Axes, frames: Frames) -> None:
        """Names the places that the first layer's frame has, in this panel or in others."""
        first = self.layers[0]
        axis, column, separate = (
            (axes.yaxis, first.y, axes.axhline) if self.horizontal else (axes.xaxis, first.x, axes.axvline)
        )
        named = frames[first.frame].drop_duplicates(column).sort_values(column)
        places = named[column]
        axis.set_ticks(
            places,
            named[self.names],
        )
        axis.set_tick_params(length=0)
        axis.grid(False)
        ends = (places.min() - 0.5, places.max() + 0.5)
        axes.set(**{"ylim": ends[::-1]} if self.horizontal else {"xlim": ends})
        if self.groups is not None:
            another = named[self.groups] != named[self.groups].shift()
            for edge in places.rolling(2).mean()[another].dropna():
                separate(edge, color="0.88", linewidth=0.6, zorder=0)


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
    x: str = ""
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
        for axes, panel in zip(grid, panels, strict=False):
            panel.finish(axes, frames)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        if self.x:
            figure.supxlabel(self.x, fontsize=NORMAL)
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


def fence(values: NDArray[np.float64]) -> float:
    """Above which value a linear axis is cut off: infinite, unless a few outliers would flatten all others.

    Outliers lie above Tukey's outer fence, Q3 + 3 (Q3 - Q1) (Tukey 1977, Exploratory Data Analysis, section 2D;
    quartiles by NumPy's rule); they flatten what is left if the axis would be five times as long with them.
    """
    lower, upper = np.quantile(values, [0.25, 0.75]) if len(values) else (0.0, 0.0)
    top = float(upper + FAR_OUT * (upper - lower))
    kept = values[values <= top]
    return top if len(kept) and np.ptp(values) > FLATTENED * np.ptp(kept) > 0 else math.inf


def readable(value: float) -> str:
    """`0.1`, `100`, `3·10⁵`, `∞`."""
    if value == 0 or 1e-3 < abs(value) < 1e4 or not math.isfinite(value):
        return f"{value:g}".replace("inf", "∞").replace("-", "−")
    leading, exponent = f"{value:.6e}".split("e")
    times = "" if float(leading) == 1 else f"{float(leading):g}·".replace("-", "−")
    return f"{times}10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def _number(axis: Axis, most: int) -> None:
    """At most so many ticks, between powers of ten only where few of these are in view."""
    locator: Any = MaxNLocator(most - 1, steps=[1, 2, 5, 10])
    if axis.get_scale() == "log":
        low, high = axis.get_view_interval()
        decades = math.log10(high / low)
        subs = (1.0, 2.0, 5.0) if decades < 1.2 else (1.0, 3.0) if decades < 2 else (1.0,)
        locator = LogLocator(subs=subs, numticks=most)
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: readable(value)))


def _reach(values: pd.Series[float], horizontal: bool) -> str:
    """The least and the greatest value, to three digits; one of them if they are equal."""
    ends = [0.0 if abs(value) < NO_LOGARITHM else value for value in (values.min(), values.max())]
    return (" to " if horizontal else " to\n").join(dict.fromkeys(readable(float(f"{end:.3g}")) for end in ends))


def _write(axes: Axes, words: str, share: float, place: float, look: Look, horizontal: bool) -> None:
    """Words at a share of the axis of values: at an edge within the panel, beyond 1 outside."""
    side = 1 if share == 0.5 else 2 if 0.5 < share <= 1 else 0
    if horizontal:
        at, across, aligned = (share, place), axes.get_yaxis_transform(), (("left", "center", "right")[side], "center")
    else:
        at, across, aligned = (place, share), axes.get_xaxis_transform(), ("center", ("bottom", "center", "top")[side])
    ink = {"color": look["color"], "alpha": look["alpha"], "fontsize": SMALL}
    axes.text(*at, words, transform=across, ha=aligned[0], va=aligned[1], **ink)


def _of_all(rows: pd.DataFrame, setting: Any) -> Any:
    """A setting, or what its column has for all rows."""
    return next(iter(rows[setting]), 1.0) if isinstance(setting, str) else setting


def _each(setting: str | list[str] | dict[str, str], values: list[Any]) -> Iterator[str]:
    """What a setting has for each value: by its name, or in turn, round and round."""
    if isinstance(setting, dict):
        return (setting[str(value)] for value in values)
    return cycle([setting] if isinstance(setting, str) else setting)


def _filled(label: str, value: Any) -> str:
    """Only `{}` and `{:spec}` stand for the value: other braces are TeX's."""
    return re.sub(r"\{(?::([^{}]*))?\}", lambda found: format(value, found[1] or ""), label)


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
