"""A nonlinear curve against integrals and limits; Hilbert's curve by its defining properties, and rounded laws by hand."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import MultivariateNormal

from fsvi_bench.papers.burt2020.theory import curves
from fsvi_bench.papers.burt2020.theory.curves import (
    curve,
    curve_speed,
    hilbert_cells,
    rounded_kl,
    smoothed_curve_kl_constant,
    smoothed_curve_log_ratio,
)
from tests.maths.draws import close, f64

PLACES = torch.tensor([0.0, 0.8, 1.9], dtype=torch.float64)


@pytest.fixture
def process():
    return MultivariateNormal(torch.zeros_like(PLACES), torch.exp(-(PLACES[:, None] - PLACES).abs()))


@pytest.mark.parametrize("noise_variance", [1.0, 0.04, 1e-4])
def test_log_ratio_by_adaptive_integration(process, noise_variance):
    theta, noise = f64([0.3, -1.2]), f64([[0.5, -1.0, 0.2], [2.0, 0.3, -0.7]])
    found = smoothed_curve_log_ratio(theta, noise, noise_variance, PLACES, process)
    eps = math.sqrt(noise_variance)
    for place in range(2):
        y = (curve(theta[place], PLACES) + eps * noise[place]).numpy()

        def density(t, y=y):
            values = t * np.cos(PLACES.numpy()) + np.sin(2 * t * PLACES.numpy())
            return stats.norm.pdf(t) * np.prod(stats.norm.pdf(y, values, eps))

        centre = float(theta[place])
        q = integrate.quad(
            density, centre - 14 * eps, centre + 14 * eps, points=[centre], limit=500, epsabs=0, epsrel=1e-11
        )[0]
        expected = math.log(q) - stats.multivariate_normal(np.zeros(3), process.covariance_matrix.numpy()).logpdf(y)
        assert float(found[place]) == pytest.approx(expected, rel=1e-9)


def test_steps_are_short_enough_for_a_fast_curve(monkeypatch):
    """Up to ‖∂f/∂θ‖ = 268, where steps of 1/32 are 4 nats off: a quarter of the step gives the same."""
    x, p = torch.arange(60).double() / 2, MultivariateNormal(torch.zeros(60).double(), torch.eye(60).double())
    case = f64([0.3, -1.2]), torch.from_numpy(np.random.default_rng(3).standard_normal((2, 60))), 1e-8, x, p
    found = smoothed_curve_log_ratio(*case)
    monkeypatch.setattr(curves, "_STEP", curves._STEP / 4)
    close(smoothed_curve_log_ratio(*case), found, rtol=1e-11)


def test_speed_is_the_derivative():
    theta = f64([-0.4, 0.0, 1.3]).requires_grad_()
    columns = [torch.autograd.grad(curve(theta, PLACES)[:, j].sum(), theta)[0] for j in range(3)]
    close(curve_speed(theta.detach(), PLACES), torch.stack(columns).square().sum(0).sqrt(), rtol=1e-13)


def test_curve_limit_against_draws(process):
    """The mean over 4,000 draws at ε² = 1e-8, less ½(M − 1) log(1/ε²), is within 4 standard errors of the limit."""
    generator = torch.Generator().manual_seed(1)
    theta = torch.randn(4000, generator=generator, dtype=torch.float64)
    noise = torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    left = smoothed_curve_log_ratio(theta, noise, 1e-8, PLACES, process) - math.log(1e8)
    error = float(left.mean()) - smoothed_curve_kl_constant(PLACES, process)
    assert abs(error) < 4 * float(left.std()) / math.sqrt(4000)


# --- A curve that fills the square ---------------------------------------------------------------------------------------


def uniform_square_kl():
    """KL of the uniform law on the unit square to N(0, I₂): log 2π + ½(⅓ + ⅓)."""
    return math.log(2 * math.pi) + 1 / 3


@pytest.mark.parametrize("order", [0, 1, 2, 5])
def test_every_cell_once_and_neighbours_in_turn(order):
    """Length to area, and continuity: steps of one cell, and a finer curve stays inside the coarser one's cells."""
    cells = hilbert_cells(order)
    assert len({tuple(cell) for cell in cells.tolist()}) == 4**order == len(cells)
    assert bool((np.abs(np.diff(cells, axis=0)).sum(-1) == 1).all())
    finer = hilbert_cells(order + 1)
    assert np.array_equal(finer // 2, cells.repeat(4, axis=0))


def test_rounded_kl_of_four_cells_by_hand():
    inner, outer = (stats.norm.cdf(b) - stats.norm.cdf(a) for a, b in ((0, 0.5), (0.5, 1)))
    expected = 0.5 * math.log(0.5 / inner**2) + 0.5 * math.log(0.5 / outer**2)
    assert rounded_kl(np.array([[0, 0], [1, 1]]), 1) == pytest.approx(expected, rel=1e-13)


def test_rounding_tends_to_the_uniform_law_from_below():
    """Data processing: rounding only loses, finer rounding less; what is lost falls like the square of the width."""
    lost = [uniform_square_kl() - rounded_kl(hilbert_cells(order), order) for order in (3, 4, 5)]
    assert lost[0] > lost[1] > lost[2] > 0
    assert lost[0] / lost[1] == pytest.approx(4, rel=1e-2)
