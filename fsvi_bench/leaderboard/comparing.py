"""Two entries side by side, paired over the ranked runs of each data set, by bounded log ratios.

A KL spans many orders of magnitude between runs. Where one run's is 10⁷ times the others', a t test of plain
differences, or of plain logarithms, sees little but that one. What is compared is log10(a/b) of each run, within ±1:
ten times nearer or more counts as ten times, an infinite score included. Scores count as `TIE` at least, since ranks
tell no nearer ones apart. A data set's number is the mean over its runs; whether a is nearer than b over data sets is
tested by Wilcoxon's signed-rank test of these means, the data set being the unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from fsvi_bench.leaderboard.board import Board, Standing
from fsvi_bench.leaderboard.ranked_tasks import TRAINING_SHARE
from fsvi_bench.leaderboard.ranking import HEADLINES, TIE, Score, score_frame
from fsvi_bench.statistics.resampled_t import corrected_interval, paired_differences
from fsvi_bench.statistics.wilcoxon import signed_rank_test

BOUND = 1.0  #: of a run's log10 ratio
TEST_TRAIN_RATIO = (1 - TRAINING_SHARE) / TRAINING_SHARE


@dataclass(frozen=True)
class Difference:
    """Two entries on one data set: medians of their scores, and how much nearer a is."""

    dataset: str
    a: float
    b: float
    log_ratio: float  #: mean over runs of log10(a/b), each within ±`BOUND`: below 0, a is the nearer
    interval: tuple[float, float] | None  #: Nadeau and Bengio's 95 %, since the tasks share rows


@dataclass(frozen=True)
class Comparison:
    """a beside b; lower is better."""

    score: Score
    differences: tuple[Difference, ...]
    p_value: float  #: two-sided, over the data sets that count


def common_score(a: Standing, b: Standing) -> Score:
    """The headline of the track that both are in; across tracks the predictive KL, which every posterior has."""
    return HEADLINES[a.track] if a.track == b.track else "predictive_kl_box"


def comparison(board: Board, a: Standing, b: Standing, score: Score | None = None) -> Comparison:
    """By a score, or by the one that both have."""
    score = score or common_score(a, b)
    return comparisons(board, score_frame([a, b], score), a.name, score)[b.name]


def comparisons(board: Board, scores: pd.DataFrame, a: str, score: Score) -> dict[str, Comparison]:
    """One entry beside each other one of a frame of `score_frame`, by name."""
    ratios = log_ratios(scores[a], scores.drop(columns=a))
    means = ratios.groupby(["dataset", "number"]).mean()
    medians = scores.groupby("dataset").median()
    by_dataset = {name: (medians.loc[name].to_dict(), means.loc[name].to_numpy()) for name in board.edition.datasets}
    found = {}
    for place, b in enumerate(ratios):
        differences = tuple(
            Difference(name, median[a], median[b], *_mean(mean[:, place]))
            for name, (median, mean) in by_dataset.items()
        )
        counted = [each.log_ratio for each in differences if each.dataset in board.edition.ranked_datasets]
        found[str(b)] = Comparison(score, differences, signed_rank_test(counted))
    return found


def log_ratios(a: pd.Series[float], others: pd.DataFrame) -> pd.DataFrame:
    """log10(a/b) of each run within ±`BOUND`, for each of the others; equal infinities tie."""
    log_a, logs = (np.log10(np.maximum(scores.to_numpy(), TIE)) for scores in (a.to_frame(), others))
    ratios = paired_differences(np.broadcast_to(log_a, logs.shape), logs).clip(-BOUND, BOUND)
    return pd.DataFrame(ratios, others.index, others.columns)


def _mean(ratios: Float[np.ndarray, " tasks"]) -> tuple[float, tuple[float, float] | None]:
    mean, low, high = corrected_interval(ratios, TEST_TRAIN_RATIO)
    return mean, None if low is None or high is None else (max(low, -BOUND), min(high, BOUND))
