"""Two methods over several data sets: Wilcoxon's signed-rank test, exact, as Demšar recommends for classifiers.

Demšar (2006, *Statistical comparisons of classifiers over multiple data sets*, JMLR 7, section 3.1.3): rank the sizes
of the differences, average ranks in case of ties, split the ranks of zeros evenly between the two sums. Given the
sizes, under the null hypothesis each difference's sign is a fair coin: that is the rank sum's distribution here, ties
and zeros included. `scipy.stats.wilcoxon` has no exact distribution with ties but by going through all 2^n signs, which
ends at some 20 data sets; adding up coin flips has no such end. With zeros ranked this is Pratt's (1959) test. With few
data sets little can be shown: of 5 the least two-sided p-value is 1/16, of 6 it is 1/32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from fsvi_bench.errors import InputError
from fsvi_bench.statistics.arrays import one_row, score_table
from fsvi_bench.statistics.multiple import holm
from fsvi_bench.statistics.resampled_t import paired_differences


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
