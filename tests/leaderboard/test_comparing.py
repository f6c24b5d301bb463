"""Two entries side by side, on a log scale, against the formulas in loops."""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import pytest
from scipy.stats import t as student_t

from fsvi_bench.leaderboard.comparing import _difference, comparison
from tests.leaderboard.boards import DATASETS, entry, references

TABLE = references()
RATIO = 5 / 45


def kls(each, dataset):
    return [cell.scores.kl for cell in each.verification.cells if cell.dataset == dataset]


def log_ratios(a, b):
    """log10(a/b) split by split within ±1, what is 0 to rounding (10⁻⁶) counted as that; equal infinities tie."""
    plain = [0.0 if x == y else math.log10(max(x, 1e-6)) - math.log10(max(y, 1e-6)) for x, y in zip(a, b, strict=True)]
    return [max(-1.0, min(1.0, value)) for value in plain]


def slow_test(differences):
    """Mean, corrected interval and two-sided p-value of one data set, no less than signs alone could give."""
    J, mean = len(differences), fmean(differences)
    variance = sum((value - mean) ** 2 for value in differences) / (J - 1)
    error = math.sqrt((1 / J + RATIO) * variance)
    half = student_t.ppf(0.975, J - 1) * error
    by_signs = 2.0 ** (1 - sum(value != 0 for value in differences))
    p_value = 2 * student_t.sf(abs(mean) / error, J - 1) if error else 0.0
    return mean, (max(-1.0, mean - half), min(1.0, mean + half)), min(1.0, max(p_value, by_signs))


def slow_holm(p_values):
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def test_log_ratios_intervals_and_p_values_are_those_of_loops():
    table = references(dict.fromkeys(DATASETS, 12))
    a, b = entry("a", table), entry("b", table)
    found = comparison(a, b, table)
    assert found.score == "kl"
    assert [each.dataset for each in found.differences] == list(DATASETS)
    expected = {d: slow_test(log_ratios(kls(a, d), kls(b, d))) for d in DATASETS}
    adjusted = slow_holm([p for _, _, p in expected.values()])
    for each, holm in zip(found.differences, adjusted, strict=True):
        mean, interval, p_value = expected[each.dataset]
        assert each.a == pytest.approx(fmean(kls(a, each.dataset)), rel=1e-14)
        assert each.b == pytest.approx(fmean(kls(b, each.dataset)), rel=1e-14)
        assert each.log_ratio == pytest.approx(mean, rel=1e-12)
        assert each.interval == pytest.approx(interval, rel=1e-12)
        assert each.p_value == pytest.approx(p_value, rel=1e-10)
        assert each.adjusted == pytest.approx(holm, rel=1e-10)
    assert len({each.p_value for each in found.differences}) == 3
    mirrored = comparison(b, a, table)
    for each, other in zip(found.differences, mirrored.differences, strict=True):
        assert other.log_ratio == -each.log_ratio
        assert (other.p_value, other.adjusted) == (each.p_value, each.adjusted)


@pytest.mark.parametrize(
    ("families", "score"),
    [
        (("full", "full"), "kl"),
        (("ffg", "ffg"), "kl_above_floor"),
        (("bernoulli", "spike-slab"), "predictive_kl_box"),
        (("full", "ffg"), "predictive_kl_box"),
        (("ffg", "bernoulli"), "predictive_kl_box"),
    ],
)
def test_the_score_is_the_headline_of_a_shared_track(families, score):
    a, b = (entry(name, TABLE, family) for name, family in zip("ab", families, strict=True))
    assert comparison(a, b, TABLE).score == score
    given = comparison(a, b, TABLE, "predictive_kl_test")
    assert given.score == "predictive_kl_test"
    tests = [cell.scores.predictive_kl_test for cell in a.verification.cells if cell.dataset == "yacht"]
    assert given.differences[2].a == pytest.approx(fmean(tests), rel=1e-14)


def test_what_is_missing_is_not_compared_and_does_not_count_for_holm():
    a = entry("a", TABLE)
    part = comparison(a, entry("b", TABLE, missing=[("boston", 0)]), TABLE)
    boston, *rest = part.differences
    assert boston.a is not None
    assert (boston.b, boston.log_ratio, boston.interval, boston.p_value, boston.adjusted) == (None,) * 5
    assert [each.adjusted for each in rest] == pytest.approx(slow_holm([each.p_value for each in rest]), rel=1e-12)
    nothing = comparison(a, entry("b", TABLE, verified=False), TABLE)
    assert {each.p_value for each in nothing.differences} == {None}


def test_infinite_scores_lose_where_the_other_is_finite_and_tie_where_it_is_not():
    a = entry("a", TABLE, diverged=[("boston", 0), ("energy", 1)])
    b = entry("b", TABLE, diverged=[("energy", 1), ("yacht", 0)])
    for each in comparison(a, b, TABLE).differences:
        ratios = log_ratios(splits(a, each.dataset), splits(b, each.dataset))
        mean, interval, _ = slow_test(ratios)
        assert (each.log_ratio, each.interval) == (pytest.approx(mean, rel=1e-12), pytest.approx(interval, rel=1e-12))
    boston, _, yacht = comparison(a, b, TABLE).differences
    assert (boston.a, yacht.b) == (math.inf, math.inf)
    assert log_ratios(splits(a, "boston"), splits(b, "boston"))[0] == 1.0
    assert log_ratios(splits(a, "energy"), splits(b, "energy"))[1] == 0.0


HEAVY = [20.0 + split for split in range(17)] + [1.5e4, 3.3e5, 3.8e7]  #: RANDA's KLs on boston are like this


def told(of_a, of_b):
    """One data set of twenty splits, by the KL on each."""
    many = references({"energy": 20})
    a, b = (entry(name, many, kl=lambda task, of=of: of[task.split]) for name, of in (("a", of_a), ("b", of_b)))
    return comparison(a, b, many).differences[0]


def test_the_exact_posterior_is_told_from_what_is_wrong_on_every_split_and_huge_on_few():
    exact = [(-1) ** split * 1e-14 * (1 + split) for split in range(20)]
    assert slow_test([x - y for x, y in zip(exact, HEAVY, strict=True)])[2] > 0.5  # a test of plain differences
    found = told(exact, HEAVY)
    assert (found.log_ratio, found.interval) == (-1.0, (-1.0, -1.0))
    assert found.p_value == 2.0**-19  # of the signs: ratios without a spread would make a t test certain
    assert found.closer == "a"


@pytest.mark.parametrize("size", [1e2, 1e7, 1e250])
def test_one_huge_split_hides_nothing_that_it_agrees_with(size):
    """Twenty of twenty splits say the same: neither the differences nor the logarithms may doubt it."""
    near, far = [10.0 + split for split in range(20)], [30.0 + 2 * split for split in range(19)] + [29 * size]
    found = told(near, far)
    _, _, p_value = slow_test(log_ratios(near, far))
    assert found.p_value == pytest.approx(p_value, rel=1e-9)
    assert (found.closer, found.p_value < 1e-5) == ("a", True)
    if size > 1e2:
        assert slow_test([math.log10(x / y) for x, y in zip(near, far, strict=True)])[2] > 0.05


def test_a_split_that_diverged_counts_as_one_that_is_ten_times_further():
    near, far = [10.0 + split for split in range(20)], [30.0 + split for split in range(20)]
    finite = told(near, [*far[:-1], 1e9])
    many = references({"energy": 20})
    a = entry("a", many, kl=lambda task: near[task.split])
    b = entry("b", many, kl=lambda task: far[task.split], diverged=[("energy", 19)])
    found = comparison(a, b, many).differences[0]
    assert (found.log_ratio, found.interval, found.p_value) == (finite.log_ratio, finite.interval, finite.p_value)
    assert found.closer == "a"
    assert (found.b, finite.b < math.inf) == (math.inf, True)


def test_one_huge_split_outweighs_no_others():
    """Nearer by a third on 19 splits of 20, and far off on one: the means say one thing, the other splits another."""
    near, far = [300.0] + [30.0 + split for split in range(1, 20)], [90.0 + split for split in range(20)]
    assert told(near, far).closer == "a"
    worse = told([1e7, *near[1:]], far)
    assert worse.a > worse.b
    assert worse.closer == "a"


def test_few_splits_are_never_certain():
    few = references({"energy": 5})
    a, b = entry("a", few, kl=1.0), entry("b", few, kl=100.0)
    found = comparison(a, b, few).differences[0]
    assert (found.log_ratio, found.p_value, found.closer) == (-1.0, 2.0**-4, None)


def test_what_is_zero_to_rounding_ties():
    many = references({"energy": 20})
    copies = [
        entry(name, many, kl=lambda task, size=size: size * (1 + task.split)) for name, size in ABOUT_ZERO.items()
    ]
    found = comparison(*copies, many).differences[0]
    assert (found.log_ratio, found.p_value, found.closer) == (0.0, 1.0, None)


ABOUT_ZERO = {"a": 1e-14, "b": 4e-8}


def test_which_is_closer_goes_by_what_was_tested():
    many = references({"energy": 20})
    near, far = (entry(name, many, kl=lambda task, at=at: at + 0.001 * task.split) for name, at in (("a", 1), ("b", 2)))
    assert comparison(near, far, many).differences[0].closer == "a"
    assert comparison(far, near, many).differences[0].closer == "b"
    assert comparison(near, near, many).differences[0].closer is None
    once = entry("once", many, diverged=[("energy", 0)])
    mostly = entry("mostly", many, diverged=[("energy", split) for split in range(1, 20)])
    found = comparison(once, mostly, many).differences[0]
    assert (found.a, found.b, found.log_ratio, found.closer) == (math.inf, math.inf, -0.9, "a")
    assert comparison(mostly, once, many).differences[0].closer == "b"
    # 19 times −1 and once +1, by hand: mean −0.9, s² = 0.2, s²(1/20 + 1/9) = 0.179²
    p_value = 2 * student_t.sf(0.9 / math.sqrt(0.2 * (1 / 20 + RATIO)), 19)
    assert found.p_value == pytest.approx(max(p_value, 2.0**-19), rel=1e-10)
    twice = entry("twice", many, diverged=[("energy", 0), ("energy", 1)])
    assert comparison(once, twice, many).differences[0].closer is None  # one split more is no evidence


def splits(each, dataset="energy"):
    cells = [cell for cell in each.verification.cells if cell.dataset == dataset]
    return [math.inf if cell.scores is None else cell.scores.kl for cell in cells]


def test_an_entry_equals_itself():
    a = entry("a", TABLE)
    for each in comparison(a, a, TABLE).differences:
        assert (each.log_ratio, each.interval, each.p_value, each.adjusted) == (0.0, (0.0, 0.0), 1.0, 1.0)


def test_an_interval_ends_where_the_mean_must():
    """19 splits at the bound and one even: a t interval of them would reach to 1.14."""
    a, b = np.array([10.0] * 19 + [1.0]), np.ones(20)
    found, mirrored = _difference("boston", a, b, RATIO), _difference("boston", b, a, RATIO)
    assert found.log_ratio == pytest.approx(0.95)
    low, high = found.interval
    half = student_t.ppf(0.975, 19) * math.sqrt((1 / 20 + RATIO) / 20)  # the sample variance of 19 ones and a 0 is 1/20
    assert found.log_ratio + half > 1
    assert (low, high) == (pytest.approx(0.95 - half), 1.0)
    assert mirrored.interval == (-high, -low)
