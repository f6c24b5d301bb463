"""Statistics made of others: ratios, the weakest case of many, distances from nothing, rank correlations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np
from scipy import stats

from fsvi_bench.papers.claims import Statistic, Worst


def of_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Statistic:
    """Geometric mean of paired ratios of positive numbers, with the t-interval of their logarithms."""
    with np.errstate(over="ignore"):  # an infinite interval is said so, not warned of
        return Statistic(*(float(np.exp(bound)) for bound in of_log_ratio(numerators, denominators)))


def of_split_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Statistic:
    """The same over splits of one data set, with the interval that allows for the rows they share."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        logs = np.log(np.asarray(numerators, dtype=float) / np.asarray(denominators, dtype=float))
        return Statistic(*(float(np.exp(bound)) for bound in Statistic.of_splits(logs.tolist())))


def of_log_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Statistic:
    """Mean of the logarithms of paired ratios."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.asarray(numerators, dtype=float) / np.asarray(denominators, dtype=float))
        return Statistic.of_mean(logs.tolist())


def of_difference(minuends: Sequence[float], subtrahends: Sequence[float]) -> Statistic:
    """Mean of paired differences."""
    return Statistic.of_mean([a - b for a, b in zip(minuends, subtrahends, strict=True)])


def least(cases: Sequence[Statistic]) -> Statistic:
    """For a claim that every case lies above something: the case whose interval reaches down furthest.

    If each case's claim is wrongly accepted with probability 2.5%, so at most is "all of them" (Berger 1982).
    """
    return _first_or_nan(sorted(cases, key=lambda case: case.low), cases)


def greatest(cases: Sequence[Statistic]) -> Statistic:
    """For a claim that every case lies below something: the case whose interval reaches up furthest."""
    return _first_or_nan(sorted(cases, key=lambda case: -case.high), cases)


def least_named(cases: Iterable[tuple[str, Statistic]]) -> Worst:
    """`least` of named cases, with the name."""
    return _named(least, "low", list(cases))


def greatest_named(cases: Iterable[tuple[str, Statistic]]) -> Worst:
    """`greatest` of named cases, with the name."""
    return _named(greatest, "high", list(cases))


def largest_named(values: Iterable[tuple[str, float]]) -> Worst:
    """The largest of named numbers that are not random, with the name; NaN if one is, or if there are none."""
    return _named(greatest, "high", [(name, Statistic.exact(value)) for name, value in values])


def smallest_named(values: Iterable[tuple[str, float]]) -> Worst:
    """The smallest, likewise."""
    return _named(least, "low", [(name, Statistic.exact(value)) for name, value in values])


def magnitude(of: Statistic) -> Statistic:
    """|x| and the values that it takes within x's interval."""
    low = 0.0 if of.low <= 0 <= of.high else min(abs(of.low), abs(of.high))
    return Statistic(abs(of.value), low, max(abs(of.low), abs(of.high)))


def largest(values: Iterable[float]) -> float:
    """The largest of the numbers; NaN if one is, or if there are none: Python's max would pass over it."""
    found = np.fromiter(values, dtype=float)
    return float(found.max()) if len(found) else float("nan")


def smallest(values: Iterable[float]) -> float:
    """The smallest, likewise."""
    return -largest(-value for value in values)


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's; NaN where either does not vary."""
    if min(len(set(x)), len(set(y))) < 2:
        return float("nan")
    return float(stats.spearmanr(x, y).statistic)


def _first_or_nan(ranked: Sequence[Statistic], cases: Sequence[Statistic]) -> Statistic:
    """Sorting would put a NaN anywhere, so that the claim might hold without the case that could not be judged."""
    return next((case for case in cases if np.isnan(case).any()), ranked[0])


def _named(
    choose: Callable[[Sequence[Statistic]], Statistic],
    end: Literal["low", "high"],
    cases: Sequence[tuple[str, Statistic]],
) -> Worst:
    """The case that `choose` takes by that end of its interval; those that reach as far decide together."""
    if not cases:
        return Worst(Statistic.exact(float("nan")), "there is no case")
    found = choose([case for _, case in cases])
    first, *others = (name for name, case in cases if case is found or getattr(case, end) == getattr(found, end))
    if others and len(others) + 1 == len(cases):
        return Worst(found, f"all {len(cases)} alike")
    return Worst(found, f"{first} and {len(others)} more" if others else first)
