"""Gaussians on subspaces with and without noise, and a nonlinear curve, against other formulas, integrals and limits."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import integrate, stats

from fsvi_bench.papers.burt2020.theory import smoothed_curve
from fsvi_bench.papers.burt2020.theory.degenerate import Flat
from fsvi_bench.papers.burt2020.theory.f_divergence import kl, relative, reverse_kl, total_variation
from fsvi_bench.papers.burt2020.theory.smoothed_curve import (
    curve,
    curve_speed,
    smoothed_curve_kl_constant,
    smoothed_curve_log_ratio,
)
from tests.maths.draws import close, draw, f64

NOISE = [1.0, 1e-3, 1e-8]


def subspace(M=6, k=2, seed=0):
    """(μ, F, m, L): a flat Gaussian in R^M whose mean is off p's and off the subspace through p's mean."""
    rng = np.random.default_rng(seed)
    mean_p, tril_p = draw(rng, M)
    return torch.from_numpy(rng.standard_normal(M)), torch.from_numpy(rng.standard_normal((M, k))), mean_p, tril_p


@mp.workdps(60)
def many_digits(mean_q, factor, noise_variance, mean_p, tril):
    """KL(Q_ε‖P) and KL(P‖Q_ε) from dense covariances, determinants and inverses with 60 digits."""
    F, L, e = mp.matrix(factor.tolist()), mp.matrix(tril.tolist()), mp.mpf(noise_variance)
    S, K = F * F.T + e * mp.eye(F.rows), L * L.T
    difference = mp.matrix(mean_q.tolist()) - mp.matrix(mean_p.tolist())

    def one_way(a, b):
        inverse = b**-1
        trace = mp.fsum((inverse * a)[i, i] for i in range(a.rows))
        return float((trace + (difference.T * inverse * difference)[0] - a.rows + mp.log(mp.det(b) / mp.det(a))) / 2)

    return one_way(S, K), one_way(K, S)


@pytest.mark.parametrize("noise_variance", [*NOISE, 1e-14])
@pytest.mark.parametrize("k", [2, 6, 9])
def test_smoothed_kls_with_many_digits(k, noise_variance):
    problem = subspace(k=k)
    mean_q, factor, mean_p, tril_p = problem
    forward, reverse = many_digits(mean_q, factor, noise_variance, mean_p, tril_p)
    close(Flat(mean_q - mean_p, factor, tril_p).kl(noise_variance), f64(forward), rtol=1e-12)
    close(Flat(mean_q - mean_p, factor, tril_p).reverse_kl(noise_variance), f64(reverse), rtol=1e-12)


@pytest.mark.parametrize("noise_variance", NOISE)
def test_the_general_divergences_agree(noise_variance):
    mean_q, factor, mean_p, tril_p = subspace()
    seen = Flat(mean_q - mean_p, factor, tril_p).seen(noise_variance)
    close(kl(seen), Flat(mean_q - mean_p, factor, tril_p).kl(noise_variance), rtol=1e-10)
    close(reverse_kl(seen), Flat(mean_q - mean_p, factor, tril_p).reverse_kl(noise_variance), rtol=1e-10)


@pytest.mark.parametrize("k", [1, 5])
def test_without_noise_both_are_exactly_infinite_as_long_as_a_direction_is_missing(k):
    mean_q, factor, mean_p, tril_p = subspace(k=k)
    assert Flat(mean_q - mean_p, factor, tril_p).kl(0.0) == math.inf
    assert Flat(mean_q - mean_p, factor, tril_p).reverse_kl(0.0) == math.inf


@pytest.mark.parametrize("columns", [4, 6, 9])
def test_without_noise_it_is_the_rank_that_counts_not_the_columns(columns):
    """Rank 2 in as many columns as points, or more: rounding in the other singular values is not taken for a density."""
    mean_q, factor, mean_p, tril_p = subspace(k=2)
    many = factor @ torch.from_numpy(np.random.default_rng(1).standard_normal((2, columns)))
    assert Flat(mean_q - mean_p, many, tril_p).kl(0.0) == math.inf
    assert Flat(mean_q - mean_p, many, tril_p).reverse_kl(0.0) == math.inf
    seen = relative(mean_q - mean_p, many, tril_p)
    assert int((seen.variance == 0).sum()) == 4
    assert kl(seen) == reverse_kl(seen) == math.inf
    assert total_variation(seen) == 1.0


@pytest.mark.parametrize("k", [6, 9])
def test_without_noise_both_are_finite_where_parameters_are_as_many_as_points(k):
    """Proposition 4 needs more points than parameters."""
    mean_q, factor, mean_p, tril_p = subspace(k=k)
    forward, reverse = many_digits(mean_q, factor, 0.0, mean_p, tril_p)
    close(Flat(mean_q - mean_p, factor, tril_p).kl(0.0), f64(forward), rtol=1e-12)
    close(Flat(mean_q - mean_p, factor, tril_p).reverse_kl(0.0), f64(reverse), rtol=1e-12)


@pytest.mark.parametrize("k", [1, 3])
def test_asymptotics_are_what_is_left_at_small_noise(k):
    """What is left of KL(Q_ε‖P) is O(ε²): a tenth of ε² leaves a tenth."""
    mean_q, factor, mean_p, tril_p = subspace(k=k)
    leading = Flat(mean_q - mean_p, factor, tril_p).asymptotics()
    assert leading.slope == 0.5 * (6 - k)
    left = []
    for noise in (1e-5, 1e-6):
        forward = float(Flat(mean_q - mean_p, factor, tril_p).kl(noise))
        left.append(forward - leading.slope * math.log(1 / noise) - leading.constant)
    assert abs(left[1]) < 1e-3
    assert left[0] / left[1] == pytest.approx(10, rel=1e-2)
    reverse = 1e-12 * float(Flat(mean_q - mean_p, factor, tril_p).reverse_kl(1e-12))
    assert reverse == pytest.approx(leading.reverse, rel=1e-9)


def test_redundant_parameters_leave_more_directions_out_of_reach():
    """Rank 2 with 4 parameters: the slope is ½(M − 2), not ½(M − 4)."""
    mean_q, factor, mean_p, tril_p = subspace(k=2)
    twice = torch.cat([factor, factor @ f64([[1.0, 2.0], [-0.5, 0.3]])], dim=1)
    assert Flat(mean_q - mean_p, twice, tril_p).asymptotics().slope == 2.0
    values = [float(Flat(mean_q - mean_p, twice, tril_p).kl(noise)) for noise in (1e-9, 1e-10)]
    assert (values[1] - values[0]) / math.log(10) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("noise_variance", [1e-1, 1e-3, 1e-6])
def test_the_revealing_event_by_integration_and_from_below(noise_variance):
    """One direction out of reach: E is an interval. Under P its probability is less, and TV is more, than what is said."""
    mean_q, factor, mean_p, tril_p = subspace(k=5)
    event = Flat(mean_q, factor, tril_p).revealing_event(noise_variance)
    normal = torch.linalg.svd(factor, full_matrices=True)[0][:, 5]
    sd, centre = float((normal @ tril_p).norm()), float(normal @ (mean_p - mean_q))
    r = event.radius
    assert event.under_q == pytest.approx(math.erf(r / math.sqrt(2 * noise_variance)), rel=1e-12)
    truly = stats.norm(centre, sd).cdf(r) - stats.norm(centre, sd).cdf(-r)
    at_most = 2 * r * stats.norm(0, sd).pdf(0)
    assert truly <= at_most
    assert event.under_p == pytest.approx(min(at_most, 1), rel=1e-12)
    seen = Flat(mean_q - mean_p, factor, tril_p).seen(noise_variance)
    assert (event.under_q - event.under_p) <= float(total_variation(seen))


@pytest.mark.parametrize("k", [1, 4])
def test_no_other_radius_shows_more(k):
    mean_q, factor, _, tril_p = subspace(k=k)
    noise, d = 1e-2, 6 - k
    event = Flat(mean_q, factor, tril_p).revealing_event(noise)
    for share in (0.9, 0.99, 1.01, 1.1):
        under_q = stats.chi2.cdf((share * event.radius) ** 2 / noise, d)
        assert under_q - event.under_p * share**d < (event.under_q - event.under_p)


def test_an_event_needs_a_direction_out_of_reach_and_noise():
    mean_q, factor, _, tril_p = subspace(k=6)
    with pytest.raises(ValueError, match="0 directions"):
        Flat(mean_q, factor, tril_p).revealing_event(0.1)
    with pytest.raises(ValueError, match="noise variance 0"):
        Flat(mean_q, factor[:, :2], tril_p).revealing_event(0.0)


# --- A curve ----------------------------------------------------------------------------------------------------------

PLACES = torch.tensor([0.0, 0.8, 1.9], dtype=torch.float64)


@pytest.fixture
def tril():
    return torch.linalg.cholesky(torch.exp(-(PLACES[:, None] - PLACES).abs()))


@pytest.mark.parametrize("noise_variance", [1.0, 0.04, 1e-4])
def test_log_ratio_by_adaptive_integration(tril, noise_variance):
    theta, noise = f64([0.3, -1.2]), f64([[0.5, -1.0, 0.2], [2.0, 0.3, -0.7]])
    found = smoothed_curve_log_ratio(theta, noise, noise_variance, PLACES, tril)
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
        expected = math.log(q) - stats.multivariate_normal(np.zeros(3), (tril @ tril.mT).numpy()).logpdf(y)
        assert float(found[place]) == pytest.approx(expected, rel=1e-9)


def test_speed_is_the_derivative():
    theta = f64([-0.4, 0.0, 1.3]).requires_grad_()
    columns = [torch.autograd.grad(curve(theta, PLACES)[:, j].sum(), theta)[0] for j in range(3)]
    close(curve_speed(theta.detach(), PLACES), torch.stack(columns).square().sum(0).sqrt(), rtol=1e-13)


def test_curve_limit_against_draws(tril):
    """The mean over 4,000 draws at ε² = 1e-8, less ½(M − 1) log(1/ε²), is within 4 standard errors of the limit."""
    generator = torch.Generator().manual_seed(1)
    theta = torch.randn(4000, generator=generator, dtype=torch.float64)
    noise = torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    left = smoothed_curve_log_ratio(theta, noise, 1e-8, PLACES, tril) - math.log(1e8)
    error = float(left.mean()) - smoothed_curve_kl_constant(PLACES, tril)
    assert abs(error) < 4 * float(left.std()) / math.sqrt(4000)


def test_curve_limit_by_adaptive_integration(tril):
    p = stats.multivariate_normal(np.zeros(3), (tril @ tril.mT).numpy())
    x = PLACES.numpy()

    def integrand(t):
        speed = np.linalg.norm(np.cos(x) + 2 * x * np.cos(2 * t * x))
        return stats.norm.pdf(t) * (math.log(speed) + p.logpdf(t * np.cos(x) + np.sin(2 * t * x)))

    expected = -1.5 * math.log(2 * math.pi * math.e) - integrate.quad(integrand, -10, 10, limit=500, epsabs=1e-11)[0]
    assert smoothed_curve_kl_constant(PLACES, tril) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("M", [20, 60])
def test_steps_are_short_enough_for_a_fast_curve(M, monkeypatch):
    """Up to ‖∂f/∂θ‖ = 268 at M = 60, where steps of 1/32 are 4 nats off: a quarter of the step gives the same."""
    x = torch.arange(M, dtype=torch.float64) / 2
    theta, noise = f64([0.3, -1.2]), torch.from_numpy(np.random.default_rng(3).standard_normal((2, M)))
    identity = torch.eye(M, dtype=torch.float64)
    found = smoothed_curve_log_ratio(theta, noise, 1e-8, x, identity)
    monkeypatch.setattr(smoothed_curve, "_STEP", 1 / 2048)
    close(smoothed_curve_log_ratio(theta, noise, 1e-8, x, identity), found, rtol=1e-11)


@pytest.mark.parametrize(("first", "noise_variance"), [(0.1, 0.5), (0.0, 0.0), (0.0, 1.5)])
def test_curves_that_the_formula_does_not_serve_are_refused(tril, first, noise_variance):
    x = PLACES.clone()
    x[0] = first
    with pytest.raises(ValueError, match="expected 0 and"):
        smoothed_curve_log_ratio(f64([0.0]), torch.zeros(1, 3, dtype=torch.float64), noise_variance, x, tril)
