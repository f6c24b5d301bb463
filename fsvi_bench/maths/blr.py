"""Bayesian linear regression y = Φw + ε, w ~ N(0, I_k), ε ~ N(0, σ²I): the benchmark's exact truth.

Precision Λ = ΦᵀΦ/σ² + I, mean Λ⁻¹Φᵀy/σ² (Burt et al. 2020, eq. 5 and appendix E). Certificates compare three
computations of the posterior: the QR of [Φ/σ; I], whose error grows only like √cond(Λ) and which scores use; the
Cholesky factor of Λ; and Woodbury's identity with the N×N marginal covariance. Targets are standardised, so evidences
and expected log likelihoods are in standardised units.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.batching import fill, fill_diagonal
from fsvi_bench.maths.gaussian import LOG_2PI, normal_log_density
from fsvi_bench.maths.linalg import (
    identity,
    inverse_tril,
    logdet_of_tril,
    positive_diagonal_tril,
    solve_tril,
    tril_of_gram,
)
from fsvi_bench.maths.shapes import Features, Matrix, PerProblem, Shared, Targets, Vector


class PrecisionGaussian(NamedTuple):
    """N(mean, Λ⁻¹) with Λ = CCᵀ, where C = `precision_tril` is lower triangular with a positive diagonal."""

    mean: Vector
    precision_tril: Matrix


def blr_posterior(Phi: Features, y: Targets, noise_variance: PerProblem) -> PrecisionGaussian:
    """Exact posterior from the QR decomposition of [Φ/σ, y/σ; I, 0].

    Let R̄ = [R, r; 0, ρ] be its triangular factor. Then Λ = RᵀR, and the mean solves Rμ = r, the regularised
    least-squares problem [Φ/σ; I] w = [y/σ; 0]. Neither ΦᵀΦ nor Φᵀy is formed.
    """
    k = Phi.shape[-1]
    rows = torch.cat([Phi, y[..., None]], dim=-1) / noise_variance.sqrt()[..., None, None]
    prior = identity(k, Phi, k + 1).expand(*Phi.shape[:-2], k, k + 1)
    R = torch.linalg.qr(torch.cat([rows, prior], dim=-2), mode="r").R
    factor, rotated_targets = R[..., :k, :k], R[..., :k, k:]
    mean = torch.linalg.solve_triangular(factor, rotated_targets, upper=True)[..., 0]
    return PrecisionGaussian(mean, positive_diagonal_tril(factor))


def precision_eigenvalues(Phi: Features, noise_variance: PerProblem) -> Float[Tensor, "*B min_N_k"]:
    """Eigenvalues of Λ, falling; where N < k, the N that can differ from 1."""
    return 1 + torch.linalg.svdvals(Phi).square() / noise_variance[..., None]


def blr_posterior_cholesky(Phi: Features, y: Targets, noise_variance: PerProblem) -> PrecisionGaussian:
    """Exact posterior from the Cholesky factor of Λ; its relative error grows like cond(Λ)."""
    rows = Phi.mT / noise_variance[..., None, None]
    tril = torch.linalg.cholesky(rows @ Phi + identity(Phi.shape[-1], Phi))
    return PrecisionGaussian(torch.cholesky_solve(rows @ y[..., None], tril)[..., 0], tril)


class CovarianceGaussian(NamedTuple):
    """N(mean, Σ) with the covariance itself, for comparisons only."""

    mean: Vector
    covariance: Matrix


def blr_posterior_woodbury(Phi: Features, y: Targets, noise_variance: PerProblem) -> CovarianceGaussian:
    """Exact posterior by the N×N marginal covariance: Φᵀ(ΦΦᵀ + σ²I)⁻¹y and I − Φᵀ(ΦΦᵀ + σ²I)⁻¹Φ, in O(N³)."""
    k = Phi.shape[-1]
    tril = torch.linalg.cholesky(Phi @ Phi.mT + noise_variance[..., None, None] * identity(Phi.shape[-2], Phi))
    whitened = solve_tril(tril, torch.cat([Phi, y[..., None]], dim=-1))
    whitened_Phi, whitened_y = whitened[..., :k], whitened[..., k:]
    covariance = identity(k, Phi) - whitened_Phi.mT @ whitened_Phi
    return CovarianceGaussian((whitened_Phi.mT @ whitened_y)[..., 0], covariance)


def ridge(Phi: Features, y: Targets, penalty: Shared) -> Vector:
    """argmin over θ of ‖y − Φθ‖² + Σ d_i θ_i², d = `penalty` > 0, by QR.

    It is the posterior mean of a problem with unit noise, columns φ_i/√d_i and weights θ_i √d_i.
    """
    scale = penalty.rsqrt().expand_as(Phi[..., 0, :])
    return scale * blr_posterior(Phi * scale[..., None, :], y, torch.ones_like(y[..., 0])).mean


def covariance_tril(precision_tril: Matrix) -> Matrix:
    """Lower factor L of (CCᵀ)⁻¹ from C: the QR of C⁻¹ gives (CCᵀ)⁻¹ = C⁻ᵀC⁻¹ = RᵀR without forming either."""
    return tril_of_gram(inverse_tril(precision_tril))


def mean_field_optimum_scale(precision_tril: Matrix) -> Vector:
    """Standard deviations 1/√Λ_ii of the factorised q that minimises KL(q ‖ N(mean, Λ⁻¹)); its mean is the same."""
    return precision_tril.square().sum(-1).rsqrt()


def mean_field_optimum_kl(precision_tril: Matrix) -> PerProblem:
    """The smallest KL(q ‖ N(mean, Λ⁻¹)) of any factorised q, in nats: ½(Σ log Λ_ii − log det Λ).

    The trace term tr(Λ diag(1/Λ_ii)) equals k for every Λ. This minimum depends on the basis of the weights: another
    root of the same kernel matrix gives the same predictions and a different minimum.
    """
    return 0.5 * (precision_tril.square().sum(-1).log().sum(-1) - logdet_of_tril(precision_tril))


def log_evidence(
    Phi: Features,
    y: Targets,
    noise_variance: PerProblem,
    posterior: PrecisionGaussian,
) -> PerProblem:
    """log N(y; 0, ΦΦᵀ + σ²I) from the posterior.

    yᵀ(ΦΦᵀ + σ²I)⁻¹y = ‖y − Φμ‖²/σ² + ‖μ‖² at the posterior mean μ (the value of the regularised least-squares
    problem at its solution), a sum of squares where yᵀy/σ² − μᵀΛμ would cancel.
    """
    N = Phi.shape[-2]
    residual = y - (Phi @ posterior.mean[..., None])[..., 0]
    quadratic = residual.square().sum(-1) / noise_variance + posterior.mean.square().sum(-1)
    logdet = logdet_of_tril(posterior.precision_tril) + N * noise_variance.log()
    return -0.5 * (N * LOG_2PI + logdet + quadratic)


def expected_log_likelihood(
    Phi: Float[Tensor, "*B n k"],
    y: Float[Tensor, "*B n"],
    noise_variance: PerProblem,
    mean: Vector,
    factor: Matrix,
    *,
    N: int | None = None,
) -> PerProblem:
    """E_q[log N(y; Φw, σ²I)] for w ~ N(mean, FFᵀ), from rows (Burt et al. 2020, appendix E).

    If `N` is given, the n rows are a minibatch and their sum is scaled by N/n, an unbiased estimate of the full term.
    """
    n = Phi.shape[-2]
    residual = y - (Phi @ mean[..., None])[..., 0]
    spread = (Phi @ factor).square().sum((-2, -1))
    per_batch = -0.5 * (n * (LOG_2PI + noise_variance.log()) + (residual.square().sum(-1) + spread) / noise_variance)
    return per_batch if N is None else per_batch * (N / n)


def predictive_variance(
    Phi: Float[Tensor, "*B n k"], factor: Matrix, noise_variance: PerProblem
) -> Float[Tensor, "*B n"]:
    """Variance of y at each row of Φ under w ~ N(·, FFᵀ), including the noise."""
    return (Phi @ factor).square().sum(-1) + noise_variance[..., None]


def negative_log_predictive_density(
    y: Float[Tensor, "*B n"],
    mean: Float[Tensor, "*B n"],
    variance: Float[Tensor, "*B n"],
    target_std: PerProblem,
) -> PerProblem:
    """Mean over points of −log N(y; mean, variance), in nats per point of the target's ORIGINAL unit.

    y, mean and variance are standardised; the change of variables adds log target_std.
    """
    return -normal_log_density(y, mean, variance).mean(-1) + target_std.log()


def eigenbasis(Phi: Float[Tensor, "B N k"]) -> Float[Tensor, "B k_filled k_filled"]:
    """Eigenvectors of ΦᵀΦ of each problem, in columns. In their coordinates the Hessian of −log p(y, w) is diagonal,
    and the prior is still N(0, I). Dummy weights are coordinates of their own."""
    factors = [torch.linalg.qr(rows.clone(), mode="r").R for rows in Phi]
    own = identity(Phi.shape[-1], Phi)  # for features that are not finite: their NaN must not end the other problems
    found = [torch.linalg.svd(R).Vh.mT if bool(R.isfinite().all()) else own for R in factors]
    return fill_diagonal(fill(torch.stack(found)), Phi.shape[-1])
