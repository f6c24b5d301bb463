"""f-divergences of Gaussians against integrals of their densities, distribution functions, and limits."""

import math

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
}  # fmt: skip


@pytest.mark.parametrize(("known", "case"), [(known, case) for known in OVERLAPS for case in OVERLAPS[known]])
def test_overlap_in_closed_form(known, case):
    of, expected = known(*case)
    close(log_overlap(of), f64(expected), rtol=1e-11, atol=1e-12)


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
