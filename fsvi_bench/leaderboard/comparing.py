"""Two entries side by side, paired over the ranked runs of each data set, by bounded log ratios.

A KL spans many orders of magnitude between runs. Where one run's is 10⁷ times the others', a t test of plain
differences, or of plain logarithms, sees little but that one. What is compared is log10(a/b) of each run, within ±1:
ten times nearer or more counts as ten times, an infinite score included. Scores count as `TIE` at least, since ranks
tell no nearer ones apart. A data set's number is the mean over its runs; whether a is nearer than b over data sets is
tested by Wilcoxon's signed-rank test of these means, the data set being the unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from fsvi_bench.leaderboard.board import Board, Standing
from fsvi_bench.leaderboard.ranked_tasks import TRAINING_SHARE
from fsvi_bench.leaderboard.ranking import ACROSS, FEWEST_DATASETS, HEADLINES, TIE, Score, run_frame, score_frame
from fsvi_bench.statistics.ranks import signed_rank_test
from fsvi_bench.statistics.resampled_t import half_width, paired_differences

BOUND = 1.0  #: of a run's log10 ratio
TEST_TRAIN_RATIO = (1 - TRAINING_SHARE) / TRAINING_SHARE


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
    (ratios,) = paired(scores, a.name, board.edition.datasets)
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


def paired(scores: pd.DataFrame, a: str, datasets: Sequence[str]) -> Float[np.ndarray, "B D 3"]:
    """One entry beside each of the B others of `score_frame`: the log ratio on each data set, and its interval."""
    ratios = log_ratios(scores[a], scores.drop(columns=a)).groupby(["dataset", "number"]).mean()
    by_task = [ratios.loc[name].to_numpy().T for name in datasets]  # [B, tasks] each
    means = np.stack([tasks.mean(1) for tasks in by_task], 1)
    half = np.stack([half_width(tasks, TEST_TRAIN_RATIO) for tasks in by_task], 1)
    return np.stack([means, (means - half).clip(-BOUND), (means + half).clip(max=BOUND)], 2)


def log_ratios(a: pd.Series[float], others: pd.DataFrame) -> pd.DataFrame:
    """log10(a/b) of each run within ±`BOUND`, for each of the others; equal infinities tie."""
    log_a, logs = (np.log10(np.maximum(scores.to_numpy(), TIE)) for scores in (a.to_frame(), others))
    ratios = paired_differences(np.broadcast_to(log_a, logs.shape), logs).clip(-BOUND, BOUND)
    return pd.DataFrame(ratios, others.index, others.columns)
