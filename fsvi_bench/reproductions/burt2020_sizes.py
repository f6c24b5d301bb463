"""Figures 3 and 4 of Burt et al. (2020): KL and NLPD of every method for four sizes of the measurement set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import CARETDOWN, CARETUP

from fsvi_bench.errors import InputError
from fsvi_bench.posteriors.base import Family
from fsvi_bench.reporting.figures import (
    FAINT,
    FAMILY_STYLE,
    LARGE,
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
from fsvi_bench.reporting.summary import Estimate, Row
from fsvi_bench.reproductions.burt2020_numbers import (
    ScoreNumbers,
    cell_numbers,
    incompleteness,
    is_jittered,
    jitter_label,
    row_numbers,
    rows_of,
    steps_in_words,
    title_of,
)
from fsvi_bench.reproductions.places import Place
from fsvi_bench.running.cell import Record
from fsvi_bench.running.store import Store

SIZES = (20, 40, 80, 160)  #: the paper's
TINTS: dict[Family, tuple[str, ...]] = {
    "full": ("#9ecae1", "#56a3cf", "#0072b2", "#08306b"),
    "ffg": ("#fdbe85", "#f5894a", "#d55e00", "#7f2704"),
}  #: from the smallest size to the largest; the third is the family's own colour
BLOCK: dict[Family, float] = {"full": -0.24, "ffg": 0.24}  #: a family's place in a method's column of width 1
APART = 0.085  #: of two sizes within a block
PANEL_HEIGHT = 1.75  #: inches
LOWEST = 0.1  #: a KL below this is an arrow at the lower edge: with M ≥ k some methods reach 0 but for rounding
SCORES = (("kl", "KL(q ‖ exact)\n[nats]", True), ("nlpd", "NLPD\n[nats per test point]", False))
#: The protocol's: what M does and what the minibatch does cannot be told apart.
TIED = "M = |A| = rows in a minibatch, as in the paper (FIXEDA and natural gradients: all rows)"
ARROW = 0.11  #: of an axis's height
FAR_OUT = 3.0  #: interquartile ranges above the upper quartile: Tukey's outer fence
FLATTENED = 5.0  #: outliers are cut off if with them the axis would be so many times as long
BEYOND = (CARETDOWN, CARETUP)  #: of a median below the axis, and above it


class _Mark(NamedTuple):
    column: int
    x: float
    family: Family
    colour: str
    filled: bool
    estimate: Estimate
    middle: float  #: the median over splits
    opacity: float  #: faint unless every planned split is in it


def draw_sizes(name: str) -> Callable[..., tuple[Figure, ScoreNumbers]]:
    """The drawing of figure 3 or 4: a row of panels per data set, KL on a logarithmic axis beside NLPD.

    Dots are means ± standard errors over splits, as in the paper; bars across them are medians, which one split cannot
    move. What is over fewer than the planned splits is faint. Arrows stand for what lies beyond an axis: a KL below
    `LOWEST`, infinity, and an NLPD that would flatten all others; beneath those at the top stands what they are.
    """

    def draw(
        records: Sequence[Record], store: Store, quick: bool, missing: Sequence[Place] = ()
    ) -> tuple[Figure, ScoreNumbers]:
        rows = rows_of(records, missing)

        def scores(row: Row, score: str) -> list[float]:
            key = (row.dataset, row.method, row.family, row.hyperparameters)
            own = [r for r in records if (r.dataset, r.method, r.family, r.hyperparameters) == key]
            return [getattr(r.scores, score) for r in own if r.scores is not None]

        figure = draw_size_panels(rows, scores, f"{len(records):,} cells{incompleteness(missing)}", quick)
        return figure, ScoreNumbers(
            figure=name,
            quick=quick,
            rows=[row_numbers(row, lacking) for row, lacking in rows],
            cells=[cell_numbers(record) for record in records],
        )

    return draw


def draw_size_panels(
    rows: Sequence[tuple[Row, int]], scores: Callable[[Row, str], list[float]], count: str, quick: bool
) -> Figure:
    """The panels from rows, each with how many of its cells are missing.

    Args:
        scores: a row's finished cells' values of `kl` or `nlpd`.
        count: how many cells there are, in words.
    """
    datasets = sorted({row.dataset for row, _ in rows})
    methods = list(dict.fromkeys(row.method for row, _ in rows))
    figure = Figure(figsize=(PAGE_WIDTH, PANEL_HEIGHT * len(datasets) + 1.1), layout="constrained")
    panels = figure.subplots(len(datasets), len(SCORES), squeeze=False)
    for line, dataset in enumerate(datasets):
        here = [(row, lacking) for row, lacking in rows if row.dataset == dataset]
        for axes, (score, label, logarithmic) in zip(panels[line], SCORES, strict=True):
            _draw_panel(axes, methods, list(_marks(methods, here, scores, score)), logarithmic)
            _draw_levels(axes, here, score)
            axes.set_ylabel(label, fontsize=SMALL)
        panels[line, 0].set_title(dataset, loc="left", fontsize=LARGE, fontweight="bold")
        panels[line, 1].set_title(_words(here), loc="right", fontsize=SMALL, style="italic")
    figure.align_ylabels(panels[:, 0])
    figure.align_ylabels(panels[:, 1])
    _legend(figure, [row for row, _ in rows], count, quick)
    return figure


def _marks(
    methods: Sequence[str],
    rows: Sequence[tuple[Row, int]],
    scores: Callable[[Row, str], list[float]],
    score: str,
) -> Iterator[_Mark]:
    """Of the rows that have the score."""
    for row, lacking in rows:
        if score not in row.scores:
            continue
        size, jittered = row.hyperparameters.get("M"), is_jittered(row.hyperparameters)
        place = _place(size)
        family: Family = row.family  # type: ignore[assignment]
        offset = 0.0 if size is None else (len(SIZES) if jittered else place) - len(SIZES) / 2
        column = methods.index(row.method)
        yield _Mark(
            column=column,
            x=column + BLOCK[family] + APART * offset,
            family=family,
            colour=TINTS[family][place],
            filled=not jittered,
            estimate=row.scores[score],
            middle=median(scores(row, score)),
            opacity=_opacity(row, lacking),
        )


def _place(size: object) -> int:
    """A size's place among the paper's; what has no size, as EXACT, looks like the default."""
    if size is None:
        return SIZES.index(80)
    if size not in SIZES:
        raise InputError(f"the figure has places for M = {', '.join(map(str, SIZES))}, got records with M = {size}")
    return SIZES.index(size)  # type: ignore[arg-type]


def _opacity(row: Row, lacking: int) -> float:
    return 1.0 if not lacking and row.finished == row.cells else FAINT


def _draw_panel(axes: Axes, methods: Sequence[str], marks: Sequence[_Mark], logarithmic: bool) -> None:
    low, high = _limits(axes, marks, logarithmic)
    for mark in marks:
        _draw_mark(axes, mark, low, high, logarithmic)
    _say_what_is_above(axes, marks, high)
    axes.set_xlim(-0.5, len(methods) - 0.5)
    axes.set_xticks(range(len(methods)), [_short(method) for method in methods])
    for edge in range(1, len(methods)):
        axes.axvline(edge - 0.5, color="0.88", linewidth=0.6, zorder=0)
    if not marks:
        unlabelled(axes)
    tidy(axes, SMALL)


def _limits(axes: Axes, marks: Sequence[_Mark], logarithmic: bool) -> tuple[float, float]:
    """Sets an axis's limits, and tells the least and the greatest value that is shown as a dot or a bar."""
    means = [m.estimate.mean for m in marks if math.isfinite(m.estimate.mean)]
    middles = [m.middle for m in marks if math.isfinite(m.middle)]
    if logarithmic:
        axes.set_yscale("log", nonpositive="clip")
        shown = [value for value in (*means, *middles) if value >= LOWEST]
        if shown:
            axes.set_ylim(min(shown) / 3, max(shown) * 2)
            label_logarithmic(axes)
        else:
            unlabelled(axes)
        return LOWEST, math.inf
    top = fence(means)
    low, high = _reach(marks, middles, top)
    if not math.isfinite(low):
        unlabelled(axes)
        return -math.inf, top
    room = 0.06 * (high - low) or 0.5
    above = any(m.estimate.mean > top for m in marks)
    axes.set_ylim(low - room, high + (0.45 * (high - low) if above else room))
    return -math.inf, top


def _reach(marks: Sequence[_Mark], middles: Sequence[float], top: float) -> tuple[float, float]:
    """From the least to the greatest of what stands on a linear axis, error bars and medians included."""
    ends = [value for value in middles if value <= top]
    for mark in marks:
        if mark.estimate.mean <= top and math.isfinite(mark.estimate.mean):
            error = mark.estimate.standard_error or 0.0
            ends += [mark.estimate.mean - error, mark.estimate.mean + error]
    return min(ends, default=math.nan), max(ends, default=math.nan)


def fence(values: Sequence[float]) -> float:
    """Above which value a linear axis is cut off: infinite, unless a few outliers would flatten all others.

    Outliers lie above Tukey's outer fence, Q3 + 3 (Q3 - Q1) (Tukey 1977, Exploratory Data Analysis, section 2D;
    quartiles by NumPy's rule); they flatten what is left if the axis would be five times as long with them.
    """
    if len(values) < 2:
        return math.inf
    lower, upper = np.quantile(values, [0.25, 0.75])
    top = float(upper + FAR_OUT * (upper - lower))
    kept = [value for value in values if value <= top]
    flattened = max(values) - min(values) > FLATTENED * (max(kept) - min(kept))
    return top if flattened and len(kept) < len(values) and max(kept) > min(kept) else math.inf


def _short(method: str) -> str:
    """A column's name; the long one breaks in two lines."""
    return title_of(method).replace(", natural gradients", "\nnat. grad.")


def _fits(value: float) -> bool:
    return math.isfinite(value) and value >= NO_LOGARITHM


def _draw_mark(axes: Axes, mark: _Mark, low: float, high: float, logarithmic: bool) -> None:
    """A dot with its error bar, or an arrow if its value lies beyond the axis; and the median, or a caret."""
    value, (_, marker) = mark.estimate.mean, FAMILY_STYLE[mark.family]
    look: dict[str, Any] = {"color": mark.colour, "marker": marker, "markersize": 3.8, "linestyle": ""}
    look |= {"markerfacecolor": mark.colour if mark.filled else "white", "alpha": mark.opacity}
    beyond = _beyond(value, low, high)
    if beyond:
        edge = float(beyond > 0)
        draw_arrow(axes, mark.x, edge - beyond * ARROW, edge, look, size=6)
    else:
        axes.errorbar(mark.x, value, yerr=mark.estimate.standard_error, elinewidth=0.9, **look)
    bar: dict[str, Any] = {"color": "black", "alpha": mark.opacity, "linestyle": "", "zorder": 4}
    if not (side := _beyond(mark.middle, low, high)):
        axes.plot([mark.x], [mark.middle], marker="_", markersize=5, markeredgewidth=0.9, **bar)
    elif side != beyond:  # else the arrow says it
        caret: dict[str, Any] = {"marker": BEYOND[side > 0], "markersize": 4.5, "markeredgewidth": 0}
        axes.plot([mark.x], [float(side > 0)], transform=axes.get_xaxis_transform(), **caret, **bar)


def _beyond(value: float, low: float, high: float) -> int:
    """-1 below what an axis shows, 1 above it or infinite, 0 on it."""
    return 1 if value > high or not math.isfinite(value) else -1 if value < low else 0


def _say_what_is_above(axes: Axes, marks: Sequence[_Mark], high: float) -> None:
    """Beneath the arrows of a column to the top, family by family: from what to what, and whether infinite."""
    for column, family in sorted({(mark.column, mark.family) for mark in marks}):
        group = [mark for mark in marks if (mark.column, mark.family) == (column, family)]
        above = [mark for mark in group if _beyond(mark.estimate.mean, -math.inf, high)]
        finite = [f"{mean:,.3g}" for mean in sorted(mark.estimate.mean for mark in above) if math.isfinite(mean)]
        words = [] if not finite else [finite[0]] if len(finite) == 1 else [f"{finite[0]} to", finite[-1]]
        words += ["∞"] if len(finite) < len(above) else []
        if words:
            place, across = sum(mark.x for mark in above) / len(above), axes.get_xaxis_transform()
            axes.text(
                place, 1 - ARROW - 0.07, "\n".join(words), transform=across, fontsize=SMALL, ha="center", va="top",
                color=TINTS[family][2], linespacing=0.95,
            )  # fmt: skip


def _draw_levels(axes: Axes, rows: Sequence[tuple[Row, int]], score: str) -> None:
    """EXACT's score across the columns, but for a KL of 0."""
    for row, lacking in rows:
        if row.method == "exact" and score in row.scores and (score != "kl" or _fits(row.scores[score].mean)):
            draw_level(axes, row.scores[score].mean, row.family, _opacity(row, lacking))  # type: ignore[arg-type]


def _words(rows: Sequence[tuple[Row, int]]) -> str:
    """What a data set has less than the paper: sizes, marks that have no result yet, and splits of the others."""
    sizes = {int(str(row.hyperparameters["M"])) for row, _ in rows if "M" in row.hyperparameters}
    said = [] if sizes == set(SIZES) else [f"M = {', '.join(map(str, sorted(sizes)))} only"]
    drawn = [(row, lacking) for row, lacking in rows if "kl" in row.scores]
    said += [f"{len(rows) - len(drawn)} of {len(rows)} without a result"] if len(drawn) < len(rows) else []
    if any(_opacity(row, lacking) < 1.0 for row, lacking in drawn):
        planned = span([row.cells + lacking for row, lacking in drawn])
        said.append(f"{span([row.finished for row, _ in drawn])} of {planned} splits")
    return "; ".join(said)


def _legend(figure: Figure, rows: Sequence[Row], count: str, quick: bool) -> None:
    settings = [row.hyperparameters for row in rows]
    handles = []
    families: tuple[tuple[Family, str], ...] = (("full", "full"), ("ffg", "ffg"))
    for family, words in families:
        for size, colour in zip(SIZES, TINTS[family], strict=True):
            look: dict[str, Any] = {"color": colour, "marker": FAMILY_STYLE[family][1], "markersize": 4}
            handles.append(Line2D([], [], linestyle="", label=f"{words}, M = {size}", **look))
    open_mark: dict[str, Any] = {"color": "0.3", "marker": "o", "markersize": 4, "markerfacecolor": "white"}
    if any(map(is_jittered, settings)):
        handles.append(Line2D([], [], linestyle="", label=f"KL jitter {jitter_label(settings)}", **open_mark))
    handles.append(Line2D([], [], color="black", marker="_", linestyle="", label="median"))
    # A legend fills its columns one by one: two rows of families, then the two others below each other.
    order = [place for column in range(4) for place in (column, column + 4)]
    order += range(8, len(handles))
    figure.legend(
        handles=[handles[place] for place in order],
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=SMALL,
        columnspacing=1.2,
        handletextpad=0.3,
    )
    steps = "; ".join([f"{'quick look: ' if quick else ''}{count}", *steps_in_words(rows)])
    words = "mean ± standard error over splits; faint: fewer splits than planned; arrows, carets: beyond the axis"
    figure.suptitle(f"{steps}\n{TIED}\n{words}", fontsize=SMALL)
