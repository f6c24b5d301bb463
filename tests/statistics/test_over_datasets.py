"""Ranks, Wilcoxon's test and Holm's correction: Demšar's published examples, enumeration, SciPy."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, wilcoxon

from fsvi_bench.errors import InputError
from fsvi_bench.statistics.ranks import (
    dataset_ranks,
    holm,
    signed_rank_test,
)
from tests.maths.draws import PROPERTY
from tests.statistics.demsar import AS_RANKED, AUC, MEAN_RANKS

INF, NAN = math.inf, math.nan

# --- Ranks ------------------------------------------------------------------------------------------------------------


def test_mean_ranks_of_demsars_table():
    assert dataset_ranks(1 - AS_RANKED).mean(1) == pytest.approx(MEAN_RANKS, abs=5e-4)


def test_what_is_missing_is_not_ranked_and_moves_nobody():
    scores = np.array([[1.0, 4.0], [NAN, 0.0], [2.0, 3.0]])
    np.testing.assert_array_equal(dataset_ranks(scores), [[1, 2], [NAN, NAN], [2, 1]])
    assert np.isnan(dataset_ranks([[NAN], [NAN]])).all()


@PROPERTY
@given(st.integers(0, 10**6))
def test_ranks_are_counts(seed):
    """1 + how many are lower + half of how many others are equal."""
    scores = np.random.default_rng(seed).integers(0, 4, (5, 6)).astype(float)
    scores[scores == 3] = INF
    ranks = dataset_ranks(scores)
    for m, d in itertools.product(range(5), range(6)):
        lower, equal = (scores[:, d] < scores[m, d]).sum(), (scores[:, d] == scores[m, d]).sum() - 1
        assert ranks[m, d] == 1 + lower + 0.5 * equal


@pytest.mark.parametrize(
    ("scores", "said"), [([1.0, 2.0], r"shape \[2\]"), ([[1.0, -INF]], "-Infinity"), (np.zeros((2, 0)), "shape")]
)
def test_no_table(scores, said):
    with pytest.raises(InputError, match=said):
        dataset_ranks(scores)


# --- Wilcoxon ---------------------------------------------------------------------------------------------------------


def test_demsars_signed_ranks():
    """Section 3.1.3: R+ = 93, R− = 12 with two zeros; at α = 0.05 and N = 14 the critical value is 21."""
    differences = (AUC[1] - AUC[0]).round(3)
    ranks = rankdata(np.abs(differences))
    zeros = ranks[differences == 0].sum() / 2
    assert (ranks[differences > 0].sum() + zeros, ranks[differences < 0].sum() + zeros) == (93, 12)
    assert signed_rank_test(differences) == pytest.approx(p_by_enumeration(differences), rel=1e-12)
    assert signed_rank_test(differences) < 0.05


def p_by_enumeration(d):
    """All signs of the differences that are not 0."""
    ranks = rankdata(np.abs(d))
    zeros = ranks[d == 0].sum() / 2
    sums = [
        zeros + sum(rank for rank, sign in zip(ranks[d != 0], signs, strict=True) if sign)
        for signs in itertools.product([0, 1], repeat=int((d != 0).sum()))
    ]
    seen, middle = zeros + ranks[d > 0].sum(), len(d) * (len(d) + 1) / 4
    return np.mean(np.abs(np.array(sums) - middle) >= abs(seen - middle))


@PROPERTY
@given(st.lists(st.sampled_from([-INF, -2.0, -1.0, -0.5, 0.0, 1.0, 1.5, 2.0, INF]), min_size=1, max_size=9))
def test_p_values_are_shares_of_all_signs(differences):
    """The lower tail doubled is the share as far out on either side: the distribution is symmetric."""
    assert signed_rank_test(differences) == pytest.approx(p_by_enumeration(np.array(differences)), rel=1e-12)


@PROPERTY
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_without_ties_it_is_scipys_exact_test(seed, n):
    d = np.random.default_rng(seed).standard_normal(n) + 0.3
    assert signed_rank_test(d) == pytest.approx(wilcoxon(d, method="exact").pvalue, rel=1e-9)


def test_infinities_are_the_largest_and_tie():
    """Ranks 1, 3.5 four times, and 6 for the infinite one: 1 + 4 + 1 + 4 + 1 of 64 sign patterns have a sum up to 6."""
    assert signed_rank_test([INF, -1, -1, -0.5, -1, -1]) == 22 / 64
    assert signed_rank_test([INF, INF, 1, 2, 3, INF]) == 2 / 64
    assert signed_rank_test([0, 0]) == 1.0


# --- Holm -------------------------------------------------------------------------------------------------------------


def test_holm_rejects_what_demsar_rejects():
    """Section 3.2.2: 0.016, 0.019 and 0.607 against 0.017, 0.025 and 0.050: the first two."""
    np.testing.assert_array_equal(holm([0.607, 0.019, 0.016]) <= 0.05, [False, True, True])


@PROPERTY
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.999))
def test_holm_is_the_step_down_procedure(p_values, alpha):
    order, rejected = np.argsort(p_values), set()
    for i, place in enumerate(order):
        if p_values[place] * (len(order) - i) > alpha:
            break
        rejected.add(int(place))
    assert set(np.flatnonzero(holm(p_values) <= alpha).tolist()) == rejected


@pytest.mark.parametrize("p", [-0.1, 1.1, NAN])
def test_no_probability(p):
    with pytest.raises(InputError, match="p_values"):
        holm([0.5, p])
