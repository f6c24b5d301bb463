"""What methods share that move points in weight space by gradients of the energy −log p(y, w)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.blr import precision_eigenvalues
from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.methods.data import Batch, sampled_nll
from fsvi_bench.methods.problems import TrainingData


class Points(NamedTuple):
    """n points in weight space for each of B problems."""

    w: Float[Tensor, "B n k"]


def energies(q: Points, batch: Batch) -> Float[Tensor, "B n"]:
    """−log p(y, w) = −log N(y; Φw, σ²I) − log N(w; 0, I) of each point, in nats; rows are scaled to the whole data."""
    prior = 0.5 * (q.w * q.w).sum(-1) + 0.5 * q.w.shape[-1] * LOG_2PI
    return sampled_nll(q.w, batch.rows) + prior


def largest_curvature(data: TrainingData) -> Float[Tensor, " B"]:
    """λ_max of Λ = ΦᵀΦ/σ² + I, the largest curvature of the energy, for each problem by itself."""
    alone = (data.only(place) for place in range(len(data)))
    return torch.cat([precision_eigenvalues(one.Phi, one.noise_variance)[..., 0] for one in alone])
