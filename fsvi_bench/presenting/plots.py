"""Figures specified over tidy frames: panels of lines, points, bands, intervals and text, drawn with Matplotlib.

A panel shows values along y over positions along x, and a `horizontal` one values along x over positions along y. Some
values cannot be shown on their axis: 0 on a logarithmic one, infinity, or an outlier that would flatten all others. A
layer with `beyond` shows these as arrows at the edge, labelled with their values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib import colormaps, style
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray
from pydantic import ConfigDict

from fsvi_bench.presenting.frames import Frames, select, worded
from fsvi_bench.presenting.looks import BLUE, GREEN, PAGE_WIDTH, PURPLE, STYLE, VERMILLION
from fsvi_bench.presenting.tables import ROUNDING
from fsvi_bench.strict import Plain

NAMED = {"blue": BLUE, "vermillion": VERMILLION, "green": GREEN, "purple": PURPLE}
STROKES = ("|", "_", "+", "x")  #: markers without a filled area
NEXT_TO_NOTHING = 1e-6  #: smaller absolute values beyond an axis are written as 0
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FAR_OUT = 3.0  #: interquartile ranges above the upper quartile: Tukey's outer fence
FLATTENED = 5.0  #: outliers are cut off if they would make the axis this many times as long
Share = Literal["none", "all", "row", "col"]
Axis = XAxis | YAxis
Choice = str | list[str] | dict[str, str]  #: one for all, or a column; a list to cycle through; or by value
Look = dict[str, Any]  #: Matplotlib's settings of lines and points


class Layer(Plain):
    """One kind of mark for the rows of a frame.

    A `line`, `points` or both (`linepoints`) at (x, y); a `bar` up to y, `width` wide in units of x; a `band` from
    `low` to `high`; `intervals` from `low` to `high`, each through a point at (x, y); a line across the panel (`hline`
    at y, `vline` at x), at a number or a column; or `words`: the column `text` at each position.

    Args:
        optional: whether the selection by `where` may be empty; otherwise that is an error.
        by: a column; each of its values is drawn separately, with the next colour, marker and line style.
        take: aggregate of y, such as the maximum or median, for a single point per x.
        label: for the legend; `{}`, or `{:.2f}`, is the value of `by`, and `{column}` that of another column.
        colour, marker, style: one for all, a list to cycle through the values of `by`, one for each value, or a column.
            The marker may be `none`.
        fill: opacity of the area of points, from 0 (only an outline) to 1: a number or a column.
        alpha: a number or a column.
        shift: offset to the right of x: a number or a column.
        every: which points of a line have markers: every n-th; below 1, a fraction of the axes.
        beyond: a column. Values outside the axis become arrows at its edge; for each value of the column, the arrows
            are labelled with the smallest and the largest of them.
        stretches: whether the values count for the limits of such an axis; if not, all of them are beyond it.
        at: position of words along the axis of values, from 0 to 1; above 1, outside the panel.
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
    colour: Choice = [*NAMED, "black"]
    marker: Choice = "o"
    style: Choice = "-"
    width: float = 1.3
    size: float = 4.0
    fill: float | str = 1.0
    alpha: float | str | None = None
    shift: float | str = 0.0
    every: int | float | None = None
    beyond: str | None = None
    stretches: bool = True
    at: float = 0.5

    def draw(self, values: Axis, frames: Frames) -> pd.DataFrame:
        """Draws on the panel that this axis of values belongs to, and returns the marks beyond the axis.

        Raises:
            KeyError: a frame or column does not exist.
        """
        outside = [pd.DataFrame()]
        for rows, look in self._parts(frames):
            if self.beyond:
                outside.append(beyond(self.marks(rows, values), values))
                for edge, arrow in enumerate("▾▴" if values.axis_name == "y" else "◂▸"):
                    places = outside[-1].loc[outside[-1]["side"] == edge, "place"]
                    _write(values, places, edge, [arrow] * len(places), look)
                rows = rows.drop(index=outside[-1].index)
            self._draw_marks(values, rows, look)
        return pd.concat(outside)

    def _draw_marks(self, values: Axis, rows: pd.DataFrame, look: Look) -> None:
        axes = values.axes
        if self.kind in ("hline", "vline"):
            draw, at = (axes.axhline, self.y) if self.kind == "hline" else (axes.axvline, self.x)
            for place in rows[at].unique() if isinstance(at, str) else [at]:
                draw(place, zorder=1, **look)
            return
        if self.kind == "words":
            places = rows[self.y if values.axis_name == "x" else self.x]
            _write(values, places, self.at, rows[self.text], look)
            return
        x, y = rows[self.x], rows[self.low if self.kind == "band" else self.y]
        if self.kind == "band":
            faint: Look = {"linewidth": 0, "alpha": 0.15} | look
            axes.fill_between(x, y, rows[self.high], **faint)
        elif self.kind == "bar":
            axes.bar(x, y, width=self.width, **look)
        elif self.kind == "intervals":
            value = x if values.axis_name == "x" else y
            ends: Look = {f"{values.axis_name}err": [value - rows[self.low], rows[self.high] - value]}
            axes.errorbar(x, y, **ends, elinewidth=self.width, **look)
        else:
            axes.plot(x, y, **look)

    def marks(self, rows: pd.DataFrame, values: Axis) -> pd.DataFrame:
        """The marks that may be beyond the axis of values: values with their ends, positions and groups."""
        value, place = (self.x, self.y) if values.axis_name == "x" else (self.y, self.x)
        low, high = (self.low, self.high) if self.kind == "intervals" else (value, value)
        columns = {"value": value, "low": low, "high": high, "place": place, "group": self.beyond}
        found = pd.DataFrame({name: rows[column] for name, column in columns.items()})
        return found.assign(stretches=self.stretches)

    def rows(self, frames: Frames) -> pd.DataFrame:
        """The rows to draw; raises KeyError if a frame or column does not exist."""
        if self.frame is None:
            return pd.DataFrame()
        rows = select(frames[self.frame], self.where, self.optional)
        if self.take:
            rows = rows.groupby([of for of in (self.by, self.x) if of], sort=False)[[self.y]].agg(self.take)
        rows = rows.reset_index(drop=not self.take)
        if self.shift:
            rows[self.x] += rows.get(self.shift, self.shift)
        return rows

    def _parts(self, frames: Frames) -> Iterator[tuple[pd.DataFrame, Look]]:
        """Yields rows that share a style, with the style; the first for each value of `by` has its label."""
        rows = self.rows(frames)
        parts: list[Any] = [("", rows)] if self.by is None else list(rows.groupby(self.by, sort=False))
        colour = self.colour
        if isinstance(colour, dict):
            parts.sort(key=lambda part: [*colour].index(str(part[0])))
        elif isinstance(colour, str) and colour in colormaps:
            colour = [to_hex(shade) for shade in colormaps[colour](np.linspace(0, 0.95, len(parts)))]
        for turn, (value, part) in enumerate(parts):
            label = self.label and worded(self.label, part if self.by is None else part.assign(**{"": value}))
            chosen = [_chosen(of, value, turn) for of in (colour, self.marker, self.style, self.alpha, self.fill)]
            columns = [of for of in chosen if of in rows]
            # The most opaque part comes first, and has the label for the legend.
            for _, group in reversed([*part.groupby(columns)]) if columns and len(part) else [("", part)]:
                own: list[Any] = [next(iter(group[of]), None) if of in rows else of for of in chosen]
                yield group, self._look(*own) | {"label": label}
                label = None

    def _look(self, colour: str, marker: str, style: str, alpha: float, fill: float) -> Look:
        colour = NAMED.get(colour, colour)
        look: Look = {"color": colour} | ({} if alpha is None else {"alpha": alpha})
        if self.kind in ("band", "bar", "words"):
            return look
        look |= {"linewidth": self.width, "linestyle": style if "line" in self.kind else ""}
        if self.kind not in ("points", "linepoints", "intervals"):
            return look
        look |= {"marker": marker, "markersize": self.size, "markevery": self.every, "markeredgecolor": colour}
        if fill < 1:
            look["markerfacecolor"] = to_rgba(colour, fill) if fill else "white"
        elif self.kind == "points" and self.fill == 1 and marker not in STROKES:
            look["markeredgewidth"] = 0.0
        return look


class Panel(Plain):
    """The titles, axes and layers of a panel.

    `{column}` in title, x, y and yscale is replaced by the value of that column in the first row of the first layer.

    Args:
        horizontal: whether values run along x.
        within: the smallest and the largest value on the axis of values, if layers use `beyond`.
        fence: whether outliers are also beyond this axis; the function `fence` determines them.
        room: fraction of this axis that is reserved for arrows and numbers, if there are any.
        names: column of the first layer's frame with names of the positions, used as tick labels.
        groups: column of the same frame; lines separate positions of different groups.
        ticks: maximum number of ticks, with readable numbers.
        legend: arguments of Matplotlib's `legend`; None for no legend.
    """

    title: str = ""
    x: str = ""
    y: str = ""
    xscale: str = "linear"
    linthresh: float | None = None  #: within which x is linear on the scale `symlog`
    yscale: str = "linear"
    xlim: tuple[float | None, float | None] | None = None
    ylim: tuple[float | None, float | None] | None = None
    xticks: list[float] | None = None  #: written as numbers on any scale; those outside the axis are left out
    yticks: list[float] | None = None
    ticks: int | None = None
    horizontal: bool = False
    within: tuple[float, float] | None = None
    fence: bool = False
    room: float = 0.0
    names: str | None = None
    groups: str | None = None
    legend: dict[str, Any] | None = {}
    layers: tuple[Layer, ...] = ()

    def first(self, frames: Frames) -> pd.DataFrame:
        """The frame of the first layer that has one, preceded by the rows that the layer selects."""
        frame, layer = next(((frames[of.frame], of) for of in self.layers if of.frame), (pd.DataFrame(), Layer()))
        return pd.concat([select(frame, layer.where, layer.optional), frame])

    def fit(self, axes: Axes, frames: Frames) -> None:
        """Sets the scales, and the limits of an axis with values beyond it; panels may share these."""
        axes.set_xscale(self.xscale, **self.model_dump(include={"linthresh"}, exclude_none=True))
        axes.set_yscale(worded(self.yscale, self.first(frames)))
        values = axes.xaxis if self.horizontal else axes.yaxis
        found = [layer.marks(layer.rows(frames), values) for layer in self.layers if layer.beyond]
        if not found:
            return
        marks = pd.concat(found)
        least, greatest = self.within or (ROUNDING if values.get_scale() == "log" else -math.inf, math.inf)
        shown = marks.loc[marks["stretches"], ["value", "low", "high"]].to_numpy(float)
        shown = shown[np.isfinite(shown) & (shown >= least) & (shown <= greatest)]
        shown = shown[shown <= fence(shown)] if self.fence else shown
        if not len(shown):
            values.set_ticks([])
            return
        # Limits around the values shown, with room at the edges that have values beyond them.
        scale = values.get_transform()
        ends = scale.transform([shown.min(), shown.max()])
        ends += [-0.1, 0.1] if ends[0] == ends[1] else [0, 0]
        full = np.array([marks["value"].min() < shown.min(), marks["value"].max() > shown.max()])
        ends = scale.inverted().transform(ends + np.array([-1, 1]) * full * self.room * np.ptp(ends))
        axes.update_datalim(np.stack([ends, ends], axis=1), updatex=self.horizontal, updatey=not self.horizontal)
        axes.autoscale_view(scalex=self.horizontal, scaley=not self.horizontal)

    def draw_on(self, axes: Axes, frames: Frames) -> None:
        """Draws the panel; raises KeyError if a frame or column does not exist."""
        values = axes.xaxis if self.horizontal else axes.yaxis
        limits = self.model_dump(include={"xlim", "ylim"}, exclude_none=True)
        if any(layer.beyond for layer in self.layers):
            axes.autoscale(False, axis="x" if self.horizontal else "y")
            axes.set(**limits)
        outside = pd.concat([pd.DataFrame(), *(layer.draw(values, frames) for layer in self.layers)])
        axes.set(**limits)
        self._set_ticks(axes)
        if self.names is not None:
            self._name_places(axes.yaxis if self.horizontal else axes.xaxis, frames)
        if len(outside):
            _number(values, outside)
        words = {"title": self.title, "xlabel": self.x, "ylabel": self.y}
        axes.set(**{name: worded(text, self.first(frames)) for name, text in words.items()})
        if self.legend is not None and axes.get_legend_handles_labels()[0]:
            axes.legend(**self.legend)

    def _set_ticks(self, axes: Axes) -> None:
        for axis, places in ((axes.xaxis, self.xticks), (axes.yaxis, self.yticks)):
            free = not isinstance(axis.get_major_locator(), FixedLocator)
            if places is not None or (free and self.ticks is not None):
                locator = FixedLocator(places) if places is not None else _locator(axis, self.ticks or 0)
                formatter = FuncFormatter(lambda value, _: readable(value))
                axis.set(major_locator=locator, minor_locator=NullLocator(), major_formatter=formatter)

    def _name_places(self, axis: Axis, frames: Frames) -> None:
        """Labels all positions in the first layer's frame, whether in this panel or in others."""
        column = str(self.layers[0].y if self.horizontal else self.layers[0].x)
        named = self.first(frames).drop_duplicates(column).sort_values(column)
        places = named[column]
        axis.set_ticks(places, named[self.names])
        ends = (places.min() - 0.5, places.max() + 0.5)
        axis.axes.set(**{f"{axis.axis_name}lim": ends[::-1] if self.horizontal else ends})
        if self.groups is not None:
            changes = named[self.groups] != named[self.groups].shift()
            axis.set_ticks(places.rolling(2).mean()[changes].dropna(), minor=True)
        axis.set_tick_params(which="both", length=0)
        axis.grid(False)
        axis.grid(which="minor", linewidth=0.6)


class FigureSpec(Plain):
    """A figure of panels, row by row.

    Args:
        height: inches, in addition to `row_height` for each row of panels.
        columns: maximum number of panels in a row; rows have nearly equal lengths.
        title: `{name}` is replaced from the first layer's frame.
        x, y: labels of all panels together.
        legend: largest number of columns of a legend below all panels, or above them if they share `x`; it has fewer
            if these are too wide. 0 for none.
        each: a column; the panels are repeated for each of its values in the first layer's frame, which is their title.
    """

    height: float
    row_height: float = 0.0
    width: float = PAGE_WIDTH
    columns: int = 1
    sharex: Share = "none"
    sharey: Share = "none"
    title: str = ""
    x: str = ""
    y: str = ""
    legend: int = 0
    each: str | None = None
    panels: tuple[Panel, ...]

    def of(self, frames: Frames) -> Figure:
        """Draws the figure; raises KeyError if a frame or column does not exist."""
        first = self.panels[0].first(frames)
        panels = self.panels if self.each is None else self._repeated(self.each, first[self.each].unique(), frames)
        rows = math.ceil(len(panels) / self.columns)
        with style.context(STYLE):
            figure = Figure(figsize=(self.width, self.height + rows * self.row_height))
            shape = (rows, math.ceil(len(panels) / rows))
            grid = list(figure.subplots(*shape, squeeze=False, sharex=self.sharex, sharey=self.sharey).flat)
            for axes, panel in zip(grid, panels, strict=False):
                panel.fit(axes, frames)
            for axes, panel in zip(grid, panels, strict=False):
                panel.draw_on(axes, frames)
            for axes in grid[len(panels) :]:
                axes.set_visible(False)
            figure.align_ylabels()
            for name, text in {"supxlabel": self.x, "supylabel": self.y, "suptitle": worded(self.title, first)}.items():
                if text:
                    getattr(figure, name)(text)
            if self.legend:
                self._add_legend(figure)
        return figure

    def _add_legend(self, figure: Figure) -> None:
        """Adds a legend with every label once, those of the panel with most labels first."""
        entries = [list(zip(*axes.get_legend_handles_labels(), strict=True)) for axes in figure.axes]
        named = {label: handle for each in sorted(entries, key=len, reverse=True) for handle, label in each}
        # Below the panels it would cover their common label.
        place: Any = "outside upper center" if self.x else "outside lower center"
        for columns in range(self.legend, 0, -1):
            legend = figure.legend([*named.values()], [*named], ncols=columns, loc=place)
            if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
                break
            legend.remove()
        rows, meant = (math.ceil(len(named) / of) for of in (columns, self.legend))
        if rows > meant:  # the panels keep their height
            height = legend.get_window_extent().height / figure.dpi
            figure.set_figheight(figure.get_figheight() + height * (rows - meant) / rows)

    def _repeated(self, column: str, values: Iterable[Any], frames: Frames) -> list[Panel]:
        panels = []
        for value, panel in product(values, self.panels):
            layers = []
            for layer in panel.layers:
                layer.rows(frames)  # raises if no panel has such rows; a single panel may lack them
                layers.append(layer.model_copy(update={"where": {**layer.where, column: value}, "optional": True}))
            title = str(value) if panel is self.panels[0] else panel.title
            panels.append(panel.model_copy(update={"layers": tuple(layers), "title": title}))
        return panels


def fence(values: NDArray[np.float64]) -> float:
    """The value at which a linear axis is cut off: infinity, unless a few outliers would flatten all other values.

    Outliers are above Tukey's outer fence, Q3 + 3 (Q3 - Q1) (Tukey 1977, Exploratory Data Analysis, section 2D;
    quartiles as in NumPy). They are cut off if they would make the axis more than five times as long.
    """
    lower, upper = np.quantile(values, [0.25, 0.75]) if len(values) else (0.0, 0.0)
    top = float(upper + FAR_OUT * (upper - lower))
    kept = values[values <= top]
    return top if len(kept) and np.ptp(values) > FLATTENED * np.ptp(kept) > 0 else math.inf


def readable(value: float) -> str:
    """A readable number: `0.1`, `100`, `3·10⁵`, `∞`."""
    if value == 0 or 1e-3 < abs(value) < 1e4 or not math.isfinite(value):
        return f"{value:g}".replace("inf", "∞").replace("-", "−")
    leading, exponent = f"{value:.5e}".split("e")
    times = "" if float(leading) == 1 else f"{float(leading):g}·".replace("-", "−")
    return f"{times}10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def digits(value: float | None, significant: int = 3) -> str:
    """A score with three digits: `0.0123`, `12.3`, `12,345`, `3.2·10⁻⁵`, `∞`, `–`, or `≈ 0` up to rounding."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value) or value == 0:
        return readable(value)
    if abs(value) < ROUNDING:
        return "≈ 0"
    rounded = float(f"{value:.{significant - 1}e}")
    if not 1e-3 <= abs(rounded) < 1e6:
        return readable(rounded)
    places = max(0, significant - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{places}f}".replace("-", "−")


def _locator(axis: Axis, most: int) -> Locator:
    """At most this many ticks; between powers of ten only if few of these are in view."""
    if axis.get_scale() != "log":
        return MaxNLocator(most - 1, steps=[1, 2, 5, 10])
    decades = np.ptp(np.log10(axis.get_view_interval()))
    subs = (1.0, 2.0, 5.0) if decades < 1.2 else (1.0, 3.0) if decades < 2 else (1.0,)
    return LogLocator(subs=subs, numticks=most)


def beyond(marks: pd.DataFrame, values: Axis) -> pd.DataFrame:
    """The marks of a layer that are beyond the limits, or do not count for them; side 0 is below, 1 above."""
    low, high = values.get_view_interval()
    value, stretches = marks["value"], marks["stretches"]
    above = value > np.where(stretches, high, low)
    return marks.assign(side=above * 1)[(value < low) | (value > high) | ~stretches]


def _number(values: Axis, outside: pd.DataFrame) -> None:
    """Labels the arrows of each group with the smallest and the largest value beyond the axis."""
    arrow, to = ("\u2003", " to ") if values.axis_name == "x" else ("\n", " to\n")  # as wide as an arrow
    for _, group in outside.groupby(["group", "side"], sort=False):
        side = int(group["side"].iloc[0])
        ends = [0.0 if abs(end) < NEXT_TO_NOTHING else end for end in group["value"].agg(["min", "max"])]
        words = to.join(dict.fromkeys(readable(float(f"{end:.2g}")) for end in ends))
        before = side == (values.axis_name == "y")
        _write(values, [group["place"].mean()], side, [arrow + words if before else words + arrow], {})


def _write(values: Axis, places: Iterable[float], share: float, texts: Iterable[str], look: Look) -> None:
    """Writes text at a fraction of the axis of values: inside the panel at its edges, outside above 1."""
    across = values.axis_name == "x"
    turned = slice(None, None, 1 if across else -1)
    side = 1 if share == 0.5 else 2 if 0.5 < share <= 1 else 0
    ink: Look = {name: look[name] for name in ("color", "alpha") if name in look}
    if across:
        ink |= {"ha": ("left", "center", "right")[side], "va": "center"}
    else:
        ink |= {"ha": "center", "va": ("bottom", "center", "top")[side]}
    for place, words in zip(places, texts, strict=True):
        at: Any = (share, place)[turned]
        values.axes.annotate(words, at, xycoords=("axes fraction", "data")[turned], **ink)


def _chosen(of: Any, value: Any, turn: int) -> Any:
    """The choice for a value of `by`, which is number `turn`."""
    return of[str(value)] if isinstance(of, dict) else of[turn % len(of)] if isinstance(of, list) else of
