"""Distances from n equally weighted points to a Gaussian: the terms of MMD² and energy distance, and W₂ on the line.

Both kernels depend on differences only, and a difference of Gaussians is one: every expectation here is over ‖δ + Z‖
with Z ~ N(0, C).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from scipy.special import ndtri
from torch import Tensor

#: Nodes of the quadrature of norms: its error falls like exp(−π²/STEP), here 1e-13, and what is left out beyond REACH
#: is exp(−REACH/2), 4e-18 of the size of the norms.
STEP, REACH = 1 / 3, 80.0
PAIRS = 2**22  #: distances held at once: 32 MB


class PairMeans(NamedTuple):
    """Means over pairs i ≠ j of n points."""

    kernel: Float[Tensor, ""]  #: exp(−‖x_i − x_j‖²/2ℓ²)
    distance: Float[Tensor, ""]  #: ‖x_i − x_j‖


def pair_means(points: Float[Tensor, "n d"], squared_length: Float[Tensor, ""]) -> PairMeans:
    """The U-statistics of the n points, unbiased for E k(X, X′) and E‖X − X′‖ of their distribution."""
    n = len(points)
    kernel = distance = torch.zeros((), dtype=points.dtype)
    for rows in points.split(max(1, PAIRS // n)):  # type: ignore[no-untyped-call]
        distances = torch.cdist(rows, points, compute_mode="donot_use_mm_for_euclid_dist")
        kernel = kernel + (-0.5 * distances.square() / squared_length).exp().sum()
        distance = distance + distances.sum()
    # Each point's distance from itself is 0, with the kernel 1.
    return PairMeans((kernel - n) / (n * (n - 1)), distance / (n * (n - 1)))


def expected_kernel(
    offset: Float[Tensor, "n d"], covariance: Float[Tensor, "d d"], squared_length: Float[Tensor, ""]
) -> Float[Tensor, " n"]:
    """E exp(−‖δ + Z‖²/2ℓ²) for each offset δ, Z ~ N(0, C): |I + C/ℓ²|^(−½) exp(−½ δᵀ(ℓ²I + C)⁻¹δ)."""
    variances, squares = _principal(offset, covariance)
    exponents = (squares / (squared_length + variances)).sum(-1)
    return torch.exp(-0.5 * (exponents + torch.log1p(variances / squared_length).sum()))


def expected_norm(offset: Float[Tensor, "n d"], covariance: Float[Tensor, "d d"]) -> Float[Tensor, " n"]:
    """E‖δ + Z‖ for each offset δ, Z ~ N(0, C), to 1e-12 of their root mean square.

    With Q = ‖δ + Z‖²: E√Q = (1/2√π) ∫₀^∞ (1 − E e^(−tQ)) t^(−3/2) dt, and E e^(−tQ) = Π_i (1 + 2tλ_i)^(−½)
    exp(−tδ_i²/(1 + 2tλ_i)) along the axes of C, whose variances are λ_i. With t = e^u the integrand is analytic in a
    strip around the real line, so the trapezoidal rule converges geometrically.
    """
    variances, squares = _principal(offset, covariance)
    size = variances.sum() + squares.sum(-1).mean()  # E Q, averaged over the offsets
    if not size > 1e-280:  # t would overflow; the norm is below 1e-140
        return torch.zeros_like(offset[:, 0])
    u = torch.arange(-REACH, REACH + STEP, STEP, dtype=offset.dtype)
    t = u.exp() / size
    doubled = 2 * t * variances[:, None]
    exponents = -squares @ (t / (1 + doubled)) - 0.5 * doubled.log1p().sum(0)
    return (-torch.expm1(exponents) @ (-0.5 * u).exp()) * (STEP * size.sqrt() / (2 * math.sqrt(math.pi)))


def _principal(
    offset: Float[Tensor, "n d"], covariance: Float[Tensor, "d d"]
) -> tuple[Float[Tensor, " d"], Float[Tensor, "n d"]]:
    """Variances along the axes of a covariance, and the squares of the offsets' coordinates there."""
    variances, axes = torch.linalg.eigh(covariance)
    return variances.clamp(min=0), (offset @ axes).square()


def points_w2(
    points: Float[Tensor, "n P"], mean: Float[Tensor, " P"], scale: Float[Tensor, " P"]
) -> Float[Tensor, " P"]:
    """2-Wasserstein distance on the line, column by column, between n equally weighted points and N(mean, scale²).

    The i-th smallest point is matched with the normal's quantiles from (i−1)/n to i/n. With c_i their mean for N(0, 1),
    W₂² = mean_i (x_(i) − mean − scale·c_i)² + scale²·(1 − mean_i c_i²), a sum of squares.
    """
    n = len(points)
    ends = torch.from_numpy(ndtri(torch.arange(n + 1, dtype=torch.float64).numpy() / n))
    density = torch.exp(-0.5 * ends.square()) / math.sqrt(2 * math.pi)  # 0 at both ends
    centres = n * (density[:-1] - density[1:])
    gaps = points.sort(0).values - mean - scale * centres[:, None]
    within = (1 - centres.square().mean()).clamp(min=0)
    return (gaps.square().mean(0) + scale.square() * within).sqrt()
