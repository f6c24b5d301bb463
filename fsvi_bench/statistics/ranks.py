"""Methods over several data sets: ranks, the headline of a table whose scores have no common unit, and Wilcoxon's
signed-rank test, exact, of two methods, as Demšar recommends for classifiers.

Demšar (2006, *Statistical comparisons of classifiers over multiple data sets*, JMLR 7, section 3.1.3): rank the sizes
of the differences, average ranks in case of ties, split the ranks of zeros evenly between the two sums. Given the
sizes, under the null hypothesis each difference's sign is a fair coin: that is the rank sum's distribution here, ties
and zeros included. `scipy.stats.wilcoxon` has no exact distribution with ties but by going through all 2^n signs, which
ends at some 20 data sets; adding up coin flips has no such end. With zeros ranked this is Pratt's (1959) test. With few
data sets little can be shown: of 5 the least two-sided p-value is 1/16, of 6 it is 1/32.

Scores are the better the lower; +Infinity is the worst, and NaN is missing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import rankdata, studentized_range

from fsvi_bench.errors import InputError
from fsvi_bench.statistics.resampled_t import one_row, paired_differences


def dataset_ranks(scores: ArrayLike) -> Float[np.ndarray, "M D"]:
    """Ranks from 1 (lowest score) within each data set; ties share the mean of their ranks, and Infinities tie, last.

    A method that misses a data set is not ranked anywhere (its row is NaN), and the others are ranked as if it were not
    there: what it lacks is not averaged away, and an incomplete entry does not move anyone's rank.

    Args:
        scores: [methods, data sets], lower is better, NaN is missing.

    Raises:
        InputError: not such a table.
    """
    table = score_table(scores)
    incomplete = np.isnan(table).any(1, keepdims=True)
    return rankdata(np.where(incomplete, np.nan, table), axis=0, nan_policy="omit")


def tied_ranks(scores: Float[np.ndarray, " M"], tie: float) -> Float[np.ndarray, " M"]:
    """Ranks from 1, lowest score first; a tie group holds what lies at most `tie` above its smallest score.

    A group shares the mean of its ranks. No chain of near scores joins far ones.
    """
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    start = 0
    for place in range(1, len(order) + 1):
        smallest = scores[order[start]]
        if place == len(order) or scores[order[place]] > smallest + tie:
            ranks[order[start:place]] = (start + 1 + place) / 2
            start = place
    return ranks


def critical_difference(methods: int, datasets: int) -> float:
    """How far two of the methods' mean ranks must be apart for Nemenyi's test to separate them (Demšar 2006, §3.2.2).

    q √(k(k+1)/(6N)), q the quantile of the studentized range over √2: with probability 95 % no pair at all of k
    methods that are equal in truth is that far apart on N data sets.
    """
    if methods < 2:
        return 0.0
    q = float(studentized_range.ppf(0.95, methods, np.inf))
    return q * math.sqrt(methods * (methods + 1) / (12 * datasets))


class Comparison(NamedTuple):
    """A method beside the reference; no p-values where either lacks a data set."""

    better: int  #: data sets on which its score is lower than the reference's
    worse: int
    tied: int
    p_value: float | None
    adjusted: float | None  #: Holm's, over all methods that are compared


def signed_rank_test(differences: ArrayLike) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test. Infinite differences have the largest sizes, tied; all zero
    gives 1.

    Raises:
        InputError: NaN, or nothing.
    """
    d = one_row("differences", differences)
    doubled = np.rint(2 * rankdata(np.abs(d))).astype(int)  # mid-ranks are halves
    least = min(doubled[d > 0].sum(), doubled[d < 0].sum())
    # Probabilities of the sums 0, 1, ... of ranks, each taken with probability ½.
    distribution = np.zeros(doubled[d != 0].sum() + 1)
    distribution[0] = 1.0
    for rank in doubled[d != 0]:
        distribution = 0.5 * (distribution + np.roll(distribution, rank))  # what is rolled over the end is 0
    return min(1.0, 2 * float(distribution[: least + 1].sum()))


def wilcoxon_over_datasets(scores: ArrayLike, reference: int) -> list[Comparison]:
    """Every method against a reference over data sets, Holm-corrected; the reference itself has no p-values.

    Args:
        scores: [methods, data sets], lower is better; Infinity is worse than any number and ties with itself; NaN is
            missing: such a method is counted where it can be, and not tested.
        reference: place of the method that the others are compared with. If it was picked as the best of these very
            scores, p-values are too small: say so beside them.

    Raises:
        InputError: no such table or place.
    """
    table = score_table(scores)
    if not 0 <= reference < len(table):
        raise InputError(f"reference is {reference}, expected the place of one of {len(table)} methods, from 0")
    differences = paired_differences(table, table[reference])
    complete = ~np.isnan(differences).any(1)
    complete[reference] = False
    p_values = [signed_rank_test(row) for row in differences[complete]]
    pairs = zip(p_values, holm(p_values).tolist(), strict=True) if p_values else ()
    tested = dict(zip(np.flatnonzero(complete).tolist(), pairs, strict=True))
    return [
        Comparison(int((row < 0).sum()), int((row > 0).sum()), int((row == 0).sum()), *tested.get(m, (None, None)))
        for m, row in enumerate(differences)
    ]


def holm(p_values: ArrayLike) -> Float[np.ndarray, " m"]:
    """Adjusted p-values of m tests, in their order: those at most α are rejected at family-wise error rate α.

    The i-th smallest becomes max over j ≤ i of (m − j + 1) p_(j), at most 1 (Holm 1979, *A simple sequentially
    rejective multiple test procedure*, Scand. J. Statist. 6). The tests may depend on each other in any way.

    Raises:
        InputError: a value out of [0, 1], or NaN.
    """
    p = one_row("p_values", p_values)
    if p.min() < 0 or p.max() > 1:
        raise InputError(f"p_values go from {p.min():g} to {p.max():g}, expected numbers in [0, 1]")
    order = np.argsort(p)
    stepwise = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(stepwise, 1.0)[np.argsort(order)]


def score_table(scores: ArrayLike) -> Float[np.ndarray, "M D"]:
    """Scores of M methods on D data sets.

    Raises:
        InputError: no such table, or a score of −Infinity, which no score of ours can be.
    """
    table = np.asarray(scores, dtype=float)
    if table.ndim != 2 or not table.shape[1]:
        raise InputError(f"scores have shape {list(table.shape)}, expected [methods, data sets]")
    refuse_minus_infinity(table)
    return table


def refuse_minus_infinity(scores: Float[np.ndarray, "*B"]) -> None:
    """Means of +Infinity and −Infinity are nothing; lower is better, so −Infinity is a score with the wrong sign."""
    if np.isneginf(scores).any():
        raise InputError("a score is -Infinity, expected a finite number or Infinity (lower is better): mind its sign")
