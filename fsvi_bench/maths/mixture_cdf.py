"""Predictive distribution functions of linear models whose weights are independently zero or Gaussian.

For the mixtures of `fsvi_bench.maths.mixture_density`, Y = φᵀw + σz: F(y) = E_w Φ((y − φᵀw)/σ), by inversion of the
characteristic function ψ (Gil-Pelaez 1951), the integral as a sum at midpoints t_j = (j + ½)h (Davies 1973, *Numerical
inversion of a characteristic function*, Biometrika 60):

    F(y) ≈ ½ − (1/π) Σ_{j<n} Im[ψ(t_j) exp(−i t_j y)]/(j + ½).

Its two errors are bounded. Of the steps: Σ_{j≥0} sin((j + ½)u)/(j + ½) is π/2 for u in (0, 2π) and changes its sign
every 2π, so that the whole sum counts Y correctly within L = 2π/h of y, and errs by no more than the larger of
P(Y > y + L) and P(Y < y − L), which Chernoff bounds. Of the end: |ψ(t)| ≤ exp(−νt²/2), ν the variance of the noise, so
that what is left out beyond T = nh is at most (1/2π) E₁(νT²/2) (the midpoint sum of a convex function is below its
integral). Rounding is estimated. All this is absolute, which is what coverage asks for; small tails have no relative
precision here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.mixture_density import BLOCK, SwitchedWeights, independent_sums, positive_noise
from fsvi_bench.maths.tilted_inversion import (
    CHUNK,
    EPS,
    FINE,
    MAX_NODES,
    IndependentSum,
    Tilt,
    characteristic_product,
    chernoff_distances,
    take_rows,
    tilt_at,
    whole_blocks,
)

#: Each of the two errors is at most exp(−30) = 1e-13.
LEVEL = 30.0


class MixtureCdf(NamedTuple):
    """P(Y ≤ y), within [0, 1], and a bound of its absolute error (rounding, a part of it, is an estimate)."""

    probability: Float[Tensor, " N_test"]
    error: Float[Tensor, " N_test"]


def mixture_cdf(
    y: Float[Tensor, " N_test"],
    Phi: Float[Tensor, "N_test k"],
    q: SwitchedWeights,
    noise_variance: Float[Tensor, ""] | float,
) -> MixtureCdf:
    """P(Y ≤ y | φ) = Σ_c P(c) Φ((y − mean_c)/√(variance_c + σ²)) over all 2ᵏ combinations c of weights off and on.

    Errors are about 1e-13, and 1e-10 where the predictive is 5,000 times as wide as the noise. NaN with error 1 where
    the target or the features are not finite, or where Y with a probability above 1e-13 lies so many noise deviations
    (some 200,000) from y that the sum would be too long.

    Raises:
        InputError: the noise variance is not positive.
    """
    noise = positive_noise(noise_variance, y)
    probability, error = torch.full_like(y, torch.nan), torch.ones_like(y)
    usable = y.isfinite() & ((Phi * q.mean).isfinite() & (Phi * q.scale).isfinite()).all(-1)
    for rows in torch.split(usable.nonzero()[:, 0], BLOCK):
        probability[rows], error[rows] = _cdf(independent_sums(y[rows], Phi[rows], q, noise.sqrt()))
    return MixtureCdf(probability, error)


def _cdf(s: IndependentSum) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    untilted = tilt_at(s, torch.zeros_like(s.y))
    level = torch.full_like(s.y, LEVEL)
    above, below = chernoff_distances(s, untilted, level)
    # Where nearly all of Y lies on one side of y there is nothing to add up.
    probability = torch.full_like(s.y, torch.nan).masked_fill(below <= 0, 0.0).masked_fill(above <= 0, 1.0)
    error = torch.ones_like(s.y).masked_fill(~probability.isnan(), math.exp(-LEVEL))
    step = 2 * math.pi / torch.maximum(above, below)
    nodes = whole_blocks((2 * level / s.noise).sqrt() / step)
    open_rows = probability.isnan() & (nodes > 0) & (nodes <= MAX_NODES)  # numbers that overflow give nodes below 0
    for n in torch.unique(nodes[open_rows]).tolist():
        rows = (open_rows & (nodes == n)).nonzero()[:, 0]
        for part in rows.split(max(1, CHUNK // (n * s.location.shape[1]))):
            probability[part], error[part] = _invert(take_rows(s, part), take_rows(untilted, part), step[part], n)
    return probability, error


def _invert(
    s: IndependentSum, untilted: Tilt, step: Float[Tensor, " P"], n: int
) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    """The sum, and its error: of the steps, of the end, and of rounding."""
    total, rounding = torch.zeros_like(step), torch.zeros_like(step)
    places = torch.arange(n, dtype=step.dtype, device=step.device) + 0.5
    phase = s.y.abs() + (untilted.on * untilted.location.abs()).sum(-1)
    at_once = max(FINE, CHUNK // s.location.shape[1] // FINE * FINE)
    for part in torch.split(places, at_once):
        t = part * step[:, None]
        product = characteristic_product(s, untilted, t)
        noise, angle = (-0.5 * s.noise[:, None] * t * t).exp() / part, s.y[:, None] * t
        total += ((product.imag * angle.cos() - product.real * angle.sin()) * noise).sum(-1)
        magnitude = (product.real.abs() + product.imag.abs()) * noise
        # Phases have relative errors of eps; the product of k factors adds some more, at random.
        rounding += EPS * (magnitude * (4 + 2 * math.sqrt(s.location.shape[1]) + phase[:, None] * t)).sum(-1)
    # y is a difference of numbers of this size; the density is at most that of the noise.
    rounding = rounding / math.pi + EPS * s.size / s.noise.sqrt()
    return (0.5 - total / math.pi).clamp(0, 1), 2 * math.exp(-LEVEL) + rounding
