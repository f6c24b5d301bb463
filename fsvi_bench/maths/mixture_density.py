"""Predictive densities of linear models whose weights are independently zero or Gaussian.

Y = φᵀw + σz with w_i = 0, or N(mean_i, scale_i²) with probability `retain_probability_i`. Bernoulli dropout has scale 0
(w_i = m_i ε_i; Gal 2016, §6.3), the spike-and-slab posterior of Gal 2016, §6.6 has retain probability 1 − spike weight.
The predictive density is a mixture of 2ᵏ Gaussians. `mixture_log_density` computes it to a stated relative precision:
exponential tilting and Fourier inversion (`fsvi_bench.maths.tilted_inversion`), helped by enumeration where atoms lie
far apart (`fsvi_bench.maths.mixture_enumeration`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.mixture_enumeration import TARGET, add_logs, enumerate_and_invert
from fsvi_bench.maths.tilted_inversion import (
    EPS,
    IndependentSum,
    invert,
    invert_around,
    saddle_point,
    take_rows,
    tilt_at,
)

#: A log density whose estimated error is larger than this is not to be relied on.
RELIABLE = 1e-6
#: Points per block, and per block of those that need enumeration: bounds the memory.
BLOCK, HARD_BLOCK = 512, 128


#: Neighbouring targets at the same features that share one tilt, at first and where that does not reach: digits are
#: lost with the square of the distance from where the tilted density has its mean.
SHARED = (16, 5)
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
    reliable: Bool[Tensor, " N_test"]  #: imprecision ≤ 1e-6
    #: characteristic-function factors for enumerating atoms, 2e8 a second or so; 0 where inversion alone was enough
    work: Float[Tensor, " N_test"]


def bernoulli_dropout_weights(
    m: Float[Tensor, " k"], retain_probability: Float[Tensor, "*k"] | float
) -> SwitchedWeights:
    """w_i = m_i ε_i with ε_i ~ Bernoulli(retain_probability_i); one probability, or one per weight.

    Raises:
        InputError: a probability is outside (0, 1].
    """
    p = torch.as_tensor(retain_probability, dtype=m.dtype, device=m.device)
    if not bool(((p > 0) & (p <= 1)).all()):
        raise InputError(
            f"retain probabilities range from {float(p.min()):g} to {float(p.max()):g}, "
            "expected numbers above 0 and at most 1; this is the probability of keeping a weight"
        )
    return SwitchedWeights(p.expand_as(m), (1 - p).expand_as(m), m, torch.zeros_like(m))


def spike_and_slab_weights(
    spike_weight: Float[Tensor, "*k"] | float, mean: Float[Tensor, " k"], scale: Float[Tensor, " k"]
) -> SwitchedWeights:
    """w_i = 0 with probability spike_weight_i, else N(mean_i, scale_i²).

    Raises:
        InputError: a spike weight is outside [0, 1], or a scale is not positive.
    """
    spike = torch.as_tensor(spike_weight, dtype=mean.dtype, device=mean.device)
    if not bool(((spike >= 0) & (spike <= 1)).all()):
        raise InputError(
            f"spike weights range from {float(spike.min()):g} to {float(spike.max()):g}, "
            "expected numbers from 0 to 1; this is the probability of a weight being zero"
        )
    if not bool((scale > 0).all()):
        raise InputError(
            f"the smallest slab scale is {float(scale.min()):g}, expected standard deviations above 0; "
            "give scales, not log scales or variances"
        )
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
    noise = positive_noise(noise_variance, y)
    log_density, imprecision, work = torch.full_like(y, torch.nan), torch.full_like(y, torch.inf), torch.zeros_like(y)
    usable = y.isfinite() & ((Phi * q.mean).isfinite() & (Phi * q.scale).isfinite()).all(-1)
    for rows in torch.split(usable.nonzero()[:, 0], BLOCK):
        # The units of the noise, which so becomes 1.
        sums = independent_sums(y[rows], Phi[rows], q, noise.sqrt())
        log_density[rows], imprecision[rows], work[rows] = _log_density_and_imprecision(sums)
    return MixtureLogDensity(log_density - 0.5 * noise.log(), imprecision, imprecision <= RELIABLE, work)


def mixture_log_density_along(
    y: Float[Tensor, "P m"],
    Phi: Float[Tensor, "P k"],
    q: SwitchedWeights,
    noise_variance: Float[Tensor, ""] | float,
) -> MixtureLogDensity:
    """`mixture_log_density` at m ascending targets for each row of features: [P m], with most of the work shared.

    Neighbours take one tilt and one characteristic function, in smaller groups where that does not give every density
    to a relative precision of 1e-9, and one by one where that does not either. All else is as in `mixture_log_density`.

    Raises:
        InputError: the noise variance is not positive.
    """
    log_density, imprecision, work = torch.full_like(y, torch.nan), torch.full_like(y, torch.inf), torch.zeros_like(y)
    for size in SHARED:
        for columns in _even_groups(y.shape[1], size):
            rows = (imprecision[:, columns] > PRECISE).any(-1).nonzero()[:, 0]
            found, error = _log_density_of_neighbours(y[rows, columns], Phi[rows], q, noise_variance)
            better = error < imprecision[rows, columns]
            log_density[rows, columns] = torch.where(better, found, log_density[rows, columns])
            imprecision[rows, columns] = torch.where(better, error, imprecision[rows, columns])
    alone = imprecision > PRECISE
    singly = mixture_log_density(y[alone], Phi[alone.nonzero()[:, 0]], q, noise_variance)
    log_density[alone], imprecision[alone], work[alone] = singly.log_density, singly.imprecision, singly.work
    return MixtureLogDensity(log_density, imprecision, imprecision <= RELIABLE, work)


def _even_groups(count: int, size: int) -> list[slice]:
    """As few slices of at most `size` as cover `count` columns, of nearly equal lengths."""
    groups = -(-count // size)
    return [slice(i * count // groups, (i + 1) * count // groups) for i in range(groups)]


def _log_density_of_neighbours(
    y: Float[Tensor, "P m"], Phi: Float[Tensor, "P k"], q: SwitchedWeights, noise_variance: Float[Tensor, ""] | float
) -> tuple[Float[Tensor, "P m"], Float[Tensor, "P m"]]:
    """Log densities and imprecisions with the tilt of the targets' middle; imprecision ∞ where there is none."""
    noise = positive_noise(noise_variance, y)
    log_density, imprecision = torch.full_like(y, torch.nan), torch.full_like(y, torch.inf)
    usable = y.isfinite().all(-1) & ((Phi * q.mean).isfinite() & (Phi * q.scale).isfinite()).all(-1)
    for rows in torch.split(usable.nonzero()[:, 0], BLOCK):
        middle = 0.5 * (y[rows, 0] + y[rows, -1])
        offsets = (y[rows] - middle[:, None]) / noise.sqrt()
        sums = independent_sums(middle, Phi[rows], q, noise.sqrt())
        tilted = tilt_at(sums, saddle_point(sums))
        log_density[rows], log_error = invert_around(sums, tilted, offsets)
        rounding = tilted.rounding[:, None] + 4 * EPS * (tilted.xi[:, None] * offsets).abs()
        imprecision[rows] = (log_error - log_density[rows]).exp() + rounding
    return log_density - 0.5 * noise.log(), imprecision.nan_to_num(torch.inf, torch.inf)


def positive_noise(noise_variance: Float[Tensor, ""] | float, like: Float[Tensor, "*B"]) -> Float[Tensor, ""]:
    """The noise variance with the type of `like`; InputError unless it is positive."""
    noise = torch.as_tensor(noise_variance, dtype=like.dtype, device=like.device)
    if not bool((noise > 0) & noise.isfinite()):
        raise InputError(
            f"the noise variance is {float(noise):g}, expected a number above 0; without noise there is no density"
        )
    return noise


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


def _log_density_and_imprecision(
    sums: IndependentSum,
) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"], Float[Tensor, " P"]]:
    """By inversion alone where that reaches its target, else with enumeration; and the work of the latter."""
    tilted = tilt_at(sums, saddle_point(sums))
    inverted = invert(sums, tilted)
    log_density, inversion_error = inverted.log_density, inverted.log_error
    log_error = add_logs(inversion_error, log_density + tilted.rounding.log())
    hard, work = (inversion_error - log_density > TARGET).nonzero()[:, 0], torch.zeros_like(sums.y)
    for rows in torch.split(hard, HARD_BLOCK):
        log_density[rows], log_error[rows], work[rows] = enumerate_and_invert(take_rows(sums, rows))
    imprecision = (log_error - log_density).exp()
    # Where no digit was reached, the error bound says at least how small the density is.
    known = imprecision < 1
    log_density = torch.where(known, log_density, torch.maximum(log_density, log_error))
    return log_density, torch.where(known, imprecision, torch.inf), work
