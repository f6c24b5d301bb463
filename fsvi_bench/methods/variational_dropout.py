"""Variational dropout: Gaussian dropout with learned noise (Kingma, Salimans and Welling 2015, section 3)."""

from __future__ import annotations

from typing import Any, Literal, Self

from jaxtyping import Float
from pydantic import PositiveFloat, model_validator
from torch import Tensor

from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.maths.log_uniform import ksw_cubic_kl, ksw_lower_bound_kl, log_uniform_kl
from fsvi_bench.methods.base import PositiveShare
from fsvi_bench.methods.data import Batch
from fsvi_bench.methods.noisy import NoisyMethod, NoisyOptions
from fsvi_bench.methods.weight_space import weight_kl
from fsvi_bench.posteriors.trainable import Multiplicative, TrainableMultiplicative


class VariationalDropout(NoisyMethod):
    """Adam on E_q[−log p(y|w)] + kl_scale · KL(q ‖ prior) over q = N(θ, αθ²)."""

    class Options(NoisyOptions):
        """One α for all weights or one per weight, initialised at `alpha`; at most 1 as in the paper, or free.

        `cubic` and `lower-bound` approximate the KL for α ≤ 1 only; with free α they would decrease without bound.
        `kl_scale` is 1, or the paper's 1/3 (its variant A2). `prior: own` is the paper's log-uniform prior; `task` is
        N(0, 1).
        """

        alpha: PositiveFloat = 0.25
        alphas: Literal["layer", "weight"] = "weight"
        free_alpha: bool = False
        kl: Literal["exact", "cubic", "lower-bound"] = "exact"
        kl_scale: PositiveShare = 1.0
        prior: Literal["own", "task"] = "own"

        @model_validator(mode="after")
        def _consistent(self) -> Self:
            if self.free_alpha and self.kl != "exact":
                raise ValueError(f"kl={self.kl} holds for alpha up to 1 only; choose kl=exact or free_alpha=false")
            if self.alpha > 1 and not self.free_alpha:
                raise ValueError(
                    f"alpha={self.alpha:g} is above 1; choose a smaller value, or free_alpha=true and kl=exact"
                )
            if self.prior == "task" and self.kl != "exact":
                raise ValueError(
                    "kl=cubic and kl=lower-bound require the log-uniform prior; choose kl=exact or prior=own"
                )
            return self

    families = ("ffg",)

    def initial(self) -> TrainableMultiplicative:
        options, per_weight = self.options, self.options.alphas == "weight"
        size = len(self.problems), self.problems.k
        return TrainableMultiplicative(*size, options.alpha, True, per_weight, self.basis)

    def configure_optimizers(self) -> Any:
        configured = super().configure_optimizers()
        if not self.options.free_alpha:
            optimizer = configured["optimizer"] if isinstance(configured, dict) else configured
            optimizer.register_step_post_hook(lambda *_: self.q.log_alpha.data.clamp_(max=0.0))
        return configured

    def loss(self, q: Multiplicative, batch: Batch) -> Float[Tensor, " B"]:
        """The log-uniform prior is improper, so its KL is defined up to a constant: see `maths.log_uniform`."""
        options = self.options
        if options.prior == "task":
            kl = weight_kl(Gaussian(q.theta, q.scale.abs()))
        elif options.kl == "exact":
            kl = log_uniform_kl(0.5 * (-q.log_alpha).exp()).sum(-1)
        else:
            kl = (ksw_cubic_kl if options.kl == "cubic" else ksw_lower_bound_kl)(q.log_alpha.exp()).sum(-1)
        return self.expected_nll(q.theta, q.scale, batch) + options.kl_scale * kl
