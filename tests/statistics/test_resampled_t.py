"""Nadeau and Bengio's interval and test: by hand, in limits, and how often they are wrong on splits that overlap."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from fsvi_bench.errors import InputError
from fsvi_bench.statistics.resampled_t import corrected_interval, corrected_paired_test, half_width, least_p_value
from tests.maths.draws import PROPERTY

INF = math.inf


def test_interval_by_hand():
    """s² = 2.5, variance of the mean 2.5 (1/5 + 1/4) = 1.125; 2.7764451052 is the table's t(0.975; 4)."""
    interval = corrected_interval([1, 2, 3, 4, 5], 0.25)
    assert interval.mean == 3
    assert interval.high == pytest.approx(3 + 2.7764451052 * math.sqrt(1.125), rel=1e-10)
    assert interval.low == pytest.approx(6 - interval.high, rel=1e-12)


def test_many_half_widths_are_those_of_each():
    rows = np.random.default_rng(0).normal(size=(3, 4, 5))
    rows[0, 0] = 0.1  # equal numbers have no spread
    found = half_width(rows, 0.25)
    for place in np.ndindex(3, 4):
        interval = corrected_interval(rows[place], 0.25)
        assert found[place] == pytest.approx(interval.high - interval.mean, rel=1e-12)
    assert found[0, 0] == 0


def test_paired_test_by_hand():
    """Differences 1, 2, 3: t = 2/√(1/3 + 1/6) = √8, and with 2 degrees of freedom p = 1 − t/√(2 + t²)."""
    assert corrected_paired_test([2, 4, 6], [1, 2, 3], 1 / 6) == pytest.approx(1 - math.sqrt(0.8), rel=1e-12)
    assert corrected_paired_test([1, 2, 3], [2, 4, 6], 1 / 6) == pytest.approx(1 - math.sqrt(0.8), rel=1e-12)


@PROPERTY
@given(st.integers(0, 10**6), st.integers(2, 30), st.floats(0.01, 1))
def test_without_correction_it_is_students_and_the_interval_is_the_tests(seed, J, ratio):
    a, b = np.random.default_rng(seed).standard_normal((2, J))
    assert corrected_paired_test(a, b, 0.0) == pytest.approx(ttest_rel(a, b).pvalue, rel=1e-9)
    p = corrected_paired_test(a, b, ratio)
    assert p > corrected_paired_test(a, b, 0.0)
    interval = corrected_interval(a - b, ratio, level=1 - p)  # at its own p-value the interval ends at 0
    assert min(abs(interval.low), abs(interval.high)) < 1e-8 * (interval.high - interval.low)


def test_no_evidence_and_perfect_evidence():
    assert corrected_paired_test([1, 2, 3], [1, 2, 3], 1 / 9) == 1
    assert corrected_paired_test([1], [2], 1 / 9) == 1
    assert corrected_paired_test([0.1 + 0.2] * 3, [0.2] * 3, 1 / 9) == 0  # the same difference each time


def test_the_least_that_signs_could_give():
    assert least_p_value([0.1, -2.0, 0.3, 0.0]) == 2 * 0.5**3
    assert least_p_value([0.0, 0.0]) == 1.0
    assert least_p_value([math.inf, 1.0]) == 0.5


def test_infinite_scores():
    """Both infinite: a tie. m of J infinite differences: mean m/J and variance m(J − m)/(J(J − 1))."""
    assert corrected_paired_test([INF] * 3, [INF] * 3, 1 / 9) == 1
    assert corrected_paired_test([INF] * 3, [1, 2, 3], 1 / 9) == 0
    assert corrected_paired_test([INF, 1, 2], [INF, 0, 1.5], 1 / 9) == corrected_paired_test(
        [0, 1, 2], [0, 0, 1.5], 1 / 9
    )
    finite, one = np.arange(20.0), np.arange(20.0)
    one[7] = INF
    large = np.where(np.isinf(one), 1e12, one + 1e-3)
    limit = corrected_paired_test(one, finite - 1e-3, 1 / 9)
    assert limit == pytest.approx(corrected_paired_test(large, finite, 1 / 9), rel=1e-9)
    assert limit == pytest.approx(0.584, abs=1e-3)  # t = 1/√(1 + 20/9) = 0.557, 19 degrees of freedom
    both_ways = corrected_paired_test([INF, 0, 1], [0, INF, 1], 1 / 9)
    assert both_ways == 1


def test_means_without_an_interval():
    assert corrected_interval([1, INF, 2], 1 / 9) == (INF, None, None)
    assert corrected_interval([4.0], 1 / 9) == (4.0, None, None)
    assert corrected_interval([0.1] * 3, 1 / 9) == pytest.approx((0.1, 0.1, 0.1), abs=1e-15)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: corrected_interval([1, math.nan], 0.1), "values contains NaN at index 1"),
        (lambda: corrected_interval([], 0.1), r"shape \[0\]"),
        (lambda: corrected_interval([INF, -INF], 0.1), "not a number"),
        (lambda: corrected_interval([1, 2], -0.1), "n_test/n_train is -0.1"),
        (lambda: corrected_interval([1, 2], 0.1, level=95.0), "level is 95"),
        (lambda: corrected_paired_test([1, 2], [1], 0.1), "a has 2 splits and b has 1"),
        (lambda: corrected_paired_test([1, 2], [1, math.nan], 0.1), "b contains NaN"),
    ],
)
def test_what_is_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_errors_of_the_first_kind_on_overlapping_splits():
    """1,000 data sets of 100 rows; two regressions, each on one of two equally good inputs, 20 splits 90/10.

    The usual paired t test finds a difference in more than a quarter; the corrected one in no more than 5 % and four standard
    errors (0.7 % each).
    """
    rng, wrong = np.random.default_rng(0), np.zeros(2)
    for _ in range(1000):
        x = rng.standard_normal((100, 2))
        y = x.sum(1) + rng.standard_normal(100)
        order = np.argsort(rng.random((20, 100)), 1)
        train, test = order[:, :90], order[:, 90:]
        slope = (x[train] * y[train][..., None]).sum(1) / (x[train] ** 2).sum(1)
        losses = ((y[test][..., None] - slope[:, None] * x[test]) ** 2).mean(1)
        wrong += [corrected_paired_test(*losses.T, ratio) < 0.05 for ratio in (0.0, 1 / 9)]
    usual, corrected = wrong / 1000
    assert usual > 0.25
    assert 0.005 < corrected < 0.05 + 4 * 0.007
