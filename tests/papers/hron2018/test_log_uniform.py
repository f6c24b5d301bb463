"""The log-uniform prior: masses against closed forms, and moments of truncated posteriors with many digits."""

import json
import math

import mpmath as mp
import numpy as np
import pytest
from scipy.special import exp1, expit

from fsvi_bench.papers.hron2018.log_uniform import log_uniform_mass, posterior_mean, posterior_variance

STARTS = [-1e12, -700, -50, -20, -5, -1, -1e-3, 0.0, 0.5, 2.0, 3.0, 4.9, 20.0]
WIDTHS = [1e-9, 1e-6, 1e-3, 0.1, 1.0, 1.9, 2.1, 3.0, 10.0]
#: From each start both a narrow interval and one that reaches over 0.
INTERVALS = [(a, b) for a in STARTS for L in WIDTHS for b in (a + L, L) if b > a and b - a < math.inf]
ENDS = [(-30.0, -2.0), (-3.0, 1.0), (-1e-3, 2.5), (0.0, 6.0)]


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


def moment(power, a, b):
    """As a mass, of both sides of 0."""
    return log_uniform_mass(lambda w: w**power * expit(w), a, b, sides=[1, -1]) / (b - a)


def test_moments_equal_the_reference(reference):
    for key, expected in json.loads((reference / "expected.json").read_text())["truncated_log_uniform"].items():
        a, b = map(float, key.split(","))
        assert posterior_mean(a, b) == pytest.approx(expected["mean"], rel=1e-13, abs=0)
        assert posterior_variance(a, b) == pytest.approx(expected["variance"], rel=1e-13, abs=0)


def test_moments_equal_the_papers_equations_with_many_digits():
    """To rounding of E|w| and of E w²; relative to themselves where the interval is wide and reaches beyond 1."""
    for a, b in INTERVALS:
        mean, variance = equations_1_and_2(a, b)
        L, high = b - a, math.exp(b)
        absolute, second = -high * math.expm1(-L) / L, -(high**2) * math.expm1(-2 * L) / (2 * L)
        tiny = np.finfo(float).tiny  # both may underflow
        # e^b carries b's rounding.
        assert abs(posterior_mean(a, b) - mean) <= 1e-14 * absolute + tiny
        assert abs(posterior_variance(a, b) - variance) <= 2e-14 * second + tiny
        if L >= 1 and b >= 0.5:
            assert abs(posterior_mean(a, b) - mean) <= 1e-14 * mean
            assert abs(posterior_variance(a, b) - variance) <= 1e-12 * variance


def test_an_interval_down_to_zero_has_moments_of_zero():
    a, b = np.full(2, -math.inf), np.array([1.0, 2.0])
    assert posterior_mean(a, b).tolist() == posterior_variance(a, b).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("a", "b"), ENDS)
def test_masses_have_closed_forms(a, b):
    """∫ exp(−w²/2)/w dw = −½ E₁(w²/2); σ(w) + σ(−w) = 1, the normaliser of section 3.2; moments are masses."""
    expected = 0.5 * (exp1(0.5 * math.exp(2 * a)) - exp1(0.5 * math.exp(2 * b)))
    for side in (1, -1):
        gaussian = log_uniform_mass(lambda w: np.exp(-0.5 * w**2), a, b, sides=[side])
        assert gaussian == pytest.approx(expected, rel=1e-13, abs=0)
    assert moment(0, a, b) == pytest.approx(1, rel=1e-14)
    # The two sides cancel where w is small: their sum is good to a share of each side, of the order e^b/(b − a).
    assert moment(1, a, b) == pytest.approx(posterior_mean(a, b), rel=1e-12, abs=1e-15 * math.exp(b))
    assert moment(2, a, b) - moment(1, a, b) ** 2 == pytest.approx(posterior_variance(a, b), rel=1e-9, abs=0)


def test_masses_of_many_intervals_at_once():
    ends = np.linspace(-4, 1.5, 12)
    masses = log_uniform_mass(expit, -4.0, ends)
    assert masses == pytest.approx([log_uniform_mass(expit, -4.0, end) for end in ends], rel=1e-13, abs=1e-15)
    # Towards 0 they are negative.
    assert log_uniform_mass(expit, ends, -4.0) == pytest.approx(-masses, rel=1e-13, abs=1e-15)
