"""Predictive densities and distribution functions of linear models whose weights are independently zero or Gaussian.

Y = φᵀw + σz with w_i = 0, or N(mean_i, scale_i²) with probability `retain_probability_i`. Bernoulli dropout has scale 0
(w_i = m_i ε_i; Gal 2016, §6.3), the spike-and-slab posterior of Gal 2016, §6.6 has retain probability 1 − spike weight.
Y's law is a mixture of 2ᵏ Gaussians. `mixture_log_density` computes its density to a stated relative precision:
exponential tilting and Fourier inversion (`fsvi_bench.maths.tilted_inversion`), helped by enumeration where atoms lie
far apart (`fsvi_bench.maths.mixture_enumeration`). `mixture_cdf` inverts the same characteristic function untilted.
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

#: A log density whose estimated error is larger than this is not to be relied on.
RELIABLE = 1e-6
#: Points per block: bounds the memory.
BLOCK = 256
#: Neighbouring targets at the same features that share one tilt: digits are lost with the square of the distance from
#: where the tilted density has its mean.
SHARED = 8
#: Relative precision below which a shared tilt's density is taken.
PRECISE = math.exp(TARGET)


class SwitchedWeights(NamedTuple):
    """Independent weights, each N(mean, scale²) with its retain probability and 0 otherwise.

    Both probabilities are kept: 1 − retain_probability has no digits left where the other is tiny.
    """

    retain_probability: Float[Tensor, " k"]
    drop_probability: Float[Tensor, " k"]
    mean: Float[Tensor, " k"]
    scale: Float[Tensor, " k"]


class MixtureLogDensity(NamedTuple):
    """Log predictive densities in nats, and how far to trust them."""

    log_density: Float[Tensor, " N_test"]
    imprecision: Float[Tensor, " N_test"]  #: estimated relative error of the density = absolute error of its log
    #: characteristic-function factors for enumerating atoms, 2e8 a second or so; 0 where inversion alone was enough
    work: Float[Tensor, " N_test"]

    @property
    def reliable(self) -> Bool[Tensor, "*B"]:
        """Imprecision ≤ 1e-6."""
        return self.imprecision <= RELIABLE


class MixtureCdf(NamedTuple):
    """P(Y ≤ y), within [0, 1], and a bound of its absolute error (rounding, a part of it, is an estimate)."""

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

    The imprecision covers rounding, discretisation and what was left out; it is an estimate that errs upwards. A point
    whose target or features are not finite gets NaN and is not reliable. Each point's result is independent of the
    others' in the batch, to the bit on a CPU with one thread.

    Raises:
        InputError: the noise variance is not positive.
    """
    log_density, imprecision, work = (torch.full_like(y, start) for start in (torch.nan, torch.inf, 0))
    sigma = _noise_deviation(noise_variance, y)
    for rows, sums in _usable_sums(y, Phi, q, sigma):
        totals = enumerate_and_invert(sums)
        error = (totals.error - totals.density).exp()
        # Where no digit was reached, the error bound says at least how small the density is.
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
    """`mixture_log_density` at m ascending targets for each row of features: [P m], with most of the work shared.

    Neighbours take one tilt and one characteristic function, and one by one what that does not give to a relative
    precision of 1e-9. All else is as in `mixture_log_density`.

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
    """The rows with finite targets and features, in blocks, and their sums."""
    usable = y.isfinite() & ((Phi * q.mean).isfinite() & (Phi * q.scale).isfinite()).all(-1)
    places = usable.nonzero()[:, 0]
    for start in range(0, len(places), BLOCK):
        rows = places[start : start + BLOCK]
        yield rows, independent_sums(y[rows], Phi[rows], q, sigma)


def independent_sums(
    y: Float[Tensor, " P"], Phi: Float[Tensor, "P k"], q: SwitchedWeights, sigma: Float[Tensor, ""]
) -> IndependentSum:
    """The predictive's terms in units of σ. Weights that are always on are moved into y and the noise."""
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

    By Gil-Pelaez (1951), the integral as a sum at midpoints t_j = (j + ½)h (Davies 1973, *Numerical inversion of a
    characteristic function*, Biometrika 60): F(y) ≈ ½ − (h/π) Σ_j Re[ψ(t_j) exp(−i t_j y)/(i t_j)]. Its errors are
    bounded. Of the steps: Σ_{j≥0} sin((j + ½)u)/(j + ½) is π/2 for u in (0, 2π) and changes its sign every 2π, so that
    the whole sum counts Y correctly within L = 2π/h of y, and errs by no more than the larger of P(Y > y + L) and
    P(Y < y − L), which Chernoff bounds. Of the end: |ψ(t)| ≤ exp(−νt²/2), ν the variance of the noise, so that what is
    left out beyond T = nh is at most (1/2π) E₁(νT²/2) (the midpoint sum of a convex function is below its integral).
    Rounding is estimated: about 1e-13, and 1e-10 where the predictive is 5,000 times as wide as the noise. All this is
    absolute, which is what coverage asks for; small tails have no relative precision here.

    NaN with error 1 where the target or the features are not finite, or where Y with a probability above exp(−40) lies
    so many noise deviations (some 150,000) from y that the sum would be too long.

    Raises:
        InputError: the noise variance is not positive.
    """
    probability, error = torch.full_like(y, torch.nan), torch.ones_like(y)
    for rows, s in _usable_sums(y, Phi, q, _noise_deviation(noise_variance, y)):
        zero = torch.zeros_like(s.y)
        untilted = tilt_at(s, zero)
        rule = grid(s, untilted)
        # Where nearly all of Y lies on one side of y there is nothing to add up.
        sides = torch.where(rule.below <= 0, 0.0, torch.where(rule.above <= 0, 1.0, torch.nan))
        sums, rounding = fourier_sums(s, untilted, rule, zero[:, None], integrated=True, wanted=sides.isnan())
        probability[rows] = torch.where(sides.isnan(), (0.5 - sums[:, 0]).clamp(0, 1), sides)
        # y is a difference of numbers of this size; the density is at most that of the noise.
        inside = rounding[:, 0] + EPS * s.size / s.noise.sqrt()
        error[rows] = 2 * math.exp(-NEGLIGIBLE) + torch.where(sides.isnan(), inside.nan_to_num(1.0), 0.0)
    return MixtureCdf(probability, error)
