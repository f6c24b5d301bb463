"""Statistics made of others, against numbers worked out by hand."""

import math

import pytest

from fsvi_bench.reproductions.claims import Statistic
from fsvi_bench.reproductions.intervals import (
    greatest,
    largest,
    least,
    magnitude,
    of_difference,
    of_ratio,
    of_split_ratio,
    rank_correlation,
    smallest,
)

NAN = Statistic(math.nan, math.nan, math.nan)
T_2 = 4.302652729911275  # 97.5% point of Student's t on two degrees of freedom


def test_ratios_are_averaged_as_logarithms():
    """Ratios 1, 2, 4: geometric mean 2, standard deviation of log₂ 1, of its mean 1/√3."""
    value, low, high = of_ratio([1.0, 6.0, 4.0], [1.0, 3.0, 1.0])
    assert value == pytest.approx(2, rel=1e-14)
    assert [low, high] == pytest.approx([2 ** (1 - T_2 / 3**0.5), 2 ** (1 + T_2 / 3**0.5)], rel=1e-9)


def test_ratios_over_splits_allow_for_the_rows_that_they_share():
    """The variance of the mean is (1/3 + 1/9) times that of one logarithm, in place of 1/3."""
    value, low, high = of_split_ratio([1.0, 6.0, 4.0], [1.0, 3.0, 1.0])
    assert value == pytest.approx(2, rel=1e-14)
    assert [low, high] == pytest.approx([2 ** (1 - T_2 * 2 / 3), 2 ** (1 + T_2 * 2 / 3)], rel=1e-9)


def test_one_ratio_has_an_interval_of_everything():
    assert of_ratio([6.0], [2.0]) == (pytest.approx(3), 0.0, math.inf)


def test_differences_are_paired():
    value, low, high = of_difference([101.0, 202.0, 303.0], [100.0, 200.0, 300.0])
    assert [value, low, high] == pytest.approx([2, 2 - T_2 / 3**0.5, 2 + T_2 / 3**0.5], rel=1e-9)
    with pytest.raises(ValueError, match="shorter"):
        of_difference([1.0, 2.0], [1.0])


def test_the_weakest_case_is_the_one_whose_interval_reaches_furthest():
    near, wide = Statistic(1.0, 0.9, 1.1), Statistic(1.5, 0.5, 2.5)
    assert least([near, wide]) == least([wide, near]) == wide
    assert greatest([near, wide]) == greatest([wide, near]) == wide
    sure = Statistic(0.8, 0.7, 0.9)
    assert least([near, sure]) == sure
    assert greatest([near, sure]) == near


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_case_that_cannot_be_judged_is_the_weakest(place):
    cases = [Statistic.exact(1.0), Statistic.exact(2.0)]
    cases.insert(place, NAN)
    assert math.isnan(least(cases).low)
    assert math.isnan(greatest(cases).high)


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (Statistic(1.0, 0.5, 2.0), (1.0, 0.5, 2.0)),
        (Statistic(-1.0, -2.0, -0.5), (1.0, 0.5, 2.0)),
        (Statistic(-0.5, -2.0, 1.0), (0.5, 0.0, 2.0)),
    ],
)
def test_magnitudes(of, expected):
    assert magnitude(of) == expected


def test_rank_correlations():
    """Ranks 1 2 3 4 against 2 1 4 3: ρ = 1 − 6·4/(4·15) = 0.6."""
    assert rank_correlation([1, 10, 100, 1000], [0.2, 0.1, 7.0, 3.0]) == pytest.approx(0.6)
    assert math.isnan(rank_correlation([1, 2, 3], [5.0, 5.0, 5.0]))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_largest_number_is_unknown_if_one_is(place):
    """Python's max([1e-10, nan]) is 1e-10, and a claim of "below 1e-6" would hold."""
    values = [1.0, -2.0]
    assert (largest(values), smallest(iter(values))) == (1.0, -2.0)
    values.insert(place, math.nan)
    assert math.isnan(largest(values))
    assert math.isnan(smallest(iter(values)))
    assert math.isnan(largest([]))
