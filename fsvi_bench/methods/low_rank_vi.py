"""Variational inference in weight space with covariances of low rank plus a diagonal (Ong et al. 2018)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from fsvi_bench.maths.batching import filled, one_by_one, parameter
from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.maths.linalg import identity, logdet_of_tril, square_norm, tril_of_gram
from fsvi_bench.methods.base import AdamOptions, GaussianOptions, Method
from fsvi_bench.methods.data import Batch, expected_nll
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.posteriors.trainable import TrainablePosterior


class LowRank(NamedTuple):
    """N(mean, FFᵀ + diag(scale²)) of B problems."""

    mean: Float[Tensor, "B k"]
    factor: Float[Tensor, "B k r"]
    scale: Float[Tensor, "B k"]


class TrainableLowRank(TrainablePosterior):
    """Starts at the prior, with half of the variance of the first r weights in F.

    F = 0 is the prior, too, but a saddle point: F's gradient, (ΦᵀΦ/σ² + I − Σ⁻¹)F, is zero there.
    """

    columns: Float[Tensor, " r"]  #: 1 for those of F, 0 for those that pad it

    def __init__(self, B: int, k: int, rank: int, basis: Float[Tensor, "B k_filled k_filled"] | None = None) -> None:
        super().__init__(basis)
        self.k, self.width = k, filled(k)
        factor = torch.zeros(B, self.width, filled(rank), dtype=torch.float64)
        log_scale = parameter(B, self.width)
        for weight in range(min(rank, k)):
            factor[:, weight, weight] = 0.5**0.5
            log_scale.data[:, weight] = 0.5 * torch.tensor(0.5, dtype=torch.float64).log()
        self.mean, self.factor, self.log_scale = parameter(B, self.width), nn.Parameter(factor), log_scale
        # F is padded with columns of zeros. On a network, noise on them would give them gradients and so a higher rank.
        self.register_buffer("columns", (torch.arange(filled(rank)) < rank).double(), persistent=False)

    def forward(self) -> LowRank:
        scale = self.log_scale[:, : self.width].exp()
        return LowRank(self.located(self.mean[:, : self.width]), self.factor * self.columns, scale)

    @torch.no_grad()
    def rescale(self, factor: float) -> None:
        super().rescale(factor)
        self.factor.mul_(factor)

    @torch.no_grad()
    def posterior(self) -> FullGaussian:
        mean, factor, scale = self()
        rows = torch.cat([factor[:, : self.k].mT, torch.diag_embed(scale[:, : self.k])], 1)
        return FullGaussian(mean[:, : self.k].clone(), one_by_one(tril_of_gram, rows))


class LowRankVI(Method):
    """Adam on the ELBO, in closed form or, for a network, by draws.

    Its optimum within the family has no closed form.
    """

    class Options(GaussianOptions):
        """The rank of F; with k or more, the family is that of all Gaussians. S weight samples per step, for a
        network; a linear model needs none."""

        rank: PositiveInt = 10
        S: PositiveInt = 8

    families = ("full",)
    networks = "weights"

    @classmethod
    def is_deterministic(cls, options: AdamOptions) -> bool:  # type: ignore[override]
        return options.minibatch == "full"

    def initial(self) -> TrainableLowRank:
        rank = min(self.options.rank, self.problems.k)
        return TrainableLowRank(len(self.problems), self.problems.k, rank, self.basis)

    def loss(self, q: LowRank, batch: Batch) -> Float[Tensor, " B"]:
        if self.is_network:
            root = torch.cat([torch.diag_embed(q.scale), q.factor], -1)
            return self.mean_nll(Gaussian(q.mean, root), batch) + weight_kl(q)
        fit = expected_nll(Gaussian(q.mean, q.scale), batch.rows) + 0.5 * square_norm(batch.rows.Phi @ q.factor)
        return fit + weight_kl(q)


def weight_kl(q: LowRank) -> Float[Tensor, " B"]:
    """KL(q ‖ N(0, I)), with log det(D + FFᵀ) = log det D + log det(I + FᵀD⁻¹F)."""
    whitened = q.factor / q.scale[..., None]
    inner = identity(q.factor.shape[-1], q.factor) + whitened.mT @ whitened
    tril, _ = torch.linalg.cholesky_ex(inner)
    logdet = 2 * q.scale.log().sum(-1) + logdet_of_tril(tril)
    squares = square_norm(q.factor) + q.scale.square().sum(-1) + q.mean.square().sum(-1)
    return 0.5 * (squares - q.mean.shape[-1] - logdet)
