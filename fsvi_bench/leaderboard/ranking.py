"""Ranks within each ranked task and seed, averaged over these, and then over data sets.

Scores within `TIE` nats of a group's smallest are tied and share the mean of their ranks, so that a copy of a method
with a little noise, or with the noise taken out, gains nothing. What diverged, failed, or has no such score is last.
An entry's rank depends on who else is ranked; read the scores beside it.

Two entries are compared side by side, paired over the ranked runs of each data set, by bounded log ratios.

A KL spans many orders of magnitude between runs. Where one run's is 10⁷ times the others', a t test of plain
differences, or of plain logarithms, sees little but that one. What is compared is log10(a/b) of each run, within ±1:
ten times nearer or more counts as ten times, an infinite score included. Scores count as `TIE` at least, since ranks
tell no nearer ones apart. A data set's number is the mean over its runs; whether a is nearer than b over data sets is
tested by Wilcoxon's signed-rank test of these means, the data set being the unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float

from fsvi_bench.leaderboard.board import Board, Standing
from fsvi_bench.leaderboard.entry import TRACKS, Track
from fsvi_bench.leaderboard.ranked_tasks import TRAINING_SHARE
from fsvi_bench.leaderboard.result import Cell, ShortScores, TaskFacts
from fsvi_bench.seeds import derived_generator
from fsvi_bench.statistics.bootstrap import bootstrap_run_ranks, tie_groups
from fsvi_bench.statistics.ranks import critical_difference, signed_rank_test, tied_ranks
from fsvi_bench.statistics.resampled_t import half_width, paired_differences

TIE = 0.01  #: nats above a tie group's smallest score
RESAMPLES = 1000
FEWEST_DATASETS = 3  #: for intervals: fewer have next to no resamples that differ
OUTLYING = 1.0  #: log10: ten times
BOUND = 1.0  #: of a run's log10 ratio
TEST_TRAIN_RATIO = (1 - TRAINING_SHARE) / TRAINING_SHARE
FLAT = 1e-3  #: nats added to both sides of a log ratio: below it, differences do not matter

Score = Literal["kl", "kl_above_floor", "predictive_kl_box", "predictive_kl_test"]
DISTANCES: tuple[Score, ...] = get_args(Score)
MEDIANS = (*DISTANCES, "nlpd_gap", "smallest_variance_ratio", "median_variance_ratio", "largest_variance_ratio")
ACROSS: Score = "predictive_kl_box"  #: which every posterior has
#: What each table is ranked by: those of the tracks, and those of all tracks together.
HEADLINES: dict[str, Score] = {
    "full": "kl", "ffg": "kl_above_floor", "singular": ACROSS, "across": ACROSS, "across-test": "predictive_kl_test"
}  # fmt: skip


def run_frame(standings: Iterable[Standing]) -> pd.DataFrame:
    """A row for each run of each entry: its scores, as far as it has any, and its task's facts."""
    rows = [
        dict(cell.task)
        | dict(cell.scores or ())
        | dict(cell)
        | {"kl_above_floor": cell.kl_above_floor, "entry": each.name}
        for each in standings
        for cell in each.cells
    ]
    columns = [*Cell.model_fields, *TaskFacts.model_fields, *ShortScores.model_fields, "kl_above_floor", "entry"]
    return pd.DataFrame(rows, columns=columns)


def score_frame(runs: pd.DataFrame, score: str, kind: str = "ranked") -> pd.DataFrame:
    """Entries across, runs of a kind down; infinite where a run diverged, failed or has no such score."""
    of_kind = runs[runs["kind"] == kind].astype({score: float})
    return of_kind.pivot(index=["dataset", "number", "seed"], columns="entry", values=score).fillna(math.inf)


@dataclass(frozen=True)
class Line:
    """An entry's line of a table. Medians are over the runs of the data sets that count."""

    name: str
    place: int  #: 1 is the best; equal mean ranks share one
    mean_rank: float
    interval: tuple[float, float] | None  #: 95 %, of the mean rank over other data sets and tasks
    group: int | None  #: 1 the leading one; a family-wise test sets each apart from one before it
    ranks: Mapping[Any, float]  #: by data set
    scores: Mapping[Any, float]  #: medians by data set
    medians: Mapping[Any, float]  #: of every score; those that describe a posterior are NaN where no run has one
    seconds: float  #: median of a run, by the verifier's clock
    finished: int
    runs: int
    suspicion: float | None  #: how much better it does on official tasks than on ranked ones, where it stands out


@dataclass(frozen=True, eq=False)
class Table:
    """A track's entries by mean rank, or all tracks' together."""

    track: Track | None
    score: Score
    datasets: list[str]  #: all that are shown
    ranked: list[str]  #: those that ranks are made of: not the ones to tune on
    lines: list[Line]


def rank(board: Board, table: str) -> Table:
    """One of the tables of `HEADLINES`; every complete entry is ranked, the exact posterior too."""
    edition, score, track = board.edition, HEADLINES[table], table if table in TRACKS else None
    standings = [each for each in board.standings if each.result and track in (None, each.track)]
    stream = derived_generator("leaderboard", f"{edition.name} {track or score}")
    lines = _lines(run_frame(standings), score, edition.ranked_datasets, stream) if standings else []
    return Table(track, score, edition.datasets, edition.ranked_datasets, lines)


def _lines(runs: pd.DataFrame, score: Score, ranked: Sequence[str], stream: np.random.Generator) -> list[Line]:
    """By mean rank."""
    scores = score_frame(runs, score)
    ranks = scores.apply(lambda run: pd.Series(tied_ranks(run.to_numpy(), TIE), run.index), axis=1)
    by_task = ranks.groupby(["dataset", "number"]).mean()  # seeds of one task are no further tasks
    bootstrap = bootstrap_run_ranks({name: by_task.loc[name].to_numpy().T for name in ranked}, stream, RESAMPLES)
    least = critical_difference(scores.shape[1], len(ranked))
    told_apart = zip(bootstrap.intervals(), tie_groups(bootstrap, least=least), strict=True)
    by_dataset, medians = ranks.groupby("dataset").mean(), scores.groupby("dataset").median()
    counted, suspicion = runs.query("kind == 'ranked' and dataset in @ranked"), outliers(runs, score)
    lines = [
        Line(
            name=name,
            place=1 + int((bootstrap.mean_rank < mean_rank - 1e-9).sum()),
            mean_rank=float(mean_rank),
            interval=interval[1:] if interval and len(ranked) >= FEWEST_DATASETS else None,
            group=group if len(ranked) >= FEWEST_DATASETS else None,
            ranks=by_dataset[name].to_dict(),
            scores=medians[name].to_dict(),
            **_beside(counted[counted["entry"] == name]),
            suspicion=suspicion.get(name),
        )
        for name, mean_rank, (interval, group) in zip(map(str, scores), bootstrap.mean_rank, told_apart, strict=True)
    ]
    return sorted(lines, key=attrgetter("mean_rank", "name"))


def _beside(runs: pd.DataFrame) -> dict[str, Any]:
    """What a line tells beside its ranks. Distances of runs without scores are infinite."""
    scores: pd.DataFrame = runs[list(MEDIANS)].astype(float).fillna(dict.fromkeys(DISTANCES, math.inf))
    return {
        "medians": scores.median().to_dict(),
        "seconds": float(runs["seconds"].median()),
        "finished": int((runs["status"] == "ok").sum()),
        "runs": len(runs),
    }


def outliers(runs: pd.DataFrame, score: Score) -> dict[str, float]:
    """Entries whose official scores are better than their ranked ones beyond what others show, as log10 ratios.

    The official tasks are public: a method that knows them by heart shines there. An entry's gain is the median over
    data sets of log10(ranked/official); what stands out is more than ten times the median gain of the others.
    """
    ranked, official = (score_frame(runs, score, kind).groupby("dataset").median() for kind in ("ranked", "official"))
    logs = [(scores.clip(lower=0) + FLAT).map(math.log10) for scores in (ranked, official)]
    gains = logs[0].sub(logs[1]).median()
    return {str(name): float(gain) for name, gain in gains.items() if gain > gains.drop(name).median() + OUTLYING}


@dataclass(frozen=True)
class Difference:
    """Two entries on one data set: medians of their scores, and how much nearer a is."""

    dataset: str
    a: float
    b: float
    log_ratio: float  #: mean over runs of log10(a/b), each within ±`BOUND`: below 0, a is the nearer
    interval: tuple[float, float]  #: Nadeau and Bengio's 95 %, since the tasks share rows


@dataclass(frozen=True)
class Comparison:
    """a beside b; lower is better."""

    score: Score
    differences: tuple[Difference, ...]
    p_value: float | None  #: two-sided, over the data sets that count; None if they are fewer than three


def comparison(board: Board, a: Standing, b: Standing) -> Comparison:
    """By the headline of the track that both are in; across tracks by the score that every posterior has."""
    score = HEADLINES[a.track] if a.track == b.track else ACROSS
    scores = score_frame(run_frame([a, b]), score)
    (ratios,) = paired(scores, a.name, [b.name], board.edition.datasets)
    medians: Any = scores.groupby("dataset").median().T.to_dict()
    differences = tuple(
        Difference(name, medians[name][a.name], medians[name][b.name], ratio, (low, high))
        for name, (ratio, low, high) in zip(board.edition.datasets, ratios.tolist(), strict=True)
    )
    return Comparison(score, differences, p_value(board, ratios))


def p_value(board: Board, ratios: Float[np.ndarray, "D 3"]) -> float | None:
    """Of two entries' log ratios, over the data sets that count; None if they are fewer than `FEWEST_DATASETS`."""
    counts = [name in board.edition.ranked_datasets for name in board.edition.datasets]
    return signed_rank_test(ratios[counts, 0]) if sum(counts) >= FEWEST_DATASETS else None


def paired(scores: pd.DataFrame, a: str, others: Sequence[str], datasets: Sequence[str]) -> Float[np.ndarray, "B D 3"]:
    """One entry of `score_frame` beside each of B others: the log ratio on each data set, and its interval.

    Of each run log10(a/b) within ±`BOUND`; equal infinities tie.
    """
    log_a, log_b = (np.log10(scores[names].clip(lower=TIE).to_numpy()) for names in ([a], list(others)))
    differences = paired_differences(np.broadcast_to(log_a, log_b.shape), log_b).clip(-BOUND, BOUND)
    ratios = pd.DataFrame(differences, scores.index).groupby(["dataset", "number"]).mean()
    by_task = [ratios.loc[name].to_numpy().T for name in datasets]  # [B, tasks] each
    means = np.stack([tasks.mean(1) for tasks in by_task], 1)
    half = np.stack([half_width(tasks, TEST_TRAIN_RATIO) for tasks in by_task], 1)
    return np.stack([means, (means - half).clip(-BOUND), (means + half).clip(max=BOUND)], 2)
