"""SVGD: Stein variational gradient descent (Liu and Wang 2016)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.batching import one_by_one
from fsvi_bench.maths.ssge import median_bandwidth, squared_distances
from fsvi_bench.methods.base import AdamOptions
from fsvi_bench.methods.data import Batch
from fsvi_bench.methods.points import Count, ParticleMethod, Points


class Svgd(ParticleMethod):
    """w_i moves along (1/n) Σ_j [k(w_j, w_i) ∇log p(w_j, y) + ∇_j k(w_j, w_i)] (eq. 8), by Adam.

    k(a, b) = exp(−‖a − b‖²/h) with h = med²/log n, med the median distance between particles (the paper's heuristic).
    """

    class Options(AdamOptions):
        """Twenty particles, as in the paper's networks; its steps are AdaGrad's with momentum."""

        particles: Count = 20

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The surrogate Σ_i w_iᵀ(−direction_i), whose gradient is the direction and whose value has no meaning."""
        q = self.q()
        w = q.w.detach().requires_grad_()
        energy = self.energies(Points(w), batch)
        (gradient,) = torch.autograd.grad(energy.sum(), w)
        self.note(energy.detach().mean(-1))
        return -(one_by_one(stein_direction, w.detach(), -gradient) * q.w).sum()


def stein_direction(w: Float[Tensor, "B n k"], score: Float[Tensor, "B n k"]) -> Float[Tensor, "B n k"]:
    """(1/n) Σ_j [K_ji score_j + (2/h)(w_i − w_j) K_ji]: attraction to high density, and repulsion."""
    K, repulsion = kernel_and_repulsion(w)
    return (K @ score + repulsion) / w.shape[1]


def kernel_and_repulsion(points: Float[Tensor, "B n m"]) -> tuple[Float[Tensor, "B n n"], Float[Tensor, "B n m"]]:
    """K, and Σ_j ∇_j k(x_j, x_i) = (2/h) Σ_j K_ji (x_i − x_j) for each point."""
    squared, n = squared_distances(points, points), points.shape[1]
    h = median_bandwidth(squared).square()[:, None, None] / math.log(n)
    K = torch.exp(-squared / h)
    return K, 2 / h * (K.sum(-1, keepdim=True) * points - K @ points)
