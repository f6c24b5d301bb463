"""An entry's headline on its way, drawn: a panel per data set, a line per ranked run."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from fsvi_bench.leaderboard.board import Standing
from fsvi_bench.leaderboard.ranking import Score
from fsvi_bench.leaderboard.result import Cell, Waypoint
from fsvi_bench.leaderboard.site.render import ASSETS, method_name
from fsvi_bench.presenting.figures import NO_LOGARITHM
from fsvi_bench.presenting.plots import FigureSpec
from fsvi_bench.presenting.report.appearance import figure_style, look
from fsvi_bench.resources import read_yaml

COLUMNS = 5
PANEL = (2.35, 1.95)  #: inches


def headline(point: Waypoint, cell: Cell, score: Score) -> float:
    """A track's headline at a waypoint; infinite where it has none."""
    if score == "predictive_kl_box":
        return math.inf if point.predictive_kl_box is None else point.predictive_kl_box
    return point.kl - (cell.task.ffg_floor if score == "kl_above_floor" else 0.0)


def curves(standing: Standing, score: Score) -> Figure | None:
    """Against steps, by the code's own count; None of a method that has no way, such as a closed form.

    A start at 0 steps, and what is infinite or 0 but for rounding, has no place on logarithmic axes.
    """
    rows = [
        (cell.dataset, f"{cell.dataset} {cell.number} {cell.seed}", point.steps, headline(point, cell, score))
        for cell in standing.cells("ranked")
        for point in cell.waypoints
    ]
    frame = pd.DataFrame(rows, columns=["dataset", "run", "steps", "score"])
    frame = frame[(frame["steps"] > 0) & (frame["score"] > NO_LOGARITHM) & (frame["score"] < math.inf)]
    if frame.empty or frame["steps"].nunique() == 1:
        return None
    panels = frame["dataset"].nunique()
    columns = min(COLUMNS, panels)
    spec = FigureSpec(
        **read_yaml(ASSETS / "curves.yaml"),  # type: ignore[arg-type]
        width=PANEL[0] * columns,
        height=0.5,
        row_height=PANEL[1],
        columns=columns,
    )
    with figure_style():
        return spec.of({"runs": frame.assign(colour=look(method_name(standing)).light)})
