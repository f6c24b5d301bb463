"""Figures 3 and 4 of Burt et al. (2020): KL and NLPD of every method for four sizes of the measurement set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from fsvi_bench.errors import InputError
from fsvi_bench.posteriors.base import Family
from fsvi_bench.reporting.figures import (
    FAMILY_STYLE,
    LARGE,
    NO_LOGARITHM,
    NORMAL,
    PAGE_WIDTH,
    SMALL,
    draw_level,
    tidy,
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
    title_of,
    values,
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
SCORES = (("kl", "KL(q ‖ exact) [nats]", True), ("nlpd", "NLPD [nats per test point]", False))


class _Mark(NamedTuple):
    x: float
    family: Family
    colour: str
    filled: bool
    estimate: Estimate | None
    middle: float | None  #: the median over splits
    complete: bool  #: every planned split is in it


def draw_sizes(name: str) -> Callable[..., tuple[Figure, ScoreNumbers]]:
    """The drawing of figure 3 or 4: a row of panels per data set, KL on a logarithmic axis beside NLPD.

    Dots are means ± standard errors over splits, as in the paper; bars across them are medians, which one split cannot
    move. A dot over fewer than the planned splits is faint.
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
        for axes, (score, _, logarithmic) in zip(panels[line], SCORES, strict=True):
            _draw_panel(axes, methods, list(_marks(methods, here, scores, score)), logarithmic)
            _draw_levels(axes, here, score)
        panels[line, 0].set_ylabel(dataset, fontsize=LARGE, fontweight="bold")
        panels[line, 1].set_title(_words(here), loc="right", fontsize=SMALL, style="italic")
    for axes, (_, label, _) in zip(panels[0], SCORES, strict=True):
        axes.set_title(label, loc="left", fontsize=NORMAL)
    _legend(figure, [row.hyperparameters for row, _ in rows], count, quick)
    return figure


def _marks(
    methods: Sequence[str],
    rows: Sequence[tuple[Row, int]],
    scores: Callable[[Row, str], list[float]],
    score: str,
) -> Iterator[_Mark]:
    for row, lacking in rows:
        size, jittered = row.hyperparameters.get("M"), is_jittered(row.hyperparameters)
        place = _place(size)
        family: Family = row.family  # type: ignore[assignment]
        offset = 0.0 if size is None else (len(SIZES) if jittered else place) - len(SIZES) / 2
        yield _Mark(
            x=methods.index(row.method) + BLOCK[family] + APART * offset,
            family=family,
            colour=TINTS[family][place],
            filled=not jittered,
            estimate=row.scores.get(score),
            middle=median(scores(row, score)) if score in row.scores else None,
            complete=not lacking and row.finished == row.cells,
        )


def _place(size: object) -> int:
    """A size's place among the paper's; what has no size, as EXACT, looks like the default."""
    if size is None:
        return SIZES.index(80)
    if size not in SIZES:
        raise InputError(f"the figure has places for M = {', '.join(map(str, SIZES))}, got records with M = {size}")
    return SIZES.index(size)  # type: ignore[arg-type]


def _draw_panel(axes: Axes, methods: Sequence[str], marks: Sequence[_Mark], logarithmic: bool) -> None:
    if logarithmic:
        axes.set_yscale("log", nonpositive="clip")
        shown = [v for m in marks if m.estimate for v in (m.estimate.mean, m.middle) if v and _fits(v) and v >= LOWEST]
        if shown:
            axes.set_ylim(min(shown) / 3, max(shown) * 2)
    for mark in marks:
        _draw_mark(axes, mark, logarithmic)
    axes.set_xlim(-0.5, len(methods) - 0.5)
    axes.set_xticks(range(len(methods)), [_short(method) for method in methods])
    for edge in range(1, len(methods)):
        axes.axvline(edge - 0.5, color="0.88", linewidth=0.6, zorder=0)
    if all(mark.estimate is None for mark in marks):
        axes.yaxis.set_major_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
    tidy(axes, SMALL)


def _short(method: str) -> str:
    """A column's name; the long one breaks in two lines."""
    return title_of(method).replace(", natural gradients", "\nnat. grad.")


def _fits(value: float) -> bool:
    return math.isfinite(value) and value >= NO_LOGARITHM


def _draw_mark(axes: Axes, mark: _Mark, logarithmic: bool) -> None:
    if mark.estimate is None:
        return
    value, (_, marker) = mark.estimate.mean, FAMILY_STYLE[mark.family]
    look: dict[str, Any] = {"color": mark.colour, "marker": marker, "markersize": 3.8, "linestyle": ""}
    look["markerfacecolor"] = mark.colour if mark.filled else "white"
    if not math.isfinite(value) or (logarithmic and value < LOWEST):
        edge, inwards = (0.0, 1) if value < LOWEST else (1.0, -1)
        arrow = {"arrowstyle": "-|>", "color": mark.colour, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 6}
        across = axes.get_xaxis_transform()
        axes.annotate("", xy=(mark.x, edge), xytext=(mark.x, edge + inwards * 0.11), xycoords=across, arrowprops=arrow)
        axes.plot([mark.x], [edge + inwards * 0.11], transform=across, **look)
        return
    axes.errorbar(
        mark.x, value, yerr=mark.estimate.standard_error, elinewidth=0.9, alpha=1.0 if mark.complete else 0.4, **look
    )
    if mark.middle is not None and math.isfinite(mark.middle):
        axes.plot([mark.x], [mark.middle], "_", color="black", markersize=5, markeredgewidth=0.9, zorder=4)


def _draw_levels(axes: Axes, rows: Sequence[tuple[Row, int]], score: str) -> None:
    """EXACT's score across the columns, but for a KL of 0."""
    for row, _ in rows:
        if row.method == "exact" and score in row.scores and (score != "kl" or _fits(row.scores[score].mean)):
            draw_level(axes, row.scores[score].mean, row.family)  # type: ignore[arg-type]


def _words(rows: Sequence[tuple[Row, int]]) -> str:
    """What a data set has less than the paper: sizes, and marks that have no result yet."""
    sizes = {int(str(row.hyperparameters["M"])) for row, _ in rows if "M" in row.hyperparameters}
    only = [] if sizes == set(SIZES) else [f"M = {', '.join(map(str, sorted(sizes)))} only"]
    nothing = sum("kl" not in row.scores for row, _ in rows)
    return "; ".join([*only, *([f"{nothing} of {len(rows)} without a result"] if nothing else [])])


def _legend(figure: Figure, settings: Sequence[dict[str, Any]], count: str, quick: bool) -> None:
    handles = []
    families: tuple[tuple[Family, str], ...] = (("full", "full"), ("ffg", "ffg"))
    for family, words in families:
        for size, colour in zip(SIZES, TINTS[family], strict=True):
            look: dict[str, Any] = {"color": colour, "marker": FAMILY_STYLE[family][1], "markersize": 4}
            handles.append(Line2D([], [], linestyle="", label=f"{words}, M = {size}", **look))
    open_mark: dict[str, Any] = {"color": "0.3", "marker": "o", "markersize": 4, "markerfacecolor": "white"}
    handles.append(Line2D([], [], linestyle="", label=f"KL jitter {jitter_label(settings)}", **open_mark))
    handles.append(Line2D([], [], color="black", marker="_", linestyle="", label="median"))
    # A legend fills its columns one by one: two rows of families, then the two others below each other.
    order = [place for column in range(4) for place in (column, column + 4)] + [8, 9]
    figure.legend(
        handles=[handles[place] for place in order],
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=SMALL,
        columnspacing=1.2,
        handletextpad=0.3,
    )
    words = f"mean ± standard error over splits; arrows: below {LOWEST:g} nats, or infinite"
    figure.suptitle(
        f"{'quick look: ' if quick else ''}{count}, up to {values(settings, 'max_steps')} steps\n{words}",
        fontsize=NORMAL,
    )
