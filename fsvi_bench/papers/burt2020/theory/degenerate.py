"""A Gaussian without a density, and what becomes of its divergences when white noise gives it one.

Q = N(μ, FFᵀ) with F (M×k) is the law that a linear model with k parameters gives to its values at M inputs; for
M > k it lives on a subspace and is singular to every P = N(m, LLᵀ) with a density (Burt et al. 2020, proposition 4).
Q_ε = Q * N(0, ε²I) has one. With r = rank F, singular values s_i of F, and N (M×(M−r)) an orthonormal basis of what F
does not reach, as ε → 0

    KL(Q_ε‖P) = ½(M − r) log(1/ε²) + constant + O(ε²),        ε² KL(P‖Q_ε) → ½ [tr NᵀLLᵀN + ‖Nᵀ(μ − m)‖²],
    ∫ q_ε^α p^(1−α) = O(ε^((1−α)(M−r)))  for 0 < α < 1.

The slope is ½(M − k) if F has rank k, and more if parameters are redundant. Where M = r all stay finite.
The number that a jitter of ε² gives to a KL that is infinite is thus (M − r) log(1/ε) and a constant, which may well be
the larger of the two at the jitters in use. All in nats.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from fsvi_bench.maths.linalg import logdet_of_tril, solve_tril

RANK_TOLERANCE = 1e-9  #: singular values of F below this share of the largest are none


class Asymptotics(NamedTuple):
    """The leading terms above."""

    slope: float  #: ½(M − r), of KL(Q_ε‖P) in log(1/ε²)
    constant: float  #: lim KL(Q_ε‖P) − slope · log(1/ε²)
    reverse: float  #: lim ε² KL(P‖Q_ε)


class Event(NamedTuple):
    """Probabilities of E = {y: ‖Nᵀ(y − μ)‖ ≤ radius}: under Q_ε, and at most so much under P."""

    radius: float
    under_q: float
    under_p: float

    @property
    def total_variation(self) -> float:
        """What the event shows of the total variation, from below."""
        return self.under_q - self.under_p


def smoothed_factor(factor: Float[Tensor, "M k"], noise_variance: float) -> Float[Tensor, "M c"]:
    """A factor of FFᵀ + ε²I; F itself, with its k columns, for ε² = 0."""
    if noise_variance == 0:
        return factor
    identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    return torch.cat([factor, math.sqrt(noise_variance) * identity], dim=1)


def smoothed_kl(
    mean_q: Float[Tensor, " M"],
    factor_q: Float[Tensor, "M k"],
    noise_variance: float,
    mean_p: Float[Tensor, " M"],
    tril_p: Float[Tensor, "M M"],
) -> Float[Tensor, ""]:
    """KL(Q_ε‖P), for any ε² ≥ 0: infinity for ε = 0 and a rank below M, see `RANK_TOLERANCE`.

    log det(FFᵀ + ε²I) = Σ_i log(s_i² + ε²) + (M − k) log ε² for k ≤ M, no cancellation at whatever ε.
    """
    M, k = factor_q.shape
    if noise_variance == 0 and len(_split(factor_q)[1]) < M:
        return mean_q.new_full((), math.inf)
    whitened = solve_tril(tril_p, torch.cat([factor_q, (mean_q - mean_p)[:, None]], dim=1)).square().sum()
    noise = noise_variance * _inverse(tril_p).square().sum()
    logdet_q = (torch.linalg.svdvals(factor_q).square() + noise_variance).log().sum()
    if k < M:
        logdet_q = logdet_q + (M - k) * torch.tensor(noise_variance, dtype=torch.float64).log()
    return 0.5 * (whitened + noise - M + logdet_of_tril(tril_p) - logdet_q)


def smoothed_reverse_kl(
    mean_q: Float[Tensor, " M"],
    factor_q: Float[Tensor, "M k"],
    noise_variance: float,
    mean_p: Float[Tensor, " M"],
    tril_p: Float[Tensor, "M M"],
) -> Float[Tensor, ""]:
    """KL(P‖Q_ε), for any ε² ≥ 0: infinity for ε = 0 and a rank below M.

    In F's left singular vectors FFᵀ + ε²I is diagonal, with M − k times ε² itself.
    """
    if noise_variance == 0 and len(_split(factor_q)[1]) < len(mean_q):
        return mean_q.new_full((), math.inf)
    left, singular, _ = torch.linalg.svd(factor_q, full_matrices=True)
    variance = torch.full_like(mean_q, noise_variance)
    variance[: len(singular)] += singular.square()
    rotated = left.mT @ torch.cat([tril_p, (mean_p - mean_q)[:, None]], dim=1)
    spread = (rotated.square().sum(-1) / variance).sum()
    return 0.5 * (spread - len(mean_q) + variance.log().sum() - logdet_of_tril(tril_p))


def asymptotics(
    mean_q: Float[Tensor, " M"],
    factor_q: Float[Tensor, "M k"],
    mean_p: Float[Tensor, " M"],
    tril_p: Float[Tensor, "M M"],
) -> Asymptotics:
    """The leading terms for ε → 0."""
    M = len(mean_q)
    complement, inside = _split(factor_q)
    whitened = solve_tril(tril_p, torch.cat([factor_q, (mean_q - mean_p)[:, None]], dim=1)).square().sum()
    constant = 0.5 * (whitened - M + logdet_of_tril(tril_p) - 2 * inside.log().sum())
    outside = complement.mT @ torch.cat([tril_p, (mean_q - mean_p)[:, None]], dim=1)
    return Asymptotics(0.5 * (M - len(inside)), float(constant), 0.5 * float(outside.square().sum()))


def revealing_event(
    mean_q: Float[Tensor, " M"],
    factor_q: Float[Tensor, "M k"],
    noise_variance: float,
    tril_p: Float[Tensor, "M M"],
) -> Event:
    """An event that Q_ε all but always, and P all but never shows: a thin slab around the subspace of Q.

    With d = M − r, Q_ε(E) = F_χ²(d)(c) for the radius ε√c, and P(E) is at most the ball's volume times the largest
    density of Nᵀy, V_d (ε√c)^d (2π)^(−d/2) det(NᵀLLᵀN)^(−½), whatever P's mean. Their difference is largest at
    c = d log(1/ε²) + log det NᵀLLᵀN, where the derivatives agree; up to powers of c, 1 less it falls like ε^d.

    Raises:
        ValueError: Q reaches every direction, or ε = 0.
    """
    complement, _ = _split(factor_q)
    d = complement.shape[1]
    if d == 0 or noise_variance <= 0:
        raise ValueError(
            f"no event for {d} directions out of reach and noise variance {noise_variance}, both must be > 0"
        )
    logdet = float(torch.linalg.svdvals(complement.mT @ tril_p).log().sum()) * 2
    squared = max(d * math.log(1 / noise_variance) + logdet, 0.0)
    log_volume = -math.lgamma(0.5 * d + 1) - 0.5 * d * math.log(2)
    under_p = math.exp(log_volume - 0.5 * logdet) * (noise_variance * squared) ** (0.5 * d)
    return Event(math.sqrt(noise_variance * squared), float(stats.chi2.cdf(squared, d)), min(under_p, 1.0))


def _split(factor: Float[Tensor, "M k"]) -> tuple[Float[Tensor, "M d"], Float[Tensor, " r"]]:
    """Orthonormal basis of what F does not reach, and its singular values that count."""
    left, singular, _ = torch.linalg.svd(factor, full_matrices=True)
    rank = int((singular > RANK_TOLERANCE * singular[0]).sum())
    return left[:, rank:], singular[:rank]


def _inverse(tril: Float[Tensor, "M M"]) -> Float[Tensor, "M M"]:
    return solve_tril(tril, torch.eye(len(tril), dtype=tril.dtype, device=tril.device))
