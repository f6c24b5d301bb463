"""RANDA: the functional KL at a new measurement set at every step (Burt et al. 2020, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from fsvi_bench.methods.base import ExactLimit, MethodOptions
from fsvi_bench.methods.descending import FunctionalOptions, Gradient, RandomSetMethod
from fsvi_bench.posteriors.base import Family
from fsvi_bench.variational.gradients import set_gradient
from fsvi_bench.variational.likelihood import Likelihood
from fsvi_bench.variational.measurement import MeasuredSet
from fsvi_bench.variational.parameters import Parameters

#: Sets that see every weight, and a learning rate that falls to 0.
_SEES_ALL = {"M": 60, "minibatch": "full", "lr": 0.2, "lr_schedule": "cosine", "max_steps": 1500}


class RandA(RandomSetMethod):
    """Adam on eq. 6 with the KL at each step's set in closed form: an unbiased estimate of the gradient."""

    Options: ClassVar[type[MethodOptions]] = FunctionalOptions
    exact_limits: ClassVar[Mapping[Family, ExactLimit]] = {
        "full": ExactLimit(_SEES_ALL, tolerance=0.01),
        "ffg": ExactLimit(_SEES_ALL, tolerance=0.01),
    }

    def make_gradient(self) -> Gradient:
        def gradient(q: Parameters, A: MeasuredSet, likelihood: Likelihood, kl_weight: float) -> Float[Tensor, " B"]:
            return set_gradient(q, A.measurement, likelihood, kl_weight)

        return gradient
