"""Concrete dropout: retain probabilities learned through relaxed masks (Gal, Hron and Kendall 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from jaxtyping import Float
from pydantic import Field, PositiveFloat
from torch import Tensor

from fsvi_bench.maths.elementwise import sigmoid
from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.dropping import NoisyMethod, PriorLengthscale, SteppingOptions, mean_retain_probabilities
from fsvi_bench.posteriors.base import Family
from fsvi_bench.scoring.dropout_objective import RelaxedBernoulliElbo
from fsvi_bench.scoring.objective import Objective
from fsvi_bench.variational.descent import AdamDescent
from fsvi_bench.variational.dropout_parameters import ConcreteParameters
from fsvi_bench.variational.noisy import Noise, error_gradient, make_rows


class ConcreteOptions(SteppingOptions, PriorLengthscale):
    """One retain probability for all weights (a layer's, as in the paper) or one each, started at
    `retain_probability`. Masks are drawn for each row, or once a step."""

    temperature: PositiveFloat = 0.1
    retain_probability: Annotated[float, Field(gt=0, lt=1)] = 0.9
    probabilities: Literal["layer", "weight"] = "layer"
    estimator: Literal["per-point", "per-minibatch"] = "per-point"


class ConcreteDropout(NoisyMethod):
    """Adam on Bernoulli dropout's objective with masks ε = sigmoid((logit p + logit u)/temperature), u uniform.

    Scored as Bernoulli dropout at the learned p, with hard masks.
    """

    Options: ClassVar[type[MethodOptions]] = ConcreteOptions
    options: ConcreteOptions
    families: ClassVar[tuple[Family, ...]] = ("bernoulli",)

    def make_descent(self) -> AdamDescent:
        options, B, k = self.options, len(self.problems), self.width
        q = ConcreteParameters(B, k, options.retain_probability, options.probabilities == "layer").to(self.device)
        rows = make_rows(self.problems, options.rows(self.N), self.seeds)
        uniform, seen = Noise(self.seeds, "masks", "uniform"), self.seen()
        per_point = options.estimator != "per-minibatch"

        def gradient() -> Float[Tensor, " B"]:
            rows.advance()
            m, logit = q.m, q.logit.expand(B, k)
            u = uniform(rows.targets.shape[1] if per_point else 1, k).to(self.device)
            masks = sigmoid((logit[:, None] + u.logit()) / options.temperature)
            of_w = error_gradient(rows.rows, rows.targets, m[:, None] * masks)
            p = sigmoid(logit)
            of_m = (of_w * masks).sum(-2) + options.l**2 * p * m
            through_masks = (of_w * masks * (1 - masks)).sum(-2) * m / options.temperature
            # d/d(logit p) of ½l²pm² − H(p), where dH/dp = −logit p.
            of_logit = through_masks + p * (1 - p) * (0.5 * options.l**2 * m.square() + logit)
            q.set_gradient(of_m, seen * of_logit)
            return of_m.sum(-1) + of_logit.sum(-1)

        return self.by_adam(q, gradient)

    def objectives(self) -> Sequence[Objective]:
        return [RelaxedBernoulliElbo(self.options.l)] * len(self.problems)

    def details(self) -> Sequence[Mapping[str, float]]:
        return mean_retain_probabilities(self.posterior())
