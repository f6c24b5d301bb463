"""Distances from points to a Gaussian: loops, SciPy's quadrature, closed forms for special cases, linear programmes."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from fsvi_bench.maths.two_sample import expected_kernel, expected_norm, pair_means, points_w2
from tests.maths.draws import close, eye, f64, normal, zeros


def test_means_over_pairs_are_those_of_a_loop_and_equal_points_count():
    x = normal(0, 7, 3)
    x[4] = x[2]
    pairs = list(itertools.permutations(range(7), 2))
    distances = np.array([np.linalg.norm(x[i] - x[j]) for i, j in pairs])
    found = pair_means(x, f64(1.7))
    close(found.distance, distances.mean(), rtol=1e-13)
    close(found.kernel, np.exp(-0.5 * distances**2 / 1.7).mean(), rtol=1e-13)


@pytest.mark.parametrize(("offset", "variance"), [(0.7, 4.0), (0.0, 1.0), (5.0, 1e-6), (3.0, 0.0)])
def test_a_norm_on_the_line_is_a_folded_normals_mean(offset, variance):
    sd = math.sqrt(variance)
    expected = stats.foldnorm(offset / sd, scale=sd).mean() if sd else offset
    close(expected_norm(f64([[offset]]), f64([[variance]])), [expected], rtol=1e-11)


def test_norms_in_several_dimensions():
    """A chi distribution's mean, a noncentral one's, and in three dimensions that of N(δ, diag(λ)) by SciPy's quadrature
    of the same representation, adaptive and without the substitution."""
    for d in (2, 5, 20):
        close(expected_norm(zeros(1, d), 4 * eye(d)), [2 * stats.chi(d).mean()], rtol=1e-12)
    delta = 3.0
    mean = quad(lambda r: r * 2 * r * stats.ncx2.pdf(r * r, 4, delta**2), 0, 20, epsabs=1e-13, limit=200)[0]
    close(expected_norm(f64([[delta, 0, 0, 0]]), eye(4)), [mean], rtol=1e-9)
    b, lam = np.array([0.3, -1.0, 2.0]), np.array([1e-4, 0.5, 3.0])

    def integrand(t):
        return -np.expm1(-0.5 * np.log1p(2 * t * lam).sum() - (t * b**2 / (1 + 2 * t * lam)).sum()) * t**-1.5

    parts = [quad(integrand, *ends, epsabs=1e-12, epsrel=1e-12, limit=500)[0] for ends in ((0, 1), (1, np.inf))]
    close(expected_norm(f64(b)[None], torch.diag(f64(lam))), [sum(parts) / (2 * math.sqrt(math.pi))], rtol=1e-8)


def test_kernels_and_norms_are_those_of_draws():
    """Means over 10⁶ draws, 4 standard errors."""
    offset, tril = normal(1, 2, 3), normal(2, 3, 3).tril()
    z = normal(3, 1_000_000, 3) @ tril.mT
    for place, delta in enumerate(offset):
        squares = (delta + z).square().sum(-1).numpy()
        for found, values in (
            (expected_kernel(offset, tril @ tril.mT, f64(2.5)), np.exp(-squares / 5)),
            (expected_norm(offset, tril @ tril.mT), np.sqrt(squares)),
        ):
            assert abs(float(found[place]) - values.mean()) < 4 * stats.sem(values)


def test_w2_on_the_line_is_the_integral_over_quantiles():
    points, mean, scale = normal(4, 5, 2), f64([0.3, -1.0]), f64([0.7, 2.0])
    found = points_w2(points, mean, scale)
    for column in range(2):
        ordered = np.sort(points[:, column].numpy())
        total = 0.0
        for i, x in enumerate(ordered):
            law = stats.norm(float(mean[column]), float(scale[column]))
            low, high = law.ppf(max(i / 5, 1e-300)), law.ppf((i + 1) / 5)
            total += quad(
                lambda y, x=x, law=law: (x - y) ** 2 * law.pdf(y), max(low, -40), min(high, 40), epsabs=1e-13
            )[0]
        close(found[column], math.sqrt(total), rtol=1e-9)
    close(points_w2(f64([[2.0], [2.0]]), f64([1.0]), f64([0.0])), [1.0], rtol=1e-15)
    # Two equal points: sqrt((x − m)² + s²).
    close(points_w2(f64([[4.0], [4.0]]), f64([1.0]), f64([4.0])), [5.0], rtol=1e-14)
