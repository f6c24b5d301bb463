"""Statistics of splits that share rows, and what claims make of them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fsvi_bench.papers.claims import Claim, Place, Statistic, Worst

INF = math.inf


def outcome(values, side="above", threshold=0.0):
    verdict = Claim(statistic="s", says="so", side=side, threshold=threshold).judge(Statistic.of_splits(values))
    return "held" if verdict.holds else "undecided" if verdict.undecided else "did not hold"


def test_the_interval_over_splits_is_wider_by_what_they_share():
    values = np.random.default_rng(0).standard_normal(20)
    found = Statistic.of_splits(values.tolist())
    half = stats.t.ppf(0.975, 19) * values.std(ddof=1) * math.sqrt(1 / 20 + 1 / 9)
    assert found == pytest.approx((values.mean(), values.mean() - half, values.mean() + half), rel=1e-12)
    assert Statistic.of_splits(values.tolist(), 0.0) == pytest.approx(Statistic.of_mean(values.tolist()), rel=1e-12)


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
        ([math.nan, 1.0, 1.0], "did not hold"),
    ],
)
def test_infinite_differences_outweigh_finite_ones_unless_all_agree(values, expected):
    assert outcome(values) == expected


def test_an_infinite_mean_has_its_sign_and_equal_numbers_of_both_have_none():
    assert Statistic.of_splits([INF, 1.0, -5.0]).value == INF
    assert Statistic.of_splits([-INF, 1.0, 5.0]).value == -INF
    assert Statistic.of_splits([INF, 1.0, 5.0]) == (INF, INF, INF)
    assert Statistic.of_splits([-INF, INF, 5.0]) == (0.0, -INF, INF)
    # One split of twenty on the claimed side, infinitely far, does not carry the others over the threshold.
    assert Statistic.of_splits([INF] + [0.1] * 19, about=0.7) == (INF, -INF, INF)
    assert Statistic.of_splits([INF] + [0.8] * 19, about=0.7) == (INF, INF, INF)


def test_a_verdict_says_which_case_decided():
    claim = Claim(statistic="greatest of all", says="so", side="below", threshold=1.0)
    verdict = claim.judge(Worst(Statistic(0.5, 0.25, 2.0), "protein"))
    assert verdict.statistic == "greatest of all (protein)"
    assert (verdict.value, verdict.low, verdict.high, verdict.holds) == (0.5, 0.25, 2.0, False)
    assert claim.judge(Statistic.exact(0.5)).statistic == "greatest of all"


def test_a_claim_may_say_where_its_statistic_stands():
    frames = {"f": pd.DataFrame({"kind": ["a", "b", "b"], "x": [1.0, 2.0, 4.0]})}
    assert Place(frame="f", column="x", where={"kind": "b"}).of(frames) == [2.0, 4.0]
    assert Place(frame="f", column="x", by="kind").of(frames) == {"a": [1.0], "b": [2.0, 4.0]}
    claim = Claim(statistic="s", says="so", side="below", threshold=0.0, magnitude=True)
    assert claim.judge([-3.0]).value == 3.0
    with pytest.raises(ValueError, match="size 1"):
        claim.judge([2.0, 4.0])
