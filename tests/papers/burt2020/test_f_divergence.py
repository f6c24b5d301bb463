"""f-divergences of Gaussians against integrals of their densities, distribution functions, and limits."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import integrate, stats

from fsvi_bench.maths.gaussian import gaussian_kl
from fsvi_bench.papers.burt2020.theory.f_divergence import (
    GENERATORS,
    Relative,
    alpha_divergence,
    alpha_generator,
    kl,
    log_chernoff,
    log_overlap,
    relative,
    reverse_kl,
    total_variation,
)
from tests.maths.draws import close, draw_pair, f64


def swapped(of):
    """p seen from q."""
    return Relative(-of.shift / of.variance.sqrt(), 1 / of.variance)


ALL = (*GENERATORS, alpha_generator(0.5))
PAIRS = [(0.7, 0.4), (0.0, 0.3), (-1.5, 1.6), (0.3, 1.0)]  #: shift and variance of q, p = N(0, 1)


def pair(shift, variance):
    return Relative(f64([shift]), f64([variance]))


@pytest.mark.parametrize("generator", [*GENERATORS, alpha_generator(1.5)], ids=lambda g: g.name)
@pytest.mark.parametrize(("shift", "variance"), PAIRS)
def test_divergence_is_the_integral_of_its_f(generator, shift, variance):
    """∫ f(q/p) p by adaptive quadrature, cut where the densities cross; all that counts is within 22 of 0."""
    q, p = stats.norm(shift, math.sqrt(variance)), stats.norm()
    a, b = 0.5 * (1 - 1 / variance), shift / variance
    constant = -0.5 * math.log(variance) - shift**2 / (2 * variance)
    roots = np.roots([a, b, constant]) if a else np.array([-constant / b])
    crossings = sorted(float(r.real) for r in roots if abs(complex(r).imag) < 1e-12 and abs(r.real) < 22)

    def integrand(z):
        return generator.f(math.exp(q.logpdf(z) - p.logpdf(z))) * p.pdf(z)

    expected = integrate.quad(integrand, -22, 22, points=crossings or [0.0], epsabs=1e-13, epsrel=1e-12, limit=400)[0]
    close(generator.divergence(pair(shift, variance)), f64(expected), rtol=1e-9, atol=1e-10)


def test_kl_and_its_reverse_are_those_of_the_gaussians():
    mean_q, tril_q, mean_p, tril_p = draw_pair(3, 5)
    seen = relative(mean_q - mean_p, tril_q, tril_p)
    close(kl(seen), gaussian_kl(mean_q, tril_q, mean_p, tril_p))
    close(reverse_kl(seen), gaussian_kl(mean_p, tril_p, mean_q, tril_q))
    close(kl(swapped(seen)), reverse_kl(seen))
    close(total_variation(swapped(seen)), total_variation(seen), rtol=1e-9)


def test_nothing_depends_on_the_coordinates():
    """Rotated, stretched, moved: the same divergences, as an invertible map loses nothing."""
    mean_q, tril_q, mean_p, tril_p = draw_pair(4, 4)
    A, b = draw_pair(5, 4)[1], draw_pair(6, 4)[0]
    moved = relative(
        A @ mean_q + b - (A @ mean_p + b), A @ tril_q, torch.linalg.cholesky(A @ tril_p @ tril_p.mT @ A.mT)
    )
    seen = relative(mean_q - mean_p, tril_q, tril_p)
    for generator in ALL:
        close(generator.divergence(moved), generator.divergence(seen), rtol=1e-8, atol=1e-10)


def test_the_chernoff_integral_by_many_digits_in_two_dimensions():
    """A product of two one-dimensional integrals, each by tanh-sinh."""
    of = Relative(f64([0.4, -1.1]), f64([0.2, 1.5]))
    for alpha in (0.3, 0.5, 1.7, -0.2):
        expected = mp.mpf(0)
        for m, v in zip(of.shift.tolist(), of.variance.tolist(), strict=True):

            def integrand(z, m=m, v=v, alpha=alpha):
                log_q = -((z - m) ** 2) / (2 * v) - mp.log(2 * mp.pi * v) / 2
                return mp.exp(alpha * log_q + (1 - alpha) * (-(z**2) / 2 - mp.log(2 * mp.pi) / 2))

            expected += mp.log(mp.quad(integrand, mp.linspace(-40, 40, 33)))
        close(log_chernoff(of, alpha), f64(float(expected)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("alpha", [-0.5, 2.5])
def test_a_chernoff_integral_that_diverges(alpha):
    """(1 − α)v + α ≤ 0: the tails of q^α p^(1−α) grow."""
    variance = 4.0 if alpha > 1 else 0.3
    assert log_chernoff(pair(0.0, variance), alpha) == math.inf
    assert alpha_divergence(pair(0.0, variance), alpha) == math.inf


def two_means(shift):
    """∫ min = 2 Φ(−|m|/2), down to 1e-50."""
    return pair(shift, 1.0), stats.norm.logcdf(-shift / 2) + math.log(2)


def two_spheres(M, variance):
    """Which density is larger depends on |z|² alone, so that two χ² probabilities make the overlap."""
    crossing = -M * math.log(variance) / (1 / variance - 1)
    inside, outside = (crossing, crossing / variance) if variance < 1 else (crossing / variance, crossing)
    of = Relative(torch.zeros(M, dtype=torch.float64), torch.full((M,), variance, dtype=torch.float64))
    return of, np.logaddexp(stats.chi2.logcdf(inside, M), stats.chi2.logsf(outside, M))


def wide_where_the_other_is_narrow(pairs, variance):
    """Variances v and 1/v in turn: q > p where Σy² > Σx²/v, so that Fisher's law of their ratio says how much there is.

    log q/p has no constant, and on a straight path the integrand falls like t^(−2−M/2) only.
    """
    of = Relative(torch.zeros(2 * pairs, dtype=torch.float64), f64([variance, 1 / variance] * pairs))
    return of, math.log(stats.f.sf(1 / variance, pairs, pairs) + stats.f.cdf(variance, pairs, pairs))


@mp.workdps(40)
def two_intervals(shift, variance):
    """In one dimension the larger density changes at the two roots of log q/p."""
    m, v = mp.mpf(shift), mp.mpf(variance)
    a, b, c = (1 - 1 / v) / 2, m / v, -mp.log(v) / 2 - m * m / (2 * v)
    low, high = sorted((-b + sign * mp.sqrt(b * b - 4 * a * c)) / (2 * a) for sign in (1, -1))
    inside_q = mp.ncdf(high, m, mp.sqrt(v)) - mp.ncdf(low, m, mp.sqrt(v))
    inside_p = mp.ncdf(high) - mp.ncdf(low)
    return pair(shift, variance), float(mp.log(inside_p + 1 - inside_q if v < 1 else inside_q + 1 - inside_p))


def one_wide_among_thin(shift, variance, M, thin):
    """Given the one, q > p where Σz² of the M others is small enough: χ² laws, integrated over the one.

    For (1.01, 1e-6), c first falls beyond what counts along the better path, and then grows for ever.
    """
    q, p = stats.norm(shift, math.sqrt(variance)), stats.norm()

    def overlap(x):
        log_ratio = q.logpdf(x) - p.logpdf(x) - 0.5 * M * math.log(thin)
        squared = max(2 * log_ratio / (1 / thin - 1), 0)
        return q.pdf(x) * stats.chi2.sf(squared / thin, M) + p.pdf(x) * stats.chi2.cdf(squared, M)

    of = Relative(f64([shift] + [0.0] * M), f64([variance] + [thin] * M))
    return of, math.log(integrate.quad(overlap, -12, 15, points=[0, shift], epsabs=0, epsrel=1e-12, limit=500)[0])


OVERLAPS = {
    one_wide_among_thin: [(3.0, 1.01, 5, 1e-6), (1.0, 1.01, 5, 1e-6), (0.7, 0.5, 2, 0.1)],
    two_means: [(1e-3,), (0.5,), (3.0,), (10.0,), (30.0,)],
    two_spheres: [
        (1, 0.3), (1, 1e-8), (2, 0.01), (4, 0.1), (6, 1.001), (5, 0.9), (5, 1.11), (3, 0.99), (10, 4.0), (10, 1e-10),
        (40, 1e-12),
    ],
    wide_where_the_other_is_narrow: [(1, 0.9), (1, 0.5), (1, 0.95), (2, 0.8), (3, 0.9), (3, 0.3)],
    two_intervals: [(3.0, 0.3), (10.0, 0.2), (2.0, 5.0), (0.1, 0.9), (5.0, 1.05), (12.0, 0.8)],
}  # fmt: skip


@pytest.mark.parametrize(("known", "case"), [(known, case) for known in OVERLAPS for case in OVERLAPS[known]])
def test_overlap_in_closed_form(known, case):
    of, expected = known(*case)
    close(log_overlap(of), f64(expected), rtol=1e-11, atol=1e-12)


def test_total_variation_by_simulation():
    """½ E_p|q/p − 1| of a correlated pair with 400,000 draws, within 4 standard errors."""
    mean_q, tril_q, mean_p, tril_p = draw_pair(11, 3)
    of = relative(mean_q - mean_p, tril_q, tril_p)
    z = torch.randn(400_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (z @ tril_q.mT + mean_q).numpy()
    log_q = stats.multivariate_normal(mean_q.numpy(), (tril_q @ tril_q.mT).numpy()).logpdf(x)
    log_p = stats.multivariate_normal(mean_p.numpy(), (tril_p @ tril_p.mT).numpy()).logpdf(x)
    overlap = np.minimum(1.0, np.exp(log_p - log_q))
    assert abs(overlap.mean() - math.exp(log_overlap(of))) < 4 * overlap.std() / math.sqrt(len(x))


def test_le_cams_inequalities_and_pinskers():
    """H² ≤ TV ≤ √(H²(2 − H²)) and TV ≤ √(KL/2), ≤ √(1 − exp(−KL))."""
    for seed in range(20):
        mean_q, tril_q, mean_p, tril_p = draw_pair(seed, 3)
        of = relative(mean_q - mean_p, tril_q, tril_p)
        tv, h2, divergence = float(total_variation(of)), -math.expm1(float(log_chernoff(of, 0.5))), float(kl(of))
        assert h2 <= tv <= math.sqrt(h2 * (2 - h2))
        assert tv <= min(math.sqrt(divergence / 2), math.sqrt(-math.expm1(-divergence)))


def test_equal_laws_have_no_divergence():
    of = Relative(torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    for generator in GENERATORS:
        assert abs(float(generator.divergence(of))) < 1e-12  # the integral of 1/(¼ + t²) is cut at 1e13


@pytest.mark.parametrize("generator", ALL, ids=lambda g: g.name)
def test_singular_laws_have_the_largest_value_exactly(generator):
    """A q with one variance of 0, and D_f just short of it for one of 1e-40 (α = ¼ leaves 1e-40 to the power ⅛)."""
    singular = Relative(f64([0.5, 0.1]), f64([0.3, 0.0]))
    assert float(generator.divergence(singular)) == generator.between_singular
    nearly = float(generator.divergence(Relative(f64([0.5, 0.1]), f64([0.3, 1e-40]))))
    assert nearly > 40 if generator.between_singular == math.inf else 0 <= generator.between_singular - nearly < 1e-3


@pytest.mark.parametrize("generator", ALL, ids=lambda g: g.name)
def test_ends_of_every_f(generator):
    """f(0) and f'(∞) by their limits: f(1e-150), and f(z)/z at 1e150 (α = ¾ leaves z^(−¼) = 3e-38)."""
    assert generator.f(1.0) == 0
    for found, limit in (
        (generator.f(1e-150), generator.f(0.0)),
        (generator.f(1e150) / 1e150, generator.slope_at_infinity),
    ):
        assert found > 300 if limit == math.inf else found == pytest.approx(limit, abs=1e-30 if limit == 0 else 1e-12)


def test_the_sum_of_the_ends_does_not_depend_on_how_f_is_written_and_the_slope_does():
    """½|z − 1| + ½(z − 1) = max(0, z − 1) is total variation too: f(0) + f'(∞) = 0 + 1; the paper's f'(∞) moves."""
    tv = next(g for g in GENERATORS if g.name == "total variation")
    other_at_zero, other_slope = tv.f(0.0) - 0.5, tv.slope_at_infinity + 0.5
    assert other_at_zero + other_slope == tv.between_singular == 1.0
    assert other_slope != tv.slope_at_infinity
    of = pair(0.7, 0.4)
    q, p = stats.norm(0.7, math.sqrt(0.4)), stats.norm()
    expected = integrate.quad(lambda z: max(0.0, q.pdf(z) - p.pdf(z)), -12, 12, limit=400, epsabs=1e-12)[0]
    close(total_variation(of), f64(expected), rtol=1e-8)


@pytest.mark.parametrize("generator", ALL, ids=lambda g: g.name)
def test_what_an_event_shows_is_the_limit_of_two_coins(generator):
    """Σ b f(a/b) over heads and tails of coins with p and 1e-150; nothing for p = 0, everything for p = 1, less between."""

    def coins(a, b):
        return b * generator.f(a / b) + (1 - b) * generator.f((1 - a) / (1 - b))

    for p in (0.2, 0.9):
        for found, limit in (
            (generator.of_event(p, 0), coins(p, 1e-150)),
            (generator.of_event(0, p), coins(1e-150, p)),
        ):
            # α = ¾ leaves 1e-150 to the power ¼.
            assert limit > 30 if found == math.inf else found == pytest.approx(limit, rel=1e-12)
            assert 0 < found <= generator.between_singular
    assert generator.of_event(0, 0) == 0
    assert generator.of_event(1, 0) == generator.of_event(0, 1) == generator.between_singular


def test_what_an_event_shows_by_name():
    p, by_name = 0.3, {generator.name: generator for generator in GENERATORS}
    for event in ((p, 0), (0, p)):
        assert by_name["total variation"].of_event(*event) == pytest.approx(p, rel=1e-14)
        assert by_name["squared Hellinger"].of_event(*event) == pytest.approx(1 - math.sqrt(1 - p), rel=1e-14)
    assert by_name["KL(Q, P)"].of_event(1e-12, 0) == math.inf == by_name["KL(P, Q)"].of_event(0, 1e-12)
    assert by_name["KL(P, Q)"].of_event(p, 0) == pytest.approx(-math.log(1 - p), rel=1e-14)
    assert by_name["KL(Q, P)"].of_event(0, p) == pytest.approx(-math.log(1 - p), rel=1e-14)


def test_a_flat_factor_gives_variances_of_exactly_zero():
    mean, tril = draw_pair(2, 5)[:2]
    of = relative(mean, tril[:, :2], draw_pair(9, 5)[3])
    assert int((of.variance == 0).sum()) == 3
