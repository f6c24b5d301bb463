"""Statistics made of others, against numbers worked out by hand."""

import copy
import math
import pickle

import pytest

from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.intervals import (
    greatest,
    greatest_named,
    largest,
    largest_named,
    least,
    least_named,
    magnitude,
    of_difference,
    of_ratio,
    of_split_ratio,
    rank_correlation,
    smallest,
    smallest_named,
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


def test_the_case_that_decides_is_named():
    near, wide = Statistic(1.0, 0.9, 1.1), Statistic(1.5, 0.5, 2.5)
    cases = [("near", near), ("wide", wide), ("sure", Statistic(0.8, 0.7, 0.9))]
    for found in (least_named(cases), greatest_named(cases)):
        assert (found, found.case) == (wide, "wide")
    numbers = [("a", 2.0), ("b", -3.0), ("c", 1.0)]
    assert (largest_named(numbers), largest_named(numbers).case) == (Statistic.exact(2.0), "a")
    assert (smallest_named(iter(numbers)), smallest_named(numbers).case) == (Statistic.exact(-3.0), "b")


def test_cases_that_decide_together_are_not_told_apart():
    assert largest_named([("a", 1.0), ("b", 1.0)]).case == "all 2 alike"
    assert largest_named([("a", 0.0), ("b", 1.0), ("c", 1.0), ("d", 1.0)]).case == "b and 2 more"
    assert smallest_named([("only", math.inf)]).case == "only"
    same_value_other_interval = [("a", Statistic(1.0, 0.5, 2.0)), ("b", Statistic(1.0, 0.6, 1.5))]
    assert least_named(same_value_other_interval).case == "a"
    without_ends = [(name, Statistic(value, -math.inf, math.inf)) for name, value in (("a", 1.0), ("b", 2.0))]
    assert least_named(without_ends).case == "all 2 alike"  # neither reaches further, whatever their values


def test_a_named_case_keeps_its_name_in_another_process():
    worst = largest_named([("a", 1.0), ("b", 2.0)])
    for copied in (pickle.loads(pickle.dumps(worst)), copy.deepcopy(worst)):
        assert (copied, copied.case) == (worst, "b")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_case_that_cannot_be_judged_decides_by_its_name_even_if_another_has_the_same(place):
    values = [("a", 1.0), ("b", 2.0)]
    values.insert(place, ("a", math.nan))
    for found in (largest_named(values), smallest_named(values)):
        assert (math.isnan(found.value), found.case) == (True, "a")
    for nothing in (largest_named([]), smallest_named([])):
        assert (math.isnan(nothing.value), nothing.case) == (True, "there is no case")
