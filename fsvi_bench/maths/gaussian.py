"""Gaussian divergences and densities, in nats, batched over leading axes.

Covariances are given by factors: a lower-triangular `tril` (Σ = LLᵀ, positive diagonal), a vector `scale` of standard
deviations (Σ = diag(scale²)), or the lower factor of a precision (Λ = CCᵀ). No covariance is formed and factorised
again, since a nearly singular q would lose half its digits or become NaN. q always comes first.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.linalg import inverse_tril, logdet_of_tril, solve_tril
from fsvi_bench.maths.shapes import Matrix, PerProblem, Vector

LOG_2PI = math.log(2 * math.pi)


class DivergenceTerms(NamedTuple):
    """A Gaussian KL divergence as the sum of a term of the means and a term of the covariances."""

    mean: PerProblem
    covariance: PerProblem

    @property
    def total(self) -> PerProblem:
        return self.mean + self.covariance


def gaussian_kl(
    mean_q: Vector,
    tril_q: Matrix,
    mean_p: Vector,
    tril_p: Matrix,
) -> PerProblem:
    """KL(N(mean_q, L_q L_qᵀ) ‖ N(mean_p, L_p L_pᵀ))."""
    whitened = solve_tril(tril_p, torch.cat([tril_q, (mean_p - mean_q)[..., None]], dim=-1))
    trace = whitened[..., :-1].square().sum((-2, -1))
    mahalanobis = whitened[..., -1].square().sum(-1)
    logdet_q, logdet_p = logdet_of_tril(tril_q), logdet_of_tril(tril_p)
    return 0.5 * (trace + mahalanobis - mean_q.shape[-1] + logdet_p - logdet_q)


def gaussian_kl_standard_normal(mean_q: Vector, tril_q: Matrix) -> PerProblem:
    """KL(N(mean_q, L_q L_qᵀ) ‖ N(0, I)), the divergence to the prior."""
    trace = tril_q.square().sum((-2, -1))
    return 0.5 * (trace + mean_q.square().sum(-1) - mean_q.shape[-1] - logdet_of_tril(tril_q))


def gaussian_kl_to_precision(
    mean_q: Vector,
    tril_q: Matrix,
    mean_p: Vector,
    precision_tril_p: Matrix,
) -> DivergenceTerms:
    """KL(q ‖ N(mean_p, (CCᵀ)⁻¹)) split into its mean and covariance terms.

    With T = CᵀL_q: tr(ΛΣ_q) = ‖T‖_F² and log det(ΛΣ_q) = 2 Σ log(C_ii L_ii), since T's factors are triangular.
    """
    trace = (precision_tril_p.mT @ tril_q).square().sum((-2, -1))
    mahalanobis = (precision_tril_p.mT @ (mean_q - mean_p)[..., None]).square().sum((-2, -1))
    logdet = logdet_of_tril(precision_tril_p) + logdet_of_tril(tril_q)
    return DivergenceTerms(0.5 * mahalanobis, 0.5 * (trace - mean_q.shape[-1] - logdet))


def gaussian_kl_from_precision(
    mean_p: Vector,
    precision_tril_p: Matrix,
    mean_q: Vector,
    tril_q: Matrix,
) -> DivergenceTerms:
    """The reverse of `gaussian_kl_to_precision`: KL(N(mean_p, (CCᵀ)⁻¹) ‖ q), split in the same way.

    tr(Σ_q⁻¹Λ⁻¹) = ‖C⁻¹ L_q⁻ᵀ‖_F², computed as one triangular inverse and one solve.
    """
    whitened = solve_tril(precision_tril_p, inverse_tril(tril_q).mT)
    trace = whitened.square().sum((-2, -1))
    mahalanobis = solve_tril(tril_q, (mean_q - mean_p)[..., None]).square().sum((-2, -1))
    logdet = logdet_of_tril(precision_tril_p) + logdet_of_tril(tril_q)
    return DivergenceTerms(0.5 * mahalanobis, 0.5 * (trace - mean_q.shape[-1] + logdet))


def gaussian_w2(
    mean_q: Vector,
    factor_q: Matrix,
    mean_p: Vector,
    factor_p: Matrix,
) -> PerProblem:
    """2-Wasserstein distance (not squared) between Gaussians with covariances FFᵀ, for any square factors F.

    W₂² = ‖mean_q − mean_p‖² + min over orthogonal U of ‖F_q − F_p U‖_F² (the Bures distance as a Procrustes problem),
    whose minimiser is U = ABᵀ for the SVD F_pᵀF_q = A diag(s) Bᵀ. This form is accurate when q is close to p, where
    tr Σ_q + tr Σ_p − 2 tr(Σ_p^½ Σ_q Σ_p^½)^½ cancels to √eps.
    """
    left, _, right = torch.linalg.svd(factor_p.mT @ factor_q)
    bures_squared = (factor_q - factor_p @ (left @ right)).square().sum((-2, -1))
    return ((mean_q - mean_p).square().sum(-1) + bures_squared).sqrt()


def normal_log_density(
    x: Float[Tensor, "*#B"], mean: Float[Tensor, "*#B"], variance: Float[Tensor, "*#B"]
) -> Float[Tensor, "*#B"]:
    """log N(x; mean, variance) in one dimension, elementwise."""
    return -0.5 * ((x - mean).square() / variance + variance.log() + LOG_2PI)


def normal_kl(
    mean_q: PerProblem,
    variance_q: PerProblem,
    mean_p: PerProblem,
    variance_p: PerProblem,
) -> PerProblem:
    """KL(N(mean_q, variance_q) ‖ N(mean_p, variance_p)) in one dimension, elementwise."""
    ratio = variance_q / variance_p
    return 0.5 * (ratio - 1 - ratio.log() + (mean_q - mean_p).square() / variance_p)
