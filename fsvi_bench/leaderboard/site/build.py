"""`fsvi-bench leaderboard build`: builds a static site from the folder of a leaderboard."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from pydantic_core import to_json

from fsvi_bench.leaderboard import network_tasks
from fsvi_bench.leaderboard.board import Board, Standing, read_board
from fsvi_bench.leaderboard.edition import Place
from fsvi_bench.leaderboard.entry import SourceFile
from fsvi_bench.leaderboard.ranked_tasks import OFFICIAL_SPLITS, TASKS, WITH_REAL_TARGETS
from fsvi_bench.leaderboard.ranking import (
    COMPARED,
    ESTIMATED,
    HEADLINES,
    MAP,
    SHOWN,
    Line,
    Score,
    Spread,
    Table,
    Variation,
    dataset_medians,
    p_value,
    paired,
    rank,
    ranks_with_map,
    run_frame,
    scores_and_margins,
    spreads,
    tables_of,
    training_share,
    variation,
)
from fsvi_bench.leaderboard.result import NetworkFacts, TaskFacts, Waypoint
from fsvi_bench.leaderboard.site.output import write_site
from fsvi_bench.leaderboard.site.render import WORDS, asset_files, templates
from fsvi_bench.networks.official import official_networks
from fsvi_bench.presenting.looks import figure_style, inline_svg, look
from fsvi_bench.presenting.plots import FigureSpec, digits
from fsvi_bench.presenting.tables import ROUNDING
from fsvi_bench.running.options import setting_words
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.splits import ranges

SITE = "site"  #: default folder, in that of the leaderboard
FRACTIONS = (0.01, 0.1, 1.0)  #: fractions of a run's steps
PANEL = 2.35  #: inches
COURSE: tuple[Score, ...] = ("kl", "joint_predictive_kl_test", "joint_predictive_kl_box")  #: scores of waypoints


def build_site(root: Path, out: Path, edition: str | None = None) -> tuple[Board, list[str]]:
    """Reads a leaderboard's folder and writes its site; returns the board and the files of the site.

    Equal folders give bitwise equal files.

    Raises:
        InputError: `root` has no entries or editions, or `out` cannot be written.
    """
    board = read_board(root, edition)
    return board, write_site(out, dict(site_files(Site(board))))


@dataclass(frozen=True, eq=False)
class Site:
    """A board, with the content that its pages share."""

    board: Board

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The tables by name."""
        networks = self.board.edition.is_networks
        return {key: rank(self.board, key) for key in HEADLINES if (key == "networks") == networks}

    @cached_property
    def shown(self) -> dict[str, Standing]:
        """The entries with a valid result, by name."""
        return {each.name: each for each in self.board.standings if each.result is not None}

    @cached_property
    def tasks(self) -> dict[Place, TaskFacts | NetworkFacts]:
        """The tasks of the edition, which are the same for all entries; empty if there is no result."""
        return {cell.place: cell.task for each in [*self.shown.values()][:1] for cell in each.cells}

    @cached_property
    def to_compare(self) -> tuple[list[str], list[str]]:
        """The entries shown, in the order of the first table, and the two that "Compare two" starts with: the first of
        them that are not exact."""
        table = next(iter(self.tables.values()))
        names = [line.name for line in table.lines]
        inexact = [
            line.name for line in table.lines if max(line.spreads[name].median for name in table.scores) >= ROUNDING
        ]
        return names, [*inexact, *(name for name in names if name not in inexact)][:2]

    def of_results(self, name: str) -> list[str]:
        """The values of a field of the results' provenance, in order; a result with several has them all."""
        values = (each.result.provenance.get(name) for each in self.shown.values() if each.result)
        return sorted({part for value in values if value for part in str(value).split(" and ")})

    @cached_property
    def variations(self) -> dict[str, dict[Score, Variation | None]]:
        """By entry: how much its scores vary between seeds and tasks. None if the edition has one seed, and for scores
        that are estimated, since their errors would look like a spread between seeds."""
        ranked, scores = self.board.edition.ranked_datasets, [score for key in self.tables for score in HEADLINES[key]]
        return {
            name: {score: None if score in ESTIMATED else variation(each.cells, score, ranked) for score in scores}
            for name, each in self.shown.items()
        }

    @property
    def some_before_closing(self) -> bool:
        """Whether some results were made while the edition was open, so that those made later are marked."""
        return any(each.result is not None and each.result.edition_status == "open" for each in self.shown.values())

    @cached_property
    def with_map(self) -> pd.DataFrame:
        """Ranks by data set in the joint table if the MAP were entered."""
        return ranks_with_map(run_frame(self.shown.values()), HEADLINES["joint"])

    @property
    def mean_ranks_with_map(self) -> dict[str, float]:
        """Their means over the ranked data sets, by entry."""
        means = self.with_map.loc[self.board.edition.ranked_datasets].mean(skipna=False)
        return dict(zip(map(str, means.index), means.tolist(), strict=True))

    @property
    def behind_map(self) -> int:
        """The number of entries that the MAP would be ahead of."""
        ranks = self.mean_ranks_with_map
        return sum(rank > ranks[MAP] + 1e-9 for rank in ranks.values())

    @cached_property
    def point_mass(self) -> Line:
        """The MAP, a point mass at the exact mean, as a line of the joint table.

        Its ranks are those that it would have if it were entered; in the spreads of its scores each ranked task counts
        once.
        """
        rows = [dict(task) | {"dataset": place.dataset} for place, task in self.tasks.items() if place.kind == "ranked"]
        tasks, names = pd.DataFrame(rows).set_index("dataset"), HEADLINES["joint"]
        scores = tasks[[f"map_{name}" for name in names]].astype(float)

        def of(datasets: list[str]) -> dict[str, Any]:
            return dict(zip(names, spreads(scores.loc[datasets].to_numpy()), strict=True))

        by_dataset = {each: of([each]) for each in self.board.edition.datasets}
        over = dict.fromkeys(SHOWN, Spread(*[math.nan] * 4)) | of(self.board.edition.ranked_datasets)
        ranks, mean_rank = self.with_map[MAP].to_dict(), self.mean_ranks_with_map[MAP]
        return Line(WORDS["map"], 0, mean_rank, None, None, ranks, by_dataset, over, None, None, math.nan, 0, 0, None)

    def lines(self, key: str) -> list[Line]:
        """The lines of a table; in that of all entries the first is the MAP, which a posterior should beat."""
        lines = self.tables[key].lines
        return [self.point_mass, *lines] if lines and key == "joint" else lines

    def page(self, template: str, **context: Any) -> bytes:
        """Renders a template; `root` is the relative path to the first page."""
        shared = {"root": "../", "site": self, "board": self.board, "edition": self.board.edition}
        shared["card"] = lambda dataset: load_card(self.board.edition.data_of(dataset))
        return (templates().get_template(template).render(shared | context).rstrip() + "\n").encode()


def site_files(site: Site) -> Iterator[tuple[str, bytes]]:
    """Yields every file of the site, as relative path and content."""
    yield from asset_files().items()
    redrawn = sum(getattr(task, "redrawn", 0) for place, task in site.tasks.items() if place.kind == "ranked")
    per_dataset = network_tasks.TASKS if site.board.edition.is_networks else TASKS
    yield "index.html", site.page("index.html.j2", root="", redrawn=redrawn, per_dataset=per_dataset)
    yield "compare.html", site.page("compare.html.j2", root="")
    yield "leaderboard.json", _leaderboard_json(site)
    for dataset in site.board.edition.datasets:
        yield f"datasets/{dataset}.html", dataset_page(site, dataset)
    for standing in site.board.standings:
        yield f"methods/{standing.name}.html", _method_page(site, standing)
    for name, found in _pairs(site):
        # A script, because a page opened from disk may not fetch files.
        yield f"data/{name}.js", b"fsviBenchCompared(" + to_json(found) + b");\n"


def dataset_page(site: Site, dataset: str) -> bytes:
    """The page of a data set: its card, its tasks, and the entries of each table, the closest first."""
    rivals = {}
    for key, table in site.tables.items():
        lines = sorted(site.lines(key), key=lambda line: (line.ranks[dataset], line.name))
        ranks = np.array([line.ranks[dataset] if line.place else math.inf for line in lines])  # the MAP takes no place
        places = 1 + (ranks < ranks[:, None]).sum(1)
        lines = [
            replace(line, place=line.place and int(own), outranked_by=None)
            for line, own in zip(lines, places, strict=True)
        ]
        medians = ([line.by_dataset[dataset][score].median for line in lines] for score in table.scores)
        axes = [positions(each) for each in medians]
        rivals[key] = [(line, dict(zip(table.scores, x, strict=True))) for line, *x in zip(lines, *axes, strict=True)]
    return site.page(
        "dataset.html.j2",
        dataset=dataset,
        tasks=[(place, task) for place, task in site.tasks.items() if place.dataset == dataset],
        with_real_targets=WITH_REAL_TARGETS,
        rivals={key: rows for key, rows in rivals.items() if rows},
    )


def positions(scores: Sequence[float]) -> list[float]:
    """Positions of scores on a shared logarithmic axis, from 0 to 1; NaN for scores that are infinite or zero."""
    row = pd.Series(scores, dtype=float)
    logs = np.log10(row.where((row > ROUNDING) & (row < math.inf)))
    return ((logs - logs.min()) / ((logs.max() - logs.min()) or 1.0)).tolist()


def _method_page(site: Site, standing: Standing) -> bytes:
    """The page of an entry: its description, its results, and the commands that reproduce them."""
    lines = {key: line for key, table in site.tables.items() for line in table.lines if line.name == standing.name}
    scores = {score for key in lines for score in HEADLINES[key]}
    score: Score = "kl" if "kl" in scores else "joint_predictive_kl_box"
    course = _course(standing)
    return site.page(
        "method.html.j2",
        standing=standing,
        lines=lines,
        suspicion=max((line.suspicion for line in lines.values() if line.suspicion is not None), default=None),
        by_score={score: line for key, line in lines.items() for score in HEADLINES[key]},
        variations={
            key: each for key, each in site.variations.get(standing.name, {}).items() if each and key in scores
        },
        drawn=score,
        curves=_curves(course.assign(score=course[score]), standing),
        along=_along(course[course["dataset"].isin(site.board.edition.ranked_datasets)]),
        run_command=_run_command(site, standing),
    )


def _course(standing: Standing) -> pd.DataFrame:
    """The scores of the ranked runs at their waypoints; infinite where they are missing."""
    rows = [
        dict(point) | {"dataset": cell.dataset, "run": f"{cell.dataset} {cell.number} {cell.seed}"}
        for cell in standing.cells
        if cell.kind == "ranked"
        for point in cell.waypoints
    ]
    course = pd.DataFrame(rows, columns=["dataset", "run", *Waypoint.model_fields])
    return course.astype(dict.fromkeys(COURSE, float)).fillna(dict.fromkeys(COURSE, math.inf))


def _curves(course: pd.DataFrame, standing: Standing) -> Markup | None:
    """A figure with a panel per data set and a line per ranked run; None for methods without steps (closed forms).

    Logarithmic axes leave out the start at 0 steps, and scores that are infinite or zero up to rounding.
    """
    frame = course[(course["steps"] > 0) & (course["score"] > ROUNDING) & (course["score"] < math.inf)]
    if frame["steps"].nunique() < 2:
        return None
    spec = FigureSpec(**WORDS["course"], width=PANEL * min(WORDS["course"]["columns"], frame["dataset"].nunique()))
    with figure_style():
        figure = spec.of({"runs": frame.assign(colour=look(standing.entry.method).light)})
    return inline_svg(figure, "course")


def _along(course: pd.DataFrame) -> list[Any]:
    """Scores after fractions of a run's steps: medians over the runs, each at its last waypoint within the fraction."""
    last, first = course.groupby("run")["steps"].transform("max"), ~course["run"].duplicated()
    parts = [
        course[first | (course["steps"] <= fraction * last)].groupby("run").last().assign(fraction=fraction)
        for fraction in FRACTIONS
    ]
    medians = pd.concat(parts).groupby("fraction")[["steps", "seconds", *COURSE]].median()
    return [*medians.itertuples()]


def _run_command(site: Site, standing: Standing) -> str:
    """The command that trains the entry on the official tasks, with different seeds."""
    manifest, method = standing.entry.manifest, standing.entry.manifest.method
    folder = f"leaderboard/entries/{standing.name}"
    name = f"{folder}/{method.file}:{method.class_}" if isinstance(method, SourceFile) else method.name
    words, datasets = ["fsvi-bench", "run", "--method", name, "--family", manifest.family], site.board.edition.datasets
    if site.board.edition.is_networks:
        models = [network_tasks.model_of(dataset) for dataset in datasets]
        known = [name for each in models for name in official_networks() if name.startswith(f"{each.dataset}:")
                 and name.split(":")[2] == each.model]  # fmt: skip
        words += [word for name in known or ["toy:0:collapsed-2:simulated"] for word in ("--task", name)]
    else:
        words += [word for dataset in datasets for word in ("--dataset", dataset)] + [
            "--splits",
            ranges(OFFICIAL_SPLITS),
        ]
    return shlex.join([*words, *setting_words(manifest.settings)])


def _pairs(site: Site) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each entry's medians, and its comparison with every later entry: p, then log ratios and intervals in hundredths.

    Only the earlier entry of a pair has the comparison, which halves the size; for the later one, signs are reversed.
    """
    shown, datasets = [*site.shown.values()], site.board.edition.datasets
    share = training_share(site.board.edition)
    runs, inside = run_frame(shown), {each.name: tables_of(each) for each in shown}
    frames = {key: [scores_and_margins(runs, score) for score in HEADLINES[key]] for key in COMPARED}
    for place, a in enumerate(shown, 1):
        found: dict[str, Any] = {"name": a.name, "comparisons": {}}
        for key in (key for key in COMPARED if key in inside[a.name]):
            medians = dataset_medians(frames[key], a.name, datasets)
            words = " / ".join(WORDS["scores"][score] for score in HEADLINES[key])
            found[key] = {"score": words, "medians": [(" / ".join(map(digits, each)), each[0]) for each in medians]}
            names = [b.name for b in shown[place:] if b.name not in found["comparisons"] and key in inside[b.name]]
            for name, pair in zip(names, paired(frames[key], a.name, names, datasets, share), strict=True):
                hundredths = np.rint(100 * pair).astype(int).ravel().tolist()
                found["comparisons"][name] = [digits(p_value(site.board, pair), 2), *hundredths]
        yield a.name, found


def _leaderboard_json(site: Site) -> bytes:
    """All data of the pages as JSON, with infinity and NaN as strings."""
    document = {
        "format": "fsvi-leaderboard/4",
        "edition": site.board.edition,
        "tables": site.tables,
        "entries": [
            {"name": each.name, "sha256": each.entry.sha256, **vars(each.entry), **vars(each), "entry": None}
            for each in site.board.standings
        ],
        "refused": site.board.refused,
    }
    return to_json(document, inf_nan_mode="strings", by_alias=True, indent=1) + b"\n"
