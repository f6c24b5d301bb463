"""KSW's eq. 5 and appendix F against the enumeration of every minibatch and every noise of small problems."""

import itertools
import math

import numpy as np
import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.papers.ksw2015.data import load_digits
from fsvi_bench.papers.ksw2015.gradient_variance import Estimate
from fsvi_bench.papers.ksw2015.layers import NoiseSettings
from fsvi_bench.papers.ksw2015.minibatch_law import Law, MinibatchLawSettings, fit_law, law_of, minibatch_law
from fsvi_bench.papers.ksw2015.network import NetworkSettings
from fsvi_bench.papers.ksw2015.train import build

N, STATES = 4, 3


def population():
    """log p of N points under each of STATES equally likely noises."""
    return -np.random.default_rng(0).exponential(size=(STATES, N))


def exact_law(values, shares_noise):
    means = values.mean(0)
    shared = values.mean(1).var() if shares_noise else 0.0
    return Law(N, means.mean(), np.mean(means**2), means.var(), values.var(0).mean(), shared, 0.0)


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
            assert law.corrected_bound(M) > exact
        assert law.paper_bound(1) < 0.5 * enumerated_variance(values, 1, "without-replacement", shares_noise)


def test_the_parts_of_the_law_are_estimated_without_bias():
    # 3,000 experiments of 4 passes: a bias of the order of 1/4 of a part would be seen at once.
    rng, values, R = np.random.default_rng(2), population(), 4
    for shares_noise in (True, False):
        truth = exact_law(values, shares_noise)
        states = rng.integers(STATES, size=(3000, R, 1 if shares_noise else N))
        passes = values[states, np.arange(N)]
        laws = [law_of(torch.from_numpy(p), shares_noise) for p in passes]
        for part in ("mean_log_likelihood", "second_moment", "variance_of_means", "mean_variance", "shared"):
            estimates = np.array([getattr(law, part) for law in laws])
            error = estimates.std(ddof=1) / math.sqrt(len(estimates))
            assert abs(estimates.mean() - getattr(truth, part)) <= 4 * error, part


def test_the_fit_recovers_the_law_and_its_errors():
    sizes, V, C = (1, 3, 10, 100), 2.0, 0.3
    exact = [V / M + (1 - 1 / M) * C for M in sizes]
    errors = [0.1 * v for v in exact]
    fitted_V, fitted_C, chi_square = fit_law(sizes, exact, errors)
    assert (fitted_V.value, fitted_C.value) == pytest.approx((V, C), rel=1e-12)
    assert chi_square < 1e-20
    rng = np.random.default_rng(0)
    fits = [fit_law(sizes, list(exact + errors * rng.standard_normal(4)), errors) for _ in range(2000)]
    for k, claimed in ((0, fitted_V), (1, fitted_C)):
        seen = np.std([fit[k].value for fit in fits])
        assert claimed.standard_error == pytest.approx(seen, rel=4 / math.sqrt(2 * 2000))
    assert np.mean([fit[2] for fit in fits]) == pytest.approx(2, rel=0.15)  # χ² on two degrees of freedom


def test_the_error_of_a_variance_counts_heavy_tails():
    # Means of M exponentials: excess kurtosis 6/M.
    law, M, R = Law(1000, 0.0, 0.0, 0.0, 1.0, 0.0, 6.0), 3, 50
    draws = np.random.default_rng(0).exponential(size=(4000, R, M)).mean(-1)
    seen = draws.var(axis=1, ddof=1).std()
    assert law.error_of_a_variance(M, R, "with-replacement") == pytest.approx(seen, rel=0.06)


@pytest.mark.parametrize("sampling", ["with-replacement", "without-replacement"])
def test_measured_variances_follow_the_law_on_a_network(sampling):
    images = load_digits()
    net = build(images, NetworkSettings(16, noise=NoiseSettings("variational-b")), 0)
    settings = MinibatchLawSettings((1, 10, 100), 150, 150, sampling=sampling)
    local, shared = minibatch_law(net, images, settings)
    for law in (local, shared):
        errors = [law.law.error_of_a_variance(M, 150, sampling) for M in law.sizes]
        for variance, predicted, error in zip(law.variances, law.predicted, errors, strict=True):
            assert isinstance(variance, Estimate)
            assert abs(variance.value - predicted) < 4 * error
    assert abs(local.fitted_C.value) < 4 * local.fitted_C.standard_error
    assert local.law.shared == 0
    assert shared.fitted_C.value > 4 * shared.fitted_C.standard_error
    assert abs(shared.fitted_V.value - shared.law.V) < 4 * shared.fitted_V.standard_error


def test_the_same_seed_measures_the_same():
    images = load_digits()
    net = build(images, NetworkSettings(8, noise=NoiseSettings("variational-b")), 0)
    settings = [MinibatchLawSettings((1, 10), 10, 10, seed=seed) for seed in (0, 0, 1)]
    one, again, other = (minibatch_law(net, images, s) for s in settings)
    assert one == again
    assert one != other


@pytest.mark.parametrize(
    "changes", [{"sizes": (5,)}, {"repetitions": 2}, {"passes": 1}, {"sampling": "fixed"}, {"sampling": "x"}]
)
def test_impossible_measurements_are_refused(changes):
    with pytest.raises(InputError):
        MinibatchLawSettings(**changes)


def test_a_variance_without_an_error_cannot_be_fitted():
    with pytest.raises(InputError, match="noisy network"):
        fit_law((1, 2), [1.0, 1.0], [0.1, 0.0])
