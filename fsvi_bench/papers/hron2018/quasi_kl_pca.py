"""Quasi-KL to a Gaussian is least on the principal subspace (Hron et al. 2018, propositions 6 and 7).

P = N(0, Σ) on R^D is approximated by Q = N(0, A diag(v) Aᵀ), A (D×K) with orthonormal columns, and by its convolution
with noise, N(0, A diag(v) Aᵀ + τI), which has a KL. Covariances come as the lower factor C of Σ⁻¹ = CCᵀ.

Where this deviates from the paper. The proof of proposition 6 writes P's density on the subspace as that of
N(0, AᵀΣA); restricted, not projected, P has the covariance (AᵀΣ⁻¹A)⁻¹, with which the stated formula is right. The
proof of proposition 7 drops τ/γ of the directions left out; with it, replacing a left-out eigenvalue γ by a kept one
changes the KL by ½[1 − τ/γ + log(τ/γ)] ≤ 0, most for the largest γ, so the claim stands for τ < γ_K. And the other
choices of K eigenvectors are stationary points but no local optima: rotating a kept eigenvector towards a left-out
one of larger eigenvalue lowers both objectives.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.maths.linalg import logdet_of_tril


class PrincipalSubspace(NamedTuple):
    """Orthonormal directions and the variances along them, largest first."""

    basis: Float[Tensor, "*B D K"]
    variances: Float[Tensor, "*B K"]


def _energy(basis: Tensor, variances: Tensor, precision_tril: Tensor) -> Float[Tensor, "*B"]:
    """tr(AᵀΣ⁻¹A diag(v))."""
    return (variances * (precision_tril.mT @ basis).square().sum(-2)).sum(-1)


def pca_quasi_kl(
    basis: Float[Tensor, "*B D K"], variances: Float[Tensor, "*B K"], precision_tril: Float[Tensor, "*B D D"]
) -> Float[Tensor, "*B"]:
    """c − ½ Σ_k log v_k + ½ tr(AᵀΣ⁻¹A diag(v)) with c = ½ log det Σ + ½(D − K) log 2π − ½K (proposition 6)."""
    D, K = basis.shape[-2:]
    constant = 0.5 * ((D - K) * LOG_2PI - K - logdet_of_tril(precision_tril))
    return constant + 0.5 * (_energy(basis, variances, precision_tril) - variances.log().sum(-1))


def convolved_pca_kl(
    basis: Float[Tensor, "*B D K"],
    variances: Float[Tensor, "*B K"],
    noise_variance: Float[Tensor, "*B"],
    precision_tril: Float[Tensor, "*B D D"],
) -> Float[Tensor, "*B"]:
    """KL(N(0, A diag(v) Aᵀ + τI) ‖ N(0, Σ)) (proposition 7); log det is Σ log(v_k + τ) + (D − K) log τ."""
    D, K = basis.shape[-2:]
    trace = _energy(basis, variances, precision_tril) + noise_variance * precision_tril.square().sum((-2, -1))
    logdet_q = (variances + noise_variance[..., None]).log().sum(-1) + (D - K) * noise_variance.log()
    return 0.5 * (trace - D - logdet_of_tril(precision_tril) - logdet_q)


def pca_optimum(covariance: Float[Tensor, "*B D D"], K: int) -> PrincipalSubspace:
    """The minimiser of `pca_quasi_kl`: Σ's K leading eigenvectors and eigenvalues (proposition 6).

    Raises:
        InputError: K outside 1..D.
    """
    D = covariance.shape[-1]
    if not 1 <= K <= D:
        raise InputError(f"got a subspace of K = {K} dimensions, expected 1 to D = {D}; choose K in that range")
    eigenvalues, eigenvectors = torch.linalg.eigh(covariance)
    return PrincipalSubspace(eigenvectors.flip(-1)[..., :K], eigenvalues.flip(-1)[..., :K])


def convolved_pca_optimum(
    covariance: Float[Tensor, "*B D D"], K: int, noise_variance: Float[Tensor, "*B"]
) -> PrincipalSubspace:
    """The minimiser of `convolved_pca_kl`: the same subspace, variances γ_k − τ (proposition 7).

    Raises:
        InputError: K outside 1..D, or τ not below γ_K: then no positive variance is left along the last direction.
    """
    basis, eigenvalues = pca_optimum(covariance, K)
    variances = eigenvalues - noise_variance[..., None]
    if bool((variances <= 0).any()):
        raise InputError(
            f"the noise variance is at or above the eigenvalue number K = {K} of the covariance, expected it below; "
            "lower the noise or K"
        )
    return PrincipalSubspace(basis, variances)
