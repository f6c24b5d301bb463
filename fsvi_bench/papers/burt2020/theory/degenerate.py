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
from fsvi_bench.maths.projection import RANK_TOLERANCE
from fsvi_bench.papers.burt2020.theory.f_divergence import Relative, relative, spectrum


class Asymptotics(NamedTuple):
    """The leading terms above."""

    slope: float  #: ½(M − r), of KL(Q_ε‖P) in log(1/ε²)
    constant: float  #: lim KL(Q_ε‖P) − slope · log(1/ε²)
    reverse: float  #: lim ε² KL(P‖Q_ε)


class Event(NamedTuple):
    """Probabilities of E = {y: ‖Nᵀ(y − μ)‖ ≤ radius}: under Q_ε, and at most so much under P. Their difference is what
    the event shows of the total variation, from below."""

    radius: float
    under_q: float
    under_p: float


class Flat(NamedTuple):
    """Q = N(m + shift, FFᵀ) beside P = N(m, LLᵀ): nothing here depends on m."""

    shift: Float[Tensor, " M"]
    factor: Float[Tensor, "M k"]
    tril: Float[Tensor, "M M"]

    def seen(self, noise_variance: float) -> Relative:
        """Q_ε seen from P, for any ε² ≥ 0: without a density for ε = 0 and a rank below M, see `RANK_TOLERANCE`."""
        left, variance = self._spectrum(noise_variance)
        return relative(self.shift, left * variance.sqrt(), self.tril)

    def asymptotics(self) -> Asymptotics:
        """The leading terms for ε → 0."""
        left, variance = self._spectrum(0.0)
        M, inside = len(variance), variance[variance > 0]
        whitened = solve_tril(self.tril, torch.cat([self.factor, self.shift[:, None]], dim=1)).square().sum()
        outside = left[:, variance == 0].mT @ torch.cat([self.tril, self.shift[:, None]], dim=1)
        constant = 0.5 * (whitened - M + logdet_of_tril(self.tril) - inside.log().sum())
        return Asymptotics(0.5 * (M - len(inside)), float(constant), 0.5 * float(outside.square().sum()))

    def revealing_event(self, noise_variance: float) -> Event:
        """An event that Q_ε, ε > 0, all but always, and P all but never shows: a thin slab around the subspace of Q.

        With d = M − r, Q_ε(E) = F_χ²(d)(c) for the radius ε√c, and P(E) is at most the ball's volume times the largest
        density of Nᵀy, V_d (ε√c)^d (2π)^(−d/2) det(NᵀLLᵀN)^(−½), whatever P's mean. Their difference is largest at
        c = d log(1/ε²) + log det NᵀLLᵀN, where the derivatives agree; up to powers of c, 1 less it falls like ε^d.
        """
        left, variance = self._spectrum(0.0)
        complement = left[:, variance == 0]
        d = complement.shape[1]
        logdet = 2 * float(torch.linalg.svdvals(complement.mT @ self.tril).log().sum())
        squared = max(d * math.log(1 / noise_variance) + logdet, 0.0)
        log_volume = -math.lgamma(0.5 * d + 1) - 0.5 * d * math.log(2)
        under_p = math.exp(log_volume - 0.5 * logdet) * (noise_variance * squared) ** (0.5 * d)
        return Event(math.sqrt(noise_variance * squared), float(stats.chi2.cdf(squared, d)), min(under_p, 1.0))

    def _spectrum(self, noise_variance: float) -> tuple[Float[Tensor, "M M"], Float[Tensor, " M"]]:
        """Eigenvectors and eigenvalues of FFᵀ + ε²I, ε² itself in directions that F does not reach."""
        left, reached = spectrum(self.factor, RANK_TOLERANCE)
        return left, reached + noise_variance
