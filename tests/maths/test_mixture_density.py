"""Predictive densities of Bernoulli and spike-and-slab models against all 2ᵏ Gaussians, and their identities."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsvi_bench.maths.gaussian import normal_log_density
from fsvi_bench.maths.mixtures import (
    bernoulli_dropout_weights,
    mixture_log_density,
    spike_and_slab_weights,
)
from tests.maths.draws import PROPERTY, close, f64, ones, seeds
from tests.maths.mixtures import (
    MixtureProblem,
    enumerated_log_density,
    fast,
    many_digits_log_density,
    random_problem,
    weights_of,
)

KINDS = [
    "probability per weight",
    "one probability",
    "some certain, some zero",
    "equal sizes",
    "low noise",
    "wide range of sizes",
    "slab",
    "slab, low noise",
]

# --- Against enumeration ----------------------------------------------------------------------------------------------


def test_between_atoms_far_apart():
    """The value that the issue gives, and the same with forty digits: plain inversion misses it by 1,000 nats."""
    q = bernoulli_dropout_weights(f64([1, 0.01, 0.02]), 0.9)
    result = mixture_log_density(f64([0.5]), ones(1, 3), q, 0.01**2)
    assert float(result.log_density) == pytest.approx(-1103.3271, abs=5e-5)
    exact = many_digits_log_density("0.5", ["1", "0.01", "0.02"], "0.9", "0.01")
    # eps times the exponent of 1e3, and what rounding 0.9, 0.01 and 1e-4 to doubles does to the problem itself.
    assert float(result.log_density) == pytest.approx(exact, abs=1e-11)
    assert bool(result.reliable)


@settings(PROPERTY, max_examples=25)
@given(seed=seeds, kind=st.sampled_from(KINDS))
def test_density_equals_that_of_all_atoms_and_its_imprecision_is_honest(seed, kind):
    """Up to 10 predictive standard deviations out. What is not reliable is so because the log density itself is
    beyond 1e8, whose spacing as a double is 1e-8; everything else agrees to a relative 1e-11."""
    problem = random_problem(seed, kind)
    result, expected = fast(problem), enumerated_log_density(problem)
    error = np.abs(result.log_density.numpy() - expected)
    assert (error <= 10 * result.imprecision.numpy()).all()
    assert (error <= 1e-8 + 1e-11 * np.abs(expected)).all()
    assert result.reliable.numpy()[np.abs(expected) < 1e7].all()


def problem_of(y, drop, mean, scale, noise_variance):
    Phi = np.ones((len(y), len(mean)))
    return MixtureProblem(
        np.array(y, dtype=float), Phi, *(np.array(v, dtype=float) for v in (drop, mean, scale)), noise_variance
    )


EXTREMES = {
    "atoms a million noise deviations apart": problem_of([0, 1e6, 2e6, 3e6], [0.5, 0.2], [1e6, 2e6], [0, 0], 1.0),
    "hardly ever on": problem_of([0, 1, 0.5, 10], [1 - 1e-15] * 3, [1, 2, 3], [0] * 3, 0.01),
    "hardly ever off": problem_of([0, 1, 6, 10], [1e-300, 1e-16, 1e-4], [1, 2, 3], [0] * 3, 0.01),
    "next to no noise": problem_of([0, 1, 3, 6], [0.5] * 3, [1, 2, 3], [0] * 3, 1e-20),
    "nothing but noise": problem_of([0, 1, 6, 10], [0.5] * 3, [1, 2, 3], [0] * 3, 1e20),
    "slabs of all widths": problem_of([0, 1e-3, 0.5, 30], [0.7] * 12, [0] * 12, 10.0 ** np.linspace(-4, 2, 12), 1e-6),
    "every sum a different atom": problem_of(
        [0.3, 100.2, 2e3, 2047.5], [0.6] * 12, 2.0 ** np.arange(12), [0] * 12, 1e-2
    ),
}


@pytest.mark.parametrize("case", EXTREMES)
def test_extremes(case):
    """Where numbers differ by orders of magnitude, the imprecision is honest and still small."""
    result, expected = fast(EXTREMES[case]), enumerated_log_density(EXTREMES[case])
    error = np.abs(result.log_density.numpy() - expected)
    assert result.reliable.all()
    assert (error <= 10 * result.imprecision.numpy()).all()


@PROPERTY
@given(seed=seeds)
def test_a_weight_always_on_is_a_plain_gaussian(seed):
    """p = 1 leaves N(φᵀm, σ²), or N(φᵀm, Σφ²s² + σ²), to rounding."""
    problem = random_problem(seed, "slab")._replace(noise_variance=0.25)
    y, Phi, q = torch.from_numpy(problem.y), torch.from_numpy(problem.Phi), weights_of(problem)
    noise = torch.full_like(y, 0.25)
    slab = spike_and_slab_weights(0.0, q.mean, q.scale)
    expected = normal_log_density(y, Phi @ q.mean, Phi.square() @ q.scale.square() + noise)
    close(mixture_log_density(y, Phi, slab, 0.25).log_density, expected, rtol=1e-13, atol=1e-13)
    expected = normal_log_density(y, Phi @ q.mean, noise)
    got = mixture_log_density(y, Phi, bernoulli_dropout_weights(q.mean, 1.0), 0.25).log_density
    close(got, expected, rtol=1e-13, atol=1e-13)


def test_tiny_spike_weights_keep_their_digits():
    """A spike of weight 1e-18 rules where y = 0 is 40 slab deviations out, though 1 − 1e-18 is 1 as a double."""
    q = spike_and_slab_weights(1e-18, f64([4.0]), f64([0.1]))
    result = mixture_log_density(f64([0.0]), f64([[1.0]]), q, 1e-4)
    spike = math.log(1e-18) - 0.5 * math.log(2 * math.pi * 1e-4)
    assert float(result.log_density) == pytest.approx(spike, rel=1e-14)


# --- Identities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_point_does_not_depend_on_its_batch(kind):
    """To the bit, though some points need enumeration and others do not."""
    problem = random_problem(11, kind, deviations=(0, 0.2, -0.5, 3, 10, -10, 1, 0.7, -2, 20, 0.01))
    whole = fast(problem)
    for rows in (slice(0, 1), slice(3, 4), slice(2, 7), slice(5, 11)):
        part = fast(problem._replace(y=problem.y[rows], Phi=problem.Phi[rows]))
        assert torch.equal(part.log_density, whole.log_density[rows])
        assert torch.equal(part.imprecision, whole.imprecision[rows])


def test_no_points_at_all():
    q = bernoulli_dropout_weights(f64([1, 2]), 0.5)
    assert mixture_log_density(f64([]), torch.empty(0, 2, dtype=torch.float64), q, 1.0).log_density.shape == (0,)


# --- How far to trust it ----------------------------------------------------------------------------------------------


def test_sums_that_cancel_are_flagged():
    """φᵀw of the atom at 0 is known to 1e-16 only, which is a tenth of σ."""
    problem = problem_of([0.0], [0.01] * 3, [1, 1 / 3, -(1 + 1 / 3)], [0] * 3, 1e-30)
    result = fast(problem)
    error = abs(float(result.log_density) - float(enumerated_log_density(problem)[0]))
    assert error > 1e-6
    assert error <= 10 * float(result.imprecision)
    assert not bool(result.reliable)


def lattice(k, sigma):
    """Far too many atoms to enumerate, and y in the middle between two of them."""
    q = bernoulli_dropout_weights(ones(k), 0.5)
    y = f64([k / 2 + 0.5, k / 2])
    return mixture_log_density(y, ones(2, k), q, sigma**2)


def test_what_cannot_be_reached_is_flagged():
    result = lattice(60, 0.02)
    between, on_atom = -0.5 * (0.5 / 0.02) ** 2, math.lgamma(61) - 2 * math.lgamma(31)
    assert not bool(result.reliable[0])
    assert float(result.imprecision[0]) == math.inf
    assert float(result.log_density[0]) > between  # the error bound stands in
    exact = on_atom - 60 * math.log(2) - math.log(0.02 * math.sqrt(2 * math.pi))
    assert bool(result.reliable[1])
    assert float(result.log_density[1]) == pytest.approx(exact, abs=10 * float(result.imprecision[1]))


def test_log_densities_beyond_a_doubles_digits_are_flagged():
    q = bernoulli_dropout_weights(f64([1.0, 2.0]), 0.5)
    result = mixture_log_density(f64([1e3, 1e6]), f64([[1.0, 1.0], [1.0, 1.0]]), q, 1.0)
    assert result.reliable.tolist() == [True, False]
    close(result.log_density[1], -0.5 * (1e6 - 3) ** 2, rtol=1e-11)


def test_points_that_are_not_finite_do_not_affect_others():
    problem = random_problem(4, "one probability")
    before = fast(problem)
    y, Phi = problem.y.copy(), problem.Phi.copy()
    y[1], Phi[2, 0] = math.nan, math.inf
    after = fast(problem._replace(y=y, Phi=Phi))
    assert after.log_density.isnan().tolist() == [False, True, True, False, False, False]
    assert not after.reliable[1:3].any()
    untouched = [0, 3, 4, 5]
    assert torch.equal(after.log_density[untouched], before.log_density[untouched])
