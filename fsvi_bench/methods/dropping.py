"""What the dropout methods have in common: options, noise estimators, and how the model's prior is labelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat
from torch import Tensor

from fsvi_bench.methods.descending import AdamOptions, DescentMethod, MinibatchOptions
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior
from fsvi_bench.variational.descent import AdamDescent
from fsvi_bench.variational.measurement import aligned
from fsvi_bench.variational.noisy import Estimator, NoisyError, make_error, make_rows
from fsvi_bench.variational.parameters import PosteriorParameters

#: (0, 1]: the probability to keep a weight, 1 minus the drop rate.
RetainProbability = Annotated[float, Field(gt=0, le=1, strict=True)]


class SteppingOptions(AdamOptions, MinibatchOptions):
    """Adam on minibatches."""


class NoisyOptions(SteppingOptions):
    """How the expected error is estimated.

    `noise` A draws before the linear map, for each input (KSW's type A), B after it, for each output: with the one
    output of these tasks both are the same q, and differ in their usual estimator only, `per-point` and `local`.
    `exact` is the expectation in closed form, which a linear model has.
    """

    noise: Literal["A", "B"] = "B"
    estimator: Literal["default"] | Estimator = "default"

    @property
    def chosen_estimator(self) -> Estimator:
        if self.estimator == "default":
            return "per-point" if self.noise == "A" else "local"
        return self.estimator


class NoisyMethod(DescentMethod):
    """A method whose likelihood term is an expected squared error under independent weight noise."""

    options: SteppingOptions

    @property
    def N(self) -> int:
        return int(self.problems.y.shape[1])

    @property
    def width(self) -> int:
        """Weights with the dummies."""
        return aligned(self.problems.k)

    def seen(self) -> Float[Tensor, " width"]:
        """1 for the weights, 0 for the dummies, which are not to pull at a parameter that all weights share."""
        return (torch.arange(self.width, device=self.device) < self.problems.k).to(torch.float64)

    def make_error(self) -> NoisyError:
        """The estimator that the options ask for, with Gaussian noise."""
        assert isinstance(self.options, NoisyOptions)
        rows = make_rows(self.problems, self.options.rows(self.N), self.seeds)
        return make_error(self.options.chosen_estimator, rows, self.seeds)

    def by_adam(self, q: PosteriorParameters, gradient: Callable[[], Float[Tensor, " B"]]) -> AdamDescent:
        """Adam with the options' learning rate."""
        return AdamDescent(q, gradient, self.options.learning_rate(), self.options.averaging)

    def cost(self) -> dict[str, int]:
        return {"likelihood_rows": self.options.rows(self.N)}


def mean_retain_probabilities(q: Posterior) -> list[dict[str, float]]:
    """For each problem, the mean over its weights, as a record's details."""
    assert isinstance(q, BernoulliDropoutPosterior)
    return [{"retain_probability": p} for p in q.retain_probabilities.mean(-1).tolist()]


class PriorLengthscale(MinibatchOptions):
    """Standard deviation 1/l of the prior's weights; the task's prior has l = 1."""

    l: PositiveFloat = 1.0  # noqa: E741 -- the literature's letter
