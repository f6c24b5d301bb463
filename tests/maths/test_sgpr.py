"""The collapsed bound through BLAS and LAPACK against its dense N×N formula, differentiated by autograd."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsvi_bench.maths.blr import blr_posterior, log_evidence
from fsvi_bench.maths.features import inducing_tril, nystrom_features
from fsvi_bench.maths.sgpr_lapack import BoundAndGradient, LapackCollapsedBound, NotPositiveDefiniteError
from tests import reference
from tests.maths.draws import PROPERTY, close, eye, f64, seeds

JITTER = 1e-4


def draw_data(seed, N, D):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, D))
    return torch.from_numpy(X), torch.from_numpy(np.sin(2 * X).sum(1) + 0.3 * rng.standard_normal(N))


def draw_parameters(seed, k, D):
    """(Z, lengthscales, outputscale, noise_variance)."""
    rng = np.random.default_rng([seed, 1])
    Z, lengthscales = torch.from_numpy(rng.standard_normal((k, D))), torch.from_numpy(rng.uniform(0.5, 2, D))
    return Z, lengthscales, f64(rng.uniform(0.5, 2)), f64(rng.uniform(0.05, 0.5))


def draw(seed, N, k, D):
    return *draw_data(seed, N, D), *draw_parameters(seed, k, D)


def lapack_at(evaluate, Z, lengthscales, outputscale, noise_variance):
    return evaluate(Z.numpy(), lengthscales.numpy(), outputscale.item(), noise_variance.item())


def close_in_every_field(actual, expected, tolerance=1e-9):
    """Gradients carry K⁻¹ twice and sum terms larger than themselves: the tolerance is relative to the field's norm.

    Where an inducing point is far from all data its gradient vanishes, and terms of order one cancel: hence the 1.
    """
    for name, value in expected._asdict().items():
        got, wanted = np.asarray(getattr(actual, name)), np.asarray(value)
        atol = tolerance * max(1.0, float(np.linalg.norm(wanted)))
        np.testing.assert_allclose(got, wanted, rtol=0, atol=atol, err_msg=name)


def bound_by_autograd(X, y, Z, lengthscales, outputscale, noise_variance, jitter):
    """The N×N formula in plain torch operations, written without anything from fsvi_bench."""

    def kernel(a, b):
        difference = (a[:, None] - b[None]) / lengthscales
        return outputscale * torch.exp(-0.5 * difference.square().sum(-1))

    cross = kernel(X, Z)
    Q = cross @ torch.linalg.solve(kernel(Z, Z) + jitter * eye(len(Z)), cross.mT)
    marginal = Q + noise_variance * eye(len(y))
    fit = -0.5 * (len(y) * math.log(2 * math.pi) + torch.logdet(marginal) + y @ torch.linalg.solve(marginal, y))
    return fit - (len(y) * outputscale - Q.diagonal().sum()) / (2 * noise_variance)


def bound_and_gradient_by_autograd(X, y, *parameters_and_jitter):
    """The independent twin: the dense formula's value and gradient."""
    *parameters, jitter = parameters_and_jitter
    parameters = [parameter.detach().requires_grad_() for parameter in parameters]
    bound = bound_by_autograd(X, y, *parameters, jitter)
    return BoundAndGradient(bound.detach(), *torch.autograd.grad(bound, parameters))


def lapack(X, y, *parameters_and_jitter, **options):
    *parameters, jitter = parameters_and_jitter
    evaluate = LapackCollapsedBound(X.numpy(), y.numpy(), len(parameters[0]), jitter, **options)
    return lapack_at(evaluate, *parameters)


# --- Against independent values ---------------------------------------------------------------------------------------


@PROPERTY
@given(st.builds(draw, seeds, st.integers(1, 12), st.integers(1, 6), st.integers(1, 3)))
def test_bound_and_gradient_equal_the_dense_formula_below_the_evidence_of_the_exact_gp(drawn):
    """The bound is, besides, the evidence of regression on Nyström features less the trace term."""
    X, y, Z, *hyperparameters, noise = drawn
    got = lapack(*drawn, JITTER)
    close_in_every_field(got, bound_and_gradient_by_autograd(*drawn, JITTER))
    exact = reference.gp_log_evidence(X.numpy(), y.numpy(), *(value.numpy() for value in (*hyperparameters, noise)))
    assert got.bound < exact  # strictly: Z is not X
    Phi = nystrom_features(X, Z, *hyperparameters, inducing_tril(Z, *hyperparameters, f64(JITTER)))
    trace_term = (len(X) * hyperparameters[1] - Phi.square().sum()) / (2 * noise)
    evidence = log_evidence(Phi, y, noise, blr_posterior(Phi, y, noise))
    close(f64(got.bound), evidence - trace_term, rtol=1e-10, atol=1e-10)  # eps · cond(K), up to 1e5 with this jitter


def test_bound_is_tight_where_the_inducing_points_are_the_data():
    X, y = draw_data(0, 8, 2)
    hyperparameters = f64([0.3, 0.4]), f64(1.2), f64(0.1)  # short lengthscales: k(X,X) is well conditioned
    exact = reference.gp_log_evidence(X.numpy(), y.numpy(), *(value.numpy() for value in hyperparameters))
    # tr(K − K(K + jitter·I)⁻¹K) is about N · jitter, so the trace term is 8e-12/0.2.
    close(f64(lapack(X, y, X, *hyperparameters, 1e-12).bound), exact, rtol=0, atol=1e-10)


# --- Failure ----------------------------------------------------------------------------------------------------------


def test_a_kernel_that_is_not_positive_definite_is_an_error():
    X, y, Z, *hyperparameters = draw(2, 9, 3, 2)
    Z = torch.cat([Z, Z])  # K has the eigenvalue 0 three times, K + jitter·I has −1e-3
    with pytest.raises(NotPositiveDefiniteError, match=r"pivot \d of 6"):
        lapack(X, y, Z, *hyperparameters, -1e-3)


# --- Blocks and buffers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("D", [1, 3])
@pytest.mark.parametrize(
    ("N", "block"),
    [(50, 16), (48, 16), (50, 50), (50, 512), (17, 16), (50, 1), (1, 16)],
)
def test_lapack_equals_the_dense_formula_for_any_blocking(N, block, D):
    drawn = *draw(4, N, 6, D), JITTER
    close_in_every_field(lapack(*drawn, block=block), bound_and_gradient_by_autograd(*drawn))


def test_lapack_buffers_do_not_go_stale():
    X, y = draw_data(7, 50, 2)
    evaluate = LapackCollapsedBound(X.numpy(), y.numpy(), 6, JITTER, block=16)
    one, two = draw_parameters(7, 6, 2), draw_parameters(8, 6, 2)
    first = lapack_at(evaluate, *one)
    kept = [np.array(value) for value in first]
    other = lapack_at(evaluate, *two)
    again = lapack_at(evaluate, *one)
    assert other.bound != first.bound
    for before, value, after in zip(kept, first, again, strict=True):
        np.testing.assert_array_equal(before, value)  # what was returned is not a view of a buffer
        np.testing.assert_array_equal(before, after)  # bitwise


def test_lapack_keeps_its_digits_where_the_noise_is_tiny():
    """A target explained down to a noise of 2e-6, as naval's is, so that cond(B) is 1e9: against the same formula in
    extended precision. The bound is a difference of numbers of N s/σ² = 2e9, of which rounding costs some 1e-5."""
    rng = np.random.default_rng(0)
    X, k, s, variance, jitter = rng.uniform(-1.7, 1.7, (1000, 1)), 40, 4.0, 2e-6, 1e-6
    y, Z = np.sin(X[:, 0]), np.linspace(-1.7, 1.7, k)[:, None]
    bound = LapackCollapsedBound(X, y, k, jitter)(Z, np.ones(1), s, variance).bound
    assert bound == pytest.approx(bound_in_extended_precision(X, y, Z, s, variance, jitter), abs=1e-3)


def bound_in_extended_precision(X, y, Z, s, variance, jitter):
    """The collapsed bound with lengthscales 1 in NumPy's long doubles, whose eps is 1e-19, through triangular factors."""
    extended = np.longdouble
    X, y, Z, s, variance = X.astype(extended), y.astype(extended), Z.astype(extended), extended(s), extended(variance)

    def kernel(a, b):
        return s * np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / 2)

    def solve(tril, right):
        solution = np.zeros_like(right)
        for i in range(len(tril)):
            solution[i] = (right[i] - tril[i, :i] @ solution[:i]) / tril[i, i]
        return solution

    def cholesky(matrix):
        tril = np.zeros_like(matrix)
        for i in range(len(matrix)):
            tril[i, i] = np.sqrt(matrix[i, i] - tril[i, :i] @ tril[i, :i])
            tril[i + 1 :, i] = (matrix[i + 1 :, i] - tril[i + 1 :, :i] @ tril[i, :i]) / tril[i, i]
        return tril

    identity = np.eye(len(Z), dtype=extended)
    A = solve(cholesky(kernel(Z, Z) + extended(jitter) * identity), kernel(Z, X)) / np.sqrt(variance)
    LB = cholesky(identity + A @ A.T)
    half = solve(LB, (A @ y)[:, None]) / np.sqrt(variance)
    log_determinant = len(y) * np.log(2 * extended(np.pi) * variance) + 2 * np.log(np.diag(LB)).sum()
    fit = (y @ y + len(y) * s) / variance - (half**2).sum() - (A**2).sum()
    return float(-(log_determinant + fit) / 2)


def test_parameters_that_are_not_finite_are_reported():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((9, 2)), rng.standard_normal(9)
    evaluate = LapackCollapsedBound(X, y, 3, 1e-6)
    with pytest.raises(NotPositiveDefiniteError, match="bound is nan"):
        evaluate(X[:3], np.array([1.0, np.nan]), 1.0, 0.1)
