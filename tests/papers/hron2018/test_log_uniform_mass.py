"""Masses under the log-uniform prior, against closed forms."""

import math

import pytest
import torch
from scipy.special import exp1

from fsvi_bench.papers.hron2018.log_uniform_mass import cumulative_log_uniform_mass, log_uniform_mass
from fsvi_bench.papers.hron2018.truncated_log_uniform import truncated_log_uniform_posterior
from tests.maths.draws import close, f64

INTERVALS = [(-30.0, -2.0), (-3.0, 1.0), (-1e-3, 2.5), (0.0, 6.0)]


def gaussian(w):
    return torch.exp(-0.5 * w.square())


@pytest.mark.parametrize(("a", "b"), INTERVALS)
@pytest.mark.parametrize("side", [1, -1])
def test_mass_of_a_gaussian_likelihood_is_an_exponential_integral(a, b, side):
    """∫ exp(−w²/2)/w dw = −½ E₁(w²/2)."""
    expected = 0.5 * (exp1(0.5 * math.exp(2 * a)) - exp1(0.5 * math.exp(2 * b)))
    close(log_uniform_mass(gaussian, a, b, side=side), f64(expected), rtol=1e-13, atol=0)


@pytest.mark.parametrize(("a", "b"), INTERVALS)
def test_both_sides_of_a_logistic_likelihood_make_the_width(a, b):
    """σ(w) + σ(−w) = 1 (Hron et al. 2018, the normaliser in section 3.2)."""
    both = sum(log_uniform_mass(torch.sigmoid, a, b, side=side) for side in (1, -1))
    close(both, f64(b - a), rtol=1e-14, atol=0)


@pytest.mark.parametrize(("a", "b"), INTERVALS)
def test_moments_are_masses(a, b):
    first = sum(log_uniform_mass(lambda w: w * torch.sigmoid(w), a, b, side=side) for side in (1, -1)) / (b - a)
    second = sum(log_uniform_mass(lambda w: w * w * torch.sigmoid(w), a, b, side=side) for side in (1, -1)) / (b - a)
    expected = truncated_log_uniform_posterior(f64(a), f64(b))
    # The two sides cancel where w is small: their sum is good to a share of each side, of the order e^b/(b − a).
    close(first, expected.mean, rtol=1e-12, atol=1e-15 * math.exp(b))
    close(second - first**2, expected.variance, rtol=1e-9, atol=0)


def test_cumulative_masses_add_up():
    ends = torch.linspace(-4, 1.5, 12, dtype=torch.float64)
    mass = cumulative_log_uniform_mass(gaussian, ends)
    assert mass[0] == 0
    for end, value in zip(ends.tolist()[1:], mass[1:], strict=True):
        close(value, log_uniform_mass(gaussian, -4.0, end), rtol=1e-13, atol=0)
