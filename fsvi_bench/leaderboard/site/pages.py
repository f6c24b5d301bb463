"""What stands in the pages: of the board, of an entry, of a data set, of two entries."""

from __future__ import annotations

import math
import shlex
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from fsvi_bench.files import is_file
from fsvi_bench.leaderboard.board import Board, Standing
from fsvi_bench.leaderboard.entry import TRACKS, SourceFile
from fsvi_bench.leaderboard.ranked_tasks import OFFICIAL_SPLITS, TASKS, WITH_REAL_TARGETS, Place
from fsvi_bench.leaderboard.ranking import HEADLINES, Line, Score, Table, rank_across, rank_track
from fsvi_bench.leaderboard.result import TaskFacts, Waypoint
from fsvi_bench.leaderboard.signing import ALLOWED_SIGNERS
from fsvi_bench.leaderboard.site.curves import curves, headline
from fsvi_bench.leaderboard.site.render import inline, render
from fsvi_bench.presenting.figures import NO_LOGARITHM
from fsvi_bench.running.settings import setting_words
from fsvi_bench.tasks.card import card_names, load_card
from fsvi_bench.tasks.splits import ranges

FRACTIONS = (0.01, 0.1, 1.0)  #: of a run's steps


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
        return Site(board, is_file(root / ALLOWED_SIGNERS), tables)

    @property
    def shown(self) -> list[Standing]:
        """The entries that have a result."""
        return [each for each in self.board.standings if each.result is not None]

    @cached_property
    def tasks(self) -> dict[Place, TaskFacts]:
        """The edition's tasks, which are the same for all entries; none before there is a result."""
        cells = self.shown[0].result.cells if self.shown and self.shown[0].result else ()
        return {cell.place: cell.task for cell in cells}

    def lines(self, name: str) -> dict[str, Line]:
        """An entry's lines, by table."""
        return {key: line for key, table in self.tables.items() for line in table.lines if line.name == name}

    def verify_command(self, name: str) -> str:
        """What makes an entry's result, or makes it anew."""
        words = ["fsvi-bench", "verify", f"entries/{name}", "--edition", self.board.edition.name]
        words += ["--secret", "FILE"] if self.board.edition.status == "open" else []
        return shlex.join([*words, *(["--key", "FILE"] if self.signed else [])])


def first_page(site: Site) -> bytes:
    """The tables, what has no result that counts, and the edition."""
    edition = site.board.edition
    return render(
        "index.html.j2",
        0,
        site,
        tables={key: table for key, table in site.tables.items() if table.lines},
        point_mass=_point_mass(site),
        stale=[each for each in site.board.standings if each.result is None],
        redrawn=sum(task.redrawn for place, task in site.tasks.items() if place.kind == "ranked"),
        tasks=TASKS,
        cards={name: load_card(name) for name in edition.datasets if name in card_names()},
    )


def _point_mass(site: Site) -> dict[str, Any]:
    """The MAP's predictive KLs as a line of the singular track has them: medians over ranked tasks."""

    def over(datasets: Sequence[str], inputs: str) -> float:
        tasks = [task for place, task in site.tasks.items() if place.kind == "ranked" and place.dataset in datasets]
        return median(getattr(task, f"map_predictive_kl_{inputs}") for task in tasks)

    if not site.tasks:
        return {}
    edition = site.board.edition
    by_dataset = {name: over([name], "box") for name in edition.datasets}
    return {"scores": by_dataset, **{inputs: over(edition.ranked_datasets, inputs) for inputs in ("test", "box")}}


def method_page(site: Site, standing: Standing) -> bytes:
    """What an entry is, what the verifier found, and the commands that make it again."""
    score = HEADLINES[standing.track]
    drawn = curves(standing, score)
    return render(
        "method.html.j2",
        1,
        site,
        standing=standing,
        entry=standing.entry,
        manifest=standing.entry.manifest,
        lines=site.lines(standing.name),
        score=score,
        curves=None if drawn is None else inline(drawn, "course"),
        along=_along(site, standing, score),
        commands=[site.verify_command(standing.name), _run_command(site, standing)],
    )


def _along(site: Site, standing: Standing, score: Score) -> list[dict[Hashable, float]]:
    """After a part of a run's steps, by the code's own count: medians over the ranked runs that have waypoints."""
    found = [
        (fraction, point.steps, point.seconds, headline(point, cell, score))
        for cell in standing.cells("ranked")
        if cell.dataset in site.board.edition.ranked_datasets and cell.waypoints
        for fraction in FRACTIONS
        for point in [_last_within(cell.waypoints, fraction)]
    ]
    frame = pd.DataFrame(found, columns=["fraction", "steps", "seconds", "score"])
    return frame.groupby("fraction", as_index=False).median().to_dict("records")


def _last_within(waypoints: Sequence[Waypoint], fraction: float) -> Waypoint:
    """The last waypoint within a part of the steps, or the first there is."""
    within = [point for point in waypoints if point.steps <= fraction * waypoints[-1].steps]
    return [waypoints[0], *within][-1]


def _run_command(site: Site, standing: Standing) -> str:
    """Trains the entry on the official tasks, with seeds of its own."""
    manifest, method = standing.entry.manifest, standing.entry.manifest.method
    name = f"entries/{standing.name}/{method.file}:{method.class_}" if isinstance(method, SourceFile) else method.name
    words = ["fsvi-bench", "run", "--method", name, "--family", manifest.family]
    words += [word for dataset in site.board.edition.datasets for word in ("--dataset", dataset)]
    return shlex.join([*words, "--splits", ranges(OFFICIAL_SPLITS), *setting_words(manifest.settings)])


def dataset_page(site: Site, dataset: str) -> bytes:
    """A data set's card, its tasks, and the entries of each track, the nearest first."""
    tables = {
        track: sorted(site.tables[track].lines, key=lambda line: (line.scores[dataset], line.name)) for track in TRACKS
    }
    return render(
        "dataset.html.j2",
        1,
        site,
        dataset=dataset,
        card=load_card(dataset) if dataset in card_names() else None,
        tasks={place: task for place, task in site.tasks.items() if place.dataset == dataset},
        with_real_targets=WITH_REAL_TARGETS,
        tables={track: lines for track, lines in tables.items() if lines},
        places={track: positions([line.scores[dataset] for line in lines]) for track, lines in tables.items()},
        point_mass=_point_mass(site),
        headlines=HEADLINES,
    )


def positions(scores: Sequence[float]) -> list[float]:
    """Where scores lie on a logarithmic axis that holds them all, from 0 to 1; NaN where one has no place there."""
    row = pd.Series(scores, dtype=float)
    logs = np.log10(row.where((row > NO_LOGARITHM) & (row < math.inf)))
    return ((logs - logs.min()) / ((logs.max() - logs.min()) or 1.0)).tolist()


def compare_page(site: Site) -> bytes:
    """Two entries side by side; the page's script shows what `data/<name>.js` has of them."""
    return render("compare.html.j2", 0, site)
