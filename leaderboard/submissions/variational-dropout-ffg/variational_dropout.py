"""Variational dropout: Gaussian dropout with learned noise (Kingma, Salimans and Welling 2015, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor

from fsvi_bench.maths.log_uniform import KSW_C1, KSW_C2, KSW_C3, log_uniform_kl_slope
from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.dropping import NoisyMethod, NoisyOptions
from fsvi_bench.posteriors.base import Family
from fsvi_bench.scoring.dropout_objective import LogUniformElbo, ScaledElbo
from fsvi_bench.scoring.objective import Objective
from fsvi_bench.variational.descent import AdamDescent
from fsvi_bench.variational.dropout_parameters import MultiplicativeParameters

KL = Literal["exact", "cubic", "lower-bound"]


class VariationalDropoutOptions(NoisyOptions):
    """One α for all weights or one each, started at `alpha`, kept at or below 1 as in the paper or free.

    Cubic and lower bound are approximations of the KL for α ≤ 1 only: with free α they would fall without end.
    `kl_scale` is 1, or the paper's 1/3 (its variant A2). `prior: own` is the paper's, log-uniform; `task` is N(0, 1).
    """

    alpha: PositiveFloat = 0.25
    alphas: Literal["layer", "weight"] = "weight"
    free_alpha: bool = False
    kl: KL = "exact"
    kl_scale: Annotated[float, Field(gt=0, le=1)] = 1.0
    prior: Literal["own", "task"] = "own"

    @model_validator(mode="after")
    def _consistent(self) -> VariationalDropoutOptions:
        if self.free_alpha and self.kl != "exact":
            raise ValueError(f"kl={self.kl} holds for alpha up to 1 only; choose kl=exact or free_alpha=false")
        if self.alpha > 1 and not self.free_alpha:
            raise ValueError(f"alpha={self.alpha:g} is above 1; choose a smaller one, or free_alpha=true and kl=exact")
        if self.prior == "task" and self.kl != "exact":
            raise ValueError("kl=cubic and kl=lower-bound are of the log-uniform prior; choose kl=exact or prior=own")
        return self


class VariationalDropout(NoisyMethod):
    """Adam on E_q[−log p(y|w)] + kl_scale · KL(q ‖ prior) over q = N(θ, αθ²)."""

    Options: ClassVar[type[MethodOptions]] = VariationalDropoutOptions
    options: VariationalDropoutOptions
    families: ClassVar[tuple[Family, ...]] = ("ffg",)

    def make_descent(self) -> AdamDescent:
        options, B = self.options, len(self.problems)
        largest = None if options.free_alpha else 0.0
        shared = options.alphas == "layer"
        q = MultiplicativeParameters(B, self.width, options.alpha, shared, largest).to(self.device)
        error, seen = self.make_error(), self.seen()
        kl_gradient = task_prior_gradient if options.prior == "task" else log_uniform_gradient(options.kl)

        def gradient() -> Float[Tensor, " B"]:
            theta, scale, log_alpha = q.mean, q.signed_scale, q.log_alpha.expand_as(q.mean)
            of_centre, of_spread = error.gradient(theta, scale)
            kl_theta, kl_log_alpha = kl_gradient(theta, log_alpha)
            of_theta = of_centre + of_spread * (0.5 * log_alpha).exp() + options.kl_scale * seen * kl_theta
            of_log_alpha = 0.5 * of_spread * scale + options.kl_scale * seen * kl_log_alpha
            q.set_gradient(of_theta, of_log_alpha)
            return of_theta.sum(-1) + of_log_alpha.sum(-1)

        return self.by_adam(q, gradient)

    def objectives(self) -> Sequence[Objective]:
        options = self.options
        own = LogUniformElbo(options.kl, options.kl_scale)
        return [own if options.prior == "own" else ScaledElbo(options.kl_scale)] * len(self.problems)


def log_uniform_gradient(kl: KL) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Gradient in (θ, log α) of one weight's KL to the log-uniform prior: it does not depend on θ."""

    def gradient(theta: Tensor, log_alpha: Tensor) -> tuple[Tensor, Tensor]:
        alpha = log_alpha.exp()
        if kl == "exact":
            # KL(u) at u = 1/(2α), du/d(log α) = −u.
            u = 0.5 / alpha
            return torch.zeros_like(theta), -u * log_uniform_kl_slope(u)
        cubic = alpha * (KSW_C1 + alpha * (2 * KSW_C2 + alpha * 3 * KSW_C3)) if kl == "cubic" else 0.0
        return torch.zeros_like(theta), torch.full_like(alpha, -0.5) - cubic

    return gradient


def task_prior_gradient(theta: Tensor, log_alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient in (θ, log α) of KL(N(θ, αθ²) ‖ N(0, 1)) = ½[(1+α)θ² − 1 − log αθ²]."""
    alpha = log_alpha.exp()
    return (1 + alpha) * theta - 1 / theta, 0.5 * (alpha * theta.square() - 1)
