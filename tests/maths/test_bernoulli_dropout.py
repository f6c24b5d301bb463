"""Bernoulli dropout in linear regression against the reference values, enumeration of all masks, and its identities."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsvi_bench.maths.bernoulli_dropout import (
    atom_entropy,
    bernoulli_entropy,
    bernoulli_objective,
    bernoulli_quasi_kl,
    compress_rows,
    continuous_prior_constant,
    discrete_prior_kl,
    optimal_m,
)
from fsvi_bench.maths.blr import (
    blr_posterior,
    log_evidence,
    ridge,
)
from fsvi_bench.maths.gaussian import LOG_2PI
from tests import reference_dropout as slow
from tests.maths.draws import EXPECTED, PUBLISHED, close, f64, published

PROPERTY = settings(deadline=None, derandomize=True, max_examples=30, database=None)
draws = st.integers(0, 10**6)
lengthscales = st.floats(0.3, 3)


def draw(seed, k=4, N=7):
    """(Phi, y, noise variance, m, p): the arguments of the objective, every p_i its own."""
    rng = np.random.default_rng(seed)
    Phi, y, m = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((N, k), N, k))
    return Phi, y, f64(rng.uniform(0.05, 2)), m, f64(rng.uniform(0.05, 0.95, k))


def numpy(*tensors):
    return [tensor.numpy() for tensor in tensors]


@pytest.mark.data
@PUBLISHED
@pytest.mark.parametrize("p", [0.5, 0.8, 0.95])
def test_reference_values(name, p):
    problem, expected, retain = published(name), EXPECTED[name]["bernoulli_dropout"][str(p)], f64([p])
    data = problem.Phi, problem.y, problem.frozen.noise_variance
    m = optimal_m(*data, retain)
    # Both sides see the features through cond(k(Z,Z)): 1e-11 is what is left of eps.
    close(m.norm(), expected["optimal_m_norm"], rtol=1e-11, atol=0)
    close(bernoulli_objective(*data, m, retain), expected["objective"], rtol=1e-11, atol=0)


# --- The objective and its gradient -----------------------------------------------------------------------------------


def constants_of(Phi, noise, lengthscale):
    """What the objective leaves out of the negative ELBO."""
    N, k = Phi.shape
    return 0.5 * (N * (LOG_2PI + noise.log()) + k * LOG_2PI) - k * math.log(lengthscale)


@PROPERTY
@given(draws, lengthscales)
def test_objective_is_the_enumerated_negative_elbo_without_constants(seed, lengthscale):
    Phi, y, noise, m, p = draw(seed)
    expected = slow.negative_elbo(*numpy(Phi, y, noise, m, p), lengthscale) - constants_of(Phi, noise, lengthscale)
    close(bernoulli_objective(Phi, y, noise, m, p, lengthscale), expected, rtol=1e-12, atol=1e-12)


def test_compressed_rows_give_the_same_objective():
    Phi, y, noise, m, p = draw(5, N=30)
    rows, targets = compress_rows(Phi, y)
    assert rows.shape == (5, 4)
    close(bernoulli_objective(rows, targets, noise, m, p), bernoulli_objective(Phi, y, noise, m, p), rtol=1e-13)


# --- The optimal m ----------------------------------------------------------------------------------------------------


@PROPERTY
@given(draws, lengthscales)
def test_optimal_m_solves_gals_equations(seed, lengthscale):
    Phi, y, noise, _, p = draw(seed)
    m = optimal_m(Phi, y, noise, p, lengthscale)
    close(m, slow.optimal_m(*numpy(Phi, y, noise, p), lengthscale), rtol=1e-10, atol=1e-10)
    gradient, _ = slow.objective_gradient(Phi, y, noise, m, p, lengthscale)
    assert gradient.abs().max() < 1e-11 * (1 + m.abs().max() / noise * Phi.square().sum())


def test_optimal_m_is_the_map_for_any_p_if_the_gram_matrix_is_diagonal():
    # Gal's remark after eq. 6.5 names a constant diagonal of ΦᵀΦ; it is a diagonal ΦᵀΦ, the constant plays no part.
    rng = np.random.default_rng(7)
    orthogonal = torch.linalg.qr(torch.from_numpy(rng.standard_normal((9, 4)))).Q
    y, noise = torch.from_numpy(rng.standard_normal(9)), f64(0.3)
    diagonal = orthogonal * f64([0.5, 1.0, 2.0, 4.0])
    close(optimal_m(diagonal, y, noise, f64([0.3])), blr_posterior(diagonal, y, noise).mean, rtol=1e-12)
    turned = orthogonal @ torch.from_numpy(rng.standard_normal((4, 4)))
    constant = turned / turned.square().sum(0).sqrt()  # all φ_iᵀφ_i = 1
    assert (optimal_m(constant, y, noise, f64([0.3])) - blr_posterior(constant, y, noise).mean).abs().max() > 0.1


def test_ridge_equals_the_normal_equations():
    Phi, y, _, _, penalty = draw(8)
    close(ridge(Phi, y, penalty), torch.linalg.solve(Phi.mT @ Phi + torch.diag(penalty), Phi.mT @ y), rtol=1e-11)


# --- The quasi-KL, and KLs to the prior -------------------------------------------------------------------------------


@PROPERTY
@given(draws, lengthscales)
def test_quasi_kl_by_enumeration_and_by_the_objective(seed, lengthscale):
    Phi, y, noise, m, p = draw(seed)
    # The prior N(0, l⁻²I) is that of the features Φ/l with weights lw.
    scaled = blr_posterior(Phi / lengthscale, y, noise)
    mean, C = scaled.mean / lengthscale, scaled.precision_tril * lengthscale
    qkl = bernoulli_quasi_kl(m, p, mean, C)
    close(qkl, slow.quasi_kl(*numpy(m, p, mean, torch.cholesky_inverse(C))), rtol=1e-10, atol=1e-10)
    constants = constants_of(Phi, noise, lengthscale) + log_evidence(Phi / lengthscale, y, noise, scaled)
    close(bernoulli_objective(Phi, y, noise, m, p, lengthscale) + constants, qkl, rtol=0, atol=1e-9)


def test_quasi_kl_merges_atoms_where_m_is_zero():
    Phi, y, noise, m, p = draw(9)
    m[1] = 0.0
    mean, C = blr_posterior(Phi, y, noise)
    qkl = bernoulli_quasi_kl(m, p, mean, C)
    close(qkl, slow.quasi_kl(*numpy(m, p, mean, torch.cholesky_inverse(C))), rtol=1e-12)
    m[1] = 1e-14  # two atoms again, at the same place for every other purpose
    close(bernoulli_quasi_kl(m, p, mean, C), qkl - bernoulli_entropy(p)[1], rtol=1e-12)
    close(atom_entropy(f64([0.0, 2.0]), f64([0.5])), math.log(2), rtol=1e-15)


@pytest.mark.parametrize(("p", "lengthscale"), [(0.3, 1.0), (0.9, 2.5)])
def test_discrete_prior_kl_is_the_sum_over_the_grid(p, lengthscale):
    step = 0.05
    grid = step * np.arange(-4000, 4001)
    log_prior = -0.5 * (lengthscale * grid) ** 2
    log_prior -= np.log(np.exp(log_prior).sum())
    m = step * np.array([17, -23])  # both on the grid
    log_p = np.log([1 - p, p])
    at = [log_prior[4000] * 2, log_prior[4017] + log_prior[3977]]
    expected = np.exp(log_p) @ (log_p - at)
    actual = discrete_prior_kl(torch.from_numpy(m), f64(p), step**2, lengthscale)
    close(actual, expected, rtol=1e-12)  # the grid's correction is exp(−2π²/(lΔ)²) < 1e-500
    close(discrete_prior_kl(0 * torch.from_numpy(m), f64(p), step**2, lengthscale), -at[0], rtol=1e-12)


@pytest.mark.parametrize("spread", [0.05, 0.01, 0.001])
def test_continuous_prior_kl_has_the_constant_that_diverges(spread):
    m, p, lengthscale = 1.3, 0.7, 1.6
    constant = continuous_prior_constant(f64(spread), 1, lengthscale)
    objective_terms = 0.5 * lengthscale**2 * p * m**2 - float(bernoulli_entropy(f64(p)[None]))
    close(objective_terms + constant, slow.widened_kl(m, p, spread, lengthscale), rtol=1e-10)  # quadrature's error
