"""A page per data set: its card, its official tasks, what the exact posterior reaches, and every entry's score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from fsvi_bench.leaderboard.references import TaskReference
from fsvi_bench.leaderboard.site.drawings import score_axis, score_bar
from fsvi_bench.leaderboard.site.material import Material
from fsvi_bench.leaderboard.site.render import render
from fsvi_bench.leaderboard.site.scales import fit
from fsvi_bench.leaderboard.site.tables import SCORES, TABS, status
from fsvi_bench.leaderboard.submission import DEVELOPMENT_DATASETS, TRACKS
from fsvi_bench.leaderboard.tables import Line
from fsvi_bench.tasks.card import card_names, load_card

CHART_WIDTH = 340
LEAST_SHOWN = 1e-6  #: nats; what is less stands at the left edge


@dataclass(frozen=True)
class ScoreRow:
    """One entry's score on the data set; `drawing` where it has one."""

    line: Line
    score: float | None
    spread: tuple[float, float] | None
    drawing: Markup | None
    status: str


@dataclass(frozen=True)
class Chart:
    """The entries of a track, the closest first."""

    key: str
    title: str
    score: str
    axis: Markup
    rows: list[ScoreRow]


def dataset_page(material: Material, dataset: str) -> bytes:
    """The card's own words, and the numbers that the references and the tables hold."""
    tasks = material.tasks[dataset]
    return render(
        "dataset.html.j2",
        1,
        dataset=dataset,
        card=load_card(dataset) if dataset in card_names() else None,
        development=dataset in DEVELOPMENT_DATASETS,
        tasks=tasks,
        means=_means(tasks),
        charts=[chart for track in TRACKS if (chart := _chart(material, dataset, track)).rows],
    )


def _means(tasks: list[TaskReference]) -> dict[str, float]:
    """Means over splits of what the exact posterior, the best factorised one and the MAP reach."""
    names = ("nlpd_exact", "rmse_exact", "ffg_floor", "map_predictive_kl_test", "map_predictive_kl_box", "map_nlpd")
    means = {name: fmean(getattr(task, name) for task in tasks) for name in names}
    return means | {
        f"coverage_{level}": fmean(task.coverage_exact[level] for task in tasks) for level in ("50", "90", "95")
    }


def _chart(material: Material, dataset: str, track: str) -> Chart:
    table = material.tables[track]
    values = {line.name: line.scores.get(dataset) for line in table.lines}
    shown = [value for value in values.values() if value is not None]
    ends = [end for line in table.lines for end in line.spread.get(dataset) or () if end > 0]
    scale = fit([*shown, *(end for end in ends if shown and end >= min(shown) / 10)], 6, CHART_WIDTH, LEAST_SHOWN)
    rows = []
    for line in table.lines:
        value, spread = values[line.name], line.spread.get(dataset)
        drawing = None if value is None else score_bar(value, spread, scale)
        rows.append(ScoreRow(line, value, spread, drawing, status(line)))
    rows.sort(key=lambda row: (row.score is None, row.score if row.score is not None else math.inf, row.line.name))
    return Chart(track, TABS[track], SCORES[table.score], score_axis(scale), rows)
