"""RANDA's objective by natural-gradient steps."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor

from fsvi_bench.maths.functional_kl import Gaussian, functional_kl
from fsvi_bench.methods.base import AveragedShare, ExactLimit, PositiveShare
from fsvi_bench.methods.data import Batch, expected_nll
from fsvi_bench.methods.functional import FunctionalMethod, MeasurementOptions
from fsvi_bench.methods.natural import NaturalGaussian, NaturalGradient, natural_step

#: If A determines every weight, one full step reaches the optimum, except for the mean of a factorised q.
_WHOLE_STEPS = {"M": 60, "step_size": 1.0, "decay": 0.0, "averaging": 0.0}


class RandANgd(FunctionalMethod):
    """Natural gradients of −E_q[log p(y|w)] + kl_weight · KL(Q_A ‖ P_A), with a new A at each step.

    The precision and the mean are averaged over the second half of the run, since single iterates keep fluctuating
    with A. For a full covariance the average comes within 0.1 nats of the objective's optimum. A factorised q has not
    converged after 500 steps, because its mean's direction ignores the correlation of features.
    """

    class Options(MeasurementOptions):
        """The step size is ρ_t = step_size · (1 + t)^(−decay); every step uses all training rows."""

        max_steps: PositiveInt = 500
        step_size: PositiveShare = 0.5
        decay: Annotated[float, Field(ge=0, le=1)] = 0.6
        averaging: AveragedShare = 0.5

    automatic_optimization = False
    exact_limits = {
        "full": ExactLimit({**_WHOLE_STEPS, "max_steps": 1}, tolerance=1e-9),
        "ffg": ExactLimit({**_WHOLE_STEPS, "max_steps": 1000}, tolerance=0.1),
    }

    def initial(self) -> NaturalGaussian:
        return NaturalGaussian(self.family, len(self.problems), self.problems.k)

    def configure_optimizers(self) -> NaturalGradient:
        return NaturalGradient(self.q.parameters(), self.options.step_size, self.options.decay)

    def loss(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        return expected_nll(q, batch.rows) + self.kl_weight * functional_kl(q, batch.A)

    @torch.no_grad()
    def training_step(self, batch: Batch, batch_idx: int) -> None:
        natural_step(self.q, self.optimizers(), batch, self.kl_weight)
        logged = bool(self.trainer.loggers) and self.is_logged(self.steps_done + 1)
        # The step does not need the objective's value; divergence is detected from the parameters.
        numbers = self.q.mean.sum(-1) + self.q.precision.flatten(1).sum(-1)
        self.note(numbers, self.loss(self.q(), batch) if logged else None)
