"""RANDA: the functional KL at a new measurement set at every step (Burt et al. 2020, section 4)."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.descending import FunctionalOptions, Gradient, RandomSetMethod
from fsvi_bench.variational.gradients import set_gradient
from fsvi_bench.variational.likelihood import Likelihood
from fsvi_bench.variational.measurement import MeasuredSet
from fsvi_bench.variational.parameters import Parameters


class RandA(RandomSetMethod):
    """Adam on eq. 6 with the KL at each step's set in closed form: an unbiased estimate of the gradient."""

    Options: ClassVar[type[MethodOptions]] = FunctionalOptions

    def make_gradient(self) -> Gradient:
        def gradient(q: Parameters, A: MeasuredSet, likelihood: Likelihood, kl_weight: float) -> Float[Tensor, " B"]:
            return set_gradient(q, A.measurement, likelihood, kl_weight)

        return gradient
