"""Means over overlapping splits: the corrected resampled t interval and paired test.

Scores are the better the lower; +Infinity is the worst, and NaN is missing.

Random splits of one data set share rows, so that their scores correlate and s²/J understates the variance of their
mean. Nadeau and Bengio (2003, *Inference for the generalization error*, Machine Learning 52, section 3.1) take the
correlation to be n_test/(n_train + n_test) and get s²(1/J + n_test/n_train): wide enough in their and in Bouckaert and
Frank's (2004) experiments, though no unbiased estimate exists.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import t as student_t

from fsvi_bench.errors import InputError


def one_row(name: str, values: ArrayLike) -> Float[np.ndarray, " J"]:
    """At least one number, none missing.

    Raises:
        InputError: otherwise.
    """
    row = np.asarray(values, dtype=float)
    if row.ndim != 1 or not row.size:
        raise InputError(f"{name} has shape {list(row.shape)}, expected one row of at least one number")
    if np.isnan(row).any():
        raise InputError(f"{name} holds NaN at place {np.isnan(row).argmax()}; leave out what is missing")
    return row


class Interval(NamedTuple):
    """A mean with the ends of its interval; None where there is none (one split only, or an infinite mean)."""

    mean: float
    low: float | None
    high: float | None


def corrected_interval(values: ArrayLike, test_train_ratio: float, level: float = 0.95) -> Interval:
    """t interval of the mean of J splits' scores, J − 1 degrees of freedom.

    Args:
        values: J scores, one per split (average a split's seeds first).
        test_train_ratio: n_test/n_train of a split, 1/9 for 90/10 splits; 0 gives the usual interval.
        level: its nominal coverage.

    Raises:
        InputError: NaN, both infinities at once, or a ratio or level out of range.
    """
    row = one_row("values", values)
    _require(test_train_ratio, level)
    with np.errstate(invalid="ignore"):
        mean = float(row.mean())
    if math.isnan(mean):
        raise InputError("values hold Infinity and -Infinity, whose mean is not a number; leave one of them out")
    if len(row) == 1 or math.isinf(mean):
        return Interval(mean, None, None)
    half = float(half_width(row, test_train_ratio, level))
    return Interval(mean, mean - half, mean + half)


def half_width(
    rows: Float[np.ndarray, "*B J"], test_train_ratio: float, level: float = 0.95
) -> Float[np.ndarray, "*B"]:
    """Of `corrected_interval`, for many means of J > 1 finite scores each."""
    return np.asarray(_quantile(level, rows.shape[-1] - 1) * _standard_error(rows, test_train_ratio))


def corrected_paired_test(a: ArrayLike, b: ArrayLike, test_train_ratio: float) -> float:
    """Two-sided p-value of the corrected resampled paired t test: do the means over splits of a and b differ?

    Splits on which both are infinite (alike) are ties. Where one is infinite, the test is the limit in which these
    differences grow together: they count as ±1 and the finite ones as 0. So p is 0 if a is infinite on all splits and b
    on none, and 0.58 if on one of 20 (ratio 1/9). Equal scores, and a single split, are no evidence: p is 1.

    Args:
        a: J scores, one per split.
        b: scores of the same splits in the same order.
        test_train_ratio: n_test/n_train of a split.

    Raises:
        InputError: unequal lengths, NaN, or a negative ratio.
    """
    row_a, row_b = one_row("a", a), one_row("b", b)
    _require(test_train_ratio)
    if len(row_a) != len(row_b):
        raise InputError(f"a has {len(row_a)} splits and b {len(row_b)}; a paired test needs the same ones of both")
    differences = paired_differences(row_a, row_b)
    if np.isinf(differences).any():
        differences = np.where(np.isinf(differences), np.sign(differences), 0.0)
    if len(differences) == 1 or not differences.any():
        return 1.0
    error = _standard_error(differences, test_train_ratio)
    if error == 0:
        return 0.0
    return float(2 * student_t.sf(abs(differences.mean()) / error, len(differences) - 1))


def least_p_value(differences: ArrayLike) -> float:
    """2^(1 − J) of J differences other than 0: the least that their signs could give, two-sided.

    A t test is as sure as two splits are alike; signs never are. So no test of few splits is taken to say more.
    """
    return min(1.0, 2.0 ** (1 - np.count_nonzero(one_row("differences", differences))))


def paired_differences(a: Float[np.ndarray, "*B"], b: Float[np.ndarray, " ..."]) -> Float[np.ndarray, "*B"]:
    """a − b, where equal infinities differ by 0."""
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, a - b)


@cache
def _quantile(level: float, degrees: int) -> float:
    """What |t| exceeds with probability 1 − level."""
    return float(student_t.interval(level, degrees)[1])


def _standard_error(rows: Float[np.ndarray, "*B J"], ratio: float) -> Float[np.ndarray, "*B"]:
    # Equal numbers have no spread; their rounded mean would give them one of 1e-17.
    equal = (rows == rows[..., :1]).all(-1)
    return np.where(equal, 0.0, rows.std(axis=-1, ddof=1) * math.sqrt(1 / rows.shape[-1] + ratio))


def _require(ratio: float, level: float = 0.5) -> None:
    if not 0 <= ratio < math.inf:
        raise InputError(f"n_test/n_train is {ratio:g}, expected a number from 0; 90/10 splits have 1/9")
    if not 0 < level < 1:
        raise InputError(f"level is {level:g}, expected a number between 0 and 1, such as 0.95")
