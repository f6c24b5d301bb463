"""The study's figures, from its table: figures 3 and 4, spectra, KL against steps and time, FIXEDA's drift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETLEFT, CARETRIGHT

from fsvi_bench.papers.burt2020.numbers import title_of
from fsvi_bench.papers.burt2020.sizes import SIZES, draw_size_panels
from fsvi_bench.papers.burt2020.study.curves import draw_drift, draw_steps, draw_time
from fsvi_bench.papers.burt2020.study.panels import MEDIANS, finish, opacity, small_panels
from fsvi_bench.papers.burt2020.study.summary import (
    Cells,
    at_the_papers_setting,
    begun_datasets,
    datasets_of,
    entries_of,
    number,
    size_rows,
)
from fsvi_bench.papers.burt2020.study.table import SPECTRUM, Entry, Tables, of_entry
from fsvi_bench.presenting.figures import SMALL
from fsvi_bench.presenting.report.appearance import look
from fsvi_bench.presenting.summary import Row

DRIFTING = "fixed-a"  #: the method whose objective has no optimum but a collapse where A sees too little
PER_FIGURE = 4  #: data sets of figures 3 and 4, in alphabetic order, as in the paper
SPECTRUM_EDGES = (0.7e-3, 1.5e3)  #: ratios of variances; what lies beyond is marked at the edge


def study_figures(tables: Tables, quick: bool) -> Iterator[tuple[str, Figure]]:
    """Every figure that there is something to draw for, with its name, of the data sets that have been begun."""
    begun = set(begun_datasets(tables.cells))
    tables = Tables([cell for cell in tables.cells if cell.dataset in begun or not begun], tables.curves)
    datasets = datasets_of(tables.cells)
    for place in range(0, len(datasets), PER_FIGURE):
        yield f"scores-{place // PER_FIGURE + 1}", _scores(tables.cells, datasets[place : place + PER_FIGURE], quick)
    if any(cell.status == "ok" for cell in tables.cells):
        yield "spectrum", _spectrum(tables.cells)
    settled, drifting = _traced(tables, at_the_papers_setting), _traced(tables, _drifts)
    if settled.curves:
        yield "steps", draw_steps(settled.curves, _planned(settled.cells))
        yield "time", draw_time(settled.curves, _planned(settled.cells))
    if drifting.curves:
        yield "drift", draw_drift(drifting.curves, _planned(drifting.cells))


def _drifts(entry: Entry) -> bool:
    return entry.method == DRIFTING and entry.M in SIZES and not entry.kl_jitter


def _traced(tables: Tables, keep: Callable[[Entry], bool]) -> Tables:
    """What has a trace, or will have; EXACT has none."""
    cells = [cell for cell in tables.cells if keep(cell.entry) and cell.method != "exact"]
    return Tables(cells, [point for point in tables.curves if keep(point.entry)])


def _planned(cells: Cells) -> Counter[tuple[str, Entry]]:
    return Counter((cell.dataset, cell.entry) for cell in cells)


def _scores(cells: Cells, datasets: Sequence[str], quick: bool) -> Figure:
    here = [cell for cell in cells if cell.dataset in datasets]

    def scores(row: Row, score: str) -> list[float]:
        settings = (row.hyperparameters.get("M"), row.hyperparameters.get("kl_jitter"))
        group = of_entry(here, row.dataset, Entry(row.method, row.family, *settings))  # type: ignore[arg-type]
        return [value for c in group if c.status == "ok" and (value := getattr(c, score)) is not None]

    there = sum(cell.status != "missing" for cell in here)
    words = f"{there:,} of {len(here):,} cells"
    return draw_size_panels(size_rows(here, datasets), scores, words, quick)


def _spectrum(cells: Cells) -> Figure:
    """A line per method from 0 to 100 % of the directions, thick from 25 to 75 %, medians over splits.

    What lies beyond the axis ends in an arrowhead at its edge; a median there has its number beside it. Each panel says
    of how many splits its lines are.
    """
    datasets, entries = datasets_of(cells), entries_of(cells, at_the_papers_setting)
    figure, panels = small_panels(len(datasets), 0.19 * len(entries) + 0.5, shared=True)
    for axes, dataset in zip(panels, datasets, strict=False):
        axes.set_xscale("log")
        axes.set_xlim(*SPECTRUM_EDGES)
        axes.axvline(1.0, color="black", linewidth=0.8, zorder=1)
        counts = []
        for place, entry in enumerate(entries):
            planned = of_entry(cells, dataset, entry)
            finished = [cell for cell in planned if cell.status == "ok"]
            if planned:
                counts.append((len(finished), len(planned)))
            if finished:
                _draw_spectrum(axes, -place, entry, finished, opacity(len(finished), len(planned)))
        axes.set_ylim(-len(entries) + 0.4, 0.6)
        axes.set_yticks([-place for place in range(len(entries))], [_short(entry) for entry in entries])
        axes.set_xticks([1e-2, 1.0, 1e2])
        finish(axes, dataset, counts)
    first = "variance of q over the exact one, by direction: 0 to 100 %, thick 25 to 75 %, marks at 50 %"
    figure.supxlabel(f"{first}\n{MEDIANS}; arrowheads: beyond the axis", fontsize=SMALL)
    return figure


def _draw_spectrum(axes: Axes, y: float, entry: Entry, cells: Cells, opacity: float) -> None:
    found = {percent: median(getattr(cell, f"spectrum_{percent}") for cell in cells) for percent in SPECTRUM}
    low, high = SPECTRUM_EDGES
    at = {percent: min(max(value, low), high) for percent, value in found.items()}
    seen = look(entry.method)
    own: dict[str, Any] = {"color": seen.light, "alpha": opacity}
    axes.plot([at[0], at[100]], [y, y], linewidth=1.0, solid_capstyle="butt", **own)
    thick: dict[str, Any] = {"linewidth": 4.2, "solid_capstyle": "butt", "color": seen.light, "alpha": 0.45 * opacity}
    axes.plot([at[25], at[75]], [y, y], **thick)
    for beyond, edge, head in ((found[0] < low, low, CARETLEFT), (found[100] > high, high, CARETRIGHT)):
        if beyond:
            axes.plot([edge], [y], marker=head, markersize=5, markeredgewidth=0, **own)
    if low <= found[50] <= high:
        axes.plot([at[50]], [y], marker=seen.marker, markersize=4, **own)
    else:
        side = "left" if found[50] < low else "right"
        inwards = 1.6 if found[50] < low else 1 / 1.6
        words: dict[str, Any] = {"fontsize": SMALL, "ha": side, "va": "bottom"}  # above the line, which it would strike
        axes.text(at[50] * inwards, y + 0.1, number(found[50]), **words, **own)


def _short(entry: Entry) -> str:
    return f"{title_of(entry.method).replace(', natural gradients', ' n.g.')} {entry.family}"
