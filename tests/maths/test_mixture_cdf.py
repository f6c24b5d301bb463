"""Predictive distribution functions of Bernoulli and spike-and-slab models against all 2ᵏ Gaussians, and identities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsvi_bench.errors import InputError
from fsvi_bench.maths.mixtures import (
    bernoulli_dropout_weights,
    mixture_cdf,
    mixture_log_density,
)
from tests.maths.draws import PROPERTY, close, f64, linspace, ones, seeds
from tests.maths.mixtures import MixtureProblem, enumerated_cdf, random_problem, weights_of
from tests.maths.test_mixture_density import EXTREMES, KINDS

DEVIATIONS = (0, 0.3, -1, 2, -3, 10, -10)


def cdf_of(problem: MixtureProblem):
    return mixture_cdf(
        torch.from_numpy(problem.y), torch.from_numpy(problem.Phi), weights_of(problem), problem.noise_variance
    )


@settings(PROPERTY, max_examples=40)
@given(seed=seeds, kind=st.sampled_from(KINDS))
def test_it_is_the_sum_over_all_atoms(seed, kind):
    """Up to 12 weights, jumps of up to 1e4 noise deviations: 1e-11 is left of phases of 1e5, and the bound covers it."""
    problem = random_problem(seed, kind, DEVIATIONS)
    result = cdf_of(problem)
    error = np.abs(result.probability.numpy() - enumerated_cdf(problem))
    assert (error <= result.error.numpy() + 1e-15).all()
    assert (error < 1e-11).all()
    assert (result.error.numpy() < 1e-9).all()


@pytest.mark.parametrize("case", EXTREMES)
def test_extremes_are_right_or_said_to_be_unknown(case):
    result, expected = cdf_of(EXTREMES[case]), enumerated_cdf(EXTREMES[case])
    known = ~result.probability.isnan().numpy()
    assert (np.abs(result.probability.numpy() - expected)[known] <= result.error.numpy()[known] + 1e-15).all()
    assert (result.error.numpy()[known] < 1e-9).all()
    assert (result.error.numpy()[~known] == 1).all()
    too_far = ("atoms a million noise deviations apart", "next to no noise", "slabs of all widths")
    assert known.all() == (case not in too_far)


def test_it_rises_from_zero_to_one_with_the_density_for_its_slope():
    """Forty weights, far too many atoms to add up. Simpson's rule over [y, y + h]: h⁴ f'''' is 1e-12 here. Never outside
    [0, 1], and exactly 0 and 1 far out."""
    rng = np.random.default_rng(3)
    Phi, m = f64(rng.standard_normal((1, 40))), f64(rng.standard_normal(40))
    q, centre, h = bernoulli_dropout_weights(m, 0.7), float((Phi @ (0.7 * m))[0]), 0.01
    y, rows = centre + linspace(-12, 12, 49), Phi.expand(49, -1)
    gained = mixture_cdf(y + h, rows, q, 0.5).probability - mixture_cdf(y, rows, q, 0.5).probability
    density = [mixture_log_density(y + place, rows, q, 0.5).log_density.exp() for place in (0, h / 2, h)]
    close(gained, h / 6 * (density[0] + 4 * density[1] + density[2]), rtol=0, atol=1e-12)
    assert float(density[0].max()) > 0.05
    far = mixture_cdf(f64([-1e300, -1e9, -1e4, -60, 60, 1e4, 1e300]) + centre, Phi.expand(7, -1), q, 0.5)
    assert far.probability[[0, 1, 2, 5, 6]].tolist() == [0, 0, 0, 1, 1]
    assert far.probability.clamp(0, 1).equal(far.probability)
    assert float(far.error.max()) < 1e-12


def test_a_point_does_not_depend_on_its_batch():
    problem = random_problem(8, "slab", np.linspace(-3, 3, 40), max_k=9)
    whole = cdf_of(problem).probability
    for n in (0, 17, 39):
        alone = problem._replace(y=problem.y[n : n + 1], Phi=problem.Phi[n : n + 1])
        assert float(cdf_of(alone).probability) == float(whole[n])


def test_what_cannot_be_is_nan_and_no_noise_is_refused():
    q = bernoulli_dropout_weights(f64([1.0]), 0.5)
    result = mixture_cdf(f64([math.nan, 0.5, math.inf]), ones(3, 1), q, 1.0)
    assert result.probability.isnan().tolist() == [True, False, True]
    assert float(result.error[0]) == 1
    with pytest.raises(InputError, match="noise variance is 0"):
        mixture_cdf(f64([1.0]), ones(1, 1), q, 0.0)
    with pytest.raises(InputError, match="noise variance is nan"):
        mixture_cdf(f64([1.0]), ones(1, 1), q, math.nan)
