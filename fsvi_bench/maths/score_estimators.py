"""Estimators of ∇ log density at samples, from the samples alone, beside the spectral one (`maths.ssge`).

All are regularised solutions of L s = −ζ in a space of vector fields with a matrix kernel 𝒦 (Zhou, Shi and Zhu 2020):
Ls = mean_m 𝒦(·, x_m) s(x_m), ζ = mean_m div_m 𝒦(x_m, ·). At the S samples L is 𝐊/S and ζ a vector h, so that

* `stein_score` (Li and Turner 2018): s = −S (𝐊 + SλI)⁻¹ h with 𝒦 = kI, k Gaussian; their η is Sλ;
* `kef_score` (kernel exponential families, Sriperumbudur et al. 2017; Zhou et al., theorem 3.1): the same with a
  curl-free kernel 𝒦 = −∇∇ᵀψ(x − y), whose fields are gradients;
* `nu_score` (Zhou et al., example C.4): t = ⌊1/√λ⌋ + 1 steps of the ν-method with the same kernel, ν = 1.

`gaussian_score` uses that the samples are Gaussian, and has no kernel.

ψ is the inverse multiquadric (1 + ‖·‖²/h²)^(−1/2) of Zhou et al., h the median distance. Unlike in their code, samples
are divided by h first: λ then means the same at every scale, and ‖L‖ ≤ 1, without which the ν-method diverges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.batching import one_by_one
from fsvi_bench.maths.linalg import identity
from fsvi_bench.maths.ssge import gaussian_kernel, kernel_shift, median_bandwidth, squared_distances

RESIDUAL = 1e-10  #: at which conjugate gradients end, relative to the right-hand side
MOST_ROUNDS = 10_000  #: of conjugate gradients; the kernel's condition number is at most 1/λ + 1
NU = 1.0


def stein_score(
    samples: Float[Tensor, "B S d"], regularisation: float, bandwidth: float | None = None
) -> Float[Tensor, "B S d"]:
    """The Stein gradient estimator; NaN for a set of samples that is not finite.

    Args:
        regularisation: λ.
        bandwidth: h; by default the median distance between samples.
    """

    def alone(samples: Float[Tensor, "1 S d"]) -> Float[Tensor, "1 S d"]:
        centred = samples - samples.mean(-2, keepdim=True)
        finite, precision, K = gaussian_kernel(centred, bandwidth)
        S = K.shape[-1]
        C = torch.linalg.cholesky(K + S * regularisation * identity(S, K))
        # Σ_m ∇_m k(x_m, x_i) = −Σ_m K_im (x_m − x_i)/h².
        score = torch.cholesky_solve(precision * kernel_shift(K, centred), C)
        return torch.where(finite, score, torch.nan)

    return one_by_one(alone, samples)


def kef_score(
    samples: Float[Tensor, "B S d"], regularisation: float, bandwidth: float | None = None
) -> Float[Tensor, "B S d"]:
    """The kernel exponential family's estimator, by conjugate gradients; arguments as for `stein_score`."""

    def alone(samples: Float[Tensor, "1 S d"]) -> Float[Tensor, "1 S d"]:
        kernel = CurlFree.at(samples[0], bandwidth)
        S = len(kernel.x)
        return kernel.scaled_back(conjugate_gradients(kernel, S * regularisation, -S * kernel.divergence()))[None]

    return one_by_one(alone, samples)


def nu_score(
    samples: Float[Tensor, "B S d"], regularisation: float, bandwidth: float | None = None
) -> Float[Tensor, "B S d"]:
    """The ν-method's estimator; arguments as for `stein_score`, λ deciding the number of steps."""

    def alone(samples: Float[Tensor, "1 S d"]) -> Float[Tensor, "1 S d"]:
        kernel = CurlFree.at(samples[0], bandwidth)
        S, h = len(kernel.x), kernel.divergence()
        score, before = torch.zeros_like(h), torch.zeros_like(h)
        for t in range(1, nu_steps(regularisation) + 1):
            momentum, step = nu_weights(t)
            moved = score + momentum * (score - before) - step * (h + kernel @ score / S)
            score, before = moved, score
        return kernel.scaled_back(score)[None]

    return one_by_one(alone, samples)


def gaussian_score(samples: Float[Tensor, "B S d"], rank_tolerance: float) -> Float[Tensor, "B S d"]:
    """−Ŝ⁺(f − f̄), the score of the Gaussian of greatest likelihood; NaN for a set of samples that is not finite.

    On the samples it satisfies Stein's identity, mean score(f)(f − f̄)ᵀ = −I, without error. Singular values of f − f̄ up
    to `rank_tolerance` times the largest count as 0.
    """

    def alone(samples: Float[Tensor, "1 S d"]) -> Float[Tensor, "1 S d"]:
        centred = samples - samples.mean(-2, keepdim=True)
        finite = centred.isfinite().all()
        left, s, right = torch.linalg.svd(torch.where(finite, centred, 0.0), full_matrices=False)
        inverse = torch.where(s > rank_tolerance * s[:, :1], s.reciprocal(), 0.0)
        return torch.where(finite, -samples.shape[-2] * (left * inverse[:, None]) @ right, torch.nan)

    return one_by_one(alone, samples)


def nu_steps(regularisation: float) -> int:
    """t, which stands for λ = 1/t² (Zhou et al.'s code)."""
    return int(1 / math.sqrt(regularisation)) + 1


def nu_weights(t: int) -> tuple[float, float]:
    """Momentum and step of the ν-method's step t ≥ 1 (Engl, Hanke and Neubauer 1996, section 6.3)."""
    nu = NU
    end = (t + 2 * nu - 1) * (2 * t + 4 * nu - 1)
    momentum = (t - 1) * (2 * t - 3) * (2 * t + 2 * nu - 1) / (end * (2 * t + 2 * nu - 3))
    return momentum, 4 * (2 * t + 2 * nu - 1) * (t + nu - 1) / end


@dataclass(frozen=True)
class CurlFree:
    """𝒦(a, b) = q³I − 3q⁵rrᵀ with r = a − b and q = (1 + ‖r‖²)^(−1/2), at the samples in units of the bandwidth."""

    x: Float[Tensor, "S d"]
    h: Float[Tensor, ""]  #: the bandwidth
    squared: Float[Tensor, "S S"]  #: ‖r‖²

    @staticmethod
    def at(samples: Float[Tensor, "S d"], bandwidth: float | None) -> CurlFree:
        """At the given bandwidth, or (None) the median distance."""
        centred = samples - samples.mean(-2, keepdim=True)
        squared = squared_distances(centred, centred)
        torch.linalg.diagonal(squared).zero_()
        h = median_bandwidth(squared) if bandwidth is None else squared.new_tensor(bandwidth)
        return CurlFree(centred / h, h, squared / h.square())

    @cached_property
    def near(self) -> Float[Tensor, "S S"]:
        """q³."""
        return (1 + self.squared).pow(-1.5)

    @cached_property
    def along(self) -> Float[Tensor, "S S"]:
        """3q⁵."""
        return 3 * (1 + self.squared).pow(-2.5)

    def __matmul__(self, fields: Float[Tensor, "S d"]) -> Float[Tensor, "S d"]:
        """Σ_j 𝒦(x_i, x_j) z_j, without a matrix of size Sd."""
        projections = self.x @ fields.mT - (self.x * fields).sum(-1)  # (x_i − x_j)ᵀz_j
        return self.near @ fields + kernel_shift(self.along * projections, self.x)

    def divergence(self) -> Float[Tensor, "S d"]:
        """h_i = mean_m div_m 𝒦(x_m, x_i), where div 𝒦 = 3q⁵(5q²‖r‖² − d − 2) r."""
        S, d = self.x.shape
        return kernel_shift(self.along * (5 * self.squared / (1 + self.squared) - d - 2), self.x) / S

    def scaled_back(self, score: Float[Tensor, "S d"]) -> Float[Tensor, "S d"]:
        """In units of the samples again."""
        return score / self.h


def conjugate_gradients(kernel: CurlFree, ridge: float, right: Float[Tensor, "S d"]) -> Float[Tensor, "S d"]:
    """(𝐊 + ridge·I)⁻¹ right, to a residual of `RESIDUAL`. What is not finite stays so."""
    solution, residual, direction = torch.zeros_like(right), right, right
    size = first = float(right.square().sum())
    for _ in range(MOST_ROUNDS):
        if not RESIDUAL**2 * first < size:  # also stops at NaN
            break
        image = kernel @ direction + ridge * direction
        step = size / float((direction * image).sum())
        solution = solution + step * direction
        residual = residual - step * image
        before, size = size, float(residual.square().sum())
        direction = residual + size / before * direction
    return solution if math.isfinite(size) else torch.full_like(right, torch.nan)
