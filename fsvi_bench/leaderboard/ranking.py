"""Ranking of entries: within each ranked task and seed, averaged over these, and then over data sets.

Scores within `TIE` nats of the smallest in a group are tied and share the mean of their ranks, so adding a little
noise to a copied method, or removing it, gains nothing. Runs that diverged, failed or lack the score come last. The
rank of an entry depends on the other entries; read the scores as well.

Comparisons of two entries are paired over the ranked runs of each data set, with bounded log ratios. The KL of runs
spans many orders of magnitude: if that of one run is 10⁷ times as large as the others, it dominates a t test of
differences, and of logarithms. The comparison therefore uses log10(a/b) of each run, clipped to ±1, so a ratio of
ten or more counts as ten, even if a score is infinite. Scores below `TIE` count as `TIE`, since ranks do not
distinguish them either. The number for a data set is the mean over its runs; Wilcoxon's signed-rank test on these
means, with the data set as the unit, tests whether a is closer than b over data sets.
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
FEWEST_DATASETS = 3  #: for intervals; with fewer data sets almost all resamples are equal
OUTLYING = 1.0  #: log10: ten times
BOUND = 1.0  #: maximum size of a run's log10 ratio
TEST_TRAIN_RATIO = (1 - TRAINING_SHARE) / TRAINING_SHARE
FLAT = 1e-3  #: nats added to numerator and denominator of a log ratio; smaller differences do not matter

Score = Literal["kl", "kl_above_floor", "predictive_kl_box", "predictive_kl_test"]
DISTANCES: tuple[Score, ...] = get_args(Score)
MEDIANS = (*DISTANCES, "nlpd_gap", "smallest_variance_ratio", "median_variance_ratio", "largest_variance_ratio")
ACROSS: Score = "predictive_kl_box"  #: defined for every posterior
#: Table -> score that it is ranked by; the last two contain all tracks.
HEADLINES: dict[str, Score] = {
    "full": "kl", "ffg": "kl_above_floor", "singular": ACROSS, "across": ACROSS, "across-test": "predictive_kl_test"
}  # fmt: skip


def run_frame(standings: Iterable[Standing]) -> pd.DataFrame:
    """One row per run of each entry, with its scores, if any, and the facts of its task."""
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
    """Runs of one kind in rows, entries in columns; infinite if a run diverged, failed or lacks the score."""
    of_kind = runs[runs["kind"] == kind].astype({score: float})
    return of_kind.pivot(index=["dataset", "number", "seed"], columns="entry", values=score).fillna(math.inf)


@dataclass(frozen=True)
class Line:
    """An entry's line of a table. Medians are over the runs of the ranked data sets."""

    name: str
    place: int  #: 1 is the best; equal mean ranks share one
    mean_rank: float
    interval: tuple[float, float] | None  #: 95 %, of the mean rank over other data sets and tasks
    group: int | None  #: tie group, 1 is the best; each entry differs significantly from one in the group before
    ranks: Mapping[Any, float]  #: by data set
    scores: Mapping[Any, float]  #: medians by data set
    medians: Mapping[Any, float]  #: by score; NaN if no run has the score
    seconds: float  #: median duration of a run, by the verifier's clock
    finished: int
    runs: int
    suspicion: float | None  #: log10 gain on official tasks over ranked ones, if it is an outlier


@dataclass(frozen=True, eq=False)
class Table:
    """The entries of a track, or of all tracks, by mean rank."""

    track: Track | None
    score: Score
    datasets: list[str]  #: all data sets shown
    ranked: list[str]  #: data sets that count for ranks, without those for tuning
    lines: list[Line]


def rank(board: Board, table: str) -> Table:
    """One of the tables of `HEADLINES`; every complete entry is ranked, including the exact posterior."""
    edition, score, track = board.edition, HEADLINES[table], table if table in TRACKS else None
    standings = [each for each in board.standings if each.result and track in (None, each.track)]
    stream = derived_generator("leaderboard", f"{edition.name} {track or score}")
    lines = _lines(run_frame(standings), score, edition.ranked_datasets, stream) if standings else []
    return Table(track, score, edition.datasets, edition.ranked_datasets, lines)


def _lines(runs: pd.DataFrame, score: Score, ranked: Sequence[str], stream: np.random.Generator) -> list[Line]:
    """The lines of a table, by mean rank."""
    scores = score_frame(runs, score)
    ranks = scores.apply(lambda run: pd.Series(tied_ranks(run.to_numpy(), TIE), run.index), axis=1)
    by_task = ranks.groupby(["dataset", "number"]).mean()  # seeds of one task do not count as separate tasks
    bootstrap = bootstrap_run_ranks({name: by_task.loc[name].to_numpy().T for name in ranked}, stream, RESAMPLES)
    least = critical_difference(scores.shape[1], len(ranked))
    spans = zip(bootstrap.intervals(), tie_groups(bootstrap, least=least), strict=True)
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
            **_other_fields(counted[counted["entry"] == name]),
            suspicion=suspicion.get(name),
        )
        for name, mean_rank, (interval, group) in zip(map(str, scores), bootstrap.mean_rank, spans, strict=True)
    ]
    return sorted(lines, key=attrgetter("mean_rank", "name"))


def _other_fields(runs: pd.DataFrame) -> dict[str, Any]:
    """The fields of a line other than ranks. Distances of runs without scores are infinite."""
    scores: pd.DataFrame = runs[list(MEDIANS)].astype(float).fillna(dict.fromkeys(DISTANCES, math.inf))
    return {
        "medians": scores.median().to_dict(),
        "seconds": float(runs["seconds"].median()),
        "finished": int((runs["status"] == "ok").sum()),
        "runs": len(runs),
    }


def outliers(runs: pd.DataFrame, score: Score) -> dict[str, float]:
    """Entries whose official scores exceed their ranked ones by far more than for other entries, as log10 ratios.

    The official tasks are public, so a method could contain their answers. The gain of an entry is the median over
    data sets of log10(ranked/official); an outlier has more than ten times the median gain of the other entries.
    """
    ranked, official = (score_frame(runs, score, kind).groupby("dataset").median() for kind in ("ranked", "official"))
    logs = [(scores.clip(lower=0) + FLAT).map(math.log10) for scores in (ranked, official)]
    gains = logs[0].sub(logs[1]).median()
    return {str(name): float(gain) for name, gain in gains.items() if gain > gains.drop(name).median() + OUTLYING}


@dataclass(frozen=True)
class Difference:
    """Two entries on one data set: the medians of their scores, and how much closer a is."""

    dataset: str
    a: float
    b: float
    log_ratio: float  #: mean over runs of log10(a/b), each clipped to ±`BOUND`; negative if a is closer
    interval: tuple[float, float]  #: Nadeau and Bengio's 95 % interval, since the tasks share rows


@dataclass(frozen=True)
class Comparison:
    """Comparison of a with b; lower scores are better."""

    score: Score
    differences: tuple[Difference, ...]
    p_value: float | None  #: two-sided, over the ranked data sets; None if there are fewer than three


def comparison(board: Board, a: Standing, b: Standing) -> Comparison:
    """Compares two entries by the main score of their track, or across tracks by `ACROSS`."""
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
    """The p-value of two entries' log ratios over the ranked data sets; None if fewer than `FEWEST_DATASETS`."""
    counts = [name in board.edition.ranked_datasets for name in board.edition.datasets]
    return signed_rank_test(ratios[counts, 0]) if sum(counts) >= FEWEST_DATASETS else None


def paired(scores: pd.DataFrame, a: str, others: Sequence[str], datasets: Sequence[str]) -> Float[np.ndarray, "B D 3"]:
    """One entry of `score_frame` compared with each of B others: the log ratio on each data set, and its interval.

    The log ratio of a run is log10(a/b), clipped to ±`BOUND`; equal infinities tie.
    """
    log_a, log_b = (np.log10(scores[names].clip(lower=TIE).to_numpy()) for names in ([a], list(others)))
    differences = paired_differences(np.broadcast_to(log_a, log_b.shape), log_b).clip(-BOUND, BOUND)
    ratios = pd.DataFrame(differences, scores.index).groupby(["dataset", "number"]).mean()
    by_task = [ratios.loc[name].to_numpy().T for name in datasets]  # [B, tasks] each
    means = np.stack([tasks.mean(1) for tasks in by_task], 1)
    half = np.stack([half_width(tasks, TEST_TRAIN_RATIO) for tasks in by_task], 1)
    return np.stack([means, (means - half).clip(-BOUND), (means + half).clip(max=BOUND)], 2)
