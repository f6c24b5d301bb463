"""Minima that the additive parametrisation has and the multiplicative one lacks (Hron et al. 2017, section 4)."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from fsvi_bench.errors import InputError
from fsvi_bench.maths.log_uniform import log_uniform_kl_slope
from fsvi_bench.maths.one_weight import additive_objective, linear_loss, multiplicative_objective, square_loss
from tests.maths.draws import close, f64


def local_minima(values):
    """Indices of the strict interior minima of a sampled function."""
    inside = (values[1:-1] < values[:-2]) & (values[1:-1] < values[2:])
    return (np.flatnonzero(inside.numpy()) + 1).tolist()


def gradient(objective, *parameters):
    leaves = [f64(value).requires_grad_() for value in parameters]
    return [float(g) for g in torch.autograd.grad(objective(*leaves), leaves)]


def test_losses_equal_the_mean_over_samples():
    mean, variance, n = 0.7, 0.5, 400_000
    w = mean + math.sqrt(variance) * np.random.default_rng(0).standard_normal(n)
    for loss, values in (
        (linear_loss(1.2, 3.0), 1.5 * (w - 1.2) ** 2),
        (square_loss(1.2, 3.0), 1.5 * (w**2 - 1.2) ** 2),
    ):
        assert abs(values.mean() - float(loss(f64(mean), f64(variance)))) < 4 * values.std() / math.sqrt(n)


@pytest.mark.parametrize("loss", [linear_loss(1.2, 3.0), square_loss(1.2, 3.0)])
def test_the_two_forms_are_one_function_where_the_mean_is_not_zero(loss):
    theta, alpha = f64([0.5, -1.3, 1e-4]), f64([0.2, 7.0, 1e5])
    close(multiplicative_objective(theta, alpha, loss), additive_objective(theta, alpha * theta**2, loss), rtol=1e-14)


# --- A minimum at mean 0 ----------------------------------------------------------------------------------------------


def test_additive_form_has_a_minimum_at_mean_zero():
    target = 1.5
    loss = square_loss(target, 2.0)
    place = (0.0, target / 3)
    assert gradient(lambda m, v: additive_objective(m, v, loss), *place) == pytest.approx([0, 0], abs=1e-14)
    hessian = torch.autograd.functional.hessian(
        lambda x: additive_objective(x[0], x[1], loss), f64(place), create_graph=False
    )
    assert bool((torch.linalg.eigvalsh(hessian) > 0.1).all())
    # ∂²/∂μ² has nothing from the data there: 1/σ² of the KL.
    close(hessian[0, 0], 3 / target, rtol=1e-13)


def test_multiplicative_form_approaches_that_minimum_and_has_none_there():
    target = 1.5
    loss = square_loss(target, 2.0)
    least = float(additive_objective(f64(0.0), f64(target / 3), loss))
    alpha = f64(np.geomspace(10, 1e9, 40))
    # Along the path θ = √(⅓y/α), and with θ at its optimum for each α by a fine search around it.
    theta = (target / 3 / alpha).sqrt()
    grid = theta[:, None] * f64(np.linspace(0.5, 1.5, 2001))
    best = multiplicative_objective(grid, alpha[:, None].expand_as(grid), loss).min(-1).values
    assert bool((best > least).all())
    assert bool((best.diff() < 0).all())
    close(best[-1], least, rtol=1e-8)
    for t, a in zip(theta[:20].tolist(), alpha[:20].tolist(), strict=True):
        slope_theta, slope_alpha = gradient(lambda x, y: multiplicative_objective(x, y, loss), t, a)
        # In log α at fixed αθ²: downhill towards α = ∞.
        assert a * slope_alpha - 0.5 * t * slope_theta < 0


# --- A second minimum at a fixed width --------------------------------------------------------------------------------


def test_at_fixed_width_the_additive_form_has_a_second_minimum():
    loss = linear_loss(4.0, 1.0)
    mean = f64(np.linspace(-1, 6, 70_001))
    places = mean[local_minima(additive_objective(mean, torch.full_like(mean, 0.01), loss))].tolist()
    # Far out the KL's slope is 1/μ up to O(σ²), and 4 − μ = 1/μ; near 0 it is μ/σ² times dKL/du.
    near, far = places
    assert far == pytest.approx(2 + math.sqrt(3), abs=5e-3)
    assert near == pytest.approx((4 - near) * 0.01 / float(log_uniform_kl_slope(f64(near**2 / 0.02))), abs=1e-4)
    assert gradient(lambda m: additive_objective(m, f64(0.01), loss), near) == pytest.approx([0], abs=0.01)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 1.0, 30.0])
def test_at_fixed_alpha_the_multiplicative_form_has_one_minimum(alpha):
    loss = linear_loss(4.0, 1.0)
    theta = f64(np.linspace(-1, 6, 70_001))
    places = theta[local_minima(multiplicative_objective(theta, torch.full_like(theta, alpha), loss))].tolist()
    assert places == pytest.approx([4 / (1 + alpha)], abs=1e-4)


# --- Pruning ----------------------------------------------------------------------------------------------------------


def stationary_u(t):
    return brentq(lambda u: (1 + 2 * u) ** 2 * float(log_uniform_kl_slope(f64(u))) - t**2, 0, 1e6, xtol=1e-14)


@pytest.mark.parametrize("t", [1.01, 2.0, 10.0])
def test_a_weight_beyond_one_standard_deviation_has_a_stationary_point(t):
    loss = linear_loss(t, 1.0)
    alpha = 1 / (2 * stationary_u(t))
    theta = t / (1 + alpha)
    assert gradient(lambda x, y: multiplicative_objective(x, y, loss), theta, alpha) == pytest.approx([0, 0], abs=1e-10)
    additive = gradient(lambda m, v: additive_objective(m, v, loss), theta, alpha * theta**2)
    assert additive == pytest.approx([0, 0], abs=1e-10)
    assert float(multiplicative_objective(f64(theta), f64(alpha), loss)) < t**2 / 2  # the value of w = 0


def test_the_stationary_condition_rises_from_one():
    u = f64(np.geomspace(1e-6, 1e6, 4000))
    condition = (1 + 2 * u).square() * log_uniform_kl_slope(u)
    assert float(condition[0]) == pytest.approx(1, abs=1e-5)
    assert bool((condition.diff() > 0).all())


@pytest.mark.parametrize("t", [0.3, 1.0])
def test_a_weight_within_one_standard_deviation_is_pruned(t):
    """The best value at each α falls all the way to that of w = 0, at α = ∞; the additive form's is the same infimum."""
    loss = linear_loss(t, 1.0)
    alpha = f64(np.geomspace(1e-3, 1e6, 400))
    best = multiplicative_objective(t / (1 + alpha), alpha, loss)
    assert bool((best.diff() < 0).all())
    assert bool((best > t**2 / 2).all())
    close(best[-1], t**2 / 2, rtol=0, atol=1e-5)
    mean, variance = (f64(grid).flatten() for grid in np.meshgrid(np.linspace(-1, 2, 301), np.geomspace(1e-6, 4, 300)))
    assert bool((additive_objective(mean, variance, loss) > t**2 / 2).all())


def test_alpha_not_positive_is_refused():
    with pytest.raises(InputError, match="expected alpha > 0"):
        multiplicative_objective(f64(1.0), f64(0.0), linear_loss(1.0, 1.0))
