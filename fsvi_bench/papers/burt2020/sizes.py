"""Figures 3 and 4 of Burt et al. (2020): KL and NLPD of every method for four sizes of the measurement set."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import CARETDOWN, CARETUP
from numpy.typing import NDArray

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.cells import (
    frame_of,
    incompleteness,
    jitter_label,
    score_numbers,
    spread_by_line,
    steps_in_words,
    title_of,
)
from fsvi_bench.papers.places import Place
from fsvi_bench.posteriors.base import Family
from fsvi_bench.presenting.figures import (
    FAINT,
    FAMILY_STYLE,
    LARGE,
    LEVEL_LINE,
    NO_LOGARITHM,
    PAGE_WIDTH,
    SMALL,
    draw_arrow,
    draw_level,
    label_logarithmic,
    span,
    tidy,
    unlabelled,
)
from fsvi_bench.running.cell import Record
from fsvi_bench.running.store import Store

SIZES = (20, 40, 80, 160)  #: the paper's
DEFAULT = 80  #: what has no size, as EXACT, looks like this one
TINTS: dict[Family, tuple[str, ...]] = {
    "full": ("#9ecae1", "#56a3cf", "#0072b2", "#08306b"),
    "ffg": ("#fdbe85", "#f5894a", "#d55e00", "#7f2704"),
}  #: from the smallest size to the largest; the third is the family's own colour
BLOCK = {"full": -0.24, "ffg": 0.24}  #: a family's place in a method's column of width 1
APART = 0.085  #: of two sizes within a block
PANEL_HEIGHT = 1.75  #: inches
LOWEST = 0.1  #: a KL below this is an arrow at the lower edge: with M ≥ k some methods reach 0 but for rounding
SCORES = {"kl": "KL(q ‖ exact)\n[nats]", "nlpd": "NLPD\n[nats per test point]"}
#: The protocol's: what M does and what the minibatch does cannot be told apart.
TIED = "M = |A| = rows in a minibatch, as in the paper (FIXEDA and natural gradients: all rows)"
ARROW = 0.11  #: of an axis's height
BESIDE = APART / 2  #: a mean's place, to the right of its median
MEAN: dict[str, Any] = {"color": "0.1", "linestyle": "", "zorder": 4}
FAR = 10.0  #: a mean so many times above all quartiles is off a logarithmic axis: few splits made it
LINE_HEIGHT = 0.1  #: of letters; as the others here, of an axis's height
HEADROOM = 0.38  #: above what stands on it, where numbers stand at its top
FAR_OUT = 3.0  #: interquartile ranges above the upper quartile: Tukey's outer fence
FLATTENED = 5.0  #: outliers are cut off if with them the axis would be so many times as long
DOT: dict[str, Any] = {"linestyle": "", "markersize": 4.4}
DIAMOND: dict[str, Any] = {"marker": "D", "markersize": 1.8}


def draw_sizes(name: str) -> Callable[..., tuple[Figure, dict[str, Any]]]:
    """The drawing of figure 3 or 4: a row of panels per data set, KL on a logarithmic axis beside NLPD.

    Marks are medians over splits, which one split cannot move, on bars from quartile to quartile; beside them, small,
    the paper's means ± standard errors. What is over fewer than the planned splits is faint. Arrows stand for medians
    beyond an axis, carets for means: a KL below `LOWEST`, infinity, an NLPD that would flatten all others, and the mean
    KL that a few splits carry far above all quartiles; beneath those at the top stands what they are.
    """

    def draw(
        records: Sequence[Record], store: Store, quick: bool, missing: Sequence[Place] = ()
    ) -> tuple[Figure, dict[str, Any]]:
        count = f"{len(records):,} cells{incompleteness(missing)}"
        figure = draw_size_panels(frame_of(records, missing), count, quick)
        return figure, score_numbers(name, quick, records, missing)

    return draw


def draw_size_panels(cells: pd.DataFrame, count: str, quick: bool) -> Figure:
    """The panels from a row per planned cell; `count` says in words how many there are."""
    methods = list(cells["method"].unique())
    datasets = sorted(cells["dataset"].unique())
    figure = Figure(figsize=(PAGE_WIDTH, PANEL_HEIGHT * len(datasets) + 1.1), layout="constrained")
    panels = figure.subplots(len(datasets), len(SCORES), squeeze=False)
    drawn = []
    for row, dataset in zip(panels, datasets, strict=True):
        here = cells[cells["dataset"] == dataset]
        for axes, (score, label) in zip(row, SCORES.items(), strict=True):
            drawn.append(_draw_panel(axes, score, _marks(here, methods, score), methods))
            axes.set_ylabel(label, fontsize=SMALL)
        row[0].set_title(dataset, loc="left", fontsize=LARGE, fontweight="bold")
        row[1].set_title(_words(here), loc="right", fontsize=SMALL, style="italic")
    for column in panels.T:
        figure.align_ylabels(column)
    marks = pd.concat(drawn)
    _legend(figure, marks)
    steps = "; ".join([f"{'quick look: ' if quick else ''}{count}", *steps_in_words(cells)])
    figure.suptitle("\n".join([steps, TIED, *_how_to_read(marks)]), fontsize=SMALL)
    return figure


def _marks(cells: pd.DataFrame, methods: Sequence[str], score: str) -> pd.DataFrame:
    """Of the lines that have the score: its spread, and where and how its mark stands."""
    lines = spread_by_line(cells, score).dropna(subset="median")
    size = lines["M"].fillna(DEFAULT).astype(int)
    if strange := set(size) - {*SIZES}:
        raise InputError(
            f"the figure has places for M = {', '.join(map(str, SIZES))}, got records with M = {strange.pop()}"
        )
    place, jittered = size.map(SIZES.index), lines["kl_jitter"] > 0
    step = place.where(~jittered, len(SIZES)).where(lines["M"].notna(), len(SIZES) / 2) - len(SIZES) / 2
    return lines.assign(
        size=size,
        x=lines["method"].map(methods.index) + lines["family"].map(BLOCK) + APART * step,
        colour=[TINTS[family][index] for family, index in zip(lines["family"], place, strict=True)],
        filled=~jittered,
        opacity=np.where(lines["finished"] < lines["planned"], FAINT, 1.0),
    )


def _draw_panel(axes: Axes, score: str, marks: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """Draws the marks and returns them, with whether median and mean lie below the axis (−1) or above it (1)."""
    low, high = _limits(axes, marks, logarithmic=score == "kl")
    sides = {f"{name}_side": (marks[name] > high) * 1 - (marks[name] < low) for name in ("median", "mean")}
    marks = marks.assign(**sides)
    mark: Any
    for mark in marks.itertuples():
        _draw_mark(axes, mark)
        if mark.method == "exact" and (score != "kl" or NO_LOGARITHM <= mark.median < math.inf):
            draw_level(axes, mark.median, mark.family, mark.opacity)
    for _, column in marks.groupby("method"):
        _say_what_is_above(axes, column)
    axes.set_xlim(-0.5, len(methods) - 0.5)
    names = [title_of(method).replace(", natural gradients", "\nnat. grad.") for method in methods]
    axes.set_xticks(range(len(methods)), names)
    for edge in range(1, len(methods)):
        axes.axvline(edge - 0.5, color="0.88", linewidth=0.6, zorder=0)
    if marks.empty:
        unlabelled(axes)
    tidy(axes, SMALL)
    if (marks[[*sides]] > 0).any(axis=None):
        _end_at(axes, high)
    return marks


def _limits(axes: Axes, marks: pd.DataFrame, logarithmic: bool) -> tuple[float, float]:
    """Sets an axis's limits, and tells the least and the greatest value that is shown by its place.

    A logarithmic axis shows quartiles, and means that are not far above all of them; a linear one what is up to the
    fence.
    """
    quartiles = marks[["lower", "median", "upper"]].to_numpy(dtype=float).ravel()
    ends = np.concatenate([quartiles, marks["mean"].to_numpy(dtype=float)])
    low = LOWEST if logarithmic else -math.inf
    finite = [values[np.isfinite(values) & (values >= low)] for values in (quartiles, ends)]
    seen = finite[0] if logarithmic and len(finite[0]) else finite[1]
    if logarithmic:
        axes.set_yscale("log", nonpositive="clip")
    if not len(seen):
        unlabelled(axes)
        return low, math.inf
    top = FAR * seen.max() if logarithmic else fence(seen)
    kept = finite[1][finite[1] <= top]
    to, back = (np.log, np.exp) if logarithmic else (np.asarray, np.asarray)
    foot, head = to(kept.min()), to(kept.max())
    below, above = (math.log(3), math.log(2)) if logarithmic else (0.06 * (head - foot) or 0.5,) * 2
    if (ends > top).any():
        above = max(above, (head - foot + below) * HEADROOM / (1 - HEADROOM))
    axes.set_ylim(float(back(foot - below)), float(back(head + above)))
    if logarithmic:
        label_logarithmic(axes)
    return low, float(kept.max())


def fence(values: NDArray[np.float64]) -> float:
    """Above which value a linear axis is cut off: infinite, unless a few outliers would flatten all others.

    Outliers lie above Tukey's outer fence, Q3 + 3 (Q3 - Q1) (Tukey 1977, Exploratory Data Analysis, section 2D;
    quartiles by NumPy's rule); they flatten what is left if the axis would be five times as long with them.
    """
    lower, upper = np.quantile(values, [0.25, 0.75])
    top = float(upper + FAR_OUT * (upper - lower))
    kept = values[values <= top]
    return top if np.ptp(values) > FLATTENED * np.ptp(kept) > 0 else math.inf


def _end_at(axes: Axes, high: float) -> None:
    """No axis beside the room for what lies beyond it: arrows and carets there stand at no value."""
    foot, head = axes.get_ylim()
    if high < head:
        for minor in (False, True):
            ticks = [tick for tick in axes.yaxis.get_ticklocs(minor=minor) if foot <= tick <= high]
            axes.set_yticks(ticks, minor=minor)
        axes.spines["left"].set_bounds(foot, high)


def _draw_mark(axes: Axes, mark: Any) -> None:
    """The median on its quartiles, or an arrow if it lies beyond the axis; and the mean, or a caret."""
    bar: dict[str, Any] = {"linewidth": 2.6, "alpha": 0.45 * mark.opacity, "solid_capstyle": "butt", "zorder": 2}
    ends = np.clip([mark.lower, mark.upper], *axes.get_ylim())
    if ends[0] < ends[1]:
        axes.plot([mark.x, mark.x], ends, color=mark.colour, **bar)
    look: dict[str, Any] = {**DOT, "color": mark.colour, "marker": FAMILY_STYLE[mark.family][1], "zorder": 3}
    look |= {"markerfacecolor": mark.colour if mark.filled else "white", "alpha": mark.opacity}
    if mark.median_side:
        edge = float(mark.median_side > 0)
        draw_arrow(axes, mark.x, edge - mark.median_side * ARROW, edge, look, size=6)
    else:
        axes.plot([mark.x], [mark.median], **look)
    own: dict[str, Any] = {**MEAN, "alpha": mark.opacity}
    if not mark.mean_side:
        axes.errorbar(mark.x + BESIDE, mark.mean, yerr=mark.error, elinewidth=0.7, **DIAMOND, **own)
    elif mark.mean_side != mark.median_side:  # else the arrow says it
        edge, marker = (1.0, CARETUP) if mark.mean_side > 0 else (0.0, CARETDOWN)
        caret: dict[str, Any] = {"marker": marker, "markersize": 4, "markeredgewidth": 0, "clip_on": False}
        axes.plot([mark.x + BESIDE], [edge], transform=axes.get_xaxis_transform(), **caret, **own)


def _say_what_is_above(axes: Axes, marks: pd.DataFrame) -> None:
    """Beneath a column's arrows and carets at the top: medians by family in its colour, means in theirs."""
    above = marks["median_side"] > 0
    blocks = {family: marks[above & (marks["family"] == family)] for family in TINTS}
    lines = [
        _say(axes, block, "median", 1 - ARROW - 0.07, TINTS[family][SIZES.index(DEFAULT)])
        for family, block in blocks.items()
        if len(block)
    ]
    means = marks[~above & (marks["mean_side"] > 0)]
    if len(means):
        place = 1 - LINE_HEIGHT / 2 - (ARROW + LINE_HEIGHT * max(lines) if lines else 0)
        _say(axes, means, "mean", place, MEAN["color"])


def _say(axes: Axes, marks: pd.DataFrame, name: str, y: float, colour: str) -> int:
    """Writes the least and the greatest value, and whether any is infinite; tells in how many lines."""
    values = marks[name].sort_values()
    finite = [_brief(value) for value in values[np.isfinite(values)]]
    lines = finite[:1] if len({*finite}) < 2 else [f"{finite[0]} to", finite[-1]]
    lines += ["∞"] if len(finite) < len(values) else []
    look: dict[str, Any] = {"fontsize": SMALL, "ha": "center", "va": "top", "linespacing": 0.95}
    axes.text(marks["x"].mean(), y, "\n".join(lines), transform=axes.get_xaxis_transform(), color=colour, **look)
    return len(lines)


def _brief(value: float) -> str:
    words = f"{value:,.3g}" if abs(value) < 1e3 else f"{value:.0e}" if abs(value) >= 1e5 else f"{value:,.0f}"
    return words.replace("e+0", "e").replace("e+", "e")


def _words(cells: pd.DataFrame) -> str:
    """What a data set has less than the paper: sizes, marks that have no result yet, and splits of the others."""
    sizes = sorted(cells["M"].dropna().unique())
    said = [] if sizes == [*SIZES] else [f"M = {', '.join(map(str, sizes))} only"]
    lines = spread_by_line(cells, "kl")
    drawn = lines.dropna(subset="median")
    said += [f"{len(lines) - len(drawn)} of {len(lines)} settings without a result"] if len(drawn) < len(lines) else []
    if (drawn["finished"] < drawn["planned"]).any():
        said.append(f"{span(list(drawn['finished']))} of {span(list(drawn['planned']))} splits")
    return "; ".join(said)


def _legend(figure: Figure, marks: pd.DataFrame) -> None:
    """Of the sizes, families and marks that are drawn."""
    handles: list[Line2D] = []
    there = marks[["size", "family"]].drop_duplicates().sort_values(["size", "family"], ascending=[True, False])
    for size, family in there.itertuples(index=False):
        look = {**DOT, "color": TINTS[family][SIZES.index(size)], "marker": FAMILY_STYLE[family][1]}
        handles.append(Line2D([], [], label=f"{family}, M = {size}", **look))
    handles.append(Line2D([], [], color="0.4", marker="o", markersize=4.4, label="median, quartiles"))
    mean = {**MEAN, **DIAMOND, "linestyle": "-"}
    handles.append(Line2D([], [], linewidth=0.7, label="mean ± s.e.", **mean))
    if (marks["method"] == "exact").any():
        handles.append(Line2D([], [], color="0.4", linewidth=0.8, linestyle=LEVEL_LINE, label="EXACT's median"))
    if not marks["filled"].all():
        hollow = {**DOT, "color": "0.4", "marker": "o", "markerfacecolor": "white"}
        handles.append(Line2D([], [], label=f"KL jitter {jitter_label(marks['kl_jitter'])}", **hollow))
    look = {"frameon": False, "fontsize": SMALL, "columnspacing": 1.2, "handletextpad": 0.4}
    figure.legend(handles=handles, loc="outside lower center", ncols=math.ceil(len(handles) / 2), **look)


def _how_to_read(marks: pd.DataFrame) -> list[str]:
    """What is faint, and what arrows and carets are of; a line, or none."""
    said = {
        "faint: fewer splits than planned": marks["opacity"] < 1,
        "arrows: medians beyond the axis": marks["median_side"] != 0,
        "carets: means beyond the axis": (marks["mean_side"] != 0) & (marks["mean_side"] != marks["median_side"]),
    }
    words = "; ".join(word for word, where in said.items() if where.any())
    return [words] if words else []
