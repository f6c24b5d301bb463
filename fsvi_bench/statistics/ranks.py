"""Comparison of methods over several data sets: ranks, for scores without a common unit, and Wilcoxon's exact
signed-rank test of two methods, as Demšar recommends for classifiers.

Demšar (2006, *Statistical comparisons of classifiers over multiple data sets*, JMLR 7, section 3.1.3) ranks the
absolute differences, averages ranks of ties, and splits the ranks of zeros evenly between the two sums. Given the
absolute differences, each sign is a fair coin flip under the null hypothesis; this defines the distribution of the rank
sum, including ties and zeros. With ties, `scipy.stats.wilcoxon` computes the exact distribution only by enumerating all
2^n signs, which is feasible up to about 20 data sets; the convolution used here has no such limit. With zeros ranked
this is Pratt's (1959) test. With few data sets the test has little power: the smallest two-sided p-value is 1/16 for 5
data sets and 1/32 for 6.

Lower scores are better; +Infinity is the worst, and NaN is missing.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from fsvi_bench.errors import InputError
from fsvi_bench.statistics.resampled_t import one_row


def dataset_ranks(scores: ArrayLike) -> Float[np.ndarray, "M D"]:
    """Ranks from 1 (lowest score) within each data set; ties share their mean rank, and Infinities tie for last place.

    A method without a score on some data set is not ranked at all (its row is NaN), and the others are ranked without
    it. So missing scores are not averaged away, and an incomplete entry does not affect other ranks.

    Args:
        scores: [methods, data sets], lower is better, NaN is missing.

    Raises:
        InputError: `scores` is not such a table.
    """
    table = score_table(scores)
    incomplete = np.isnan(table).any(1, keepdims=True)
    return rankdata(np.where(incomplete, np.nan, table), axis=0, nan_policy="omit")


def tied_ranks(scores: Float[np.ndarray, " M"], margins: Float[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
    """Ranks from 1, lowest score first; a group holds the scores up to its smallest one plus the margin of that one.

    A group shares its mean rank. Chains of close scores do not join distant ones, and only the smallest score's own
    margin counts, so a large margin of a bad score gains nothing.
    """
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    start = 0
    for place in range(1, len(order) + 1):
        first = order[start]
        if place == len(order) or scores[order[place]] > scores[first] + margins[first]:
            ranks[order[start:place]] = (start + 1 + place) / 2
            start = place
    return ranks


def signed_rank_test(differences: ArrayLike) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test. Infinite differences tie for the largest rank; p is 1 if all
    differences are 0.

    Raises:
        InputError: a difference is NaN, or there are none.
    """
    d = one_row("differences", differences)
    doubled = np.rint(2 * rankdata(np.abs(d))).astype(int)  # mid-ranks are halves
    least = min(doubled[d > 0].sum(), doubled[d < 0].sum())
    # Probabilities of the rank sums 0, 1, ..., where each rank is included with probability ½.
    distribution = np.zeros(doubled[d != 0].sum() + 1)
    distribution[0] = 1.0
    for rank in doubled[d != 0]:
        distribution = 0.5 * (distribution + np.roll(distribution, rank))  # entries rolled over the end are 0
    return min(1.0, 2 * float(distribution[: least + 1].sum()))


def holm(p_values: ArrayLike) -> Float[np.ndarray, " m"]:
    """Adjusted p-values of m tests in the given order: those at most α are significant at family-wise error rate α.

    The i-th smallest becomes max over j ≤ i of (m − j + 1) p_(j), at most 1 (Holm 1979, *A simple sequentially
    rejective multiple test procedure*, Scand. J. Statist. 6). The tests may depend on each other in any way.

    Raises:
        InputError: a value is outside [0, 1] or NaN.
    """
    p = one_row("p_values", p_values)
    if p.min() < 0 or p.max() > 1:
        raise InputError(f"p_values run from {p.min():g} to {p.max():g}, expected numbers in [0, 1]; fix them")
    order = np.argsort(p)
    stepwise = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(stepwise, 1.0)[np.argsort(order)]


def score_table(scores: ArrayLike) -> Float[np.ndarray, "M D"]:
    """Scores of M methods on D data sets.

    Raises:
        InputError: `scores` is not such a table, or a score is −Infinity, which no valid score can be.
    """
    table = np.asarray(scores, dtype=float)
    if table.ndim != 2 or not table.shape[1]:
        raise InputError(f"scores have shape {list(table.shape)}, expected [methods, data sets]; reshape them")
    refuse_minus_infinity(table)
    return table


def refuse_minus_infinity(scores: Float[np.ndarray, "*B"]) -> None:
    """Rejects −Infinity: lower is better, so it has the wrong sign, and its mean with +Infinity is undefined."""
    if np.isneginf(scores).any():
        raise InputError("a score is -Infinity, expected a number or Infinity (lower is better); fix its sign")
