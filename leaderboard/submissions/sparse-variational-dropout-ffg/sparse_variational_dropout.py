"""Sparse variational dropout: the additive parametrisation N(θ, σ²) (Molchanov, Ashukha and Vetrov 2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.log_uniform import (
    MOLCHANOV_K1,
    MOLCHANOV_K2,
    MOLCHANOV_K3,
    log_uniform_kl_slope,
)
from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.dropping import NoisyMethod, NoisyOptions
from fsvi_bench.posteriors.base import Family
from fsvi_bench.scoring.dropout_objective import LogUniformElbo, ScaledElbo
from fsvi_bench.scoring.objective import Objective
from fsvi_bench.variational.descent import AdamDescent
from fsvi_bench.variational.dropout_parameters import AdditiveParameters


class SparseOptions(NoisyOptions):
    """`kl: sigmoid` is the paper's approximation. Weights with log α = log σ²/θ² above the threshold count as pruned;
    they are counted, not removed: q keeps them, with means near 0. `prior: own` is log-uniform; under the task's this
    is mean-field VI with other estimators."""

    kl: Literal["exact", "sigmoid"] = "exact"
    threshold: float = 3.0
    prior: Literal["own", "task"] = "own"


class SparseVariationalDropout(NoisyMethod):
    """Adam on E_q[−log p(y|w)] + KL(q ‖ log-uniform) over q = N(θ, σ²), from the prior N(0, 1) of the task."""

    Options: ClassVar[type[MethodOptions]] = SparseOptions
    options: SparseOptions
    families: ClassVar[tuple[Family, ...]] = ("ffg",)

    def make_descent(self) -> AdamDescent:
        q = AdditiveParameters(len(self.problems), self.width).to(self.device)
        error, sigmoid, task_prior = self.make_error(), self.options.kl == "sigmoid", self.options.prior == "task"

        def gradient() -> Float[Tensor, " B"]:
            theta, variance = q.mean, q.variance
            of_centre, of_spread = error.gradient(theta, variance.sqrt())
            if task_prior:
                kl_theta, kl_log_variance = theta, 0.5 * (variance - 1)
            else:
                u = 0.5 * theta.square() / variance
                slope = sigmoid_slope(u) if sigmoid else log_uniform_kl_slope(u)
                kl_theta, kl_log_variance = slope * theta / variance, -slope * u
            of_theta = of_centre + kl_theta
            of_log_variance = 0.5 * of_spread * variance.sqrt() + kl_log_variance
            q.set_gradient(of_theta, of_log_variance)
            return of_theta.sum(-1) + of_log_variance.sum(-1)

        return self.by_adam(q, gradient)

    def objectives(self) -> Sequence[Objective]:
        objective = ScaledElbo() if self.options.prior == "task" else LogUniformElbo(self.options.kl)
        return [objective] * len(self.problems)

    def details(self) -> Sequence[Mapping[str, float]]:
        """`sparsity`: the share of weights above the threshold."""
        q = self.descent.posterior(self.problems.k)
        log_alpha = 2 * (q.covariance_tril().diagonal(dim1=-2, dim2=-1).log() - q.mean.abs().log())
        pruned = (log_alpha > self.options.threshold).to(torch.float64)
        shares = torch.where(log_alpha.isnan(), torch.nan, pruned).mean(-1)
        return [{"sparsity": share} for share in shares.tolist()]


def sigmoid_slope(u: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """d/du of Molchanov et al.'s KL, k₁ σ(−k₂ − k₃ log α) + ½ log(1 + 1/α) at 1/α = 2u; 1 at u = 0."""
    log_alpha = -math.log(2) - u.log()
    gate = torch.sigmoid(-MOLCHANOV_K2 - MOLCHANOV_K3 * log_alpha)
    # The gate falls like u^k₃, faster than u.
    of_gate = torch.where(u == 0, 0.0, MOLCHANOV_K1 * MOLCHANOV_K3 * gate * (1 - gate) / u)
    return of_gate + 1 / (1 + 2 * u)
