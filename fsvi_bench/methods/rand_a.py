"""RANDA: the functional KL at a new measurement set at every step (Burt et al. 2020, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.descending import DescentMethod, FunctionalOptions
from fsvi_bench.scoring.objective import Objective
from fsvi_bench.variational.descent import AdamDescent
from fsvi_bench.variational.gradients import set_gradient
from fsvi_bench.variational.likelihood import make_likelihood
from fsvi_bench.variational.measurement import MeasurementStream, aligned
from fsvi_bench.variational.parameters import make_parameters


class RandA(DescentMethod):
    """Adam on −E_q[log p(y|w)] + kl_weight · KL(Q_A ‖ P_A), with A drawn anew at each step: an unbiased estimate of the
    gradient of eq. 6."""

    Options: ClassVar[type[MethodOptions]] = FunctionalOptions
    options: FunctionalOptions

    def make_descent(self) -> AdamDescent:
        options, data, N = self.options, self.problems, self.problems.y.shape[1]
        q = make_parameters(self.family, len(data), aligned(data.k)).to(self.device)
        likelihood = make_likelihood(data, options.rows(N), self.seeds)
        sets = iter(MeasurementStream(data, options.design(), self.seeds))
        kl_weight = options.weight(options.rows(N), N)

        def gradient() -> Float[Tensor, " B"]:
            likelihood.advance()
            return set_gradient(q, next(sets).measurement, likelihood, kl_weight)

        return AdamDescent(q, gradient, options.learning_rate(), options.averaging)

    def cost(self) -> dict[str, int]:
        return self.options.cost(self.problems.y.shape[1])

    def objectives(self) -> Sequence[Objective]:
        return [self.options.objective(self.problems.y.shape[1])] * len(self.problems)
