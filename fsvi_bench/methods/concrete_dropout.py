"""Concrete dropout: retain probabilities learned through relaxed masks (Gal, Hron and Kendall 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from jaxtyping import Float
from pydantic import Field, PositiveFloat
from torch import Tensor

from fsvi_bench.maths.elementwise import sigmoid
from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.bernoulli_dropout import mean_retain_probabilities, quasi_kl_to_prior
from fsvi_bench.methods.data import Batch
from fsvi_bench.methods.noisy import NoisyMethod, PriorLengthscale, exact_nll, weights_nll
from fsvi_bench.posteriors.base import Family
from fsvi_bench.posteriors.trainable import Dropout, TrainableDropout


class ConcreteOptions(PriorLengthscale):
    """One retain probability for all weights (a layer's, as in the paper) or one each, started at
    `retain_probability`. Masks are drawn for each row, or once a step."""

    temperature: PositiveFloat = 0.1
    retain_probability: Annotated[float, Field(gt=0, lt=1)] = 0.9
    probabilities: Literal["layer", "weight"] = "layer"
    estimator: Literal["per-point", "per-minibatch"] = "per-point"

    @property
    def chosen_estimator(self) -> str:
        return self.estimator


class ConcreteDropout(NoisyMethod):
    """Adam on Bernoulli dropout's objective with masks ε = sigmoid((logit p + logit u)/temperature), u uniform.

    Scored as Bernoulli dropout at the learned p, with hard masks.
    """

    Options: ClassVar[type[MethodOptions]] = ConcreteOptions
    families: ClassVar[tuple[Family, ...]] = ("bernoulli",)

    def initial(self) -> TrainableDropout:
        options, per_weight = self.options, self.options.probabilities == "weight"
        return TrainableDropout(len(self.problems), self.problems.k, options.retain_probability, True, per_weight)

    def loss(self, q: Dropout, batch: Batch) -> Float[Tensor, " B"]:
        p, k = q.retain_probability, q.m.shape[-1]
        if self.training:
            n = batch.rows.y.shape[1] if self.options.estimator == "per-point" else 1
            u = self.streams.uniform("masks", n, k).to(q.m.device)
            masks = sigmoid((q.log_odds[:, None] + u.logit()) / self.options.temperature)
            nll = weights_nll(q.m[:, None] * masks, batch.rows)
        else:
            nll = exact_nll(p * q.m, (p * (1 - p)).sqrt() * q.m, batch.rows)
        return nll + quasi_kl_to_prior(q, self.options.l)

    def details(self) -> Sequence[Mapping[str, float] | None]:
        return mean_retain_probabilities(self.posterior())
