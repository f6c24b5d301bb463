"""Bernoulli dropout in Bayesian linear regression, q(w_i) = p δ(m_i) + (1−p) δ(0) (Gal 2016, section 6.3)."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.bernoulli_dropout import bernoulli_entropy, optimal_m
from fsvi_bench.maths.bernoulli_optimum import optimal_retain_per_weight, optimal_shared_retain
from fsvi_bench.maths.networks import Network
from fsvi_bench.methods.base import MethodOptions, Optimum
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.methods.noisy import Estimator, MaskedMethod, NoisyOptions, PriorLengthscale
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior
from fsvi_bench.posteriors.trainable import Dropout, TrainableDropout
from fsvi_bench.tasks.task import Task


class BernoulliDropout(MaskedMethod):
    """The minimiser m*(p) of Bernoulli dropout's variational objective, or Adam towards it with sampled masks.

    For a network this is MC dropout (Gal and Ghahramani 2016): masks drop hidden units, each by its output weight, and
    all other weights are points.
    """

    class Options(NoisyOptions, PriorLengthscale):
        """The retain probability (1 minus the drop rate) is given, or optimised together with the masks' entropy: one
        for all weights (`shared`) or one per weight.

        `training: masks` trains m by Adam with sampled masks at a fixed probability, as a check of the closed form. It
        draws one mask per row unless `estimator` says otherwise; `local` and `exact` use the masks' first two moments
        and draw no masks.
        """

        retain_probability: Annotated[float, Field(gt=0, le=1, strict=True)] = 0.9
        optimise: Literal["none", "shared", "per-weight"] = "none"
        training: Literal["closed-form", "masks"] = "closed-form"

        @property
        def chosen_estimator(self) -> Estimator:
            return "per-point" if self.estimator == "default" else self.estimator

        @model_validator(mode="after")
        def _consistent(self) -> Self:
            if self.noise != "B":
                raise ValueError(
                    f"got noise={self.noise}, expected it to be left out, since masks have no types; choose estimator"
                )
            if self.training == "masks" and self.optimise != "none":
                raise ValueError(
                    "training=masks does not optimise the retain probability; choose optimise=none, or the method "
                    "concrete-dropout"
                )
            return self

    networks = "weights"
    needs_hidden_units = True

    @classmethod
    def check(cls, options: MethodOptions, problem: TrainingData | NetworkData) -> None:
        super().check(options, problem)
        if not isinstance(problem, NetworkData):
            return
        assert isinstance(options, BernoulliDropout.Options)
        if not isinstance(problem.model, Network):
            raise InputError("dropout drops hidden units, but the model has none; choose another method")
        if options.training != "masks" or options.chosen_estimator not in ("per-point", "per-minibatch"):
            raise InputError(
                f"dropout has no closed form for networks, got training={options.training} and estimator="
                f"{options.estimator}; set training=masks and estimator=per-point or per-minibatch"
            )

    @classmethod
    def is_deterministic(cls, options: MethodOptions) -> bool:
        return options.training == "closed-form" or super().is_deterministic(options)  # type: ignore[attr-defined]

    @classmethod
    def trains_with(cls, options: MethodOptions) -> bool:
        return options.training == "masks"  # type: ignore[attr-defined]

    def initial(self) -> TrainableDropout:
        size, p = (len(self.problems), self.problems.k), self.options.retain_probability
        if not self.is_network:
            return TrainableDropout(*size, p, basis=self.basis)
        q = TrainableDropout(*size, 1.0, per_weight=True)
        q.log_odds.data[:, self.problems.model.outputs] = torch.tensor(p, dtype=torch.float64).logit()
        return q

    def masks(self, q: Dropout, n: int) -> Float[Tensor, "B n k"]:
        return (self.draws.uniform("masks", n, q.m.shape[-1]) < q.retain_probability[:, None]).to(q.m)

    def solve(self, problem: TrainingData) -> BernoulliDropoutPosterior:
        options, model = self.options, (problem.Phi, problem.y, problem.noise_variance)
        if options.optimise == "none":
            p = torch.full((1, 1), options.retain_probability, dtype=torch.float64)
            return BernoulliDropoutPosterior(optimal_m(*model, p, options.l), p[:, 0])
        best = optimal_shared_retain if options.optimise == "shared" else optimal_retain_per_weight
        found = best(*model, options.l)
        p = found.retain_probability
        return BernoulliDropoutPosterior(found.m, p[:, 0] if options.optimise == "shared" else p)

    def terms(self, place: int) -> Dropout:
        return super().terms(place) if self.trains else dropout_terms(self.solved[place : place + 1])

    def optimum(self, place: int, task: Task) -> Optimum:
        """At the given, the best shared, or the best per-weight retain probabilities. The optimum has no density.

        Over per-weight probabilities the objective has several minima; this is the one reached from the best shared
        probability.
        """
        q = dropout_terms(self.solve(TrainingData.of(task)))
        return Optimum(self.objective(place, task, q=q), math.inf)


def dropout_terms(q: BernoulliDropoutPosterior) -> Dropout:
    """A batch of posteriors in the form that losses take."""
    p = q.retain_probabilities
    return Dropout(q.m, p, p.logit(), bernoulli_entropy(p).sum(-1))
