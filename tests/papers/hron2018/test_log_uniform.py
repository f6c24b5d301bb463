"""The log-uniform prior: masses against closed forms, moments of truncated posteriors, and the paper's sequences."""

import json
import math

import mpmath as mp
import pytest
import torch
from scipy.special import exp1

from fsvi_bench.errors import InputError
from fsvi_bench.papers.hron2018.log_uniform import (
    cumulative_log_uniform_mass,
    log_uniform_mass,
    sequence_to_constant,
    sequence_to_infinity,
    sequence_to_zero,
    truncated_log_uniform_posterior,
)
from tests.maths.draws import close, f64
from tests.maths.many_digits import largest_relative_error

STARTS = [-1e12, -700, -50, -20, -5, -1, -1e-3, 0.0, 0.5, 2.0, 3.0, 4.9, 20.0]
WIDTHS = [1e-9, 1e-6, 1e-3, 0.1, 1.0, 1.9, 2.1, 3.0, 10.0]
#: From each start both a narrow interval and one that reaches over 0; e^b on both sides of 20.
INTERVALS = [(a, b) for a in STARTS for L in WIDTHS for b in (a + L, L) if b > a and b - a < math.inf]


@mp.workdps(600)
def equations_1_and_2(a, b):
    """As printed, with digits enough for their cancellations (log(1 + e^x) as x + log(1 + e^(−x)) for large x)."""
    a, b = mp.mpf(a), mp.mpf(b)
    low, high = mp.exp(a), mp.exp(b)

    def h(x):
        return x + mp.log1p(mp.exp(-x)) if x > 0 else mp.log1p(mp.exp(x))

    mean = (h(high) + h(-high) - h(low) - h(-low)) / (b - a)
    second = (high**2 - low**2) / (2 * (b - a))
    return mean, second - mean**2


def test_moments_equal_the_reference(reference):
    for key, expected in json.loads((reference / "expected.json").read_text())["truncated_log_uniform"].items():
        a, b = (f64(float(end)) for end in key.split(","))
        moments = truncated_log_uniform_posterior(a, b)
        close(moments.mean, expected["mean"], rtol=1e-13, atol=0)
        close(moments.variance, expected["variance"], rtol=1e-13, atol=0)


def test_moments_equal_the_papers_equations_with_many_digits():
    ends = f64(INTERVALS)
    moments = truncated_log_uniform_posterior(ends[:, 0], ends[:, 1])
    expected = [equations_1_and_2(a, b) for a, b in INTERVALS]
    assert largest_relative_error(moments.mean, [mean for mean, _ in expected]) < 1e-14
    # Measured 6e-14: at L = 2 the two terms of var|w| cancel fourfold, and e^(2b) carries b's rounding.
    assert largest_relative_error(moments.variance, [variance for _, variance in expected]) < 1e-12


def test_the_density_has_these_moments():
    """σ(w)/(|w| (b − a)) on both sides of 0."""
    a, b = -2.0, 1.5
    moments = truncated_log_uniform_posterior(f64(a), f64(b))

    def moment(power):
        def integrand(w):
            return w**power / (abs(w) * (b - a) * (1 + mp.exp(-w)))

        low, high = math.exp(a), math.exp(b)
        return float(mp.quad(integrand, [-high, -1, -low]) + mp.quad(integrand, [low, 1, high]))

    assert moment(0) == pytest.approx(1, rel=1e-12)
    assert moment(1) == pytest.approx(float(moments.mean), rel=1e-12)
    assert moment(2) - moment(1) ** 2 == pytest.approx(float(moments.variance), rel=1e-12)


def test_sequence_to_zero():
    size = f64([1e2, 1e4, 1e8, 1e300])
    moments = truncated_log_uniform_posterior(*sequence_to_zero(size))
    assert bool((moments.mean.diff() < 0).all())
    assert float(moments.mean[-1]) < 1e-297
    assert float(moments.variance[-1]) < 1e-293
    # Mean ~ log|a|/|a|, variance ~ log²|a|/(2|a|) since e^b = log|a|; b/|a| and log 4/e^b vanish slowly.
    close(moments.mean[-1], 300 * math.log(10) * 1e-300, rtol=3e-3, atol=0)
    close(moments.variance[-1], (300 * math.log(10)) ** 2 / 2e300, rtol=1e-10, atol=0)


@pytest.mark.parametrize("limit", [0.3, 7.0])
def test_sequence_to_a_constant(limit):
    b = f64([5.0, 10.0, 20.0, 40.0])
    moments = truncated_log_uniform_posterior(*sequence_to_constant(b, limit))
    error = (moments.mean - limit).abs()
    assert bool((error.diff() < 0).all())
    assert float(error[-1]) < 1e-14 * limit
    assert bool((moments.variance.diff() > 0).all())
    close(moments.variance[-1] / (limit * math.exp(40) / 2), 1.0, rtol=1e-14)


def test_sequence_to_infinity():
    b = f64([5.0, 50.0, 500.0])
    moments = truncated_log_uniform_posterior(*sequence_to_infinity(b))
    assert bool((moments.mean.diff() > 0).all())
    close(moments.mean[1:] / (b[1:].exp() / (2 * b[1:])), [1.0, 1.0], rtol=1e-13)


def test_limits_and_shapes():
    moments = truncated_log_uniform_posterior(f64([[-math.inf] * 2]), f64([[1.0, 2.0]]))
    assert moments.mean.tolist() == moments.variance.tolist() == [[0.0, 0.0]]


def test_bad_intervals_are_refused():
    for a, b in ((1.0, 1.0), (2.0, 1.0), (math.nan, 1.0)):
        with pytest.raises(InputError, match="expected a < b"):
            truncated_log_uniform_posterior(f64([-1.0, a]), f64([1.0, b]))


def test_gradients():
    ends = (f64([-5.0, 0.3, 3.5]).requires_grad_(), f64([1.0, 0.9, 4.0]).requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: tuple(truncated_log_uniform_posterior(a, b)), ends)


# --- Masses -----------------------------------------------------------------------------------------------------------

ENDS = [(-30.0, -2.0), (-3.0, 1.0), (-1e-3, 2.5), (0.0, 6.0)]


def gaussian(w):
    return torch.exp(-0.5 * w.square())


@pytest.mark.parametrize(("a", "b"), ENDS)
@pytest.mark.parametrize("side", [1, -1])
def test_mass_of_a_gaussian_likelihood_is_an_exponential_integral(a, b, side):
    """∫ exp(−w²/2)/w dw = −½ E₁(w²/2)."""
    expected = 0.5 * (exp1(0.5 * math.exp(2 * a)) - exp1(0.5 * math.exp(2 * b)))
    close(log_uniform_mass(gaussian, a, b, side=side), f64(expected), rtol=1e-13, atol=0)


@pytest.mark.parametrize(("a", "b"), ENDS)
def test_both_sides_of_a_logistic_likelihood_make_the_width(a, b):
    """σ(w) + σ(−w) = 1 (Hron et al. 2018, the normaliser in section 3.2)."""
    both = sum(log_uniform_mass(torch.sigmoid, a, b, side=side) for side in (1, -1))
    close(both, f64(b - a), rtol=1e-14, atol=0)


@pytest.mark.parametrize(("a", "b"), ENDS)
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


def test_masses_towards_zero_are_negative():
    falling = torch.linspace(1.5, -4, 12, dtype=torch.float64)
    rising = cumulative_log_uniform_mass(gaussian, falling.flip(0))
    close(cumulative_log_uniform_mass(gaussian, falling), (rising - rising[-1]).flip(0), rtol=1e-13, atol=0)
