"""Two entries side by side, on a log scale, against the formulas in loops."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
from scipy.stats import t as student_t

from fsvi_bench.leaderboard.comparing import comparison
from tests.leaderboard.boards import DATASETS, entry, references

TABLE = references()
RATIO = 5 / 45


def kls(each, dataset):
    return [cell.scores.kl for cell in each.verification.cells if cell.dataset == dataset]


def log_ratios(a, b):
    """log10(a/b) split by split, what is 0 to rounding (10⁻⁶) counted as that; equal infinities tie."""
    return [0.0 if x == y else math.log10(max(x, 1e-6)) - math.log10(max(y, 1e-6)) for x, y in zip(a, b, strict=True)]


def slow_test(differences):
    """Mean, corrected interval and two-sided p-value of one data set."""
    J, mean = len(differences), fmean(differences)
    variance = sum((value - mean) ** 2 for value in differences) / (J - 1)
    error = math.sqrt((1 / J + RATIO) * variance)
    half = student_t.ppf(0.975, J - 1) * error
    return mean, (mean - half, mean + half), 2 * student_t.sf(abs(mean) / error, J - 1)


def slow_holm(p_values):
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def test_differences_intervals_and_p_values_are_those_of_loops():
    a, b = entry("a", TABLE), entry("b", TABLE)
    found = comparison(a, b, TABLE)
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
    mirrored = comparison(b, a, TABLE)
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
    boston, energy, yacht = comparison(a, b, TABLE).differences
    assert (boston.a, boston.log_ratio, boston.interval) == (math.inf, math.inf, None)
    assert (yacht.b, yacht.log_ratio, yacht.interval) == (math.inf, -math.inf, None)
    ratios = log_ratios(splits(a), splits(b))
    assert energy.log_ratio == pytest.approx(fmean(ratios), rel=1e-12)
    assert energy.interval == pytest.approx(slow_test(ratios)[1], rel=1e-12)
    crossed = comparison(
        entry("a", TABLE, diverged=[("boston", 0)]), entry("b", TABLE, diverged=[("boston", 1)]), TABLE
    ).differences[0]
    assert (crossed.a, crossed.b, crossed.log_ratio, crossed.interval) == (math.inf, math.inf, None, None)
    assert crossed.p_value == pytest.approx(1.0, abs=1e-12)  # +1, -1 and 0


HEAVY = [20.0 + split for split in range(17)] + [1.5e4, 3.3e5, 3.8e7]  #: RANDA's KLs on boston are like this


def test_the_exact_posterior_is_told_from_what_is_wrong_on_every_split_and_huge_on_few():
    many = references({"energy": 20})
    exact = entry("exact", many, kl=lambda task: (-1) ** task.split * 1e-14 * (1 + task.split))
    wrong = entry("wrong", many, kl=lambda task: HEAVY[task.split])
    found = comparison(exact, wrong, many).differences[0]
    plain_differences = [x - y for x, y in zip(kls(exact, "energy"), HEAVY, strict=True)]
    assert slow_test(plain_differences)[2] > 0.5  # which is what made this comparison one of logarithms
    log_ratio, interval, p_value = slow_test([-6 - math.log10(kl) for kl in HEAVY])
    assert (found.log_ratio, found.p_value) == (pytest.approx(log_ratio, rel=1e-12), pytest.approx(p_value, rel=1e-9))
    assert found.interval == pytest.approx(interval, rel=1e-12)
    assert found.adjusted < 1e-6
    assert found.closer == "a"


def test_one_huge_split_counts_once():
    """Nearer by a third on 19 splits of 20, and far off on one: the means say one thing, the other splits another."""
    many = references({"energy": 20})
    near = entry("near", many, kl=lambda task: 30.0 + task.split if task.split else 300.0)
    far = entry("far", many, kl=lambda task: 90.0 + task.split)
    found = comparison(near, far, many).differences[0]
    assert found.closer == "a"
    worse = entry("worse", many, kl=lambda task: 30.0 + task.split if task.split else 1e7)
    told = comparison(worse, far, many).differences[0]
    assert told.a > told.b
    assert told.log_ratio < 0
    assert told.closer is None


def test_a_split_that_diverged_hides_nothing_that_the_others_agree_on():
    many = references({"energy": 20})
    exact, off = entry("exact", many, kl=0.0), lambda task: 10.0 + task.split
    once = entry("once", many, kl=off, diverged=[("energy", 3)])
    found = comparison(exact, once, many).differences[0]
    ratios = [-6 - math.log10(10.0 + split) for split in range(20)]
    ratios[3] = min(ratios[:3] + ratios[4:])  # the largest in size
    assert found.p_value == pytest.approx(slow_test(ratios)[2], rel=1e-9)
    assert (found.log_ratio, found.closer) == (-math.inf, "a")
    near = entry("near", many, kl=lambda task: off(task) * (0.1 if task.split else 2.0))
    # One split says the opposite: what is infinite decides alone, one −1 among 19 zeros.
    assert comparison(near, once, many).differences[0].p_value == pytest.approx(
        slow_test([-1.0] + [0.0] * 19)[2], rel=1e-9
    )
    two = references({"energy": 2})
    pair = entry("pair", two, kl=5.0, diverged=[("energy", 0)])
    assert comparison(entry("b", two, kl=1.0), pair, two).differences[0].p_value > 0.3  # no spread, no certainty


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
    assert (found.a, found.b, found.log_ratio, found.closer) == (math.inf, math.inf, None, "a")
    assert comparison(mostly, once, many).differences[0].closer == "b"
    # 19 times −1 and once +1, by hand: mean −0.9, s² = 0.2, s²(1/20 + 1/9) = 0.179²
    assert found.p_value == pytest.approx(2 * student_t.sf(0.9 / math.sqrt(0.2 * (1 / 20 + RATIO)), 19), rel=1e-10)
    twice = entry("twice", many, diverged=[("energy", 0), ("energy", 1)])
    told = comparison(once, twice, many).differences[0]
    assert told.adjusted > 0.05
    assert told.closer is None  # one split more is no evidence


def splits(each):
    cells = [cell for cell in each.verification.cells if cell.dataset == "energy"]
    return [math.inf if cell.scores is None else cell.scores.kl for cell in cells]


def test_an_entry_equals_itself():
    a = entry("a", TABLE)
    for each in comparison(a, a, TABLE).differences:
        assert (each.log_ratio, each.interval, each.p_value, each.adjusted) == (0.0, (0.0, 0.0), 1.0, 1.0)
