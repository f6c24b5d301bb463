"""Ranks within each ranked task and seed, averaged over these, and then over data sets.

Scores within `TIE` nats of a group's smallest are tied and share the mean of their ranks, so that a copy of a method
with a little noise, or with the noise taken out, gains nothing. What diverged, failed, or has no such score is last.
An entry's rank depends on who else is ranked; read the scores beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from fsvi_bench.leaderboard.board import Board, Standing
from fsvi_bench.leaderboard.entry import Track
from fsvi_bench.leaderboard.result import Cell
from fsvi_bench.seeds import derived_generator
from fsvi_bench.statistics.bootstrap import BootstrapRanks, draw_counts, tie_groups
from fsvi_bench.statistics.ranks import critical_difference

TIE = 0.01  #: nats above a tie group's smallest score
RESAMPLES = 1000
FEWEST_DATASETS = 3  #: for intervals: fewer have next to no resamples that differ
OUTLYING = 3.0  #: interquartile ranges beyond the other entries (Tukey's outer fence)
FLAT = 1e-3  #: nats added to both sides of a log ratio: below it, differences do not matter

#: What a table is ranked by.
Score = Literal["kl", "kl_above_floor", "predictive_kl_box", "predictive_kl_test"]
HEADLINES: dict[Track, Score] = {"full": "kl", "ffg": "kl_above_floor", "singular": "predictive_kl_box"}


def score_of(cell: Cell, score: str) -> float:
    """A cell's score; infinite where it diverged, failed, or has none (a mixture too dear to integrate over)."""
    if cell.scores is None:
        return math.inf
    value = cell.kl_above_floor if score == "kl_above_floor" else getattr(cell.scores, score)
    return math.inf if value is None else float(value)


def score_frame(standings: Sequence[Standing], score: str, kind: str = "ranked") -> pd.DataFrame:
    """Entries across, runs down (data set, number, seed); every entry has every run, or it would be stale."""
    columns = {
        each.name: {(cell.dataset, cell.number, cell.seed): score_of(cell, score) for cell in each.cells(kind)}
        for each in standings
    }
    frame = pd.DataFrame(columns)
    frame.index = pd.MultiIndex.from_tuples(frame.index, names=["dataset", "number", "seed"])
    return frame.sort_index()


def tied_ranks(scores: Float[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
    """Ranks from 1, lowest score first; a tie group holds what lies at most `TIE` above its smallest score."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    start = 0
    for place in range(1, len(order) + 1):
        smallest = scores[order[start]]
        if place == len(order) or scores[order[place]] > smallest + TIE:
            ranks[order[start:place]] = (start + 1 + place) / 2
            start = place
    return ranks


@dataclass(frozen=True, eq=False)
class Line:
    """An entry's line of a table. Medians are over the runs of the data sets that count."""

    standing: Standing
    place: int  #: 1 is the best; equal mean ranks share one
    mean_rank: float
    interval: tuple[float, float] | None  #: 95 %, of the mean rank over other data sets and tasks
    group: int | None  #: 1 the leading one; a family-wise test sets each apart from one before it
    ranks: Mapping[str, float]  #: by data set
    scores: Mapping[str, float]  #: medians by data set
    medians: Mapping[str, float]  #: of the other scores
    seconds: float  #: median of a run, by the verifier's clock
    finished: int
    runs: int
    suspicion: float | None  #: how much better it does on official tasks than on ranked ones, where it stands out

    @property
    def name(self) -> str:
        return self.standing.name


@dataclass(frozen=True, eq=False)
class Table:
    """A track's entries by mean rank, or all tracks' together."""

    track: Track | None
    score: Score
    datasets: list[str]  #: all that are shown
    ranked: list[str]  #: those that ranks are made of: not the ones to tune on
    lines: list[Line]


MEDIANS = ("kl", "predictive_kl_test", "predictive_kl_box", "nlpd_gap", "smallest_variance_ratio",
           "median_variance_ratio", "largest_variance_ratio")  # fmt: skip


def rank_track(board: Board, track: Track) -> Table:
    """The table of a track, by its headline; every complete entry is ranked, the exact posterior too."""
    return _table(board, board.track(track), track, HEADLINES[track])


def rank_across(board: Board, score: Score = "predictive_kl_box") -> Table:
    """All tracks together, by a score that every posterior has."""
    return _table(board, [each for each in board.standings if each.result is not None], None, score)


def _table(board: Board, standings: list[Standing], track: Track | None, score: Score) -> Table:
    datasets, ranked = board.edition.datasets, board.edition.ranked_datasets
    if not standings:
        return Table(track, score, datasets, ranked, [])
    frame = score_frame(standings, score)
    ranks = frame.apply(lambda run: pd.Series(tied_ranks(run.to_numpy()), run.index), axis=1)
    counted = {name: ranks.loc[name].to_numpy().T for name in ranked}
    bootstrap = _resampled(counted, f"{board.edition.name} {track or score}")
    enough = len(ranked) >= FEWEST_DATASETS
    intervals = bootstrap.intervals()
    groups = tie_groups(bootstrap, least=critical_difference(len(standings), len(ranked)))
    by_dataset = ranks.groupby("dataset", sort=False).mean()
    medians, suspicion = frame.groupby("dataset", sort=False).median(), outliers(standings, score)
    lines = [
        Line(
            standing=each,
            place=1 + int((bootstrap.mean_rank < mean_rank - 1e-9).sum()),
            mean_rank=float(mean_rank),
            interval=intervals[m][1:] if enough else None,  # type: ignore[index]
            group=groups[m] if enough else None,
            ranks={str(name): rank for name, rank in by_dataset[each.name].items()},
            scores={str(name): score for name, score in medians[each.name].items()},
            **_beside(each, ranked),
            suspicion=suspicion.get(each.name),
        )
        for m, (each, mean_rank) in enumerate(zip(standings, bootstrap.mean_rank, strict=True))
    ]
    return Table(track, score, datasets, ranked, sorted(lines, key=lambda line: (line.mean_rank, line.name)))


def _beside(standing: Standing, ranked: Sequence[str]) -> dict[str, Any]:
    """What a line tells beside its ranks."""
    cells = [cell for cell in standing.cells("ranked") if cell.dataset in ranked]
    medians = {
        name: float(np.median([value for cell in cells if (value := _optional(cell, name)) is not None] or [math.nan]))
        for name in MEDIANS
    }
    seconds = float(np.median([cell.seconds for cell in cells]))
    finished = sum(cell.status == "ok" for cell in cells)
    return {"medians": medians, "seconds": seconds, "finished": finished, "runs": len(cells)}


def _optional(cell: Cell, name: str) -> float | None:
    """Distances of runs without scores are infinite; what describes a posterior is not there."""
    if "kl" in name:
        return score_of(cell, name)
    return None if cell.scores is None else getattr(cell.scores, name)


def _resampled(ranks: Mapping[str, Float[np.ndarray, "M runs"]], table: str) -> BootstrapRanks:
    """Mean ranks over data sets of the means over runs; and resamples, which draw data sets, then runs in each.

    Ranks stay those within the runs: a resample only weighs them anew, the same for all entries.
    """
    stream = derived_generator("leaderboard", table)
    names = sorted(ranks)
    means = np.mean([ranks[name].mean(1) for name in names], axis=0)
    drawn = stream.integers(len(names), size=(RESAMPLES, len(names)))
    totals = np.zeros((RESAMPLES, len(means)))
    for d, name in enumerate(names):
        resample, _ = np.nonzero(drawn == d)
        runs = ranks[name].shape[1]
        counts = draw_counts(stream, len(resample), runs, 1)
        np.add.at(totals, resample, counts @ ranks[name].T / runs)
    return BootstrapRanks(means, totals / len(names))


def outliers(standings: Sequence[Standing], score: Score) -> dict[str, float]:
    """Entries whose official scores are better than their ranked ones beyond what others show, as log10 ratios.

    The official tasks are public: a method that knows them by heart shines there. Told is the median over data sets of
    log10(ranked/official), of entries beyond Tukey's outer fence of the others.
    """
    if len(standings) < 4:
        return {}
    logs = [_log_medians(standings, score, kind) for kind in ("ranked", "official")]
    gains = (logs[0] - logs[1].reindex(logs[0].index)).median()
    found = {}
    for name, gain in gains.items():
        lower, upper = gains.drop(name).quantile([0.25, 0.75])
        if gain > upper + OUTLYING * max(upper - lower, 0.1):
            found[str(name)] = float(gain)
    return found


def _log_medians(standings: Sequence[Standing], score: Score, kind: str) -> pd.DataFrame:
    """log10 of each entry's median by data set, a little added."""
    medians = score_frame(standings, score, kind).groupby("dataset").median()
    return medians.map(lambda median: math.log10(median + FLAT))
