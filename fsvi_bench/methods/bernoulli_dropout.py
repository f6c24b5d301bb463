"""Bernoulli dropout in Bayesian linear regression, q(w_i) = p δ(m_i) + (1−p) δ(0) (Gal 2016, section 6.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from fsvi_bench.maths.bernoulli_dropout import bernoulli_entropy, optimal_m
from fsvi_bench.maths.bernoulli_optimum import optimal_retain_per_weight, optimal_shared_retain
from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.methods.base import MethodOptions, Optimum
from fsvi_bench.methods.data import Batch
from fsvi_bench.methods.noisy import Estimator, NoisyMethod, NoisyOptions, PriorLengthscale
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import Family
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior
from fsvi_bench.posteriors.trainable import Dropout, TrainableDropout
from fsvi_bench.tasks.task import Task

#: (0, 1]: the probability to keep a weight, 1 minus the drop rate.
RetainProbability = Annotated[float, Field(gt=0, le=1, strict=True)]


class BernoulliDropoutOptions(NoisyOptions, PriorLengthscale):
    """The retain probability is given, or optimised with its entropy: one for all weights (`shared`) or one each.

    `training: masks` samples them, by Adam at a fixed probability, as a check of the closed form: one mask for each row
    unless `estimator` says otherwise (`local` and `exact` are those of the masks' two moments, and draw none).
    """

    retain_probability: RetainProbability = 0.9
    optimise: Literal["none", "shared", "per-weight"] = "none"
    training: Literal["closed-form", "masks"] = "closed-form"

    @property
    def chosen_estimator(self) -> Estimator:
        return "per-point" if self.estimator == "default" else self.estimator

    @model_validator(mode="after")
    def _consistent(self) -> BernoulliDropoutOptions:
        if self.training == "masks" and self.optimise != "none":
            raise ValueError(
                "training=masks keeps the retain probability; choose optimise=none, or the method concrete-dropout"
            )
        return self


class BernoulliDropout(NoisyMethod):
    """The minimiser m*(p) of Bernoulli dropout's variational objective, or Adam towards it with sampled masks."""

    Options: ClassVar[type[MethodOptions]] = BernoulliDropoutOptions
    families: ClassVar[tuple[Family, ...]] = ("bernoulli",)

    @classmethod
    def is_deterministic(cls, options: MethodOptions) -> bool:
        return options.training == "closed-form"  # type: ignore[attr-defined]

    @property
    def trains(self) -> bool:
        return bool(self.options.training == "masks")

    def initial(self) -> TrainableDropout:
        return TrainableDropout(len(self.problems), self.problems.k, self.options.retain_probability)

    def solve(self, problem: TrainingData) -> BernoulliDropoutPosterior:
        options, model = self.options, (problem.Phi, problem.y, problem.noise_variance)
        if options.optimise == "none":
            p = torch.full((1, 1), options.retain_probability, dtype=torch.float64)
            return BernoulliDropoutPosterior(optimal_m(*model, p, options.l), p[:, 0])
        best = optimal_shared_retain if options.optimise == "shared" else optimal_retain_per_weight
        found = best(*model, options.l)
        p = found.retain_probability
        return BernoulliDropoutPosterior(found.m, p[:, 0] if options.optimise == "shared" else p)

    def loss(self, q: Dropout, batch: Batch) -> Float[Tensor, " B"]:
        """w = m∘ε in the form centre + spread·e, e = (ε − p)/√(p(1−p)); p = 1 has no spread."""
        p = self.options.retain_probability
        deviation = (p * (1 - p)) ** 0.5

        def masks(*shape: int) -> Tensor:
            return ((self.streams.uniform("masks", *shape) < p).to(torch.float64) - p) / (deviation or 1.0)

        spread = (q.retain_probability * (1 - q.retain_probability)).sqrt() * q.m
        nll = self.expected_nll(q.retain_probability * q.m, spread, batch, masks)
        return nll + quasi_kl_to_prior(q, self.options.l)

    def terms(self, place: int) -> Dropout:
        return super().terms(place) if self.trains else dropout_terms(self.solved[place : place + 1])

    def optima(self, tasks: Sequence[Task]) -> Sequence[Optimum | None]:
        """At the given retain probability, the best shared one, or the best ones. The optimum has no density.

        Of the objective's minima over one probability per weight the one stands that is reached from the best shared.
        """
        data = TrainingData.of(tasks)
        best = [dropout_terms(self.solve(data.only(place))) for place in range(len(tasks))]
        return [
            Optimum(self.objective(place, task, q=q), math.inf)
            for place, (task, q) in enumerate(zip(tasks, best, strict=True))
        ]

    def details(self) -> Sequence[Mapping[str, float] | None]:
        return mean_retain_probabilities(self.posterior())


def quasi_kl_to_prior(q: Dropout, l: float) -> Float[Tensor, " B"]:  # noqa: E741 -- the literature's letter
    """−E_q log N(w; 0, l⁻²I) minus the masks' entropy. Each mask counts, also where m_i = 0 lays its two atoms on one
    another."""
    decay = 0.5 * l**2 * (q.retain_probability * (q.m * q.m)).sum(-1)
    return decay - q.entropy + q.m.shape[-1] * (0.5 * LOG_2PI - math.log(l))


def dropout_terms(q: BernoulliDropoutPosterior) -> Dropout:
    """As losses take a batch of posteriors."""
    p = q.retain_probabilities
    return Dropout(q.m, p, p.logit(), bernoulli_entropy(p).sum(-1))


def mean_retain_probabilities(q: BernoulliDropoutPosterior) -> list[dict[str, float]]:
    """For each problem, the mean over its weights, as a record's details."""
    return [{"retain_probability": p} for p in q.retain_probabilities.mean(-1).tolist()]
