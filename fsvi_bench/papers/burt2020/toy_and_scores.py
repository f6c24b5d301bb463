"""Figures 1 and 2 of Burt et al. (2020), from records: drawn, and as the numbers behind each mark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.cells import (
    Row,
    budget,
    cell_numbers,
    frame_of,
    incompleteness,
    is_jittered,
    jitter_label,
    rows_of,
    score_numbers,
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
from fsvi_bench.running.cell import Record
from fsvi_bench.running.store import Store
from fsvi_bench.tasks.official import find_task
from fsvi_bench.tasks.task import Task, bind_task

OUTLINE: Dashes = (0, (1, 1.2))  #: the dots of a curve trained with jitter
EXACT_LINE: Dashes = (0, (4, 2))
SCORES = {"kl": "KL(q ‖ exact posterior)\n[nats]", "nlpd": "NLPD, target's own units\n[nats per test point]"}
Drawn = Sequence[tuple[Record, Curve | None]]  #: no curve of what is not ok


def draw_figure_1(
    records: Sequence[Record], store: Store, quick: bool, missing: Sequence[Place] = ()
) -> tuple[Figure, dict[str, Any]]:
    """Four panels on the toy problem, one per method: f's mean ± 2 sd, the data, and the exact posterior for reference.

    Raises:
        InputError: the task is not in the cache, or a posterior is missing from the store.
    """
    problem = _toy_problem(records[0])
    curves = [
        (r, curve(problem, load_posterior(r, store.root, problem.frozen)) if r.status == "ok" else None)
        for r in records
    ]
    methods = list(dict.fromkeys(record.method for record in records))
    exact = next((drawn for record, drawn in curves if record.method == "exact"), None)
    figure = Figure(figsize=(PAGE_WIDTH, 5.0), layout="constrained")
    panels = figure.subplots(2, math.ceil(len(methods) / 2), sharex=True, sharey=True, squeeze=False)
    if exact is not None:
        # Methods that overfit leave these limits, and would flatten the others.
        low, high = (exact.mean - 2 * exact.sd).min(), (exact.mean + 2 * exact.sd).max()
        panels[0, 0].set_ylim(low - 0.15 * (high - low), high + 0.15 * (high - low))
    for axes, method, colour in zip(panels.flat, methods, PALETTE, strict=False):
        own = [(record, drawn) for record, drawn in curves if record.method == method]
        _draw_toy_panel(axes, problem, own, colour, None if method == "exact" else exact)
    for axes in panels[-1]:
        axes.set_xlabel("x (dimensionless)", fontsize=NORMAL)
    for axes in panels[:, 0]:
        axes.set_ylabel("f(x) (dimensionless)", fontsize=NORMAL)
    cells = frame_of(records, missing)
    _toy_legend(figure, jitter_label(cells["kl_jitter"]))
    settings = f"lr = {values(cells['lr'])}, minibatch = {values(cells['minibatch'])}"
    title = f"Toy problem: {settings}, {budget(cells, quick)}{incompleteness(missing)}"
    figure.suptitle(title, fontsize=NORMAL)
    return figure, _toy_numbers(problem, curves, quick)


def _toy_problem(record: Record) -> Task:
    found = find_task(record.dataset, record.split)
    if found is None:
        raise InputError(f"the task of {record.dataset} split {record.split} is not in the cache; run again")
    return bind_task(found.task)


def _draw_toy_panel(axes: Axes, problem: Task, curves: Drawn, colour: str, exact: Curve | None) -> None:
    said = []
    for record, drawn in curves:
        jittered = is_jittered(record.hyperparameters)
        prefix = f"jitter {record.hyperparameters['kl_jitter']:g}: ".replace("e-0", "e-") if jittered else "KL = "
        said.append(prefix + (record.status if record.scores is None else f"{record.scores.kl:.3g}"))
        if drawn is not None and jittered:
            draw_outline(axes, drawn, colour, OUTLINE)
        elif drawn is not None:
            draw_band(axes, drawn, colour, width=1.6)
    if exact is not None:
        for line in (exact.mean - 2 * exact.sd, exact.mean, exact.mean + 2 * exact.sd):
            axes.plot(exact.x, line, color="black", linewidth=0.7, linestyle=EXACT_LINE)
    draw_training_data(axes, problem, size=4)
    _say_what_is_cut_off(axes, [drawn for _, drawn in curves if drawn is not None])
    axes.set_title(title_of(curves[0][0].method), loc="left", fontsize=LARGE, fontweight="bold")
    kl, *others = said
    axes.set_title(f"{kl} nats" + (f" ({', '.join(others)})" if others else ""), loc="right", fontsize=SMALL)
    axes.tick_params(labelsize=SMALL)


def _say_what_is_cut_off(axes: Axes, curves: Sequence[Curve]) -> None:
    lowest = min((float((c.mean - 2 * c.sd).min()) for c in curves), default=0.0)
    highest = max((float((c.mean + 2 * c.sd).max()) for c in curves), default=0.0)
    bottom, top = axes.get_ylim()
    if lowest < bottom or highest > top:
        words = f"reaches {lowest:.2g} and {highest:.2g}".replace("-", "−")
        axes.text(0.02, 0.03, words, transform=axes.transAxes, fontsize=SMALL, style="italic")


def _toy_legend(figure: Figure, jitter: str) -> None:
    handles: list[Any] = [
        Line2D([], [], marker=".", linestyle="", color="black", label="training data"),
        Patch(facecolor="0.8", edgecolor="0.4", label="mean ± 2 sd of f"),
        Line2D([], [], color="0.3", linestyle=OUTLINE, label=f"the same, KL jitter {jitter}"),
        Line2D([], [], color="black", linewidth=0.7, linestyle=EXACT_LINE, label="exact posterior"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=SMALL)


def _toy_numbers(problem: Task, curves: Drawn, quick: bool) -> dict[str, Any]:
    """The JSON file: `mean` and `sd` are of f without noise at `x`, null where the cell is not ok."""
    return {
        "format": "fsvi-reproduction/1",
        "figure": "burt2020-fig1",
        "quick": quick,
        "task_sha256": problem.frozen.sha256,
        "x": problem.X_test[:, 0].sort().values.tolist(),
        "x_train": problem.X[:, 0].tolist(),
        "y_train": problem.y.tolist(),
        "curves": [
            {"cell": cell_numbers(record)}
            | {name: None if drawn is None else getattr(drawn, name).tolist() for name in ("mean", "sd")}
            for record, drawn in curves
        ],
    }


def draw_figure_2(
    records: Sequence[Record], store: Store, quick: bool, missing: Sequence[Place] = ()
) -> tuple[Figure, dict[str, Any]]:
    """KL on a logarithmic axis above NLPD, a column of panels per data set: mean ± standard error over splits."""
    rows = rows_of(records, missing)
    datasets = list(dict.fromkeys(row.dataset for row, _ in rows))
    figure = Figure(figsize=(PAGE_WIDTH, 4.8), layout="constrained")
    panels = figure.subplots(2, len(datasets), squeeze=False)
    for line, (score, label) in zip(panels, SCORES.items(), strict=True):
        line[0].set_ylabel(label, fontsize=NORMAL)
        for axes, dataset in zip(line, datasets, strict=True):
            _draw_scores(axes, [(row, lacking) for row, lacking in rows if row.dataset == dataset], score)
    for axes, dataset in zip(panels[0], datasets, strict=True):
        axes.set_title(dataset, fontsize=LARGE, fontweight="bold")
    cells = frame_of(records, missing)
    _score_legend(figure, cells["kl_jitter"])
    lines = [
        f"Mean ± standard error over {cells['split'].nunique()} splits{incompleteness(missing)}",
        budget(cells, quick),
    ]
    if (cells["status"] != "ok").any():
        lost = " (✗: diverged or failed)" if cells["status"].isin(["diverged", "failed"]).any() else ""
        lines.append(f"faint, with n/N beneath: n of N planned splits finished{lost}")
    figure.suptitle("\n".join(filter(None, lines)), fontsize=NORMAL)
    return figure, score_numbers("burt2020-fig2", quick, records, missing)


def _draw_scores(axes: Axes, rows: Sequence[tuple[Row, int]], score: str) -> None:
    """The marks, and EXACT's across the columns unless it is a KL of 0."""
    marks = [
        Mark(
            column=title_of(row.method),
            family=row.family,  # type: ignore[arg-type]
            filled=not is_jittered(row.hyperparameters),
            estimate=row.scores.get(score),
            finished=row.finished,
            cells=row.cells,
            missing=lacking,
        )
        for row, lacking in rows
    ]
    draw_marks(axes, marks, logarithmic=score == "kl")
    for mark, (row, _) in zip(marks, rows, strict=True):
        if row.method == "exact" and mark.estimate is not None and (score, mark.family) != ("kl", "full"):
            draw_level(axes, mark.estimate.mean, mark.family, mark.opacity)


def _score_legend(figure: Figure, jitters: pd.Series) -> None:
    fillings = {"no jitter": True} | ({f"KL jitter {jitter_label(jitters)}": False} if (jitters > 0).any() else {})
    handles = []
    families: dict[Family, tuple[str, str]] = {
        "full": ("full covariance", "same NLPD"),
        "ffg": ("fully factorised", "same KL or NLPD"),
    }
    for family, (words, level) in families.items():
        colour, marker = FAMILY_STYLE[family]
        for jitter, filled in fillings.items():
            face = colour if filled else "white"
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "markerfacecolor": face}
            handles.append(Line2D([], [], linestyle="", label=f"{words}, {jitter}", **look))
        handles.append(Line2D([], [], color=colour, linewidth=0.8, linestyle=LEVEL_LINE, label=f"{level} as EXACT"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=SMALL)
