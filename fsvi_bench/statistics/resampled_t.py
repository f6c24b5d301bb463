"""The corrected resampled t interval and paired test, for means over overlapping splits.

Lower scores are better; +Infinity is the worst, and NaN is missing.

Random splits of one data set share rows, so their scores are correlated and s²/J understates the variance of their
mean. Nadeau and Bengio (2003, *Inference for the generalization error*, Machine Learning 52, section 3.1) assume the
correlation n_test/(n_train + n_test), which gives s²(1/J + n_test/n_train). No unbiased estimate exists, but this one
was wide enough in their experiments and in those of Bouckaert and Frank (2004), on test errors. KLs of splits are more
correlated than it assumes (`benchmarks/split_correlation.py`).
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
    """The values as a one-dimensional array.

    Raises:
        InputError: the values are not one row of at least one number, or contain NaN.
    """
    row = np.asarray(values, dtype=float)
    if row.ndim != 1 or not row.size:
        raise InputError(f"{name} has shape {list(row.shape)}, expected one row of at least one number; reshape it")
    if np.isnan(row).any():
        raise InputError(
            f"{name} contains NaN at index {np.isnan(row).argmax()}, expected numbers; omit missing values"
        )
    return row


class Interval(NamedTuple):
    """A mean with the ends of its interval, which are None for a single split or an infinite mean."""

    mean: float
    low: float | None
    high: float | None


def corrected_interval(values: ArrayLike, test_train_ratio: float, level: float = 0.95) -> Interval:
    """t interval of the mean of J splits' scores, with J − 1 degrees of freedom.

    Args:
        values: J scores, one per split (average a split's seeds first).
        test_train_ratio: n_test/n_train of a split, 1/9 for 90/10 splits; 0 gives the usual interval.
        level: nominal coverage.

    Raises:
        InputError: a value is NaN, both infinities occur, or the ratio or level is out of range.
    """
    row = one_row("values", values)
    _require(test_train_ratio, level)
    with np.errstate(invalid="ignore"):
        mean = float(row.mean())
    if math.isnan(mean):
        raise InputError("values contain Infinity and -Infinity, whose mean is not a number; remove one of the two")
    if len(row) == 1 or math.isinf(mean):
        return Interval(mean, None, None)
    half = float(half_width(row, test_train_ratio, level))
    return Interval(mean, mean - half, mean + half)


def half_width(
    rows: Float[np.ndarray, "*B J"], test_train_ratio: float, level: float = 0.95
) -> Float[np.ndarray, "*B"]:
    """The half-width of `corrected_interval`, for many means of J > 1 finite scores each."""
    return np.asarray(_quantile(level, rows.shape[-1] - 1) * _standard_error(rows, test_train_ratio))


def corrected_paired_test(a: ArrayLike, b: ArrayLike, test_train_ratio: float) -> float:
    """Two-sided p-value of the corrected resampled paired t test of whether the means of a and b over splits differ.

    Splits on which both are the same infinity are ties. If some differences are infinite, the test is the limit in
    which these grow together: they count as ±1 and the finite ones as 0. So p is 0 if a is infinite on all splits and b
    on none, and 0.58 if a is infinite on one of 20 splits (ratio 1/9). p is 1 for equal scores or a single split.

    Args:
        a: J scores, one per split.
        b: scores of the same splits in the same order.
        test_train_ratio: n_test/n_train of a split.

    Raises:
        InputError: the lengths differ, a score is NaN, or the ratio is negative.
    """
    row_a, row_b = one_row("a", a), one_row("b", b)
    _require(test_train_ratio)
    if len(row_a) != len(row_b):
        raise InputError(f"a has {len(row_a)} splits and b has {len(row_b)}, expected the same splits of both")
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
    """2^(1 − J) for J non-zero differences, the smallest two-sided p-value of a sign test.

    With few splits a t test can give any p-value, however small, if the differences happen to be similar. This is used
    as a lower limit.
    """
    return min(1.0, 2.0 ** (1 - np.count_nonzero(one_row("differences", differences))))


def paired_differences(a: Float[np.ndarray, "*B"], b: Float[np.ndarray, " ..."]) -> Float[np.ndarray, "*B"]:
    """a − b, where equal infinities differ by 0."""
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, a - b)


@cache
def _quantile(level: float, degrees: int) -> float:
    """The value that |t| exceeds with probability 1 − level."""
    return float(student_t.interval(level, degrees)[1])


def _standard_error(rows: Float[np.ndarray, "*B J"], ratio: float) -> Float[np.ndarray, "*B"]:
    # Equal values have a standard error of 0, which rounding of their mean would make about 1e-17.
    equal = (rows == rows[..., :1]).all(-1)
    return np.where(equal, 0.0, rows.std(axis=-1, ddof=1) * math.sqrt(1 / rows.shape[-1] + ratio))


def _require(ratio: float, level: float = 0.5) -> None:
    if not 0 <= ratio < math.inf:
        raise InputError(f"n_test/n_train is {ratio:g}, expected 0 or more; give 1/9 for 90/10 splits")
    if not 0 < level < 1:
        raise InputError(f"level is {level:g}, expected a number between 0 and 1, such as 0.95")
