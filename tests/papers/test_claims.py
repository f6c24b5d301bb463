"""Statistics of splits that share rows, and what claims make of them."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fsvi_bench.papers.claims import TEST_TRAIN_RATIO, Claim, Selection, Statistic

INF = math.inf


def outcome(values, side="above", threshold=0.0):
    rule = Claim(statistic="s", says="so", side=side, threshold=threshold, interval="splits")
    return rule.judge(values).outcome


def test_the_interval_over_splits_is_wider_by_what_they_share():
    values = np.random.default_rng(0).standard_normal(20)
    found = Statistic.of_mean(values.tolist(), TEST_TRAIN_RATIO)
    half = stats.t.ppf(0.975, 19) * values.std(ddof=1) * math.sqrt(1 / 20 + 1 / 9)
    assert found == pytest.approx((values.mean(), values.mean() - half, values.mean() + half), rel=1e-12)


@pytest.mark.parametrize(
    ("values", "about", "expected"),
    [
        ([INF, 1.0, -5.0], 0, (INF, -INF, INF)),
        ([INF, 1.0, 5.0], 0, (INF, INF, INF)),
        ([-INF, INF, 5.0], 0, (0, -INF, INF)),
        # One split of twenty on the claimed side, infinitely far, does not carry the others over the threshold.
        ([INF] + [0.1] * 19, 0.7, (INF, -INF, INF)),
        ([INF] + [0.8] * 19, 0.7, (INF, INF, INF)),
    ],
)
def test_a_mean_with_infinite_values_is_a_limit(values, about, expected):
    assert Statistic.of_mean(values, TEST_TRAIN_RATIO, about) == expected
    low, high = -expected[2], -expected[1]
    assert Statistic.of_mean(np.negative(values), TEST_TRAIN_RATIO, -about) == (-expected[0], low, high)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([INF, INF, INF], "held"),
        ([-INF, -INF, -INF], "did not hold"),
        ([INF] * 19 + [-100.0], "held"),
        ([INF] + [1.0] * 19, "held"),
        ([-INF] + [-1.0] * 19, "did not hold"),
        ([INF] + [1.0] * 18 + [-1.0], "undecided"),
        ([INF] * 9 + [5.0] * 10 + [-5.0], "held"),
        ([INF, -INF, 1.0], "undecided"),
        ([3.0], "undecided"),
        ([math.nan, 1.0, 1.0], "not judged"),
    ],
)
def test_infinite_differences_outweigh_finite_ones_unless_all_agree(values, expected):
    assert outcome(values) == expected


# --- What a claim says of its interval --------------------------------------------------------------------------------

RATIOS = [0.5, 0.8, 0.4, 1.1, 0.7]


def claim(side="above", threshold=0.0, **rules):
    return Claim(statistic="s", says="so", side=side, threshold=threshold, **rules)


def found(values, **rules):
    verdict = claim(**rules).judge(values)
    return verdict.value, verdict.low, verdict.high


def interval_of_mean(values):
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    return float(np.mean(values)), float(low), float(high)


def test_without_an_interval_it_is_a_number_that_is_not_random():
    assert found(-2.5) == (-2.5, -2.5, -2.5)
    assert found(np.float64(0.1)) == (0.1, 0.1, 0.1)
    assert not claim(threshold=-2.5).judge(-2.5).holds
    assert not claim(threshold=-2.0).judge(-2.5).undecided


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_t_is_students_interval_of_the_mean(kind):
    assert found(kind(RATIOS), interval="t") == pytest.approx(interval_of_mean(RATIOS), rel=1e-12)


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (3, 10), (10, 10)])
def test_proportion_is_the_interval_of_clopper_and_pearson(successes, n):
    """Its ends are quantiles of beta distributions; none and all of n have closed forms."""
    low = stats.beta.ppf(0.025, successes, n - successes + 1) if successes else 0.0
    high = stats.beta.ppf(0.975, successes + 1, n - successes) if successes < n else 1.0
    trials = [True] * successes + [False] * (n - successes)
    assert found(trials, interval="proportion") == pytest.approx((successes / n, low, high), rel=1e-10)
    if successes == 0:
        assert high == pytest.approx(1 - 0.025 ** (1 / n), rel=1e-10)


def test_geometric_is_the_mean_of_logarithms():
    value, low, high = found(RATIOS, interval="t", geometric=True)
    assert value == pytest.approx(stats.gmean(RATIOS), rel=1e-12)
    assert np.log([low, high]) == pytest.approx(interval_of_mean(np.log(RATIOS))[1:], rel=1e-12)
    halves = found([0.5, 0.5, 0.5], interval="t", geometric=True)
    assert halves == pytest.approx((0.5, 0.5, 0.5), rel=1e-12)


def test_magnitude_of_a_ratio_is_by_which_factor_it_is_off_either_way():
    assert found(-3.0, magnitude=True) == (3.0, 3.0, 3.0)
    small = [ratio / 2 for ratio in RATIOS]
    value, low, high = found(small, interval="t", geometric=True)
    sized = found(small, interval="t", geometric=True, magnitude=True)
    assert sized == pytest.approx((1 / value, 1 / high, 1 / low), rel=1e-12)
    assert found(RATIOS, interval="t", geometric=True, magnitude=True)[1] == 1.0  # within whose interval 1 lies


def test_of_ratios_over_splits_one_that_is_zero_or_infinite_decides():
    assert found([0.0, 0.0, 0.0], interval="splits", geometric=True, threshold=1.0) == (0.0, 0.0, 0.0)
    assert found([0.0, 0.5, 0.7], interval="splits", geometric=True, threshold=1.0)[0] == 0.0
    assert found([INF, 2.0, 3.0], interval="splits", geometric=True, threshold=1.0)[2] == INF


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([-5.0, -4.0, -6.0], (5.0, 5 - 4.302652730 / 3**0.5, 5 + 4.302652730 / 3**0.5)),
        ([-1.0, 1.0], (0.0, 0.0, 12.706204736)),
        ([-1.0, 2.0, -2.0], (1 / 3, 0.0, 1 / 3 + 4.302652730 * (13 / 9) ** 0.5)),
    ],
)
def test_magnitude_is_of_the_mean_and_its_interval(values, expected):
    """Hand-computed: t(0.975; 2) = 4.302652730 and t(0.975; 1) = 12.706204736. An interval around 0 begins at 0."""
    assert found(values, interval="t", magnitude=True) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [(0.12345, "nats", "0.123 nats"), (1234.5, "", "1.23e+03"), (-INF, "nats", "-∞ nats")],
)
def test_what_was_found_is_written_with_its_unit(value, unit, expected):
    assert claim(unit=unit).judge(value).found == expected


@pytest.mark.parametrize(
    ("value", "low", "high", "found", "between"),
    [
        (1.0042, 0.9, 1.1, "1.004", "0.9 to 1.1"),
        (1.000626, 1.0004, 1.0008, "1.0006", "1.0004 to 1.0008"),
        (1.0, 1.0, 1.2345, "1", "1 to 1.23"),
        (1.2, 0.9999999, INF, "1.2", "1 to ∞"),
    ],
)
def test_numbers_are_told_apart_from_the_threshold(value, low, high, found, between):
    told = claim("above", 1.0).judge(2.0).model_copy(update={"value": value, "low": low, "high": high})
    assert (told.found, told.between) == (found, between)


# --- Claims about every case ------------------------------------------------------------------------------------------


def test_the_case_furthest_to_the_other_side_decides():
    cases = {"a": 1.0, "b": 3.0, "c": 2.0}
    lowest, highest = claim("above", 1.5).judge(cases), claim("below", 1.5).judge(cases)
    assert (lowest.statistic, lowest.value, lowest.holds) == ("s (a)", 1.0, False)
    assert (highest.statistic, highest.value, highest.holds) == ("s (b)", 3.0, False)
    assert claim("above", 0.5).judge(cases).holds
    assert claim("below", 3.5).judge(cases).holds


def test_it_is_the_intervals_end_that_decides_not_the_mean():
    cases = {"sure": [1.0, 1.1, 0.9], "unsure": [-4.0, 5.0, 8.0]}
    verdict = claim("above", interval="t").judge(cases)
    assert verdict.statistic == "s (unsure)"
    assert (verdict.value, verdict.low) == pytest.approx(interval_of_mean(cases["unsure"])[:2], rel=1e-12)
    assert verdict.undecided


def test_a_case_that_refutes_outweighs_one_that_is_unsure():
    """A wide interval must not hide it. With 20 cases, 95% intervals alone would refute true claims too often."""
    unsure, refuting = [-30.0, 0.0, 30.0], [-1.1, -1.0, -0.9]
    verdict = claim(interval="t").judge({"unsure": unsure, "refuting": refuting})
    assert (verdict.statistic, verdict.outcome) == ("s (refuting)", "did not hold")
    assert (verdict.low, verdict.high) == pytest.approx(interval_of_mean(refuting)[1:], rel=1e-12)
    barely = [-1.0, -0.9, -0.6]
    cases = {"barely": barely} | {f"unsure {n}": unsure for n in range(19)}
    assert claim(interval="t").judge({"barely": barely}).outcome == "did not hold"
    assert claim(interval="t").judge(cases).outcome == "undecided"
    true = [1.0, 1.1, 0.9]
    assert claim(interval="t").judge({"a": true, "b": true}).holds


def test_the_least_favourable_case_does_not_refute_by_its_own_interval():
    """It has the lowest end of all. Its interval at 1 − 5%/20 contains the threshold, and is the one that is shown."""
    true, barely = [1.0, 1.1, 0.9], [-1.0, -0.9, -0.6]
    assert claim(interval="t").judge({"barely": barely}).outcome == "did not hold"
    verdict = claim(interval="t").judge({"barely": barely} | {f"true {n}": true for n in range(19)})
    assert (verdict.statistic, verdict.outcome) == ("s (barely)", "undecided")
    half = stats.t.ppf(1 - 0.05 / 20 / 2, 2) * stats.sem(barely)
    mean = sum(barely) / 3
    assert (verdict.low, verdict.high) == pytest.approx((mean - half, mean + half), rel=1e-12)
    clearly = claim(interval="t").judge({"barely": [-1.0, -0.99, -0.98]} | {f"true {n}": true for n in range(19)})
    assert clearly.outcome == "did not hold"


@pytest.mark.parametrize("side", ["above", "below"])
def test_of_many_cases_true_claims_are_refuted_with_a_probability_of_two_and_a_half_per_cent(side):
    """2,000 claims about ten cases whose means are on the threshold: at most 2.5%, and 3 standard errors."""
    draws = np.random.default_rng(0).standard_normal((2000, 10, 10))
    outcomes = [claim(side, interval="t").judge(dict(enumerate(cases))).outcome for cases in draws]
    assert 0 < outcomes.count("did not hold") / 2000 < 0.025 + 3 * (0.025 * 0.975 / 2000) ** 0.5


def test_of_a_magnitude_infinite_values_decide_whatever_their_sign():
    for sign in (1, -1):
        many = claim("below", 1.1, interval="t", geometric=True, magnitude=True)
        assert many.judge([math.exp(sign * INF)] + [1.01**sign] * 19).outcome == "undecided"
        assert many.judge([math.exp(sign * INF)] * 20).outcome == "did not hold"


def test_two_cases_with_one_label_are_refused():
    frames = {"f": pd.DataFrame({"N": [1000001, 1000002], "x": [0.0, 1.0]})}
    with pytest.raises(ValueError, match="two cases of N have the same label"):
        Selection(frame="f", column="x", by="N").of(frames)


@pytest.mark.parametrize("side", ["above", "below"])
def test_a_case_that_cannot_be_judged_decides(side):
    verdict = claim(side).judge({"a": -INF, "b": math.nan, "c": INF})
    assert verdict.statistic == "s (b)"
    assert math.isnan(verdict.value)
    assert not verdict.holds
    assert verdict.outcome == "not judged"
    repeated = claim(side, interval="t").judge({"a": [1.0], "b": [1.0, math.nan], "c": [math.nan, 2.0]})
    assert repeated.statistic == "s (b and 1 more)"
    assert not repeated.holds


def test_a_claim_about_every_case_of_none_is_refused():
    with pytest.raises(ValueError, match="'s' has no case"):
        claim().judge({})


@pytest.mark.parametrize(("column", "expected"), [("x / y", [2, 4]), ("x - y", [1, 3]), ("x / y - 1", [1, 3])])
def test_a_place_may_divide_by_a_column_and_take_one_away(column, expected):
    frames = {"f": pd.DataFrame({"x": [2.0, 4.0], "y": [1.0, 1.0]})}
    assert Selection(frame="f", column=column).of(frames) == expected


def test_three_columns_are_an_estimate_and_its_interval():
    frames = {"f": pd.DataFrame({"value": [2.0], "low": [1.0], "high": [4.0], "limit": [4.0], "case": "a"})}
    place = Selection(frame="f", column=["value / limit", "low / limit", "high / limit"])
    assert place.of(frames) == Statistic(0.5, 0.25, 1.0)
    assert place.model_copy(update={"by": "case"}).of(frames) == {"a": Statistic(0.5, 0.25, 1.0)}


def test_a_claim_may_say_where_its_statistic_stands():
    frames = {"f": pd.DataFrame({"kind": ["a", "b", "b"], "x": [1.0, 2.0, 4.0]})}
    assert Selection(frame="f", column="x", where={"kind": "b"}).of(frames) == [2.0, 4.0]
    assert Selection(frame="f", column="x", by="kind").of(frames) == {"a": [1.0], "b": [2.0, 4.0]}
    assert Selection(frame="f", column="x", by=["kind", "x"]).of(frames) == {
        "a, x 1": [1.0],
        "b, x 2": [2.0],
        "b, x 4": [4.0],
    }
    sized = Claim(statistic="s", says="so", side="below", threshold=0.0, magnitude=True)
    assert sized.judge([-3.0]).value == 3.0
    with pytest.raises(ValueError, match="size 1"):
        sized.judge([2.0, 4.0])
