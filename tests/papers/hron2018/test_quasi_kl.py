"""The quasi-KL of singular approximations, and what it is the limit of, against brute force and its identities."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy.stats import norm

from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.papers.hron2018.quasi_kl import (
    IndependentAtoms,
    centred_discretised_line_kl,
    direction,
    line_orientation_term,
    log_mean_normal_density,
    quasi_kl_countable,
    quasi_kl_gaussian,
    restrict_gaussian,
)
from tests import reference
from tests.maths.draws import close, draw, f64, precision_tril

#: Three atoms against N(0.3, 1.4²).
LINE, WEIGHTS, MEAN, SCALE = [-0.4, 0.0, 1.3], [0.25, 0.6, 0.15], 0.3, 1.4
ONE_COORDINATE = IndependentAtoms(f64([LINE]), f64([WEIGHTS]), f64([MEAN]), f64([SCALE]))


def normal(rng, *shape):
    return torch.from_numpy(rng.standard_normal(shape))


def orthonormal(rng, D, K):
    return torch.from_numpy(reference.random_orthogonal(rng, D)[:, :K].copy())


def target(rng, D):
    """Lower factor of the precision, and the covariance."""
    _, tril = draw(rng, D)
    return precision_tril(tril), tril @ tril.mT


def dropout(rng, D, retain=0.8):
    """Atoms 0 and m_d of Bernoulli dropout against a factorised Gaussian."""
    m = normal(rng, D)
    probabilities = f64([[1 - retain, retain]] * D)
    return IndependentAtoms(torch.stack([0 * m, m], -1), probabilities, normal(rng, D), normal(rng, D).exp())


# --- Countable supports -----------------------------------------------------------------------------------------------


def test_countable_equals_the_sum_by_hand():
    q, p = f64([0.2, 0.8, 0.0]), f64([0.5, 0.3, 0.0])
    expected = 0.2 * math.log(0.2 / 0.5) + 0.8 * math.log(0.8 / 0.3)
    close(quasi_kl_countable(q, p.log()), expected, rtol=1e-15)
    close(quasi_kl_countable(torch.stack([q, q]), torch.stack([p, 2 * p]).log())[1], expected - math.log(2), rtol=1e-14)


@pytest.mark.parametrize("tau", [1e-4, 1e-2, 0.3, 4.0])
def test_convolved_kl_equals_numerical_integration(tau):
    """From far apart atoms to one lump, in many digits; the shift is −½ log(2πeτ)."""

    def integrand(w):
        q = mp.fsum(weight * mp.npdf(w, atom, mp.sqrt(tau)) for weight, atom in zip(WEIGHTS, LINE, strict=True))
        return q * (mp.log(q) - mp.log(mp.npdf(w, MEAN, SCALE))) if q > 0 else mp.mpf(0)

    edges = sorted(atom + k * math.sqrt(tau) for atom in LINE for k in (-12, -6, -3, 0, 3, 6, 12))
    expected = float(mp.quad(integrand, edges)) + 0.5 * math.log(2 * math.pi * math.e * tau)
    close(ONE_COORDINATE.centred_convolved_kl(tau), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("width", [1e-3, 0.5, 3.0])
def test_discretised_kl_equals_the_sum_over_cells(width):
    """The shift is −log Δ."""
    cells = {}
    for atom, weight in zip(LINE, WEIGHTS, strict=True):
        cell = math.floor(atom / width + 0.5)
        cells[cell] = cells.get(cell, 0) + weight
    kl = 0.0
    for cell, weight in cells.items():
        edges = (np.array([cell, cell + 1]) - 0.5) * width
        kl += weight * math.log(weight / float(np.diff(norm.cdf(edges, MEAN, SCALE))[0]))
    value = ONE_COORDINATE.centred_discretised_kl(width)
    # eps/width is what the twin's difference of distribution functions leaves.
    close(value, kl + math.log(width), rtol=0, atol=1e-12 if width > 0.1 else 1e-11)


@pytest.mark.parametrize("retain", [0.5, 0.8, 0.95])
def test_convolution_and_discretisation_tend_to_the_same_quasi_kl(retain):
    """Theorem 4: with an error of ½τ tr Λ once the atoms are apart, and of first order in Δ."""
    law = dropout(np.random.default_rng(2), 5, retain)._replace(scale_p=f64([0.5, 1.0, 2.0, 0.7, 1.4]))
    limit = law.quasi_kl()
    for tau in (1e-5, 1e-9, 1e-13):
        expected = 0.5 * tau * float((law.scale_p**-2).sum())
        close(law.centred_convolved_kl(tau) - limit, expected, rtol=1e-8, atol=1e-12)
    for width in (1e-2, 1e-4, 1e-6, 1e-8):
        # An atom's distance to its cell's centre is at most Δ/2, |d log p/dw| here at most 8.
        assert abs(float(law.centred_discretised_kl(width) - limit)) < 8 * 3 * width


def test_log_mean_density_of_wide_and_far_cells():
    for lower, width in ((-10.0, 30.0), (20.0, 3.0), (0.0, 1e-12)):
        with mp.workdps(40):
            expected = mp.log(mp.quad(mp.npdf, np.linspace(lower, lower + width, 40).tolist()) / width)
        close(log_mean_normal_density(f64(lower + width / 2), f64(width)), float(expected), rtol=1e-10)


def test_every_law_of_a_batch_is_alone():
    laws = [dropout(np.random.default_rng(seed), 3) for seed in range(2)]
    batch = IndependentAtoms(*map(torch.stack, zip(*laws, strict=True)))
    close(batch.centred_convolved_kl(0.1), torch.stack([law.centred_convolved_kl(0.1) for law in laws]), rtol=1e-13)
    close(batch.centred_discretised_kl(0.1), torch.stack([law.centred_discretised_kl(0.1) for law in laws]), rtol=1e-13)


# --- Affine supports --------------------------------------------------------------------------------------------------


def test_affine_of_full_dimension_is_the_kl():
    rng = np.random.default_rng(2)
    mean, tril_q = draw(rng, 2, 4)
    C, _ = target(rng, 4)
    expected = gaussian_kl_to_precision(mean, tril_q, torch.zeros_like(mean), C.expand(2, -1, -1)).total
    close(quasi_kl_gaussian(mean, tril_q, C), expected)


def test_affine_of_a_lower_rank_is_infinite():
    assert quasi_kl_gaussian(f64([0.0, 0.0]), f64([[0.0], [0.0]]), torch.eye(2, dtype=torch.float64)) == math.inf


def test_affine_is_a_kl_within_the_subspace_less_its_log_mass():
    """Equation 9, the mass going with P's marginal density across the subspace."""
    rng = np.random.default_rng(4)
    C, covariance = target(rng, 5)
    basis = orthonormal(rng, 5, 2)
    mean_z, tril_z = draw(rng, 2)
    R, log_mass = restrict_gaussian(basis, C)
    inside = gaussian_kl_to_precision(mean_z, tril_z, torch.zeros_like(mean_z), R).total
    close(quasi_kl_gaussian(basis @ mean_z, basis @ tril_z, C), inside - log_mass)
    across = torch.from_numpy(np.linalg.svd(basis.numpy())[0][:, 2:])
    marginal = (across.mT @ covariance @ across).numpy()
    close(log_mass, reference.gaussian_log_density(np.zeros(3), np.zeros(3), marginal))


@pytest.mark.parametrize("tau", [0.5, 1e-3])
def test_convolved_affine_kl_equals_the_dense_kl(tau):
    """With D − K = 3 in the shift."""
    rng = np.random.default_rng(3)
    C, covariance = target(rng, 5)
    mean, factor = normal(rng, 5), normal(rng, 5, 2)
    dense = factor @ factor.mT + tau * torch.eye(5, dtype=torch.float64)
    kl = reference.gaussian_kl(mean.numpy(), dense.numpy(), np.zeros(5), covariance.numpy())
    close(quasi_kl_gaussian(mean, factor, C, tau), kl + 1.5 * math.log(2 * math.pi * math.e * tau))


def left_of_a_line(angle, width, scale=0.8):
    """KL − s − QKL of the discretised line."""
    law = f64([0.0, 0.0]), scale * direction(f64(angle))[:, None], torch.eye(2, dtype=torch.float64)
    return float(centred_discretised_line_kl(f64(angle), width, scale) - quasi_kl_gaussian(*law))


def test_discretised_line_equals_the_sum_over_cells():
    """A coarse grid, the line's share of every cell found by sampling its length densely."""
    angle, width, scale = 0.4, 0.3, 0.7
    t = np.linspace(-9 * scale, 9 * scale, 2_000_001)
    t = (t[1:] + t[:-1]) / 2
    mass = norm.pdf(t, scale=scale)
    mass /= mass.sum()
    points = t[:, None] * np.array([math.cos(angle), math.sin(angle)])
    every = np.floor(points / width + 0.5)
    starts = np.flatnonzero(np.append(True, (np.diff(every, axis=0) != 0).any(1)))  # a line enters each cell once
    cells, q = every[starts], np.add.reduceat(mass, starts)
    p = np.prod(norm.cdf((cells + 0.5) * width) - norm.cdf((cells - 0.5) * width), axis=1)
    kept = q > 1e-14  # in the tails p loses its digits
    kl = float((q[kept] * np.log(q[kept] / p[kept])).sum())
    value = float(centred_discretised_line_kl(f64(angle), width, scale))
    assert value == pytest.approx(kl + math.log(width), abs=1e-5)  # the sampling's step is 6e-6


@pytest.mark.parametrize("angle", [0.0, 0.55])
def test_orientation_stays_in_the_discretised_limit(angle):
    """The paper's remark after theorem 5, and its size; by symmetry also about the diagonal."""
    value = left_of_a_line(angle, 2e-4)
    assert value == pytest.approx(float(line_orientation_term(f64(angle))), abs=1e-3)
    assert left_of_a_line(math.pi / 2 - angle, 2e-4) == pytest.approx(value, abs=1e-6)
