"""Optimal retain probabilities and CAVI against scans, SciPy's optimiser and enumeration of all masks."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit

from fsvi_bench.maths.bernoulli_dropout import (
    bernoulli_objective,
    optimal_m,
)
from fsvi_bench.maths.bernoulli_optimum import (
    coordinate_ascent_masks,
    optimal_retain_logits,
    optimal_retain_per_weight,
    optimal_shared_retain,
    retain_profile,
)
from tests import reference_dropout as slow
from tests.maths.draws import close, f64, linspace, zeros
from tests.maths.test_bernoulli_dropout import PROPERTY, draw, draws, lengthscales, numpy


def problem(seed, N=7, k=4):
    Phi, y, noise, _, _ = draw(seed, k, N)
    return Phi, y, noise


# --- One p for all weights --------------------------------------------------------------------------------------------


@PROPERTY
@given(draws, lengthscales, st.floats(-5, 30))
def test_profile_equals_the_objective_at_the_optimal_m(seed, lengthscale, logit):
    data, logit = problem(seed), f64([logit])
    profile = retain_profile(*data, lengthscale)
    p = logit.sigmoid()
    m = optimal_m(*data, p, lengthscale)
    close(profile.m(logit[0]), m, rtol=1e-10, atol=1e-10)
    close(profile.objective(logit)[0], bernoulli_objective(*data, m, p, lengthscale), rtol=1e-11, atol=1e-11)
    # By the envelope theorem the profile's slope is the partial one. logit(p) knows 1 − p to eps/(1 − p) only.
    partial = slow.objective_gradient(*data, m, p.expand_as(m), lengthscale)[1].sum()
    close(profile.slope(logit)[0], partial, rtol=1e-9, atol=1e-9 + 1e-15 * math.exp(logit[0]))


@PROPERTY
@given(draws, lengthscales, st.integers(3, 60))
def test_shared_optimum_is_the_lowest_of_a_scan(seed, lengthscale, N):
    data = problem(seed, N)
    optimum = optimal_shared_retain(*data, lengthscale)
    scan = retain_profile(*data, lengthscale).objective(linspace(-8, 60, 5001))
    assert optimum.objective <= scan.min() + 1e-11 * (1 + scan.min().abs())
    assert optimum.logit[0] >= 0
    close(optimum.m, optimal_m(*data, optimum.retain_probability, lengthscale), rtol=1e-10, atol=1e-10)
    value = bernoulli_objective(*data, optimum.m, optimum.retain_probability, lengthscale)
    close(optimum.objective, value, rtol=1e-11, atol=1e-11)
    slope = retain_profile(*data, lengthscale).slope(optimum.logit)
    assert abs(float(slope)) < 1e-9 * (1 + optimum.logit[0])


def test_an_optimum_far_beyond_saturation_is_found():
    data = *problem(1, N=50)[:2], f64(1e-6)
    optimum = optimal_shared_retain(*data)
    assert optimum.logit > 1e4
    slope = retain_profile(*data).slope(optimum.logit)
    assert abs(float(slope)) < 1e-9 * optimum.logit  # two terms of that size cancel


# --- One p for each weight --------------------------------------------------------------------------------------------


@PROPERTY
@given(draws, lengthscales, st.booleans())
def test_logits_at_a_given_mean_are_stationary(seed, lengthscale, with_offset):
    Phi, _, noise, mean, _ = draw(seed)
    mean[0] = 0.0
    offset = f64(np.random.default_rng(seed).uniform(-30, 30, 4) * with_offset)
    logit = optimal_retain_logits(mean, Phi, noise, lengthscale, offset)
    a = 0.5 * mean.square() * (Phi.square().sum(0) / noise + lengthscale**2)
    pull = a * (1 + torch.exp(-logit)).square()
    assert ((logit + offset - pull).abs() <= 1e-12 * (1 + pull + offset.abs())).all()
    close(logit[0], -offset[0], rtol=1e-15, atol=0)
    if not with_offset:
        assert (logit >= 0).all()


@pytest.mark.slow
@PROPERTY
@given(draws, st.integers(4, 40))
def test_optimum_per_weight_is_stationary_and_below_the_shared_one(seed, N):
    data = problem(seed, N)
    optimum, shared = optimal_retain_per_weight(*data), optimal_shared_retain(*data)
    assert optimum.objective <= shared.objective + 1e-11 * (1 + shared.objective.abs())
    logits = slow.free_form_logits(*data, optimum.m, optimum.retain_probability)
    close(optimum.logit, logits, rtol=1e-7, atol=1e-7)  # the tolerance, 1e-10, over one minus the contraction rate
    gradient, _ = slow.objective_gradient(*data, optimum.m, optimum.retain_probability)
    assert gradient.abs().max() < 1e-10 * (1 + optimum.objective.abs())


@pytest.mark.parametrize("seed", range(4))
def test_optimum_per_weight_is_where_scipy_ends_from_the_same_start(seed):
    Phi, y, noise = problem(seed, N=8)
    start = optimal_shared_retain(Phi, y, noise)

    def objective(x):
        m, logit = map(torch.from_numpy, np.split(x, 2))
        p = logit.sigmoid()
        gradient_m, gradient_p = slow.objective_gradient(Phi, y, noise, m, p)
        value = float(bernoulli_objective(Phi, y, noise, m, p))
        return value, torch.cat([gradient_m, gradient_p * p * (1 - p)]).numpy()

    x = np.concatenate([start.m.numpy(), start.logit.expand(4).numpy()])
    found = minimize(objective, x, jac=True, method="BFGS", options={"gtol": 1e-9})
    optimum = optimal_retain_per_weight(Phi, y, noise)
    close(optimum.objective, found.fun, rtol=1e-11)
    close(optimum.retain_probability, expit(found.x[4:]), rtol=0, atol=1e-6)  # flat to √eps


# --- CAVI -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("k", [1, 3, 12])
def test_cavi_reaches_a_minimum_of_the_kl_to_the_enumerated_posterior(seed, k):
    Phi, y, noise, m, _ = draw(seed, k=k, N=15)
    noise = 5 * noise
    logit = coordinate_ascent_masks(Phi, y, noise, m, zeros(k))
    close(slow.free_form_logits(Phi, y, noise, m, logit.sigmoid()), logit, rtol=1e-9, atol=1e-9)
    _, log_posterior = slow.log_restricted_evidence(*numpy(Phi, y, noise, m))
    eps = slow.masks(k)

    def kl(logits):
        log_q = (eps * -np.logaddexp(0, -logits) + (1 - eps) * -np.logaddexp(0, logits)).sum(1)
        return np.exp(log_q) @ (log_q - log_posterior)

    reached = kl(logit.numpy())
    assert reached >= -1e-12
    for i in range(k):
        for step in (-0.1, 0.1):
            assert kl(logit.numpy() + step * np.eye(k)[i]) >= reached - 1e-12
    if k == 1:
        assert reached < 1e-12  # one mask: mean field is no restriction


def test_cavi_leaves_a_weight_of_zero_at_one_half():
    Phi, y, noise, m, p = draw(6)
    m[2] = 0.0
    assert float(coordinate_ascent_masks(Phi, y, noise, m, torch.logit(p))[2]) == 0.0
