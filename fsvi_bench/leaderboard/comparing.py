"""Two entries side by side: per data set, paired over splits, by bounded log ratios.

A KL spans many orders of magnitude between splits: where one split's is 10⁷ times the others', a t test of plain
differences, or of plain logarithms, sees little but that one (as one value grows p tends to 0.58 with 20 splits,
whatever the others say), and the exact posterior itself is not told from a method that is wrong on every split. What
is tested is log10(a/b) of each split, bounded: ten times nearer or more, one score infinite included, is 1. Scores
are taken as `CLOSED_FORM` at least, as they do for ranks. The test is the corrected resampled t test, its p-value no
smaller than what the signs alone of so many splits could give. (Wilcoxon's signed-rank test takes splits to be
independent, which they are not, and there is no correction of it for their overlap.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.references import References
from fsvi_bench.leaderboard.rows import CLOSED_FORM, by_dataset, column, verified_cells
from fsvi_bench.leaderboard.tables import HEADLINES, Score
from fsvi_bench.statistics.multiple import holm
from fsvi_bench.statistics.resampled_t import (
    corrected_interval,
    corrected_paired_test,
    least_p_value,
    paired_differences,
)

LEVEL = 0.05  #: an adjusted p-value up to it tells two entries apart
BOUND = 1.0  #: of a split's log10 ratio: ten times nearer or more


@dataclass(frozen=True)
class Difference:
    """Scores of a and b on one data set, means over its splits; None where a cell of one of them is missing."""

    dataset: str
    a: float | None
    b: float | None
    log_ratio: float | None  #: mean over splits of log10(a/b), each between −1 and 1: below 0, a is the nearer
    interval: tuple[float, float] | None  #: Nadeau and Bengio's 95 % interval of it; None of a single split
    p_value: float | None  #: two-sided, of the corrected resampled paired t test
    adjusted: float | None  #: Holm's, over the data sets that both have
    closer: Literal["a", "b"] | None = None  #: which is the better, where `adjusted` is at most LEVEL


@dataclass(frozen=True)
class Comparison:
    """a beside b; lower is better."""

    score: Score
    differences: tuple[Difference, ...]  #: one per data set of the references, in their order


def comparison(a: Entry, b: Entry, references: References, score: Score | None = None) -> Comparison:
    """By the headline of the track that both are in, across tracks by `predictive_kl_box`, or by a score given."""
    if score is None:
        score = HEADLINES[a.manifest.track] if a.manifest.track == b.manifest.track else "predictive_kl_box"
    of_a, of_b = (
        by_dataset(column(verified_cells(entry, references), references, score), references) for entry in (a, b)
    )
    found = [_difference(name, of_a[name], of_b[name], references.test_train_ratio(name)) for name in of_a]
    p_values = [each.p_value for each in found if each.p_value is not None]
    adjusted = iter(holm(p_values).tolist() if p_values else [])
    told = []
    for each in found:
        p = None if each.p_value is None else next(adjusted)
        told.append(replace(each, adjusted=p, closer=None if p is None or p > LEVEL else _closer(each.log_ratio)))
    return Comparison(score, tuple(told))


def _closer(log_ratio: float | None) -> Literal["a", "b"] | None:
    return "a" if log_ratio and log_ratio < 0 else "b" if log_ratio else None


def _log_ratios(a: Float[np.ndarray, " J"], b: Float[np.ndarray, " J"]) -> Float[np.ndarray, " J"]:
    """log10(a/b) within ±`BOUND`, of scores that are `CLOSED_FORM` at least; equal infinities tie."""
    log_a, log_b = (np.log10(np.maximum(scores, CLOSED_FORM)) for scores in (a, b))
    return np.clip(paired_differences(log_a, log_b), -BOUND, BOUND)


@np.errstate(over="ignore")  # a method that blew up may have a KL of 1e308 on several splits
def _difference(dataset: str, a: Float[np.ndarray, " J"], b: Float[np.ndarray, " J"], ratio: float) -> Difference:
    """Not adjusted yet."""
    mean_a, mean_b = (None if np.isnan(values).any() else float(values.mean()) for values in (a, b))
    if mean_a is None or mean_b is None:
        return Difference(dataset, mean_a, mean_b, None, None, None, None)
    ratios = _log_ratios(a, b)
    p_value = max(corrected_paired_test(ratios, np.zeros_like(ratios), ratio), least_p_value(ratios))
    log_ratio, low, high = corrected_interval(ratios, ratio)
    interval = None if low is None or high is None else (max(low, -BOUND), min(high, BOUND))
    return Difference(dataset, mean_a, mean_b, log_ratio, interval, p_value, None)
