"""Spike-and-slab posteriors and their divergences in log space (Gal 2016, §6.6).

q(w_i) = s δ_0 + (1−s) N(mean, variance), with the spike weight s = α/(1+α) given by its log odds log α. Gal considered
his eqs. 6.8–6.9 numerically unstable, since α falls like exp(−½m²/σ²); log odds neither overflow nor underflow. The
prior is f δ_0 + (1−f) N(0, l⁻²I), with f the `prior_spike` and l the `prior_lengthscale`. Gal's §6.6.6 adds the KL to
the expected log likelihood; it must be subtracted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from scipy.special import logit
from torch import Tensor
from torch.nn.functional import softplus

from fsvi_bench.maths.bernoulli_dropout import FactorisedMoments
from fsvi_bench.maths.bernoulli_optimum import optimal_retain_per_weight
from fsvi_bench.maths.domain import require_open_probability, require_positive
from fsvi_bench.maths.gaussian import gaussian_kl_from_precision
from fsvi_bench.maths.shapes import Features, Matrix, PerProblem, Targets, Vector


class SpikeSlab(NamedTuple):
    """Weights with independent spikes: 0 with probability σ(log_odds), else N(mean, scale²)."""

    log_odds: Vector
    mean: Vector
    scale: Vector

    @property
    def spike_weight(self) -> Vector:
        return self.log_odds.sigmoid()


class SpikeSlabRow(NamedTuple):
    """One row of K weights that share one spike, as in Gal: all are 0, or all are N(mean, scale² I)."""

    log_odds: PerProblem
    mean: Float[Tensor, "*B K"]
    scale: PerProblem


def spike_slab_row(
    m: Float[Tensor, "*B K"], sigma: PerProblem, prior_spike: float, prior_lengthscale: float = 1.0
) -> SpikeSlabRow:
    """q ∝ N(w; m, σ²I) · prior (Gal 2016, eqs. 6.8–6.9).

    log α = logit f + ½K log(1 + 1/(lσ)²) − ½‖m‖²/(σ² + l²σ⁴), mean m/(1 + l²σ²), variance σ²/(1 + l²σ²).

    Raises:
        InputError: f is outside (0, 1), or σ or l is not positive.
    """
    _require_prior(prior_spike, prior_lengthscale)
    require_positive("sigma", sigma)
    shrinkage = 1 + (prior_lengthscale * sigma).square()
    gain = softplus(-2 * (math.log(prior_lengthscale) + sigma.log()))  # log(1 + 1/(lσ)²)
    distance = (m / sigma[..., None]).square().sum(-1) / shrinkage
    log_odds = float(logit(prior_spike)) + 0.5 * (m.shape[-1] * gain - distance)
    return SpikeSlabRow(log_odds, m / shrinkage[..., None], sigma * shrinkage.rsqrt())


def spike_slab_moments(spike_weight: Vector, mean: Vector, scale: Vector) -> FactorisedMoments:
    """Mean (1−s) mean and standard deviation √((1−s) scale² + s(1−s) mean²) of each weight."""
    slab_weight = 1 - spike_weight
    variance = slab_weight * (scale.square() + spike_weight * mean.square())
    return FactorisedMoments(slab_weight * mean, variance.sqrt())


def spike_slab_reverse_kl(
    exact_mean: Vector,
    precision_tril: Matrix,
    spike_weight: Vector,
    mean: Vector,
    scale: Vector,
) -> PerProblem:
    """KL(P_D ‖ q) = KL(P_D ‖ N(mean, scale²)) − Σ log(1−s_i); infinite if a spike weight is 1.

    P_D has a density, so the spikes only reduce q's mass there. KL(q ‖ P_D) is infinite if any s_i > 0.
    """
    slab = gaussian_kl_from_precision(exact_mean, precision_tril, mean, torch.diag_embed(scale)).total
    return slab - torch.log1p(-spike_weight).sum(-1)


def spike_slab_optimum(
    Phi: Features,
    y: Targets,
    noise_variance: PerProblem,
    prior_spike: float,
    prior_lengthscale: float = 1.0,
) -> SpikeSlab:
    """A local maximum of the ELBO over factorised q, reached from spike weights equal to the prior's.

    It uses `optimal_retain_per_weight` in θ = E w and the slab weights p = 1−s. This generalises Bernoulli dropout: at
    the optimal scales the ELBO differs only by terms linear in p. CAVI converges slowly if ΦᵀΦ is ill-conditioned; here
    θ is computed by one ridge regression. Every fixed point is also a fixed point of CAVI.

    Raises:
        InputError: f is outside (0, 1), or σ² or l is not positive.
    """
    _require_prior(prior_spike, prior_lengthscale)
    information = Phi.square().sum(-2) / noise_variance[..., None]
    # ½(l²v − 1 − log l²v) + ½λv at v = 1/(λ + l²), the cost of a slab apart from its mean, and the prior's log odds.
    prior_log_odds = float(logit(prior_spike))
    offset = 0.5 * torch.log1p(information / prior_lengthscale**2) + prior_log_odds
    start = torch.full_like(information, -prior_log_odds)
    optimum = optimal_retain_per_weight(Phi, y, noise_variance, prior_lengthscale, start, offset)
    return SpikeSlab(-optimum.logit, optimum.m, (information + prior_lengthscale**2).rsqrt())


def _require_prior(prior_spike: float, prior_lengthscale: float) -> None:
    require_open_probability("prior spike probability f", prior_spike)
    require_positive("prior length-scale", prior_lengthscale)
