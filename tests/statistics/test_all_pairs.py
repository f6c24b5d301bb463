"""The sign-flip test of all pairs: against SciPy for one pair, loops for several, and its error rates."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import permutation_test, rankdata

from fsvi_bench.statistics import all_pairs
from fsvi_bench.statistics.all_pairs import pairwise_p_values
from tests.maths.draws import PROPERTY


def draw_ranks(seed, M=4, D=7, apart=0.4):
    scores = np.random.default_rng(seed).standard_normal((M, D)) + apart * np.arange(M)[:, None]
    return rankdata(scores, axis=0)


def by_loops(ranks):
    """Westfall and Young's step-down p-values, one pair and one flip at a time, with all signs of all data sets."""
    pairs = [(a, b) for a, b in combinations(range(len(ranks)), 2) if (ranks[a] != ranks[b]).any()]

    def t(pair, signs):
        d = ranks[pair[0]] - ranks[pair[1]]
        return abs(sum(signs * d)) / np.sqrt(sum(d**2))

    ones = np.ones(ranks.shape[1])
    p, least = {}, 0.0
    for pair in sorted(pairs, key=lambda pair: -t(pair, ones)):
        rest = [other for other in pairs if t(other, ones) <= t(pair, ones) + 1e-9]
        flips = list(product([-1, 1], repeat=ranks.shape[1]))
        reached = [max(t(other, signs) for other in rest) >= t(pair, ones) - 1e-9 for signs in flips]
        least = p[pair] = max(least, np.mean(reached))
    return p


@PROPERTY
@given(st.integers(0, 10**6))
def test_one_pair_has_the_p_value_of_the_paired_randomisation_test(seed):
    """Of SciPy; both enumerate all signs."""
    a, b = np.random.default_rng(seed).integers(1, 6, size=(2, 8)).astype(float)
    found = permutation_test(
        (a, b), lambda x, y: abs(np.mean(x - y)), permutation_type="samples", alternative="greater"
    )
    assert pairwise_p_values(np.stack([a, b]))[0, 1] == pytest.approx(found.pvalue, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_several_pairs_have_those_of_loops(seed):
    ranks = draw_ranks(seed, apart=0.3 * seed)
    found, expected = pairwise_p_values(ranks), by_loops(ranks)
    assert {pair: found[pair] for pair in expected} == pytest.approx(expected, rel=1e-12)
    np.testing.assert_array_equal(found, found.T)
    assert (np.diag(found) == 1).all()


@PROPERTY
@given(st.integers(0, 10**6), st.permutations(range(4)), st.permutations(range(7)))
def test_order_of_methods_and_data_sets_does_not_matter(seed, methods, datasets):
    ranks, order = draw_ranks(seed), np.array(methods)
    np.testing.assert_allclose(
        pairwise_p_values(ranks[order][:, datasets]), pairwise_p_values(ranks)[np.ix_(order, order)], rtol=1e-12
    )


def test_blocks_of_flips_change_nothing(monkeypatch):
    whole = pairwise_p_values(draw_ranks(0))
    monkeypatch.setattr(all_pairs, "_BLOCK", 6 * 5)  # five flips of six pairs
    np.testing.assert_array_equal(pairwise_p_values(draw_ranks(0)), whole)


def test_fifteen_data_sets_have_all_flips():
    signs = np.concatenate([*all_pairs._signs(15, 1000)])
    assert len(np.unique(signs, axis=0)) == len(signs) == 2**14
    assert (signs[:, -1] == 1).all()


def test_many_data_sets_have_random_flips():
    """17 data sets have 65,536 different flips, of which a quarter is drawn: to four standard errors of that."""
    a, b = draw_ranks(3, M=2, D=17, apart=0.7)
    exact = permutation_test((a, b), lambda x, y: abs(np.mean(x - y)), permutation_type="samples",
                             alternative="greater", n_resamples=2**17).pvalue  # fmt: skip
    assert 0.001 < exact < 0.5
    error = np.sqrt(exact * (1 - exact) / all_pairs.FLIPS)
    assert pairwise_p_values(np.stack([a, b]))[0, 1] == pytest.approx(exact, abs=4 * error)


def outranked_by(ranks):
    return all_pairs.outranked_by(ranks, pairwise_p_values(ranks))


def test_who_outranks_whom():
    """Six data sets: the last is always last, so its p-values are 2/2⁶. The first two are equal."""
    ranks = np.array([[1.5] * 6, [1.5] * 6, [3.0] * 6])
    assert pairwise_p_values(ranks)[0].tolist() == [1.0, 1.0, 2 / 2**6]
    assert outranked_by(ranks) == [[], [], [0, 1]]
    assert outranked_by(ranks[[2, 0]]) == [[1], []]
    assert outranked_by(ranks[:, :5]) == [None] * 3
    assert outranked_by(np.ones((1, 7))) == [[]]


def test_methods_that_are_not_ranked_change_nothing():
    ranks = draw_ranks(1)
    with_another = np.insert(ranks, 1, np.nan, axis=0)
    with_another[1, 2:] = 1.0
    found = pairwise_p_values(with_another)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(np.delete(np.delete(found, 1, 0), 1, 1), pairwise_p_values(ranks))
    places = np.array([0, 2, 3, 4])
    first, *rest = [places[each].tolist() for each in outranked_by(ranks)]
    assert outranked_by(with_another) == [first, None, *rest]
    assert outranked_by(np.full((2, 7), np.nan)) == [None, None]


def test_consistency_counts_and_not_distance():
    """On eight data sets, b is always just behind a, and c is far behind in the mean because of two of them."""
    behind = np.array([[0] * 8, [1, 1, 2, 1, 1, 2, 1, 1], [0, 0, 9, -0.5, 0.5, 9, 0, -0.5]])
    assert outranked_by(1 + behind) == [[], [0], []]


def test_the_observed_signs_are_among_random_ones():
    """On 40 data sets no random flip of the rest reaches the t of a method that is always better."""
    assert pairwise_p_values(np.stack([np.ones(40), np.full(40, 2.0)]))[0, 1] == 1 / all_pairs.FLIPS


@pytest.mark.parametrize("kind", ["equal", "worse ones beside them", "skewed, and worse ones beside them"])
def test_family_wise_error_rate(kind):
    """Of 400 boards of six methods on eight data sets, at most three standard errors above 5%. Three methods are equal,
    or all: then their ranks have the same distribution whatever that of the noise is."""
    errors, equal = 0, 6 if kind == "equal" else 3
    for seed in range(400):
        rng = np.random.default_rng([7, seed])
        noise = rng.exponential(size=(6, 8)) ** 2 if kind.startswith("skewed") else rng.standard_normal((6, 8))
        ranks = rankdata(noise + 2.0 * np.maximum(0, np.arange(6) - equal + 1)[:, None], axis=0)
        errors += bool((pairwise_p_values(ranks)[:equal, :equal] <= all_pairs.LEVEL).any())
    assert errors / 400 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
