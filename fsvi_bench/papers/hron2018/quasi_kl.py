"""Quasi-KL divergence of a singular q: E_q[log q − log p], q's density taken on its own support S (Hron et al. 2018).

QKL(Q‖P) = E_Q log(q/p) = KL(Q‖P_S) − log Z_S with Z_S = ∫_S p dm_S and P_S = P restricted to S (eq. 9). The measure m_S
is the counting measure where S is countable and the K-dimensional Lebesgue (arc-length) measure where S is an affine
subspace. It is a score to look at, not a divergence: bounded below by −log Z_S, not by 0, it depends on coordinates.

Gaussian targets come as N(mean_p, (CCᵀ)⁻¹) with C = `precision_tril_p`, Gaussian approximations on a subspace as the
law of offset + F z, z ~ N(0, I_K), with the D×K matrix F = `factor_q` of full column rank: of lower rank, the support
has fewer dimensions, and the value is +∞ or, by rounding, large. In nats, q first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.maths.linalg import logdet_of_tril, tril_of_gram

Batch = Float[Tensor, "*B"]
Vector = Float[Tensor, "*B D"]
Square = Float[Tensor, "*B D D"]
Factor = Float[Tensor, "*B D K"]


def quasi_kl_countable(probabilities: Float[Tensor, "*B S"], log_density_p: Float[Tensor, "*B S"]) -> Batch:
    """Σ_i q_i [log q_i − log p(x_i)] over the atoms of q; one of probability 0 adds 0, whatever p is there.

    The atoms must be distinct: two that coincide have to be merged first, their probabilities added.
    """
    energy = torch.where(probabilities > 0, -probabilities * log_density_p, 0.0)
    return (torch.xlogy(probabilities, probabilities) + energy).sum(-1)


def gaussian_cross_entropy(
    offset_q: Vector,
    factor_q: Factor,
    mean_p: Vector,
    precision_tril_p: Square,
) -> Batch:
    """−E log p(offset + F z) = ½[D log 2π − log det Λ + ‖Cᵀ(offset − mean_p)‖² + ‖CᵀF‖²]."""
    columns = torch.cat([factor_q, (offset_q - mean_p)[..., None]], dim=-1)
    quadratic = (precision_tril_p.mT @ columns).square().sum((-2, -1))
    return 0.5 * (quadratic + mean_p.shape[-1] * LOG_2PI - logdet_of_tril(precision_tril_p))


def quasi_kl_affine_gaussian(
    offset_q: Vector,
    factor_q: Factor,
    mean_p: Vector,
    precision_tril_p: Square,
) -> Batch:
    """QKL(offset + F z ‖ N(mean_p, Λ⁻¹)) on the affine subspace offset + range F; at K = D the KL itself.

    By the area formula q has the density exp(−½‖z‖²) (2π)^(−K/2) det(FᵀF)^(−½) there, so that
    E log q = −½[K(1 + log 2π) + log det FᵀF].
    """
    K = factor_q.shape[-1]
    entropy = 0.5 * (K * (1 + LOG_2PI) + logdet_of_tril(tril_of_gram(factor_q)))
    return gaussian_cross_entropy(offset_q, factor_q, mean_p, precision_tril_p) - entropy


class RestrictedGaussian(NamedTuple):
    """N(mean_p, Λ⁻¹) restricted to offset + range A with AᵀA = I: N(mean, (RRᵀ)⁻¹) in coordinates along A."""

    mean: Float[Tensor, "*B K"]
    precision_tril: Float[Tensor, "*B K K"]
    log_mass: Batch  #: log Z_S, the integral of p over the subspace


def restrict_gaussian(
    offset: Vector,
    basis: Factor,
    mean_p: Vector,
    precision_tril_p: Square,
) -> RestrictedGaussian:
    """P_S and log Z_S of eq. 9 for the affine subspace offset + A z, z in R^K, with A = `basis`, AᵀA = I.

    log p is −½‖Cᵀ(A z + offset − mean_p)‖² up to its constant: a least-squares problem in z, whose normal matrix
    AᵀΛA = RRᵀ is P_S's precision and whose residual is the height of p along the subspace.
    """
    K, D = basis.shape[-1], basis.shape[-2]
    design, height = precision_tril_p.mT @ basis, precision_tril_p.mT @ (mean_p - offset)[..., None]
    Q, R = torch.linalg.qr(design)
    projected = Q.mT @ height
    mean = torch.linalg.solve_triangular(R, projected, upper=True)[..., 0]
    residual = (height - Q @ projected).square().sum((-2, -1))
    tril = tril_of_gram(design)
    logdets = logdet_of_tril(precision_tril_p) - logdet_of_tril(tril)
    return RestrictedGaussian(mean, tril, 0.5 * (logdets - residual - (D - K) * LOG_2PI))


def quasi_kl_shared_gaussian_dropout(
    theta: Float[Tensor, "*B O k"],
    alpha: Float[Tensor, "*B k"],
    mean_p: Float[Tensor, "*B O k"],
    precision_tril_p: Float[Tensor, "*B O k k"],
) -> Batch:
    """QKL of Gaussian dropout of type A with O outputs to the exact posterior of O-output BLR.

    Noise before the linear map is shared by the outputs: w_oi = θ_oi ε_i, ε_i ~ N(1, α_i). For O > 1 that law lives on
    the k-dimensional subspace {w_oi = θ_oi ε_i} of R^(Ok) (KSW's type A; Hron et al. 2018, section 4.1), and its KL
    does not exist. The exact posterior factorises over the outputs, N(mean_p[o], (C_oC_oᵀ)⁻¹).

    The direction of ε_i is θ_·i in row i, orthogonal to those of the other features, so FᵀF = diag(α_i ‖θ_·i‖²), and
    E‖C_oᵀ(w_o − mean_o)‖² = ‖C_oᵀ(θ_o − mean_o)‖² + Σ_i α_i θ_oi² Λ_o,ii. For O = 1 it is the KL of N(θ, αθ²).

    +∞ where all outputs' θ_·i are 0 or α_i is: fewer than k directions are left.
    """
    outputs, k = theta.shape[-2:]
    entropy = 0.5 * (k * (1 + LOG_2PI) + (alpha * theta.square().sum(-2)).log().sum(-1))
    bias = (precision_tril_p.mT @ (theta - mean_p)[..., None]).square().sum((-3, -2, -1))
    spread = (alpha[..., None, :] * theta.square() * precision_tril_p.square().sum(-1)).sum((-2, -1))
    logdet = logdet_of_tril(precision_tril_p).sum(-1)
    return 0.5 * (bias + spread + outputs * k * LOG_2PI - logdet) - entropy
