"""Predictive densities and distribution functions of linear models with weights that are independently 0 or Gaussian.

Y = φᵀw + σz with w_i = 0, or N(mean_i, scale_i²) with probability `retain_probability_i`. Bernoulli dropout has scale 0
(w_i = m_i ε_i; Gal 2016, §6.3), the spike-and-slab posterior of Gal 2016, §6.6 has retain probability 1 − spike weight.
The distribution of Y is a mixture of 2ᵏ Gaussians. `mixture_log_density` computes its density to a stated relative
precision, by exponential tilting and Fourier inversion (`fsvi_bench.maths.tilted_inversion`), with enumeration if atoms
are far apart (`fsvi_bench.maths.mixture_enumeration`). `mixture_cdf` inverts the characteristic function untilted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fsvi_bench.maths.domain import require_positive, require_probability, require_retain_probability
from fsvi_bench.maths.mixture_enumeration import TARGET, enumerate_and_invert
from fsvi_bench.maths.tilted_inversion import (
    EPS,
    NEGLIGIBLE,
    IndependentSum,
    fourier_sums,
    grid,
    invert,
    tilt_at,
    tilt_to_saddle_point,
)

#: A log density with a larger estimated error is not reliable.
RELIABLE = 1e-6
#: Points per block, which limits memory.
BLOCK = 256
#: Number of neighbouring targets at the same features that share one tilt. Digits are lost with the square of the
#: distance from the tilted density's mean.
SHARED = 8
#: A density from a shared tilt is accepted if its estimated relative error is below this.
PRECISE = math.exp(TARGET)


class SwitchedWeights(NamedTuple):
    """Independent weights, each N(mean, scale²) with its retain probability and 0 otherwise.

    Both probabilities are stored, since 1 − retain_probability loses all digits if the drop probability is tiny.
    """

    retain_probability: Float[Tensor, " k"]
    drop_probability: Float[Tensor, " k"]
    mean: Float[Tensor, " k"]
    scale: Float[Tensor, " k"]


class MixtureLogDensity(NamedTuple):
    """Log predictive densities in nats, with error estimates."""

    log_density: Float[Tensor, " N_test"]
    imprecision: Float[Tensor, " N_test"]  #: estimated relative error of the density = absolute error of its log
    #: characteristic-function factors for enumerating atoms (about 2e8 per second); 0 if inversion alone sufficed
    work: Float[Tensor, " N_test"]

    @property
    def reliable(self) -> Bool[Tensor, "*B"]:
        """Imprecision ≤ 1e-6."""
        return self.imprecision <= RELIABLE


class MixtureCdf(NamedTuple):
    """P(Y ≤ y) in [0, 1], and a bound on its absolute error, of which the rounding part is an estimate."""

    probability: Float[Tensor, " N_test"]
    error: Float[Tensor, " N_test"]


def bernoulli_dropout_weights(
    m: Float[Tensor, " k"], retain_probability: Float[Tensor, "*k"] | float
) -> SwitchedWeights:
    """w_i = m_i ε_i with ε_i ~ Bernoulli(retain_probability_i); one probability, or one per weight.

    Raises:
        InputError: a probability is outside (0, 1].
    """
    require_retain_probability(retain_probability)
    p = torch.as_tensor(retain_probability, dtype=m.dtype, device=m.device)
    return SwitchedWeights(p.expand_as(m), (1 - p).expand_as(m), m, torch.zeros_like(m))


def spike_and_slab_weights(
    spike_weight: Float[Tensor, "*k"] | float, mean: Float[Tensor, " k"], scale: Float[Tensor, " k"]
) -> SwitchedWeights:
    """w_i = 0 with probability spike_weight_i, else N(mean_i, scale_i²).

    Raises:
        InputError: a spike weight is outside [0, 1], or a scale is not positive.
    """
    require_probability("spike weight (the probability of a weight being zero)", spike_weight)
    require_positive("slab scale (a standard deviation, neither its logarithm nor a variance)", scale)
    spike = torch.as_tensor(spike_weight, dtype=mean.dtype, device=mean.device)
    return SwitchedWeights((1 - spike).expand_as(mean), spike.expand_as(mean), mean, scale)


def mixture_log_density(
    y: Float[Tensor, " N_test"],
    Phi: Float[Tensor, "N_test k"],
    q: SwitchedWeights,
    noise_variance: Float[Tensor, ""] | float,
) -> MixtureLogDensity:
    """log p(y | φ) = log Σ_c P(c) N(y; mean_c, variance_c + σ²) over all 2ᵏ combinations c of weights off and on.

    The imprecision covers rounding, discretisation and truncation; it is a conservative estimate. A point with a target
    or features that are not finite gets NaN and is not reliable. Each point's result is independent of the rest of the
    batch, bitwise on a CPU with one thread.

    Raises:
        InputError: the noise variance is not positive.
    """
    log_density, imprecision, work = (torch.full_like(y, start) for start in (torch.nan, torch.inf, 0))
    sigma = _noise_deviation(noise_variance, y)
    for rows, sums in _usable_sums(y, Phi, q, sigma):
        totals = enumerate_and_invert(sums)
        error = (totals.error - totals.density).exp()
        # If no digit is accurate, the error bound is still an upper bound on the density.
        known = error < 1
        log_density[rows] = torch.where(known, totals.density, torch.maximum(totals.density, totals.error))
        imprecision[rows], work[rows] = torch.where(known, error, torch.inf), totals.cost
    return MixtureLogDensity(log_density - sigma.log(), imprecision, work)


def mixture_log_density_along(
    y: Float[Tensor, "P m"],
    Phi: Float[Tensor, "P k"],
    q: SwitchedWeights,
    noise_variance: Float[Tensor, ""] | float,
) -> MixtureLogDensity:
    """`mixture_log_density` at m ascending targets for each row of features, [P m], with most of the work shared.

    Neighbours share one tilt and one characteristic function. Targets for which that does not give a relative precision
    of 1e-9 are computed one by one. Otherwise as `mixture_log_density`.

    Raises:
        InputError: the noise variance is not positive.
    """
    log_density, imprecision, work = (torch.full_like(y, start) for start in (torch.nan, torch.inf, 0))
    sigma = _noise_deviation(noise_variance, y)
    groups = (torch.split(of, SHARED, 1) for of in (y, log_density, imprecision))
    for targets, density, error in zip(*groups, strict=True):
        middle = targets.mean(-1)
        for rows, sums in _usable_sums(middle, Phi, q, sigma):
            found = invert(sums, tilt_to_saddle_point(sums), (targets[rows] - middle[rows, None]) / sigma)
            density[rows] = found.log_density - sigma.log()
            error[rows] = (found.log_total - found.log_density).exp()
    alone = ~(imprecision <= PRECISE)
    singly = mixture_log_density(y[alone], Phi[alone.nonzero()[:, 0]], q, noise_variance)
    log_density[alone], imprecision[alone], work[alone] = singly.log_density, singly.imprecision, singly.work
    return MixtureLogDensity(log_density, imprecision, work)


def _noise_deviation(noise_variance: Float[Tensor, ""] | float, like: Float[Tensor, "*B"]) -> Float[Tensor, ""]:
    require_positive("noise variance", noise_variance)
    return torch.as_tensor(noise_variance, dtype=like.dtype, device=like.device).sqrt()


def _usable_sums(
    y: Float[Tensor, " P"], Phi: Float[Tensor, "P k"], q: SwitchedWeights, sigma: Float[Tensor, ""]
) -> Iterator[tuple[Int[Tensor, " rows"], IndependentSum]]:
    """The rows with finite targets and features, in blocks, with their sums."""
    usable = y.isfinite() & ((Phi * q.mean).isfinite() & (Phi * q.scale).isfinite()).all(-1)
    places = usable.nonzero()[:, 0]
    for start in range(0, len(places), BLOCK):
        rows = places[start : start + BLOCK]
        yield rows, independent_sums(y[rows], Phi[rows], q, sigma)


def independent_sums(
    y: Float[Tensor, " P"], Phi: Float[Tensor, "P k"], q: SwitchedWeights, sigma: Float[Tensor, ""]
) -> IndependentSum:
    """The predictive's terms in units of σ. Weights that are always on are merged into y and the noise."""
    location, spread = Phi * q.mean / sigma, (Phi * q.scale / sigma).square()
    always = q.drop_probability == 0
    fixed, y = torch.where(always, location, 0.0), y / sigma
    log_on = torch.where(always, -torch.inf, q.retain_probability.log())
    log_off = torch.where(always, 0.0, q.drop_probability.log())
    return IndependentSum(
        y=y - fixed.sum(-1),
        noise=1 + torch.where(always, spread, 0.0).sum(-1),
        size=y.abs() + fixed.abs().sum(-1),
        log_odds=(log_on - log_off).expand_as(location),
        log_off=log_off.expand_as(location),
        location=torch.where(always, 0.0, location),
        spread=torch.where(always, 0.0, spread),
    )


def mixture_cdf(
    y: Float[Tensor, " N_test"],
    Phi: Float[Tensor, "N_test k"],
    q: SwitchedWeights,
    noise_variance: Float[Tensor, ""] | float,
) -> MixtureCdf:
    """P(Y ≤ y | φ) = Σ_c P(c) Φ((y − mean_c)/√(variance_c + σ²)) over all 2ᵏ combinations c of weights off and on.

    It uses the formula of Gil-Pelaez (1951), with the integral as a sum at midpoints t_j = (j + ½)h (Davies 1973,
    *Numerical inversion of a characteristic function*, Biometrika 60):
    F(y) ≈ ½ − (h/π) Σ_j Re[ψ(t_j) exp(−i t_j y)/(i t_j)].
    Discretisation error: Σ_{j≥0} sin((j + ½)u)/(j + ½) is π/2 for u in (0, 2π) and changes its sign every 2π, so the
    infinite sum is correct for Y within L = 2π/h of y, and its error is at most the larger of P(Y > y + L) and
    P(Y < y − L), for which Chernoff's bound is used. Truncation error: |ψ(t)| ≤ exp(−νt²/2), with ν the variance of the
    noise, so the terms beyond T = nh sum to at most (1/2π) E₁(νT²/2) (the midpoint sum of a convex function is below
    its integral). Rounding is estimated: about 1e-13, and 1e-10 if the predictive is 5,000 times as wide as the noise.
    These errors are absolute, as coverage requires; small tail probabilities have no relative precision.

    The result is NaN with error 1 if the target or the features are not finite, or if Y is, with a probability above
    exp(−40), so many noise deviations (about 150,000) from y that the sum would be too long.

    Raises:
        InputError: the noise variance is not positive.
    """
    probability, error = torch.full_like(y, torch.nan), torch.ones_like(y)
    for rows, s in _usable_sums(y, Phi, q, _noise_deviation(noise_variance, y)):
        zero = torch.zeros_like(s.y)
        untilted = tilt_at(s, zero)
        rule = grid(s, untilted)
        # If nearly all of Y is on one side of y, no sum is needed.
        sides = torch.where(rule.below <= 0, 0.0, torch.where(rule.above <= 0, 1.0, torch.nan))
        sums, rounding = fourier_sums(s, untilted, rule, zero[:, None], integrated=True, wanted=sides.isnan())
        probability[rows] = torch.where(sides.isnan(), (0.5 - sums[:, 0]).clamp(0, 1), sides)
        # y is a difference of numbers of this size; the density is at most the noise's peak.
        inside = rounding[:, 0] + EPS * s.size / s.noise.sqrt()
        error[rows] = 2 * math.exp(-NEGLIGIBLE) + torch.where(sides.isnan(), inside.nan_to_num(1.0), 0.0)
    return MixtureCdf(probability, error)
