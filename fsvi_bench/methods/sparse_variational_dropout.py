"""Sparse variational dropout: the additive parametrisation N(θ, σ²) (Molchanov, Ashukha and Vetrov 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.maths.log_uniform import log_uniform_kl, molchanov_kl_of_u
from fsvi_bench.methods.base import GaussianOptions
from fsvi_bench.methods.data import Batch
from fsvi_bench.methods.noisy import NoisyMethod, NoisyOptions
from fsvi_bench.methods.weight_space import weight_kl
from fsvi_bench.posteriors.trainable import TrainableAdditive


class SparseVariationalDropout(NoisyMethod):
    """Adam on E_q[−log p(y|w)] + KL(q ‖ log-uniform) over q = N(θ, σ²), initialised at the task's prior N(0, 1)."""

    class Options(NoisyOptions, GaussianOptions):
        """`kl: sigmoid` is the paper's approximation. Weights with log α = log σ²/θ² above the threshold are counted as
        pruned but remain in q, with means near 0. `prior: own` is the log-uniform prior; with `prior: task` the method
        is mean-field VI with other estimators."""

        kl: Literal["exact", "sigmoid"] = "exact"
        threshold: float = 3.0
        prior: Literal["own", "task"] = "own"

    families = ("ffg",)

    def initial(self) -> TrainableAdditive:
        return TrainableAdditive(len(self.problems), self.problems.k, self.basis)

    def loss(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        nll = self.expected_nll(q.mean, q.root, batch)
        if self.options.prior == "task":
            return nll + weight_kl(q)
        u = 0.5 * (q.mean / q.root) ** 2  # 1/(2α)
        return nll + (log_uniform_kl if self.options.kl == "exact" else molchanov_kl_of_u)(u).sum(-1)

    def details(self) -> Sequence[Mapping[str, float] | None]:
        """`sparsity`: the fraction of weights above the threshold."""
        q = self.posterior()
        log_alpha = 2 * (q.root.log() - q.mean.abs().log())
        pruned = (log_alpha > self.options.threshold).to(torch.float64)
        shares = torch.where(log_alpha.isnan(), torch.nan, pruned).mean(-1)
        return [{"sparsity": share} for share in shares.tolist()]
