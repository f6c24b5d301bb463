"""What stands in the pages: of the board, of an entry, of a data set, of two entries."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from fsvi_bench.leaderboard.board import Board, Standing
from fsvi_bench.leaderboard.entry import TRACKS, SourceFile
from fsvi_bench.leaderboard.ranked_tasks import OFFICIAL_SPLITS, TASKS, WITH_REAL_TARGETS, Place
from fsvi_bench.leaderboard.ranking import HEADLINES, Line, Score, Table, rank_across, rank_track
from fsvi_bench.leaderboard.result import Cell, TaskFacts, Waypoint
from fsvi_bench.leaderboard.signing import ALLOWED_SIGNERS
from fsvi_bench.leaderboard.site.render import WORDS, render
from fsvi_bench.presenting.looks import NO_LOGARITHM, figure_style, inline_svg, look
from fsvi_bench.presenting.plots import FigureSpec
from fsvi_bench.running.settings import setting_words
from fsvi_bench.tasks.card import Card, card_names, load_card
from fsvi_bench.tasks.splits import ranges

FRACTIONS = (0.01, 0.1, 1.0)  #: of a run's steps
PANEL = 2.35  #: inches


@dataclass(frozen=True, eq=False)
class Site:
    """A board with its tables, by the names of their sections."""

    board: Board
    signed: bool  #: whether only what an allowed signer has signed counts
    tables: Mapping[str, Table]

    @staticmethod
    def of(board: Board, root: Path) -> Site:
        tables: dict[str, Table] = {track: rank_track(board, track) for track in TRACKS}
        tables |= {"across": rank_across(board), "across-test": rank_across(board, "predictive_kl_test")}
        return Site(board, os.path.lexists(root / ALLOWED_SIGNERS), tables)

    @cached_property
    def shown(self) -> dict[str, Standing]:
        """The entries that have a result, by name."""
        return {each.name: each for each in self.board.standings if each.result is not None}

    @cached_property
    def tasks(self) -> dict[Place, TaskFacts]:
        """The edition's tasks, which are the same for all entries; none before there is a result."""
        return {
            cell.place: cell.task
            for each in [*self.shown.values()][:1]
            for kind in ("ranked", "official")
            for cell in each.cells(kind)
        }

    @property
    def point_mass(self) -> Line:
        """The MAP, a point mass at the exact mean, as a line of the singular track: medians over ranked tasks."""

        def over(inputs: str, *datasets: str) -> float:
            tasks = [task for place, task in self.tasks.items() if place.kind == "ranked" and place.dataset in datasets]
            return median(getattr(task, f"map_predictive_kl_{inputs}") for task in tasks)

        edition = self.board.edition
        scores = {name: over("box", name) for name in edition.datasets}
        medians = {f"predictive_kl_{inputs}": over(inputs, *edition.ranked_datasets) for inputs in ("test", "box")}
        return Line(WORDS["map"], 0, math.nan, None, None, {}, scores, medians, math.nan, 0, 0, None)

    def lines(self, key: str) -> list[Line]:
        """A table's lines; in the singular track the MAP's before them, which a posterior should beat."""
        lines = self.tables[key].lines
        return [self.point_mass, *lines] if lines and key == "singular" else lines

    def verify_command(self, name: str) -> str:
        """What makes an entry's result, or makes it anew."""
        words = ["fsvi-bench", "verify", f"entries/{name}", "--edition", self.board.edition.name]
        words += ["--secret", "FILE"] if self.board.edition.status == "open" else []
        return shlex.join([*words, *(["--key", "FILE"] if self.signed else [])])

    def page(self, template: str, depth: int, **context: Any) -> bytes:
        """A page of a template."""
        return render(template, depth, site=self, board=self.board, edition=self.board.edition, **context)


def first_page(site: Site) -> bytes:
    """The tables, what has no result that counts, and the edition."""
    redrawn = sum(task.redrawn for place, task in site.tasks.items() if place.kind == "ranked")
    return site.page("index.html.j2", 0, redrawn=redrawn, per_dataset=TASKS, card=_card)


def _card(dataset: str) -> Card | None:
    return load_card(dataset) if dataset in card_names() else None


def method_page(site: Site, standing: Standing) -> bytes:
    """What an entry is, what the verifier found, and the commands that make it again."""
    tables = site.tables.items()
    score = HEADLINES[standing.track]
    course = _course(standing, score)
    return site.page(
        "method.html.j2",
        1,
        standing=standing,
        lines={key: line for key, table in tables for line in table.lines if line.name == standing.name},
        score=score,
        curves=_curves(course, standing),
        along=_along(course[course["dataset"].isin(site.board.edition.ranked_datasets)]),
        commands=[site.verify_command(standing.name), _run_command(site, standing)],
    )


def _course(standing: Standing, score: Score) -> pd.DataFrame:
    """The headline of the ranked runs at their waypoints; infinite where it has none."""
    rows = [
        (
            cell.dataset,
            f"{cell.dataset} {cell.number} {cell.seed}",
            point.steps,
            point.seconds,
            _headline(point, cell, score),
        )
        for cell in standing.cells("ranked")
        for point in cell.waypoints
    ]
    return pd.DataFrame(rows, columns=["dataset", "run", "steps", "seconds", "score"]).fillna(math.inf)


def _headline(point: Waypoint, cell: Cell, score: Score) -> float | None:
    return point.kl - cell.task.ffg_floor if score == "kl_above_floor" else getattr(point, score)


def _curves(course: pd.DataFrame, standing: Standing) -> Markup | None:
    """A panel per data set, a line per ranked run; None of a method that has no way, such as a closed form.

    A start at 0 steps, and what is infinite or 0 but for rounding, has no place on logarithmic axes.
    """
    frame = course[(course["steps"] > 0) & (course["score"] > NO_LOGARITHM) & (course["score"] < math.inf)]
    if frame["steps"].nunique() < 2:
        return None
    spec = FigureSpec(**WORDS["course"], width=PANEL * min(WORDS["course"]["columns"], frame["dataset"].nunique()))
    with figure_style():
        figure = spec.of({"runs": frame.assign(colour=look(standing.entry.method).light)})
    return inline_svg(figure, "course")


def _along(course: pd.DataFrame) -> list[Any]:
    """After a part of a run's steps, by the code's own count: medians over the runs, of the last waypoint within."""
    last, first = course.groupby("run")["steps"].transform("max"), ~course["run"].duplicated()
    parts = [
        course[first | (course["steps"] <= fraction * last)].groupby("run").last().assign(fraction=fraction)
        for fraction in FRACTIONS
    ]
    medians = pd.concat(parts).groupby("fraction")[["steps", "seconds", "score"]].median()
    return [*medians.itertuples()]


def _run_command(site: Site, standing: Standing) -> str:
    """Trains the entry on the official tasks, with seeds of its own."""
    manifest, method = standing.entry.manifest, standing.entry.manifest.method
    name = f"entries/{standing.name}/{method.file}:{method.class_}" if isinstance(method, SourceFile) else method.name
    words = ["fsvi-bench", "run", "--method", name, "--family", manifest.family]
    words += [word for dataset in site.board.edition.datasets for word in ("--dataset", dataset)]
    return shlex.join([*words, "--splits", ranges(OFFICIAL_SPLITS), *setting_words(manifest.settings)])


def dataset_page(site: Site, dataset: str) -> bytes:
    """A data set's card, its tasks, and the entries of each track, the nearest first."""
    rivals = {}
    for track in TRACKS:
        lines = sorted(site.lines(track), key=lambda line: (line.scores[dataset], line.name))
        rivals[track] = [*zip(lines, positions([line.scores[dataset] for line in lines]), strict=True)]
    return site.page(
        "dataset.html.j2",
        1,
        dataset=dataset,
        card=_card(dataset),
        tasks=[(place, task) for place, task in site.tasks.items() if place.dataset == dataset],
        with_real_targets=WITH_REAL_TARGETS,
        rivals={track: rows for track, rows in rivals.items() if rows},
        headlines=HEADLINES,
    )


def positions(scores: Sequence[float]) -> list[float]:
    """Where scores lie on a logarithmic axis that holds them all, from 0 to 1; NaN where one has no place there."""
    row = pd.Series(scores, dtype=float)
    logs = np.log10(row.where((row > NO_LOGARITHM) & (row < math.inf)))
    return ((logs - logs.min()) / ((logs.max() - logs.min()) or 1.0)).tolist()


def compare_page(site: Site) -> bytes:
    """Two entries side by side; the page's script shows what `data/<name>.js` has of them."""
    return site.page("compare.html.j2", 0)
