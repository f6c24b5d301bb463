"""Figures specified over tidy frames: panels of lines, points, bands, intervals and words, drawn by Matplotlib.

A panel shows values along y over places along x; a `horizontal` one shows values along x beside places along y. Some
values have no place on their axis: 0 on a logarithmic one, infinity, an outlier that would flatten all others. A layer
with `beyond` shows these as arrows at the edge, with their numbers beside them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib import colormaps, style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fsvi_bench.presenting.figures import BLUE, GREEN, NO_LOGARITHM, PAGE_WIDTH, PURPLE, STYLE, VERMILLION
from fsvi_bench.presenting.tables import Frames, select, worded

NAMED = {"blue": BLUE, "vermillion": VERMILLION, "green": GREEN, "purple": PURPLE}
STROKES = ("|", "_", "+", "x")  #: markers without a face
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FAR_OUT = 3.0  #: interquartile ranges above the upper quartile: Tukey's outer fence
FLATTENED = 5.0  #: outliers are cut off if with them the axis would be so many times as long
Scale = Literal["linear", "log", "symlog"]
Share = Literal["none", "all", "row", "col"]
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
        optional: whether no row may be as `where` says; else that is an error.
        by: a column; each of its values is drawn by itself, with the next of the colours, markers and line styles.
        shades: one of Matplotlib's colour maps, of which these colours are taken evenly instead.
        take: one point per x, the maximum, median or another such aggregate of the y there.
        label: in the legend; `{}`, or `{:.2f}`, stands for the value of `by`.
        colour, marker, style: one for all, several for the values of `by` in turn, one for each, or a column. The
            marker may be `none`.
        fill: how full points are, from 0 (an outline) to 1: a number or a column.
        edge: colour of the outline of full points.
        alpha: a number or a column.
        shift: how far to the right of x, so that several stand side by side: a number or a column.
        every: of a line, which points are marked: every n-th; a pair is (first, step); below 1, a share of the axes; or
            a column.
        caps: length of an interval's caps, in points.
        beyond: a column. Values outside the axis become arrows at its edge; beside those of each value of the column
            stand the least and the greatest of them.
        stretches: whether the values take part in the limits of such an axis; if not, all of them are beyond it.
        at: where words stand along the axis of values, from 0 to 1; beyond 1 they stand outside the panel.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)  # YAML reads the keys of colours as numbers
    kind: Literal["line", "points", "linepoints", "bar", "band", "intervals", "hline", "vline", "words"] = "line"
    frame: str | None = None
    where: dict[str, Any] = {}
    optional: bool = False
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
    every: int | float | tuple[int, int] | str | None = None
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
                _write(axes, rows[self.text], self.at, rows[self.y if horizontal else self.x], look, horizontal)
            elif self.beyond:
                outside = self.outside(axes, rows, horizontal)
                for side, beyond in outside.groupby("side"):
                    arrow = ("◂▸" if horizontal else "▾▴")[side]
                    _write(axes, [arrow] * len(beyond), side, beyond["place"], look, horizontal)
                self._draw_marks(axes, rows.drop(index=outside.index), look, horizontal)
            else:
                self._draw_marks(axes, rows, look, horizontal)

    def _draw_levels(self, axes: Axes, rows: pd.DataFrame, look: Look) -> None:
        draw, at = (axes.axhline, self.y) if self.kind == "hline" else (axes.axvline, self.x)
        for place in rows[at].unique() if isinstance(at, str) else [at]:
            draw(place, zorder=1, **look)

    def _draw_marks(self, axes: Axes, rows: pd.DataFrame, look: Look, horizontal: bool) -> None:
        if self.take:
            rows = rows.groupby(self.x, sort=False)[[self.y]].agg(self.take).reset_index()
        if self.kind == "band":
            area = {"linewidth": 0, "alpha": 0.15} | _given(look)
            axes.fill_between(rows[self.x], rows[self.low], rows[self.high], **area)
        elif self.kind == "bar":
            axes.bar(rows[self.x], rows[self.y], width=self.width, **look)
        elif self.kind == "intervals":
            value = rows[self.x if horizontal else self.y]
            ends = {"xerr" if horizontal else "yerr": [value - rows[self.low], rows[self.high] - value]}
            axes.errorbar(rows[self.x], rows[self.y], **ends, elinewidth=self.width, capsize=self.caps, **look)
        else:
            axes.plot(rows[self.x], rows[self.y], **look)

    def outside(self, axes: Axes, rows: pd.DataFrame, horizontal: bool) -> pd.DataFrame:
        """Of the rows that are beyond the panel's limits: group, value, place, and side (0 below, 1 above)."""
        value, place = (self.x, self.y) if horizontal else (self.y, self.x)
        low, high = axes.get_xlim() if horizontal else axes.get_ylim()
        found = pd.DataFrame({"group": rows[self.beyond], "value": rows[value], "place": rows[place]})
        found["side"] = (found["value"] > (high if self.stretches else low)) * 1
        return found[(found["value"] < low) | (found["value"] > high) | (not self.stretches)]

    def values(self, frames: Frames, horizontal: bool) -> NDArray[np.float64]:
        """What the layer shows along the axis of values."""
        columns = [self.x if horizontal else self.y, *([self.low, self.high] if self.kind == "intervals" else [])]
        return self.rows(frames)[columns].to_numpy(dtype=float).ravel()

    def rows(self, frames: Frames) -> pd.DataFrame:
        """Raises KeyError for a frame or a column that is not there."""
        if self.frame is None:
            return pd.DataFrame()
        rows = select(frames[self.frame], self.where, self.optional).reset_index(drop=True)
        if self.shift:
            rows[self.x] += rows[self.shift] if isinstance(self.shift, str) else self.shift
        return rows

    def _parts(self, frames: Frames) -> Iterator[tuple[pd.DataFrame, Look]]:
        """Rows that look alike, and how; the first of each value of `by` has its label."""
        rows = self.rows(frames)
        parts: list[Any] = [("", rows)] if self.by is None else list(rows.groupby(self.by, sort=False))
        settings = {name: getattr(self, name) for name in ("colour", "marker", "style", "alpha", "fill", "every")}
        if isinstance(self.colour, dict):
            parts.sort(key=lambda part: [*self.colour].index(str(part[0])))
        if self.shades is not None:
            settings["colour"] = [to_hex(shade) for shade in colormaps[self.shades](np.linspace(0, 0.95, len(parts)))]
        columns = [of for of in settings.values() if isinstance(of, str) and of in rows]
        for place, (value, part) in enumerate(parts):
            label = self.label if self.by is None or self.label is None else _filled(self.label, value)
            # The most opaque comes first, and stands in the legend.
            for _, alike in reversed([*part.groupby(columns)]) if columns and len(part) else [("", part)]:
                own = {name: _setting(of, value, place, alike) for name, of in settings.items()}
                yield alike, self._look(**own) | {"label": label}
                label = None

    def _look(self, colour: str, marker: str, style: str, alpha: float, fill: float, every: Any) -> Look:
        look: Look = {"color": NAMED.get(colour, colour), "alpha": alpha}
        if self.kind in ("band", "bar", "words"):
            return look
        look |= {"linewidth": self.width, "linestyle": "" if self.kind in ("points", "intervals") else style}
        if self.kind in ("line", "hline", "vline"):
            return look
        look |= {
            "marker": marker,
            "markersize": self.size,
            "markevery": every,
            "markeredgecolor": self.edge or look["color"],
        }
        if fill < 1:
            look["markerfacecolor"] = to_rgba(look["color"], fill) if fill else "white"
        elif self.kind == "points" and not self.edge and self.fill == 1 and marker not in STROKES:
            look["markeredgewidth"] = 0.0
        return look


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

    def fit(self, axes: Axes, frames: Frames) -> None:
        """Sets scales, and the limits of an axis that leaves something beyond it; panels may share these."""
        axes.set(xscale=self.xscale, yscale=self.yscale)
        layers = [layer for layer in self.layers if layer.beyond]
        if not layers:
            return
        values = [layer.values(frames, self.horizontal) for layer in layers]
        shown = np.concatenate([of for of, layer in zip(values, layers, strict=True) if layer.stretches])
        least, greatest = self.within or (
            NO_LOGARITHM if self._values(axes).get_scale() == "log" else -math.inf,
            math.inf,
        )
        shown = shown[np.isfinite(shown) & (shown >= least) & (shown <= greatest)]
        shown = shown[shown <= fence(shown)] if self.fence else shown
        if len(shown):
            self._stretch(axes, shown, np.concatenate(values))
        else:
            self._values(axes).set_ticks([])

    def _values(self, axes: Axes) -> Axis:
        return axes.xaxis if self.horizontal else axes.yaxis

    def _stretch(self, axes: Axes, shown: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        """Limits around what is shown, with room at the edges beyond which there are values."""
        scale = self._values(axes).get_transform()
        ends = scale.transform([shown.min(), shown.max()])
        beyond = np.array([(values < shown.min()).any(), (values > shown.max()).any()])
        ends = scale.inverted().transform(ends + [-1, 1] * beyond * self.room * np.ptp(ends))
        axes.update_datalim(np.stack([ends, ends], axis=1), updatex=self.horizontal, updatey=not self.horizontal)
        axes.autoscale_view(scalex=self.horizontal, scaley=not self.horizontal)

    def draw_on(self, axes: Axes, frames: Frames, drawings: Drawings) -> None:
        """Raises KeyError for a frame, a column or a drawing that is not there."""
        if any(layer.beyond for layer in self.layers):
            axes.autoscale(False, axis="x" if self.horizontal else "y")
        limits = _given({"xlim": self.xlim, "ylim": self.ylim})
        axes.set(**limits)
        for layer in self.layers:
            layer.draw(axes, frames, self.horizontal)
        if self.draw is not None:
            drawings[self.draw](axes)
        if self.names is not None:
            self._name_places(axes, frames)
        self._set_ticks(axes)
        axes.set(**limits, **_given({"aspect": "equal" if self.equal else None}))
        self._number_beyond(axes, frames)
        first = next((frames[layer.frame] for layer in self.layers if layer.frame), pd.DataFrame())
        words = {"title": self.title, "xlabel": self.x, "ylabel": self.y}
        axes.set(**{name: worded(text, first) for name, text in words.items()})
        if self.legend and axes.get_legend_handles_labels()[0]:
            look = {"loc": self.legend, "ncols": self.legend_columns, "title": self.legend_title}
            axes.legend(**look | self.legend_look)

    def _set_ticks(self, axes: Axes) -> None:
        if self.xticks is not None:
            shown = axes.get_xlim()
            axes.set_xticks(self.xticks, [f"{tick:g}" for tick in self.xticks])
            axes.set_xticks([], minor=True)
            axes.set_xlim(shown)
        if not self.minor_ticks:
            axes.minorticks_off()
        axes.set(**_given({"yticks": self.yticks}))
        for axis in (axes.xaxis, axes.yaxis):
            if self.ticks is not None and not isinstance(axis.get_major_locator(), FixedLocator):
                _number(axis, self.ticks)

    def _name_places(self, axes: Axes, frames: Frames) -> None:
        """Names the places that the first layer's frame has, in this panel or in others."""
        first = self.layers[0]
        axis, column = (axes.yaxis, first.y) if self.horizontal else (axes.xaxis, first.x)
        everywhere = frames[first.frame or ""]
        here = select(everywhere, first.where, first.optional)  # where a place may have a name of its own
        named = pd.concat([here, everywhere]).drop_duplicates(column).sort_values(column)
        places = named[column]
        axis.set_ticks(places, named[self.names])
        axis.set_tick_params(length=0)
        axis.grid(False)
        ends = (places.min() - 0.5, places.max() + 0.5)
        axes.set(**{"ylim": ends[::-1]} if self.horizontal else {"xlim": ends})
        if self.groups is not None:
            changes = named[self.groups] != named[self.groups].shift()
            for edge in places.rolling(2).mean()[changes].dropna():
                draw = axes.axhline if self.horizontal else axes.axvline
                draw(edge, color="0.88", linewidth=0.6, zorder=0)

    def _number_beyond(self, axes: Axes, frames: Frames) -> None:
        """Of each group, the least and the greatest value beyond the axis, beside their arrows."""
        found = [layer.outside(axes, layer.rows(frames), self.horizontal) for layer in self.layers if layer.beyond]
        for (_, side), group in pd.concat(found).groupby(["group", "side"], sort=False) if found else ():
            room = "\u2003" if self.horizontal else "\n"  # that the arrow takes
            least = self.within[0] / 100 if self.within else NO_LOGARITHM
            ends = [_brief(0.0 if abs(end) < least else end) for end in (group["value"].min(), group["value"].max())]
            words = (" to " if self.horizontal else " to\n").join(dict.fromkeys(ends))
            words = words + room if side == self.horizontal else room + words
            _write(axes, [words], side, [group["place"].mean()], {"color": None, "alpha": None}, self.horizontal)


class FigureSpec(_Spec):
    """Panels row by row; a legend of all of them below, if `legend` is how many columns it has.

    Args:
        height: inches, and `row_height` more for each row of panels.
        title: `{name}` stands for what the first layer's frame has by this name.
        x: below all panels.
        each: a column; the panels are drawn for each of its values in the first layer's frame, with it as title.
    """

    height: float
    row_height: float = 0.0
    width: float = PAGE_WIDTH
    columns: int = 1
    sharex: Share = "none"
    sharey: Share = "none"
    title: str = ""
    x: str = ""
    legend: int = 0
    each: str | None = None
    panels: tuple[Panel, ...]

    def of(self, frames: Frames, drawings: Drawings | None = None) -> Figure:
        """Raises KeyError for a frame, a column or a drawing that is not there."""
        panels = self.panels if self.each is None else self._repeated(self.each, frames)
        columns = min(self.columns, len(panels))
        rows = math.ceil(len(panels) / columns)
        with style.context(STYLE):
            figure = Figure(figsize=(self.width, self.height + rows * self.row_height))
            grid = list(figure.subplots(rows, columns, squeeze=False, sharex=self.sharex, sharey=self.sharey).flat)
            for axes, panel in zip(grid, panels, strict=False):
                panel.fit(axes, frames)
            for axes, panel in zip(grid, panels, strict=False):
                panel.draw_on(axes, frames, drawings or {})
            for axes in grid[len(panels) :]:
                axes.set_visible(False)
            figure.align_ylabels()
            if self.x:
                figure.supxlabel(self.x)
            if self.title:
                figure.suptitle(worded(self.title, self._first(frames)))
            if self.legend:
                self._add_legend(figure)
        return figure

    def _add_legend(self, figure: Figure) -> None:
        """Every label once, those of the fullest panel first."""
        entries = [list(zip(*axes.get_legend_handles_labels(), strict=True)) for axes in figure.axes]
        named = {label: handle for each in sorted(entries, key=len, reverse=True) for handle, label in each}
        figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=self.legend)

    def _first(self, frames: Frames) -> pd.DataFrame:
        """The first layer's frame."""
        layers = (layer for panel in self.panels for layer in panel.layers)
        return next((frames[layer.frame] for layer in layers if layer.frame), pd.DataFrame())

    def _repeated(self, column: str, frames: Frames) -> tuple[Panel, ...]:
        """Axes are labelled at the figure's left and at the foot of each column."""
        pairs = list(product(self._first(frames)[column].unique(), self.panels))
        panels = []
        for place, (value, panel) in enumerate(pairs):
            layers = []
            for layer in panel.layers:
                layer.rows(frames)  # refuses what no panel at all has; one of them may lack it
                layers.append(layer.model_copy(update={"where": {**layer.where, column: value}, "optional": True}))
            own = {"layers": tuple(layers), "title": str(value) if panel is self.panels[0] else panel.title}
            own["x"] = panel.x if place + self.columns >= len(pairs) else ""
            own["y"] = panel.y if len(self.panels) > 1 or not place % self.columns else ""
            panels.append(panel.model_copy(update=own))
        return tuple(panels)


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


def _brief(value: float) -> str:
    """A few digits in little space."""
    words = f"{value:.{3 if abs(value) < 1e3 else 2}g}".replace("-", "−").replace("inf", "∞")
    return re.sub(r"e\+?(−?)0*", r"e\1", words)


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


def _write(axes: Axes, texts: Any, share: float, places: Any, look: Look, horizontal: bool) -> None:
    """Words at a share of the axis of values: at an edge within the panel, beyond 1 outside."""
    side = 1 if share == 0.5 else 2 if 0.5 < share <= 1 else 0
    ink = {"color": look["color"], "alpha": look["alpha"]}
    for place, words in zip(places, texts, strict=True):
        if horizontal:
            ink |= {"ha": ("left", "center", "right")[side], "va": "center", "transform": axes.get_yaxis_transform()}
            axes.text(share, place, words, **ink)
        else:
            ink |= {"va": ("bottom", "center", "top")[side], "ha": "center", "transform": axes.get_xaxis_transform()}
            axes.text(place, share, words, **ink)


def _setting(of: Any, value: Any, place: int, rows: pd.DataFrame) -> Any:
    """What a setting is for the value of `by` in this place, or for these rows."""
    if isinstance(of, dict):
        return of[str(value)]
    if isinstance(of, list):
        return of[place % len(of)]
    return next(iter(rows[of]), None) if isinstance(of, str) and of in rows else of


def _filled(label: str, value: Any) -> str:
    """Only `{}` and `{:spec}` stand for the value: other braces are TeX's."""
    return re.sub(r"\{(?::([^{}]*))?\}", lambda found: format(value, found[1] or ""), label)


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
