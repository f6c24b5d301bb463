"""Figures with a line per method, family and settings and a panel per data set, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fsvi_bench.presenting.figures import SMALL
from fsvi_bench.presenting.report.appearance import BAND, INK, MUTED, RULE
from fsvi_bench.presenting.report.study import Entry, Study

WIDTH = 12.0  #: inches; the page's text is as wide
WIDEST_PANEL, PANEL_GAP = 5.2, 0.16
LINE, METHOD_GAP = 0.2, 0.45  #: inches per line; the gap between methods as a share of it
TOP, BOTTOM = 0.42, 0.62  #: inches above and below the panels
LETTER = 0.068  #: inches, about, of a letter beside a line
MARGIN = 0.35  #: inches left of the panels that hold no letters
MOST_NAMES = 0.4  #: of the width, for names beside the lines; longer ones are cut short (the tables have them whole)
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Paint = Callable[[Axes, float, str, Entry], None]


@dataclass(frozen=True)
class Strips:
    """An empty figure with its panels, and where each entry's line is."""

    figure: Figure
    panels: dict[str, Axes]
    places: dict[Entry, float]


def draw_strips(study: Study, datasets: Sequence[str], entries: Sequence[Entry], label: str, paint: Paint) -> Strips:
    """Panels of `datasets` with a line for each entry; `paint` puts what an entry has into its line of a panel."""
    strips = _new_strips(datasets, entries, label)
    for dataset, axes in strips.panels.items():
        for entry, y in strips.places.items():
            if (row := study.rows.get((dataset, entry))) is None:
                continue
            if not row.finished:
                say(axes, 0.5, y, "none finished", "center")
                continue
            paint(axes, y, dataset, entry)
    return strips


def _new_strips(datasets: Sequence[str], entries: Sequence[Entry], label: str) -> Strips:
    places = _places(entries)
    lines = max(places.values()) + 1
    longest = max(len(entry.name) for entry in entries)
    letters = min(longest, int((MOST_NAMES * WIDTH - MARGIN) / LETTER))
    left = LETTER * letters + MARGIN
    across = min((WIDTH - left - 0.1) / len(datasets), WIDEST_PANEL)
    width, height = left + across * len(datasets) + 0.1, TOP + BOTTOM + LINE * lines
    figure = Figure(figsize=(width, height))
    panels = {}
    for place, dataset in enumerate(datasets):
        start = (left + place * across + PANEL_GAP / 2) / width
        box = (start, BOTTOM / height, (across - PANEL_GAP) / width, LINE * lines / height)
        axes = figure.add_axes(box)
        _lay_out(axes, dataset, places)
        panels[dataset] = axes
    first = next(iter(panels.values()))
    _name_lines(first, places, left + PANEL_GAP / 2 - 0.04, letters)
    middle = (left + across * len(datasets) / 2) / width
    figure.text(middle, 0.08 / height, label, ha="center", va="bottom", fontsize=SMALL + 0.5, color=MUTED)
    return Strips(figure, panels, places)


def _places(entries: Sequence[Entry]) -> dict[Entry, float]:
    """y of each line, downwards from 0, with a gap before each method."""
    places: dict[Entry, float] = {}
    y, previous = -1.0, None
    for entry in entries:
        y += 1.0 + (METHOD_GAP if previous not in (None, entry.method) else 0.0)
        places[entry] = y
        previous = entry.method
    return places


def _lay_out(axes: Axes, dataset: str, places: dict[Entry, float]) -> None:
    axes.set_ylim(max(places.values()) + 0.5, -0.5)
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_facecolor(BAND)
    axes.tick_params(labelsize=SMALL, length=3)
    axes.set_title(dataset, loc="left", fontsize=SMALL + 1.5, fontweight="bold", color=INK, pad=7)
    before = None
    for entry, y in places.items():
        if before is not None and before != entry.method:
            axes.axhline(y - 0.5 - METHOD_GAP / 2, color=RULE, linewidth=0.7, zorder=0)
        before = entry.method


def _name_lines(axes: Axes, places: dict[Entry, float], room: float, letters: int) -> None:
    """A method's name beside its first line only, its families and settings beside each.

    They have `room` inches, where about so many letters fit: what is longer ends in an ellipsis.
    """
    before = None
    for entry, y in places.items():
        across: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
        left = letters
        if entry.method != before:
            name = shorten(entry.method, max(letters // 2, letters - len(entry.variant) - 1))
            left -= len(name) + 1
            axes.annotate(name, (0, y), (-72 * room, 0), fontsize=SMALL + 0.5, color=INK, **across)
        axes.annotate(shorten(entry.variant, left), (0, y), (-8, 0), fontsize=SMALL, color=MUTED, ha="right", **across)
        before = entry.method


def shorten(words: str, letters: int) -> str:
    """Words of at most so many letters, the last an ellipsis where some are cut off."""
    return words if len(words) <= letters else f"{words[: letters - 1].rstrip()}…"


def say(axes: Axes, x: float, y: float, words: str, side: str = "left", colour: str = MUTED) -> None:
    """Words in a line, `x` as a share of the panel's width."""
    axes.text(x, y, words, transform=axes.get_yaxis_transform(), ha=side, va="center", fontsize=SMALL - 1, color=colour)


def logarithmic(axes: Axes, low: float, high: float, labels: int) -> None:
    """A logarithmic axis with so many labels or fewer, which are numbers as they are read."""
    axes.set_xscale("log", nonpositive="clip")
    axes.set_xlim(low, high)
    decades = math.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 1.2 else (1.0, 3.0) if decades < 2 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=labels))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x")


def linear(axes: Axes, low: float, high: float, labels: int) -> None:
    """A linear axis, likewise."""
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(MaxNLocator(labels - 1, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))
    axes.grid(axis="x")


def label_count(panels: int) -> int:
    """How many labels have room on an axis."""
    return 5 if panels < 5 else 3


def power(value: float) -> str:
    """`0.1`, `100`, `10⁵`."""
    if 1e-3 < value < 1e4:
        return f"{value:g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    leading = value / 10**exponent
    times = "" if round(leading, 6) == 1 else f"{leading:g}·"
    return f"{times}10{str(exponent).translate(SUPERSCRIPTS)}"


def rows_of_panels(datasets: Sequence[str], most: int) -> list[list[str]]:
    """Data sets in as few rows of at most so many as there can be, of nearly equal length."""
    rows = math.ceil(len(datasets) / most)
    if not rows:
        return []
    edges = [len(datasets) * row // rows for row in range(rows + 1)]
    return [list(datasets[edges[row] : edges[row + 1]]) for row in range(rows)]
