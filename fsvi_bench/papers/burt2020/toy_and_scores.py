"""Figures 1 and 2 of Burt et al. (2020), from records: drawn, and as the numbers behind each mark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.numbers import (
    CellNumbers,
    Numbers,
    ScoreNumbers,
    budget,
    cell_numbers,
    incompleteness,
    is_jittered,
    jitter_label,
    row_numbers,
    rows_of,
    title_of,
    values,
)
from fsvi_bench.papers.places import Place
from fsvi_bench.posteriors.base import Family
from fsvi_bench.presenting.cell_files import load_posterior
from fsvi_bench.presenting.figures import (
    FAMILY_STYLE,
    LARGE,
    LEVEL_LINE,
    NORMAL,
    PAGE_WIDTH,
    PALETTE,
    SMALL,
    Curve,
    Dashes,
    Mark,
    curve,
    draw_band,
    draw_level,
    draw_marks,
    draw_outline,
    draw_training_data,
)
from fsvi_bench.presenting.summary import Row
from fsvi_bench.running.cell import Record
from fsvi_bench.running.store import Store
from fsvi_bench.tasks.official import find_task
from fsvi_bench.tasks.task import Task, bind_task

OUTLINE: Dashes = (0, (1, 1.2))  #: the dots of a curve trained with jitter
EXACT_LINE: Dashes = (0, (4, 2))


class CurveNumbers(Numbers):
    """A cell and its posterior of f at `ToyNumbers.x`: nothing where the cell is not ok."""

    cell: CellNumbers
    mean: list[float] | None
    sd: list[float] | None


class ToyNumbers(Numbers):
    """Figure 1. `mean` and `sd` are of f without noise; nothing is standardised."""

    format: Literal["fsvi-reproduction/1"] = "fsvi-reproduction/1"
    figure: Literal["burt2020-fig1"] = "burt2020-fig1"
    quick: bool
    task_sha256: str
    x: list[float]
    x_train: list[float]
    y_train: list[float]
    curves: list[CurveNumbers]


def _settings(of: Sequence[Record | Place]) -> list[Mapping[str, Any]]:
    return [each.hyperparameters for each in of]


def draw_figure_1(
    records: Sequence[Record], store: Store, quick: bool, missing: Sequence[Place] = ()
) -> tuple[Figure, ToyNumbers]:
    """Four panels on the toy problem, one per method: f's mean ± 2 sd, the data, and the exact posterior for reference.

    Raises:
        InputError: the task is not in the cache, or a posterior is missing from the store.
    """
    problem = _toy_problem(records)
    curves = [
        (r, curve(problem, load_posterior(r, store.root, problem.frozen)) if r.status == "ok" else None)
        for r in records
    ]
    figure = Figure(figsize=(PAGE_WIDTH, 5.0), layout="constrained")
    methods = list(dict.fromkeys(record.method for record in records))
    panels = list(figure.subplots(2, math.ceil(len(methods) / 2), sharex=True, sharey=True, squeeze=False).flat)
    exact = next((c for r, c in curves if r.method == "exact" and c is not None), None)
    for axes, method, colour in zip(panels, methods, PALETTE, strict=False):
        _draw_toy_panel(axes, problem, [(r, c) for r, c in curves if r.method == method], colour, exact)
    if exact is not None:
        panels[0].set_ylim(*_limits(exact))
        for axes, method in zip(panels, methods, strict=False):
            _say_what_is_cut_off(axes, [c for r, c in curves if r.method == method and c is not None])
    for axes in panels[-2:]:
        axes.set_xlabel("x (dimensionless)", fontsize=NORMAL)
    for axes in panels[::2]:
        axes.set_ylabel("f(x) (dimensionless)", fontsize=NORMAL)
    _toy_legend(figure, records, quick, missing)
    return figure, _toy_numbers(problem, curves, quick)


def _toy_problem(records: Sequence[Record]) -> Task:
    first = records[0]
    found = find_task(first.dataset, first.split)
    if found is None:
        raise InputError(f"the task of {first.dataset} split {first.split} is not in the cache; run again")
    return bind_task(found.task)


def _limits(exact: Curve) -> tuple[float, float]:
    """Somewhat more than the exact posterior needs: methods that overfit leave it, and would flatten the others."""
    low, high = float((exact.mean - 2 * exact.sd).min()), float((exact.mean + 2 * exact.sd).max())
    return low - 0.15 * (high - low), high + 0.15 * (high - low)


def _say_what_is_cut_off(axes: Axes, curves: Sequence[Curve]) -> None:
    lowest = min((float((c.mean - 2 * c.sd).min()) for c in curves), default=0.0)
    highest = max((float((c.mean + 2 * c.sd).max()) for c in curves), default=0.0)
    bottom, top = axes.get_ylim()
    if lowest < bottom or highest > top:
        words = f"reaches {lowest:.2g} and {highest:.2g}".replace("-", "−")
        axes.text(0.02, 0.03, words, transform=axes.transAxes, fontsize=SMALL, style="italic")


def _draw_toy_panel(
    axes: Axes, problem: Task, curves: Sequence[tuple[Record, Curve | None]], colour: str, exact: Curve | None
) -> None:
    said = []
    for record, drawn in curves:
        jittered = is_jittered(record.hyperparameters)
        prefix = f"jitter {jitter_label([record.hyperparameters])}: " if jittered else "KL = "
        if drawn is None or record.scores is None:
            said.append(f"{prefix}{record.status}")
            continue
        said.append(f"{prefix}{record.scores.kl:.3g}")
        if jittered:
            draw_outline(axes, drawn, colour, OUTLINE)
        else:
            draw_band(axes, drawn, colour, width=1.6)
    if exact is not None and curves[0][0].method != "exact":
        for line in (exact.mean - 2 * exact.sd, exact.mean, exact.mean + 2 * exact.sd):
            axes.plot(exact.x, line, color="black", linewidth=0.7, linestyle=EXACT_LINE)
    draw_training_data(axes, problem, size=4)
    axes.set_title(title_of(curves[0][0].method), loc="left", fontsize=LARGE, fontweight="bold")
    kl, *others = said
    axes.set_title(f"{kl} nats" + (f" ({', '.join(others)})" if others else ""), loc="right", fontsize=SMALL)
    axes.tick_params(labelsize=SMALL)


def _toy_legend(figure: Figure, records: Sequence[Record], quick: bool, missing: Sequence[Place]) -> None:
    every = _settings([*records, *missing])
    handles: list[Any] = [
        Line2D([], [], marker=".", linestyle="", color="black", label="training data"),
        Patch(facecolor="0.8", edgecolor="0.4", label="mean ± 2 sd of f"),
        Line2D([], [], color="0.3", linestyle=OUTLINE, label=f"the same, KL jitter {jitter_label(every)}"),
        Line2D([], [], color="black", linewidth=0.7, linestyle=EXACT_LINE, label="exact posterior"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=SMALL)
    settings = f"lr = {values(every, 'lr')}, minibatch = {values(every, 'minibatch')}"
    words = f"Toy problem: {settings}, {_budget(records, quick, missing)}{incompleteness(missing)}"
    figure.suptitle(words, fontsize=NORMAL)


def _toy_numbers(problem: Task, curves: Sequence[tuple[Record, Curve | None]], quick: bool) -> ToyNumbers:
    x = problem.X_test[:, 0].sort().values
    return ToyNumbers(
        quick=quick,
        task_sha256=problem.frozen.sha256,
        x=x.tolist(),
        x_train=problem.X[:, 0].tolist(),
        y_train=problem.y.tolist(),
        curves=[
            CurveNumbers(
                cell=cell_numbers(record),
                mean=None if drawn is None else drawn.mean.tolist(),
                sd=None if drawn is None else drawn.sd.tolist(),
            )
            for record, drawn in curves
        ],
    )


def draw_figure_2(
    records: Sequence[Record], store: Store, quick: bool, missing: Sequence[Place] = ()
) -> tuple[Figure, ScoreNumbers]:
    """KL on a logarithmic axis above NLPD, a column of panels per data set: mean ± standard error over splits."""
    rows = rows_of(records, missing)
    datasets = list(dict.fromkeys(row.dataset for row, _ in rows))
    figure = Figure(figsize=(PAGE_WIDTH, 4.8), layout="constrained")
    panels = figure.subplots(2, len(datasets), squeeze=False)
    for column, dataset in enumerate(datasets):
        here = [(row, lacking) for row, lacking in rows if row.dataset == dataset]
        draw_marks(panels[0, column], [_mark(row, lacking, "kl") for row, lacking in here], logarithmic=True)
        draw_marks(panels[1, column], [_mark(row, lacking, "nlpd") for row, lacking in here])
        for row, lacking in here:
            if row.method == "exact" and row.finished:
                _draw_levels(panels[0, column], panels[1, column], row, _mark(row, lacking, "kl").opacity)
        panels[0, column].set_title(dataset, fontsize=LARGE, fontweight="bold")
    panels[0, 0].set_ylabel("KL(q ‖ exact posterior)\n[nats]", fontsize=NORMAL)
    panels[1, 0].set_ylabel("NLPD, target's own units\n[nats per test point]", fontsize=NORMAL)
    _score_legend(figure, records, quick, missing)
    numbers = ScoreNumbers(
        figure="burt2020-fig2",
        quick=quick,
        rows=[row_numbers(row, lacking) for row, lacking in rows],
        cells=[cell_numbers(record) for record in records],
    )
    return figure, numbers


def _draw_levels(of_kl: Axes, of_nlpd: Axes, exact: Row, opacity: float) -> None:
    """EXACT's KL, unless it is 0, and NLPD across the columns."""
    family: Family = exact.family  # type: ignore[assignment]
    if family == "ffg":
        draw_level(of_kl, exact.scores["kl"].mean, family, opacity)
    draw_level(of_nlpd, exact.scores["nlpd"].mean, family, opacity)


def _mark(row: Row, missing: int, score: str) -> Mark:
    return Mark(
        column=title_of(row.method),
        family=row.family,  # type: ignore[arg-type]
        filled=not is_jittered(row.hyperparameters),
        estimate=row.scores.get(score),
        finished=row.finished,
        cells=row.cells,
        missing=missing,
    )


def _score_legend(figure: Figure, records: Sequence[Record], quick: bool, missing: Sequence[Place]) -> None:
    every: list[Record | Place] = [*records, *missing]
    settings = _settings(every)
    jitters = [("no jitter", True)]
    if any(map(is_jittered, settings)):
        jitters.append((f"KL jitter {jitter_label(settings)}", False))
    handles = []
    families: tuple[tuple[Family, str], ...] = (("full", "full covariance"), ("ffg", "fully factorised"))
    for family, words in families:
        colour, marker = FAMILY_STYLE[family]
        for jitter, filled in jitters:
            face = colour if filled else "white"
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "markerfacecolor": face}
            handles.append(Line2D([], [], linestyle="", label=f"{words}, {jitter}", **look))
        level = "same NLPD" if family == "full" else "same KL or NLPD"
        handles.append(Line2D([], [], color=colour, linewidth=0.8, linestyle=LEVEL_LINE, label=f"{level} as EXACT"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=SMALL)
    lacks = "faint, with n/N beneath: n of N planned splits finished"
    lacks += " (✗: diverged or failed)" if any(record.scores is None for record in records) else ""
    splits = len({each.split for each in every})
    lines = [f"Mean ± standard error over {splits} splits{incompleteness(missing)}", _budget(records, quick, missing)]
    lacking = missing or any(record.scores is None for record in records)
    figure.suptitle("\n".join([*filter(None, lines), *([lacks] if lacking else [])]), fontsize=NORMAL)


def _budget(records: Sequence[Record], quick: bool, missing: Sequence[Place]) -> str:
    return budget([*records, *missing], quick)
