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
from fsvi_bench.presenting.report.appearance import BAND, FAILED, MUTED, PAPER, RULE, look
from fsvi_bench.presenting.report.study import Entry, Study

WIDTH = 12.0  #: inches; the page's text is as wide
WIDEST_PANEL = 5.2
LINE, METHOD_GAP = 0.2, 0.45  #: inches per line; the gap between methods as a share of it
AROUND = 1.0  #: inches above and below the panels
LETTER = 0.068  #: inches, about, of a letter beside a line
MOST_LETTERS = 65  #: of names beside the lines; longer ones are cut short (the tables have them whole)
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SIDES = {"left": 0.015, "center": 0.5, "right": 0.985}  #: where words stand, as a share of the panel's width


@dataclass(frozen=True)
class Strip:
    """What an entry has in its line of a panel: marks on lines, or words in their place.

    Args:
        marks: place -> how full the mark is, from 0 (open) to 1.
        thin, thick, faint: from where to where each of the lines reaches.
        framed: the marks are larger, with an edge that lifts them off the thick line.
        lacking: how many of its cells did not finish, at the right.
    """

    marks: Sequence[tuple[float, float]] = ()
    thin: tuple[float, float] | None = None
    thick: tuple[float, float] | None = None
    faint: tuple[float, float] | None = None
    framed: bool = False
    words: str = ""
    side: str = "center"
    lacking: str = ""

    def draw(self, axes: Axes, y: float, method: str) -> None:
        """In the method's colour and with its marker."""
        colour, marker = look(method).light, look(method).marker
        for ends, width, alpha in ((self.thin, 1.1, 1.0), (self.thick, 4.6, 0.42), (self.faint, 0.7, 0.5)):
            if ends is not None:
                # Matplotlib's `errorbar` takes six times as long, and there are hundreds.
                axes.plot(ends, [y, y], color=colour, linewidth=width, alpha=alpha, solid_capstyle="butt")
        edge: dict[str, Any] = {"markeredgecolor": PAPER, "markeredgewidth": 0.7} if self.framed else {}
        for x, fullness in self.marks:
            dot: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 6.4 if self.framed else 5.6}
            if fullness < 1:
                axes.plot([x], [y], **dot, markerfacecolor=PAPER)
            if fullness:
                full: dict[str, Any] = {"alpha": fullness, "markeredgewidth": 1.0 if fullness == 1 else 0}
                axes.plot([x], [y], **dot | full | edge)
        say(axes, y, self.words, self.side, MUTED if self.side == "center" else colour)
        say(axes, y, self.lacking, "right", FAILED)


def say(axes: Axes, y: float, words: str, side: str, colour: str) -> None:
    """Words in a line, if there are any."""
    if words:
        look: dict[str, Any] = {"ha": side, "va": "center", "fontsize": SMALL - 1, "color": colour}
        axes.text(SIDES[side], y, words, transform=axes.get_yaxis_transform(), **look)


def draw_strips(
    study: Study, datasets: Sequence[str], label: str, strip_of: Callable[[str, Entry], Strip]
) -> tuple[Figure, dict[str, Axes]]:
    """Panels of `datasets` with a line for each entry that was run there; `label` is that of the axis below."""
    places = _places(study.entries_on(*datasets))
    names = [shorten(name, MOST_LETTERS) for name in _names(list(places))]
    width = min(WIDTH, LETTER * max(map(len, names)) + 0.5 + WIDEST_PANEL * len(datasets))
    figure = Figure(figsize=(width, AROUND + LINE * (max(places.values()) + 1)), layout="constrained")
    panels = dict(zip(datasets, figure.subplots(1, len(datasets), squeeze=False)[0], strict=True))
    for dataset, axes in panels.items():
        _lay_out(axes, dataset, places)
        for entry, y in places.items():
            if (row := study.rows.get((dataset, entry))) is not None:
                strip = strip_of(dataset, entry) if row.finished else Strip(words="none finished")
                strip.draw(axes, y, entry.method)
    panels[datasets[0]].set_yticks(list(places.values()), names)
    figure.supxlabel(label, fontsize=SMALL + 0.5, color=MUTED)
    return figure, panels


def _places(entries: Sequence[Entry]) -> dict[Entry, float]:
    """y of each line, downwards from 0, with a gap before each method."""
    methods = list(dict.fromkeys(entry.method for entry in entries))
    return {entry: place + METHOD_GAP * methods.index(entry.method) for place, entry in enumerate(entries)}


def _names(entries: Sequence[Entry]) -> list[str]:
    """A method's name beside its first line only, its families and settings beside each."""
    before = [None, *(entry.method for entry in entries)]
    return [e.variant if e.method == last else f"{e.method}   {e.variant}" for e, last in zip(entries, before)]  # noqa: B905


def _lay_out(axes: Axes, dataset: str, places: dict[Entry, float]) -> None:
    axes.set_ylim(max(places.values()) + 0.5, -0.5)
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_facecolor(BAND)
    axes.tick_params(labelsize=SMALL, length=3)
    axes.tick_params(axis="y", length=0)
    axes.set_title(dataset, loc="left", fontsize=SMALL + 1.5, fontweight="bold", pad=7)
    firsts = {entry.method: y for entry, y in reversed(places.items())}
    for y in firsts.values():
        if y:
            axes.axhline(y - 0.5 - METHOD_GAP / 2, color=RULE, linewidth=0.7, zorder=0)


def shorten(words: str, letters: int) -> str:
    """Words of at most so many letters, the last an ellipsis where some are cut off."""
    return words if len(words) <= letters else f"{words[: letters - 1].rstrip()}…"


def logarithmic(axes: Axes, low: float, high: float, panels: int) -> None:
    """A logarithmic axis with as many labels as have room, which are numbers as they are read."""
    axes.set_xscale("log", nonpositive="clip")
    axes.set_xlim(low, high)
    decades = math.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 1.2 else (1.0, 3.0) if decades < 2 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=_label_count(panels)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x")


def linear(axes: Axes, low: float, high: float, panels: int) -> None:
    """A linear axis, likewise."""
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(MaxNLocator(_label_count(panels) - 1, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))
    axes.grid(axis="x")


def _label_count(panels: int) -> int:
    return 5 if panels < 5 else 3


def power(value: float) -> str:
    """`0.1`, `100`, `10⁵`."""
    if 1e-3 < value < 1e4:
        return f"{value:g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    leading = value / 10**exponent
    times = "" if round(leading, 6) == 1 else f"{leading:g}·"
    return f"{times}10{str(exponent).translate(SUPERSCRIPTS)}"
