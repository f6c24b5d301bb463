"""KSW's eq. 5 and appendix F against the enumeration of every minibatch and every noise of small problems."""

import itertools
import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fsvi_bench.errors import InputError
from fsvi_bench.papers.ksw2015.measuring import (
    Law,
    MinibatchLawSettings,
    draw_rows,
    fit_law,
    law_of,
)

N, STATES = 4, 3


def population():
    """log p of N points under each of STATES equally likely noises."""
    return -np.random.default_rng(0).exponential(size=(STATES, N))


def exact_law(values, shares_noise):
    means = values.mean(0)
    shared = values.mean(1).var() if shares_noise else 0.0
    return Law(
        N=N,
        mean_log_likelihood=means.mean(),
        second_moment=np.mean(means**2),
        variance_of_means=means.var(),
        mean_variance=values.var(0).mean(),
        shared=shared,
        excess_kurtosis=0.0,
    )


def enumerated_variance(values, M, sampling, shares_noise):
    batches = (
        itertools.product(range(N), repeat=M) if sampling == "with-replacement" else itertools.combinations(range(N), M)
    )
    estimates = []
    for batch in batches:
        noises = [(s,) * M for s in range(STATES)] if shares_noise else itertools.product(range(STATES), repeat=M)
        estimates += [np.mean([values[s, i] for s, i in zip(noise, batch, strict=True)]) for noise in noises]
    return np.var(estimates)


@pytest.mark.parametrize("sampling", ["with-replacement", "without-replacement"])
@pytest.mark.parametrize("shares_noise", [True, False])
@pytest.mark.parametrize("M", [1, 2, 3, 4])
def test_the_law_equals_enumeration(M, shares_noise, sampling):
    values = population()
    expected = enumerated_variance(values, M, sampling, shares_noise)
    assert exact_law(values, shares_noise).predicted(M, sampling) == pytest.approx(expected, rel=1e-12)


def test_the_printed_bound_of_appendix_f_can_be_broken_and_the_corrected_one_not():
    # Certain of three points and very wrong about one, as trained networks are; noise next to nothing.
    values = np.array([[0.0, 0.0, 0.0, -8.0]]) + 1e-3 * population()
    for shares_noise in (True, False):
        law = exact_law(values, shares_noise)
        for M in (1, 2, 3):
            exact = enumerated_variance(values, M, "without-replacement", shares_noise)
            assert law.bound(law.second_moment, M) > exact
        assert law.bound(law.mean_log_likelihood**2, 1) < 0.5 * enumerated_variance(
            values, 1, "without-replacement", shares_noise
        )


def test_the_parts_of_the_law_are_estimated_without_bias():
    # 1,000 experiments of 4 passes: a bias of the order of 1/4 of a part would be seen at once.
    rng, values, R = np.random.default_rng(2), population(), 4
    for shares_noise in (True, False):
        truth = exact_law(values, shares_noise)
        states = rng.integers(STATES, size=(1000, R, 1 if shares_noise else N))
        passes = values[states, np.arange(N)]
        laws = [law_of(torch.from_numpy(p), shares_noise) for p in passes]
        for part in ("mean_log_likelihood", "second_moment", "variance_of_means", "mean_variance", "shared"):
            estimates = np.array([getattr(law, part) for law in laws])
            error = estimates.std(ddof=1) / math.sqrt(len(estimates))
            assert abs(estimates.mean() - getattr(truth, part)) <= 4 * error, part


def test_the_fit_recovers_the_law_and_its_errors():
    M, V, C = np.array([1, 3, 10, 100]), 2.0, 0.3
    exact = V / M + (1 - 1 / M) * C
    errors = 0.1 * exact
    fit = fit_law(M, exact, errors)
    assert (fit["V"], fit["C"]) == pytest.approx((V, C), rel=1e-12)
    rng = np.random.default_rng(0)
    fits = [fit_law(M, exact + errors * rng.standard_normal(4), errors) for _ in range(2000)]
    for name in ("V", "C"):
        seen = np.std([each[name] for each in fits])
        assert fit[f"{name}_error"] == pytest.approx(seen, rel=4 / math.sqrt(2 * 2000))


def test_the_error_of_a_variance_counts_heavy_tails():
    # Means of M exponentials: excess kurtosis 6/M.
    law, M, R = exact_law(population(), False), 3, 50
    law = law._replace(variance_of_means=0.0, mean_variance=1.0, excess_kurtosis=6.0)
    draws = np.random.default_rng(0).exponential(size=(4000, R, M)).mean(-1)
    seen = draws.var(axis=1, ddof=1).std()
    assert law.error_of_a_variance(M, R, "with-replacement") == pytest.approx(seen, rel=0.06)


@pytest.mark.parametrize("changes", [{"sizes": (5,)}, {"sizes": (0, 1)}, {"repetitions": 2}, {"passes": 1}])
def test_impossible_measurements_are_refused(changes):
    with pytest.raises(ValidationError):
        MinibatchLawSettings(**{"sizes": (1, 2), "repetitions": 3, "passes": 3, **changes})


def test_minibatches_without_replacement_are_no_larger_than_the_data():
    with pytest.raises(InputError, match="at most 10"):
        draw_rows(10, 11, "without-replacement", [torch.Generator()])
