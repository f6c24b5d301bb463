"""The limits of theorems 4 and 5 of Hron et al. 2018: what they are before the limit, and that they get there."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy.stats import norm

from fsvi_bench.papers.hron2018.quasi_kl import quasi_kl_affine_gaussian, quasi_kl_countable
from fsvi_bench.papers.hron2018.quasi_kl_limits import (
    atoms_quasi_kl,
    centred_convolved_affine_kl,
    centred_convolved_kl,
    centred_discretised_kl,
    centred_discretised_line_kl,
    convolution_shift,
    discretisation_shift,
    line_orientation_term,
    log_mean_normal_density,
)
from tests import reference
from tests.maths.draws import close, draw, f64, precision_tril

LINE = f64([[-0.4, 0.0, 1.3]])
WEIGHTS = f64([[0.25, 0.6, 0.15]])


def gaussian_target(rng, D):
    mean, tril = draw(rng, D)
    return mean, precision_tril(tril), tril @ tril.mT


def dropout_atoms(rng, D, retain=0.8):
    """Atoms 0 and m_d of Bernoulli dropout."""
    m = torch.from_numpy(rng.standard_normal(D))
    return torch.stack([torch.zeros_like(m), m], -1), f64([[1 - retain, retain]] * D)


def slope(gaps, sizes):
    """Order of convergence between the last two."""
    return math.log(gaps[-2] / gaps[-1]) / math.log(sizes[-2] / sizes[-1])


# --- Countable supports -----------------------------------------------------------------------------------------------


def test_atoms_equal_the_enumeration():
    rng = np.random.default_rng(0)
    mean_p, C, covariance = gaussian_target(rng, 4)
    locations, probabilities = dropout_atoms(rng, 4)
    joint, log_density = [], []
    for choice in itertools.product(range(2), repeat=4):
        x = locations[range(4), choice]
        joint.append(float(probabilities[range(4), choice].prod()))
        log_density.append(reference.gaussian_log_density(x.numpy(), mean_p.numpy(), covariance.numpy()))
    expected = quasi_kl_countable(f64(joint), f64(log_density))
    close(atoms_quasi_kl(locations, probabilities, mean_p, C), expected)


@pytest.mark.parametrize("tau", [1e-4, 1e-2, 0.3, 4.0])
def test_convolved_kl_equals_numerical_integration(tau):
    """From far apart atoms to one lump, in many digits."""
    mean_p, scale_p = 0.3, 1.4
    x, weights = LINE[0].tolist(), WEIGHTS[0].tolist()

    def integrand(w):
        q = mp.fsum(weight * mp.npdf(w, atom, mp.sqrt(tau)) for weight, atom in zip(weights, x, strict=True))
        return q * (mp.log(q) - mp.log(mp.npdf(w, mean_p, scale_p))) if q > 0 else mp.mpf(0)

    edges = sorted(atom + k * math.sqrt(tau) for atom in x for k in (-12, -6, -3, 0, 3, 6, 12))
    kl = float(mp.quad(integrand, edges))
    expected = kl - float(convolution_shift(f64(tau), 1))
    value = centred_convolved_kl(LINE, WEIGHTS, f64(tau), f64([mean_p]), f64([[1 / scale_p]]))
    close(value, expected, rtol=0, atol=1e-11)


def test_convolution_tends_to_the_quasi_kl():
    """Theorem 4: an error of ½τ tr Λ once the atoms are apart, in several correlated dimensions."""
    rng = np.random.default_rng(1)
    mean_p, C, _ = gaussian_target(rng, 5)
    locations, probabilities = dropout_atoms(rng, 5)
    limit = atoms_quasi_kl(locations, probabilities, mean_p, C)
    for tau in (1e-5, 1e-9, 1e-13):
        value = centred_convolved_kl(locations, probabilities, f64(tau), mean_p, C)
        close(value - limit, 0.5 * tau * float(C.square().sum()), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("width", [1e-3, 0.5, 3.0])
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_discretised_kl_equals_the_sum_over_cells(width, shift):
    mean_p, scale_p = 0.3, 1.4
    cells = {}
    for atom, weight in zip(LINE[0].tolist(), WEIGHTS[0].tolist(), strict=True):
        cell = math.floor(atom / width + shift)
        cells[cell] = cells.get(cell, 0) + weight
    kl = 0.0
    for cell, weight in cells.items():
        edges = (np.array([cell, cell + 1]) - shift) * width
        kl += weight * math.log(weight / float(np.diff(norm.cdf(edges, mean_p, scale_p))[0]))
    expected = kl - float(discretisation_shift(f64(width), 1))
    value = centred_discretised_kl(LINE, WEIGHTS, f64(width), f64([mean_p]), f64([scale_p]), shift=shift)
    # eps/width is what the twin's difference of distribution functions leaves.
    close(value, expected, rtol=0, atol=1e-12 if width > 0.1 else 1e-11)


@pytest.mark.parametrize("retain", [0.5, 0.95])
def test_discretisation_tends_to_the_same_quasi_kl(retain):
    """Theorem 4: both constructions have one limit."""
    rng = np.random.default_rng(2)
    locations, probabilities = dropout_atoms(rng, 3, retain)
    mean_p, scale_p = f64(rng.standard_normal(3)), f64([0.5, 1.0, 2.0])
    limit = atoms_quasi_kl(locations, probabilities, mean_p, torch.diag(1 / scale_p))
    gaps = []
    widths = [1e-2, 1e-4, 1e-6, 1e-8]
    for width in widths:
        value = centred_discretised_kl(locations, probabilities, f64(width), mean_p, scale_p)
        gaps.append(abs(float(value - limit)))
    # An atom's distance to its cell's centre is at most Δ/2, |d log p/dw| here at most 8: no worse than first order.
    assert all(gap < 8 * 3 * width for gap, width in zip(gaps, widths, strict=True))
    close(centred_convolved_kl(locations, probabilities, f64(1e-12), mean_p, torch.diag(1 / scale_p)), limit, rtol=1e-9)


def test_atoms_that_share_a_cell_are_merged():
    value = centred_discretised_kl(f64([[0.01, 0.02]]), f64([[0.3, 0.7]]), f64(1.0), f64([0.0]), f64([1.0]))
    close(value, -math.log(norm.cdf(0.5) - norm.cdf(-0.5)), rtol=1e-13)


def test_log_mean_density_of_wide_and_far_cells():
    for lower, width in ((-10.0, 30.0), (20.0, 3.0), (0.0, 1e-12)):
        with mp.workdps(40):
            expected = mp.log(mp.quad(mp.npdf, np.linspace(lower, lower + width, 40).tolist()) / width)
        close(log_mean_normal_density(f64(lower), f64(width)), float(expected), rtol=1e-10)


# --- Affine supports --------------------------------------------------------------------------------------------------


def affine_problem(rng):
    mean_p, C, covariance = gaussian_target(rng, 5)
    offset, factor = torch.from_numpy(rng.standard_normal(5)), torch.from_numpy(rng.standard_normal((5, 2)))
    return offset, factor, mean_p, C, covariance


def test_convolved_affine_kl_equals_the_dense_kl():
    offset, factor, mean_p, C, covariance = affine_problem(np.random.default_rng(3))
    for tau in (0.5, 1e-3):
        dense = factor @ factor.mT + tau * torch.eye(5, dtype=torch.float64)
        kl = reference.gaussian_kl(offset.numpy(), dense.numpy(), mean_p.numpy(), covariance.numpy())
        value = centred_convolved_affine_kl(offset, factor, f64(tau), mean_p, C)
        close(value, kl - float(convolution_shift(f64(tau), 3)))


def test_affine_convolution_tends_to_the_quasi_kl():
    """Theorem 5, to first order in τ."""
    offset, factor, mean_p, C, _ = affine_problem(np.random.default_rng(4))
    limit = quasi_kl_affine_gaussian(offset, factor, mean_p, C)
    taus = [1e-3, 1e-5]
    gaps = [abs(float(centred_convolved_affine_kl(offset, factor, f64(tau), mean_p, C) - limit)) for tau in taus]
    assert 0.99 < slope(gaps, taus) < 1.01
    close(centred_convolved_affine_kl(offset, factor, f64(1e-14), mean_p, C), limit)


def line_quasi_kl(angle, scale):
    zero = torch.zeros(2, dtype=torch.float64)
    factor = scale * f64([[math.cos(angle)], [math.sin(angle)]])
    return float(quasi_kl_affine_gaussian(zero, factor, zero, torch.eye(2, dtype=torch.float64)))


def test_discretised_line_equals_the_sum_over_cells():
    """A coarse grid, the line's share of every cell found by sampling its length densely."""
    angle, width, scale = 0.4, 0.3, 0.7
    t = np.linspace(-9 * scale, 9 * scale, 2_000_001)
    t = (t[1:] + t[:-1]) / 2
    mass = norm.pdf(t, scale=scale)
    mass /= mass.sum()
    points = t[:, None] * np.array([math.cos(angle), math.sin(angle)])
    cells, inverse = np.unique(np.floor(points / width + 0.5), axis=0, return_inverse=True)
    q = np.bincount(inverse.ravel(), weights=mass)
    p = np.prod(norm.cdf((cells + 0.5) * width) - norm.cdf((cells - 0.5) * width), axis=1)
    kept = q > 1e-14  # in the tails p loses its digits
    kl = float((q[kept] * np.log(q[kept] / p[kept])).sum())
    value = float(centred_discretised_line_kl(angle, width, scale))
    assert value == pytest.approx(kl + math.log(width), abs=1e-5)  # the sampling's step is 6e-6


@pytest.mark.parametrize("angle", [0.0, 0.2, 0.55, 0.7])
def test_orientation_stays_in_the_discretised_limit(angle):
    """The paper's remark after theorem 5, and its size."""
    value = float(centred_discretised_line_kl(angle, 2e-4, 0.8)) - line_quasi_kl(angle, 0.8)
    assert value == pytest.approx(line_orientation_term(angle), abs=1e-3)
    # By symmetry also about the diagonal.
    mirrored = float(centred_discretised_line_kl(math.pi / 2 - angle, 2e-4, 0.8)) - line_quasi_kl(angle, 0.8)
    assert mirrored == pytest.approx(value, abs=1e-6)


def test_the_diagonal_depends_on_where_it_cuts_the_cells():
    """Through the corners every chord is √2Δ; the orientation term of its neighbours is ½ less."""
    angle = math.pi / 4
    value = float(centred_discretised_line_kl(angle, 1e-3, 0.8)) - line_quasi_kl(angle, 0.8)
    assert value == pytest.approx(0.5 * math.log(2), abs=1e-5)
    assert line_orientation_term(angle) == pytest.approx(0.5 * math.log(2) - 0.5, abs=1e-15)


# --- Batches ----------------------------------------------------------------------------------------------------------


def test_every_problem_of_a_batch_is_alone():
    rng = np.random.default_rng(5)
    problems = [(*dropout_atoms(rng, 3), *gaussian_target(rng, 3)[:2]) for _ in range(4)]
    locations, probabilities, mean_p, C = (torch.stack(part) for part in zip(*problems, strict=True))
    size = f64([1e-3, 0.1, 0.5, 2.0])
    scale = C.diagonal(dim1=-2, dim2=-1)
    together = (
        atoms_quasi_kl(locations, probabilities, mean_p, C),
        centred_convolved_kl(locations, probabilities, size, mean_p, C),
        centred_discretised_kl(locations, probabilities, size, mean_p, scale),
        centred_convolved_affine_kl(mean_p, locations, size, mean_p, C),
    )
    for i in range(4):
        alone = (
            atoms_quasi_kl(locations[i], probabilities[i], mean_p[i], C[i]),
            centred_convolved_kl(locations[i], probabilities[i], size[i], mean_p[i], C[i]),
            centred_discretised_kl(locations[i], probabilities[i], size[i], mean_p[i], scale[i]),
            centred_convolved_affine_kl(mean_p[i], locations[i], size[i], mean_p[i], C[i]),
        )
        for batched, single in zip(together, alone, strict=True):
            close(batched[i], single, rtol=1e-13)
