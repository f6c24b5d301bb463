"""Two methods over several data sets: Wilcoxon's signed-rank test, exact, as Demšar recommends for classifiers.

Demšar (2006, *Statistical comparisons of classifiers over multiple data sets*, JMLR 7, section 3.1.3): rank the sizes
of the differences, average ranks in case of ties, split the ranks of zeros evenly between the two sums. Given the
sizes, under the null hypothesis each difference's sign is a fair coin: that is the rank sum's distribution here, ties
and zeros included, which SciPy's exact one leaves out. With zeros ranked this is Pratt's (1959) test. With few
data sets little can be shown: of 5 the least two-sided p-value is 1/16, of 6 it is 1/32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from fsvi_bench.errors import InputError
from fsvi_bench.statistics.arrays import one_row, score_table
from fsvi_bench.statistics.multiple import holm
from fsvi_bench.statistics.resampled_t import paired_differences


class SignedRanks(NamedTuple):
    """Wilcoxon's test of paired differences. `plus` and `minus` add up to n(n + 1)/2."""

    plus: float  #: rank sum of the positive differences, and half that of the zeros
    minus: float
    p_value: float  #: two-sided, exact


class Comparison(NamedTuple):
    """A method beside the reference; no p-values where either lacks a data set."""

    better: int  #: data sets on which its score is lower than the reference's
    worse: int
    tied: int
    p_value: float | None
    adjusted: float | None  #: Holm's, over all methods that are compared


def signed_rank_test(differences: ArrayLike) -> SignedRanks:
    """Wilcoxon's signed-rank test of n differences. Infinite ones have the largest sizes, tied; all zero gives p = 1.

    Raises:
        InputError: NaN, or nothing.
    """
    d = one_row("differences", differences)
    doubled = np.rint(2 * rankdata(np.abs(d))).astype(int)  # mid-ranks are halves
    zeros = 0.5 * doubled[d == 0].sum()
    plus, minus = doubled[d > 0].sum(), doubled[d < 0].sum()
    distribution = _sums_of_coin_flips(doubled[d != 0])
    p_value = min(1.0, 2 * float(distribution[: min(plus, minus) + 1].sum()))
    return SignedRanks(float(0.5 * (plus + zeros)), float(0.5 * (minus + zeros)), p_value)


def _sums_of_coin_flips(weights: np.ndarray) -> Float[np.ndarray, " sums"]:
    """Probabilities of the sums 0, 1, ... of integer weights, each taken with probability ½."""
    distribution = np.zeros(int(weights.sum()) + 1)
    distribution[0] = 1.0
    for weight in weights.tolist():
        taken = np.concatenate([np.zeros(weight), distribution[: len(distribution) - weight]])
        distribution = 0.5 * (distribution + taken)
    return distribution


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
    differences = paired_differences(table, np.broadcast_to(table[reference], table.shape))
    complete = ~np.isnan(differences).any(1)
    complete[reference] = False
    p_values = np.array([signed_rank_test(row).p_value for row in differences[complete]])
    tested = np.full((2, len(table)), np.nan)
    if len(p_values):
        tested[:, complete] = p_values, holm(p_values)
    counts = ((differences < 0).sum(1), (differences > 0).sum(1), (differences == 0).sum(1))
    return [
        Comparison(*(int(count[m]) for count in counts), *(float(p) if complete[m] else None for p in tested[:, m]))
        for m in range(len(table))
    ]
