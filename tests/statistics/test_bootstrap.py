"""The hierarchical bootstrap: against loops with the same draws, its moments, its coverage."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsvi_bench.errors import InputError
from fsvi_bench.statistics.bootstrap import (
    bootstrap_ranks,
    bootstrap_run_ranks,
    draw_counts,
)
from fsvi_bench.statistics.ranks import dataset_ranks
from tests.maths.draws import PROPERTY

SHAPES = {"boston": (4, 3), "wine": (2, 1), "concrete": (5, 2)}


def random_scores(seed, M=5, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((M, *shape)) + np.arange(M)[:, None, None] / 3 for name, shape in shapes.items()}


def by_loops(scores, seed, R):
    """The same draws, one resample, one data set, one split at a time."""
    generator, names = np.random.default_rng(seed), sorted(scores)
    M, D = len(next(iter(scores.values()))), len(scores)
    drawn, totals = generator.integers(D, size=(R, D)), np.zeros((R, M))
    for d, name in enumerate(names):
        table = scores[name]
        _, J, S = table.shape
        resamples = [r for r in range(R) for slot in range(D) if drawn[r, slot] == d]
        splits = generator.integers(J, size=(len(resamples), J, 1))
        seeds = generator.integers(S, size=(len(resamples), J, S))
        for n, r in enumerate(resamples):
            means = [np.mean([[table[m, splits[n, j, 0], s] for s in seeds[n, j]] for j in range(J)]) for m in range(M)]
            for m in range(M):
                lower = sum(other < means[m] for other in means)
                equal = sum(other == means[m] for other in means)
                totals[r, m] += 1 + lower + (equal - 1) / 2
    return totals / D


def test_it_is_what_loops_make_of_the_same_draws():
    """Ranks compare bit by bit: no two means of continuous scores are nearer than rounding."""
    scores = random_scores(0)
    scores["wine"][3, 1] = math.inf
    scores["boston"][[1, 3], 2, 1] = math.inf
    result = bootstrap_ranks(scores, np.random.default_rng(7), 50)
    np.testing.assert_allclose(result.resampled, by_loops(scores, 7, 50), rtol=1e-14)
    means = np.array([scores[name].mean((1, 2)) for name in scores]).T
    np.testing.assert_allclose(result.mean_rank, dataset_ranks(means).mean(1), rtol=1e-14)


def test_draws_are_hierarchical():
    """Var of a resampled mean: (between splits)/J + (within splits)/(JS), population variances; 4 standard errors."""
    x = np.random.default_rng(0).standard_normal((4, 3)) + np.array([0, 1, 3, 7])[:, None]
    counts = draw_counts(np.random.default_rng(1), 40_000, 4, 3)
    assert (counts.sum(1) == 12).all()
    per_split = counts.reshape(-1, 4, 3).sum(2)
    assert (per_split % 3 == 0).all()  # a drawn split brings three seeds
    means = counts @ x.ravel() / 12
    variance = x.mean(1).var() / 4 + x.var(1).mean() / 12
    assert means.mean() == pytest.approx(x.mean(), abs=4 * math.sqrt(variance / 40_000))
    assert means.var() == pytest.approx(variance, rel=4 * math.sqrt(2 / 40_000))


@PROPERTY
@given(st.integers(0, 10**6), st.permutations(range(5)))
def test_order_of_methods_and_data_sets_does_not_matter(seed, order):
    scores = random_scores(seed)
    scores["wine"][2], scores["boston"][4, 1] = scores["wine"][1], math.inf
    result = bootstrap_ranks(scores, np.random.default_rng(seed), 40)
    turned = {name: scores[name][list(order)] for name in sorted(scores, reverse=True)}
    again = bootstrap_ranks(turned, np.random.default_rng(seed), 40)
    np.testing.assert_array_equal(again.mean_rank, result.mean_rank[list(order)])
    np.testing.assert_array_equal(again.resampled, result.resampled[:, list(order)])


def test_equal_methods_tie_in_every_resample():
    """37 columns: a product by BLAS rounds the last ones otherwise than the first."""
    row = np.random.default_rng(0).standard_normal((1, 20, 3))
    result = bootstrap_ranks({"a": np.repeat(row, 37, 0), "b": np.repeat(row, 37, 0)}, np.random.default_rng(0), 100)
    assert (result.resampled == 19).all()


def test_incomplete_methods_are_not_ranked_and_move_nobody():
    scores = random_scores(3)
    without = {name: np.delete(table, 2, 0) for name, table in scores.items()}
    scores["concrete"][2, 4, 1] = math.nan
    result = bootstrap_ranks(scores, np.random.default_rng(0), 30)
    expected = bootstrap_ranks(without, np.random.default_rng(0), 30)
    assert result.intervals()[2] is None
    np.testing.assert_array_equal(np.delete(result.resampled, 2, 1), expected.resampled)
    none = bootstrap_ranks({"a": np.full((2, 1, 1), math.nan)}, np.random.default_rng(0), 3)
    assert none.intervals() == [None, None]


@pytest.mark.parametrize(
    ("scores", "R", "said"),
    [
        ({}, 10, "got 0 data sets"),
        ({"a": np.zeros((2, 1, 1))}, 0, "0 resamples"),
        ({"a": np.zeros((2, 1, 1)), "b": np.zeros((3, 1, 1))}, 1, r"'b' have shape \[3, 1, 1\], expected \[2 methods"),
        ({"a": np.zeros((2, 0, 1))}, 1, "'a' have shape"),
        ({"a": np.full((2, 1, 1), -math.inf)}, 1, "-Infinity"),
    ],
)
def test_what_is_refused(scores, R, said):
    with pytest.raises(InputError, match=said):
        bootstrap_ranks(scores, np.random.default_rng(0), R)


@pytest.mark.slow
def test_coverage_of_rank_intervals():
    """300 leaderboards of 12 data sets from a population; the true mean ranks are over 20,000 data sets without noise.

    Methods differ by data set (sd 1) and split (sd 0.3); nominal 95 %. Percentile intervals of so few data sets may
    cover less: 87 % is asked for on average, and no more than 99 %.
    """
    shift = np.array([0.0, 0.5, 1.0, 2.0])

    def population(rng, D):
        return shift + rng.standard_normal((D, 4))

    truth = dataset_ranks(population(np.random.default_rng(0), 20_000).T).mean(1)
    covered = np.zeros(4)
    for seed in range(300):
        rng = np.random.default_rng([1, seed])
        effects = population(rng, 12)
        scores = {f"{d}": effects[d][:, None, None] + 0.3 * rng.standard_normal((4, 10, 1)) for d in range(12)}
        intervals = bootstrap_ranks(scores, rng, 500).intervals()
        covered += [ends.low <= rank <= ends.high for ends, rank in zip(intervals, truth, strict=True)]
    assert 0.87 < (covered / 300).mean() < 0.99
    assert (covered / 300).min() > 0.80


def test_ranks_within_runs_are_averaged_over_runs_then_data_sets_and_resampled_by_weight():
    ranks = {"b": np.array([[1.0, 1.0, 2.0], [2.0, 2.0, 1.0]]), "a": np.array([[1.0], [2.0]])}
    found = bootstrap_run_ranks(ranks, np.random.default_rng(0), 400)
    assert found.mean_rank == pytest.approx([(4 / 3 + 1) / 2, (5 / 3 + 2) / 2])
    assert found.resampled.sum(1) == pytest.approx(3)  # two methods always share three ranks
    assert found.resampled.mean(0) == pytest.approx(found.mean_rank, abs=4 * found.resampled[:, 0].std() / 20)
    # Data sets alone would give three values: both means, and that of both.
    assert len(np.unique(found.resampled[:, 0].round(9))) > 3
    again = bootstrap_run_ranks(dict(sorted(ranks.items())), np.random.default_rng(0), 400)
    assert (again.resampled == found.resampled).all()
