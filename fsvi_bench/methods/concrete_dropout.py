"""Concrete dropout: retain probabilities learned through relaxed masks (Gal, Hron and Kendall 2017)."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from pydantic import PositiveFloat
from torch import Tensor

from fsvi_bench.maths.elementwise import sigmoid
from fsvi_bench.methods.base import Probability
from fsvi_bench.methods.noisy import MaskedMethod, PriorLengthscale
from fsvi_bench.posteriors.trainable import Dropout, TrainableDropout


class ConcreteDropout(MaskedMethod):
    """Adam on Bernoulli dropout's objective with masks ε = sigmoid((logit p + logit u)/temperature), u uniform.

    It is scored as Bernoulli dropout at the learned p, with hard masks.
    """

    class Options(PriorLengthscale):
        """One retain probability for all weights (`layer`, as in the paper) or one per weight, initialised at
        `retain_probability`. Masks are drawn for each row, or once per step."""

        temperature: PositiveFloat = 0.1
        retain_probability: Probability = 0.9
        probabilities: Literal["layer", "weight"] = "layer"
        estimator: Literal["per-point", "per-minibatch"] = "per-point"

        @property
        def chosen_estimator(self) -> str:
            return self.estimator

    def initial(self) -> TrainableDropout:
        options, per_weight = self.options, self.options.probabilities == "weight"
        size = len(self.problems), self.problems.k
        return TrainableDropout(*size, options.retain_probability, True, per_weight, self.basis)

    def masks(self, q: Dropout, n: int) -> Float[Tensor, "B n k"]:
        u = self.streams.uniform("masks", n, q.m.shape[-1])
        return sigmoid((q.log_odds[:, None] + u.logit()) / self.options.temperature)
