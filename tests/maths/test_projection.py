import math

import numpy as np
import pytest
import torch
from hypothesis import given

from fsvi_bench.maths.projection import RANK_TOLERANCE, projected_kl, row_space
from tests import reference
from tests.maths.draws import PROPERTY, close, dense, draw, eye, f64, seeds, sizes, zeros
from tests.reference import random_orthogonal, random_tril

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}  # eps times the condition number of the dense twins' covariances, below 1e6


def draw_problem(rng, M, k, rank=None):
    """(Phi_A, mean_q, tril_q, mean_p, tril_p) with Φ_A of the given rank."""
    rank = min(M, k) if rank is None else rank
    Phi_A = rng.standard_normal((M, rank)) @ rng.standard_normal((rank, k))
    return torch.from_numpy(Phi_A), *draw(rng, k), *draw(rng, k)


def functional_kl(Phi_A, *gaussians):
    return projected_kl(row_space(Phi_A), *gaussians)


def with_singular_values(rng, values, k):
    """A square-or-wide Φ_A with these singular values."""
    left, right = random_orthogonal(rng, len(values)), random_orthogonal(rng, k)
    return torch.from_numpy(left @ np.diag(values) @ right[: len(values)])


# --- row_space --------------------------------------------------------------------------------------------------------


@PROPERTY
@given(seed=seeds, M=sizes, k=sizes, rank=sizes)
def test_the_basis_is_orthonormal_and_spans_the_rows(seed, M, k, rank):
    rank = min(M, k, rank)
    Phi_A = draw_problem(np.random.default_rng(seed), M, k, rank)[0]
    V = row_space(Phi_A)
    assert V.shape == (k, rank)
    close(V.mT @ V, eye(rank), atol=1e-14)
    close(Phi_A @ V @ V.mT, Phi_A, rtol=0, atol=1e-13)  # projecting onto the row space leaves the rows alone


@pytest.mark.parametrize(("tolerance", "rank"), [(RANK_TOLERANCE, 2), (1e-11, 3), (1e-4, 1), (0.0, 3)])
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6])
def test_the_rank_counts_singular_values_above_the_relative_tolerance(tolerance, rank, scale):
    Phi_A = scale * with_singular_values(np.random.default_rng(0), [1.0, 1e-5, 1e-10], 4)
    assert row_space(Phi_A, tolerance).shape == (4, rank)


def test_a_singular_value_equal_to_the_tolerance_does_not_count():
    Phi_A = torch.diag(f64([2.0, 1.0]))  # powers of two: no rounding
    assert row_space(Phi_A, 0.5).shape == (2, 1)
    assert row_space(Phi_A, 0.499).shape == (2, 2)


def test_no_rows_but_zeros_give_an_empty_basis_and_no_divergence():
    _, *gaussians = draw_problem(np.random.default_rng(2), 2, 3)
    V = row_space(zeros(2, 3))
    assert V.shape == (3, 0)
    assert projected_kl(V, *gaussians).item() == 0.0


# --- The functional KL against independent values ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("M", "k", "rank"),
    [(1, 1, 1), (1, 5, 1), (3, 5, 3), (5, 5, 5), (7, 4, 4), (6, 5, 3), (4, 6, 2), (3, 3, 1), (20, 5, 5)],
)
def test_equals_dense_formulas_for_any_rank(M, k, rank):
    """And the KL of the function values themselves where they have a density."""
    Phi_A, mean_q, tril_q, mean_p, tril_p = draw_problem(np.random.default_rng(3), M, k, rank)
    actual, F = functional_kl(Phi_A, mean_q, tril_q, mean_p, tril_p), Phi_A.numpy()
    q, p = (mean_q.numpy(), dense(tril_q)), (mean_p.numpy(), dense(tril_p))
    close(actual, reference.functional_kl_by_projection(F, *q, *p), **TOLERANCE)
    close(actual, reference.functional_kl_by_pseudo_determinant(F, *q, *p), **TOLERANCE)
    if rank == M:
        values = [part for mean, covariance in (q, p) for part in (F @ mean, F @ covariance @ F.T)]
        close(actual, reference.gaussian_kl(*values), **TOLERANCE)


# --- Identities -------------------------------------------------------------------------------------------------------


@PROPERTY
@given(seed=seeds, M=sizes, k=sizes)
def test_depends_on_the_row_space_only_and_on_no_factor(seed, M, k):
    rng = np.random.default_rng(seed)
    Phi_A, mean_q, tril_q, mean_p, tril_p = draw_problem(rng, M, k)
    expected = functional_kl(Phi_A, mean_q, tril_q, mean_p, tril_p)
    mixed = torch.from_numpy(random_tril(rng, M, M)) @ Phi_A.flip(0)
    close(functional_kl(mixed, mean_q, tril_q, mean_p, tril_p), expected, **TOLERANCE)
    U, W = torch.from_numpy(random_orthogonal(rng, k)), torch.from_numpy(random_orthogonal(rng, k))
    close(functional_kl(Phi_A, mean_q, tril_q @ U, mean_p, tril_p @ W), expected, **TOLERANCE)


def test_stays_finite_when_q_is_singular_off_the_row_space():
    # Var = 0 for a weight that no measurement point sees: the reason why FIXEDA's objective can lose rank unpunished.
    tril_q = torch.diag(f64([0.5, 2.0, 0.0]))
    zero, identity = zeros(3), eye(3)
    seen = identity[:2]
    expected = 0.5 * (0.25 - 1 - np.log(0.25) + 4.0 - 1 - np.log(4.0))
    close(functional_kl(seen, zero, tril_q, zero, identity), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("small", [1e-8, 1e-20, 1e-150])
def test_a_nearly_singular_q_keeps_its_digits(small):
    """In full rank the projected KL is the weight-space one, which here is known in closed form."""
    rng = np.random.default_rng(5)
    basis = torch.from_numpy(np.linalg.qr(rng.standard_normal((3, 3)))[0])
    scale = f64([small, 1.0, 1.0])
    zero, identity = zeros(3), eye(3)
    expected = 0.5 * (small**2 - 1) - math.log(small)
    assert float(projected_kl(basis, zero, torch.diag(scale), zero, identity)) == pytest.approx(expected, rel=1e-12)


def test_an_empty_measurement_set_is_refused():
    with pytest.raises(ValueError, match="empty"):
        row_space(zeros(0, 3))
