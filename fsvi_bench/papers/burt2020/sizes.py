"""Figures 3 and 4 of Burt et al. (2020): KL and NLPD of every method for four sizes of the measurement set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import CARETDOWN, CARETUP

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.numbers import (
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
from fsvi_bench.presenting.summary import Estimate, Row
from fsvi_bench.presenting.traces import Spread, spread_of
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
BESIDE = APART / 2  #: a mean's place, to the right of its median
MEAN: dict[str, Any] = {"color": "0.1", "linestyle": "", "zorder": 4}
FAR = 10.0  #: a mean so many times above all quartiles is off a logarithmic axis: few splits made it
LINE = 0.1  #: of letters; as the others here, of an axis's height
BENEATH = 1 - ARROW - 0.07  #: a number's upper edge beneath arrows
HEADROOM = 0.38  #: above what stands on it, where numbers stand at its top
FAR_OUT = 3.0  #: interquartile ranges above the upper quartile: Tukey's outer fence
FLATTENED = 5.0  #: outliers are cut off if with them the axis would be so many times as long
BEYOND = (CARETDOWN, CARETUP)  #: of a mean below the axis, and above it


class _Mark(NamedTuple):
    column: int
    x: float
    family: Family
    colour: str
    filled: bool
    mean: Estimate
    spread: Spread
    opacity: float  #: faint unless every planned split is in it


def draw_sizes(name: str) -> Callable[..., tuple[Figure, ScoreNumbers]]:
    """The drawing of figure 3 or 4: a row of panels per data set, KL on a logarithmic axis beside NLPD.

    Marks are medians over splits, which one split cannot move, on bars from quartile to quartile; beside them, small,
    the paper's means ± standard errors. What is over fewer than the planned splits is faint. Arrows stand for medians
    beyond an axis, carets for means: a KL below `LOWEST`, infinity, an NLPD that would flatten all others, and the mean
    KL that a few splits carry far above all quartiles; beneath those at the top stands what they are.
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
    beyond: set[str] = set()
    for line, dataset in enumerate(datasets):
        here = [(row, lacking) for row, lacking in rows if row.dataset == dataset]
        for axes, (score, label, logarithmic) in zip(panels[line], SCORES, strict=True):
            marks = list(_marks(methods, here, scores, score))
            beyond |= _draw_panel(axes, methods, marks, logarithmic)
            _draw_levels(axes, [mark for mark in marks if methods[mark.column] == "exact"], score)
            axes.set_ylabel(label, fontsize=SMALL)
        panels[line, 0].set_title(dataset, loc="left", fontsize=LARGE, fontweight="bold")
        panels[line, 1].set_title(_words(here), loc="right", fontsize=SMALL, style="italic")
    figure.align_ylabels(panels[:, 0])
    figure.align_ylabels(panels[:, 1])
    drawn = [(row, lacking) for row, lacking in rows if row.scores]
    _legend(figure, [row for row, _ in drawn])
    steps = "; ".join([f"{'quick look: ' if quick else ''}{count}", *steps_in_words([row for row, _ in rows])])
    figure.suptitle("\n".join([steps, TIED, *_how_to_read(drawn, beyond)]), fontsize=SMALL)
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
            mean=row.scores[score],
            spread=spread_of(np.asarray(scores(row, score), dtype=float)),
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


def _draw_panel(axes: Axes, methods: Sequence[str], marks: Sequence[_Mark], logarithmic: bool) -> set[str]:
    """Tells what lies beyond the axis: `medians`, `means`."""
    low, high = _limits(axes, marks, logarithmic)
    drawn = [kind for mark in marks for kind in _draw_mark(axes, mark, low, high)]
    _say_what_is_above(axes, marks, high)
    axes.set_xlim(-0.5, len(methods) - 0.5)
    axes.set_xticks(range(len(methods)), [_short(method) for method in methods])
    for edge in range(1, len(methods)):
        axes.axvline(edge - 0.5, color="0.88", linewidth=0.6, zorder=0)
    if not marks:
        unlabelled(axes)
    tidy(axes, SMALL)
    if any(_beyond(v, -math.inf, high) for mark in marks for v in (mark.spread.median, mark.mean.mean)):
        _end_at(axes, high)
    return set(drawn)


def _end_at(axes: Axes, high: float) -> None:
    """No axis beside the room for what lies beyond it: arrows and carets there stand at no value."""
    foot, head = axes.get_ylim()
    if head <= high:
        return
    for minor in (False, True):
        ticks = [tick for tick in axes.yaxis.get_ticklocs(minor=minor) if foot <= tick <= high]
        axes.set_yticks(ticks, minor=minor)
    axes.spines["left"].set_bounds(foot, high)


def _limits(axes: Axes, marks: Sequence[_Mark], logarithmic: bool) -> tuple[float, float]:
    """Sets an axis's limits, and tells the least and the greatest value that is shown by its place."""
    means = [mark.mean.mean for mark in marks]
    quartiles = [q for m in marks for q in (m.spread.lower_quartile, m.spread.median, m.spread.upper_quartile)]
    return (_limit_logarithmic if logarithmic else _limit_linear)(axes, means, quartiles)


def _limit_logarithmic(axes: Axes, means: Sequence[float], quartiles: Sequence[float]) -> tuple[float, float]:
    """About the quartiles, and about means that are not far above all of them."""
    axes.set_yscale("log", nonpositive="clip")
    finite, shown = ([v for v in values if LOWEST <= v < math.inf] for values in (means, quartiles))
    if not (shown := shown or finite):
        unlabelled(axes)
        return LOWEST, math.inf
    top = FAR * max(shown)
    shown += [mean for mean in finite if mean <= top]
    low, high = min(shown) / 3, max(shown)
    room = (high / low) ** (HEADROOM / (1 - HEADROOM))
    above = any(value > top for value in (*means, *quartiles))
    axes.set_ylim(low, high * max(room if above else 1.0, 2.0))
    label_logarithmic(axes)
    return LOWEST, high


def _limit_linear(axes: Axes, means: Sequence[float], quartiles: Sequence[float]) -> tuple[float, float]:
    """About quartiles and means up to the fence."""
    ends = [value for value in (*means, *quartiles) if math.isfinite(value)]
    top = fence(ends)
    kept = [value for value in ends if value <= top]
    if not kept:
        unlabelled(axes)
        return -math.inf, top
    low, high = min(kept), max(kept)
    room = 0.06 * (high - low) or 0.5
    above = len(kept) < len(means) + len(quartiles)
    axes.set_ylim(low - room, high + max((high - low) * HEADROOM / (1 - HEADROOM) if above else 0.0, room))
    return -math.inf, top


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


def _draw_mark(axes: Axes, mark: _Mark, low: float, high: float) -> Iterator[str]:
    """The median on its quartiles, or an arrow if it lies beyond the axis; and the mean, or a caret. Tells which do."""
    _, marker = FAMILY_STYLE[mark.family]
    bar: dict[str, Any] = {"linewidth": 2.6, "alpha": 0.45 * mark.opacity, "solid_capstyle": "butt", "zorder": 2}
    foot, head = axes.get_ylim()
    ends = [min(max(value, foot), head) for value in (mark.spread.lower_quartile, mark.spread.upper_quartile)]
    if ends[0] < ends[1]:
        axes.plot([mark.x, mark.x], ends, color=mark.colour, **bar)
    look: dict[str, Any] = {"color": mark.colour, "marker": marker, "markersize": 4.4, "linestyle": "", "zorder": 3}
    look |= {"markerfacecolor": mark.colour if mark.filled else "white", "alpha": mark.opacity}
    if beyond := _beyond(mark.spread.median, low, high):
        edge = float(beyond > 0)
        draw_arrow(axes, mark.x, edge - beyond * ARROW, edge, look, size=6)
        yield "medians"
    else:
        axes.plot([mark.x], [mark.spread.median], **look)
    own: dict[str, Any] = {**MEAN, "alpha": mark.opacity}
    if not (side := _beyond(mark.mean.mean, low, high)):
        error = mark.mean.standard_error
        axes.errorbar(mark.x + BESIDE, mark.mean.mean, yerr=error, marker="D", markersize=1.8, elinewidth=0.7, **own)
    elif side != beyond:  # else the arrow says it
        caret: dict[str, Any] = {"marker": BEYOND[side > 0], "markersize": 4, "markeredgewidth": 0, "clip_on": False}
        axes.plot([mark.x + BESIDE], [float(side > 0)], transform=axes.get_xaxis_transform(), **caret, **own)
        yield "means"


def _beyond(value: float, low: float, high: float) -> int:
    """-1 below what an axis shows, 1 above it or infinite, 0 on it."""
    return 1 if value > high or not math.isfinite(value) else -1 if value < low else 0


def _say_what_is_above(axes: Axes, marks: Sequence[_Mark], high: float) -> None:
    """Beneath a column's arrows and carets at the top: medians by family in its colour, means in theirs."""
    for column in sorted({mark.column for mark in marks}):
        here = [mark for mark in marks if mark.column == column]
        medians = [mark for mark in here if _beyond(mark.spread.median, -math.inf, high)]
        means = [mark for mark in here if mark not in medians and _beyond(mark.mean.mean, -math.inf, high)]
        blocks = [[mark for mark in medians if mark.family == family] for family in BLOCK]
        said = [
            _say(axes, block, BENEATH, [m.spread.median for m in block], block[0].family) for block in blocks if block
        ]
        place = 1 - LINE / 2 - (ARROW + LINE * max(said) if said else 0)
        alone = [[mark for mark in means if mark.family == family] for family in BLOCK]
        # Two ranges side by side would stand on each other, and so would two numbers that are nearer than the blocks.
        near = abs(means[-1].x - means[0].x) < BLOCK["ffg"] - BLOCK["full"] - 1e-9 if len(means) == 2 else False
        for block in alone if max(map(len, alone)) == 1 and not near else [means]:
            if block:
                _say(axes, block, place, [mark.mean.mean for mark in block], None)


def _from_to(values: Sequence[float]) -> list[str]:
    """The least and the greatest, and whether any is infinite, in lines."""
    finite = [_brief(value) for value in sorted(values) if math.isfinite(value)]
    words = finite[:1] if len({*finite}) < 2 else [f"{finite[0]} to", finite[-1]]
    return [*words, *(["∞"] if len(finite) < len(values) else [])]


def _brief(value: float) -> str:
    words = f"{value:,.3g}" if abs(value) < 1e3 else f"{value:.0e}" if abs(value) >= 1e5 else f"{value:,.0f}"
    return words.replace("e+0", "e").replace("e+", "e")


def _say(axes: Axes, marks: Sequence[_Mark], y: float, values: Sequence[float], family: Family | None) -> int:
    """Writes what the values are, of medians in their family's colour, and tells in how many lines."""
    colour = TINTS[family][SIZES.index(80)] if family else str(MEAN["color"])
    place, across, lines = sum(mark.x for mark in marks) / len(marks), axes.get_xaxis_transform(), _from_to(values)
    look: dict[str, Any] = {"fontsize": SMALL, "ha": "center", "va": "top", "linespacing": 0.95}
    axes.text(place, y, "\n".join(lines), transform=across, color=colour, **look)
    return len(lines)


def _draw_levels(axes: Axes, marks: Sequence[_Mark], score: str) -> None:
    """EXACT's median across the columns, but for a KL of 0."""
    for mark in marks:
        level = mark.spread.median
        if score != "kl" or (math.isfinite(level) and level >= NO_LOGARITHM):
            draw_level(axes, level, mark.family, mark.opacity)


def _words(rows: Sequence[tuple[Row, int]]) -> str:
    """What a data set has less than the paper: sizes, marks that have no result yet, and splits of the others."""
    sizes = {int(str(row.hyperparameters["M"])) for row, _ in rows if "M" in row.hyperparameters}
    said = [] if sizes == set(SIZES) else [f"M = {', '.join(map(str, sorted(sizes)))} only"]
    drawn = [(row, lacking) for row, lacking in rows if "kl" in row.scores]
    said += [f"{len(rows) - len(drawn)} of {len(rows)} settings without a result"] if len(drawn) < len(rows) else []
    if any(_opacity(row, lacking) < 1.0 for row, lacking in drawn):
        planned = span([row.cells + lacking for row, lacking in drawn])
        said.append(f"{span([row.finished for row, _ in drawn])} of {planned} splits")
    return "; ".join(said)


def _legend(figure: Figure, rows: Sequence[Row]) -> None:
    """Of the sizes, families and marks that are drawn."""
    there = {(_place(row.hyperparameters.get("M")), row.family) for row in rows}
    handles: list[Line2D] = []
    for place, family in sorted(there, key=lambda each: (each[0], each[1] != "full")):
        look: dict[str, Any] = {"color": TINTS[family][place], "marker": FAMILY_STYLE[family][1], "markersize": 4.4}  # type: ignore[index]
        handles.append(Line2D([], [], linestyle="", label=f"{family}, M = {SIZES[place]}", **look))
    handles.append(Line2D([], [], color="0.4", marker="o", markersize=4.4, label="median, quartiles"))
    handles.append(
        Line2D([], [], **{**MEAN, "linestyle": "-"}, linewidth=0.7, marker="D", markersize=1.8, label="mean ± s.e.")
    )
    if any(row.method == "exact" for row in rows):
        handles.append(Line2D([], [], color="0.4", linewidth=0.8, linestyle=LEVEL_LINE, label="EXACT's median"))
    settings = [row.hyperparameters for row in rows]
    if any(map(is_jittered, settings)):
        open_mark: dict[str, Any] = {"color": "0.4", "marker": "o", "markersize": 4.4, "markerfacecolor": "white"}
        handles.append(Line2D([], [], linestyle="", label=f"KL jitter {jitter_label(settings)}", **open_mark))
    look = {"frameon": False, "fontsize": SMALL, "columnspacing": 1.2, "handletextpad": 0.4}
    figure.legend(handles=handles, loc="outside lower center", ncols=math.ceil(len(handles) / 2), **look)


def _how_to_read(rows: Sequence[tuple[Row, int]], beyond: set[str]) -> list[str]:
    """What is faint, and what arrows and carets are of; a line, or none."""
    said = ["faint: fewer splits than planned"] if any(_opacity(row, lacking) < 1.0 for row, lacking in rows) else []
    kinds = (("medians", "arrows"), ("means", "carets"))
    said += [f"{name}: {kind} beyond the axis" for kind, name in kinds if kind in beyond]
    return ["; ".join(said)] if said else []
