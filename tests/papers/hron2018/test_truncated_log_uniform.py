"""Posterior moments under the truncated log-uniform prior, and the three sequences of Hron et al. 2018, section 3.2."""

import json
import math

import mpmath as mp
import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.papers.hron2018.truncated_log_uniform import (
    sequence_to_constant,
    sequence_to_infinity,
    sequence_to_zero,
    truncated_log_uniform_posterior,
    truncated_log_uniform_posterior_density,
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


def test_density_has_these_moments():
    a, b = -2.0, 1.5
    moments = truncated_log_uniform_posterior(f64(a), f64(b))

    def moment(power):
        def integrand(w):
            return mp.mpf(float(truncated_log_uniform_posterior_density(f64(float(w)), f64(a), f64(b)))) * w**power

        # Smooth inside the support; at its very ends rounding may decide, hence the small step inwards.
        low, high = math.exp(a) * (1 + 1e-15), math.exp(b) * (1 - 1e-15)
        return float(mp.quad(integrand, [-high, -1, -low]) + mp.quad(integrand, [low, 1, high]))

    assert moment(0) == pytest.approx(1, rel=1e-12)
    assert moment(1) == pytest.approx(float(moments.mean), rel=1e-12)
    assert moment(2) - moment(1) ** 2 == pytest.approx(float(moments.variance), rel=1e-12)
    outside = f64([0.0, 0.1, -0.1, 5.0, -5.0])
    assert truncated_log_uniform_posterior_density(outside, f64([a] * 5), f64([b] * 5)).tolist() == [0.0] * 5


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
    with pytest.raises(InputError, match="limit 0, expected a positive one"):
        sequence_to_constant(f64(3.0), 0.0)


def test_gradients():
    ends = (f64([-5.0, 0.3, 3.5]).requires_grad_(), f64([1.0, 0.9, 4.0]).requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: tuple(truncated_log_uniform_posterior(a, b)), ends)
