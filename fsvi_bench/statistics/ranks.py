"""Ranks of methods over data sets: the headline of a table whose scores have no common unit (Demšar 2006)."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import rankdata, studentized_range

from fsvi_bench.statistics.arrays import score_table


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


def critical_difference(methods: int, datasets: int, level: float = 0.95) -> float:
    """How far two of the methods' mean ranks must be apart for Nemenyi's test to separate them (Demšar 2006, §3.2.2).

    q √(k(k+1)/(6N)), q the quantile of the studentized range over √2: with probability `level` no pair at all of k
    methods that are equal in truth is that far apart on N data sets.
    """
    if methods < 2:
        return 0.0
    q = float(studentized_range.ppf(level, methods, np.inf))
    return q * math.sqrt(methods * (methods + 1) / (12 * datasets))
