"""Bernoulli dropout in Bayesian linear regression, q(w_i) = p δ(m_i) + (1−p) δ(0) (Gal 2016, section 6.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor

from fsvi_bench.maths.bernoulli_dropout import optimal_m
from fsvi_bench.maths.bernoulli_optimum import optimal_retain_per_weight, optimal_shared_retain
from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.dropping import (
    NoisyMethod,
    NoisyOptions,
    PriorLengthscale,
    RetainProbability,
    mean_retain_probabilities,
)
from fsvi_bench.posteriors.base import Family
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior
from fsvi_bench.scoring.dropout_objective import BernoulliElbo
from fsvi_bench.scoring.objective import Objective
from fsvi_bench.tasks.training_problems import TrainingProblems
from fsvi_bench.variational.closed_form import ClosedForm
from fsvi_bench.variational.descent import AdamDescent, Descent
from fsvi_bench.variational.dropout_parameters import MaskParameters
from fsvi_bench.variational.noisy import Estimator, Noise, SampledError, make_rows


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
    options: BernoulliDropoutOptions
    families: ClassVar[tuple[Family, ...]] = ("bernoulli",)

    @classmethod
    def is_deterministic(cls, options: MethodOptions) -> bool:
        assert isinstance(options, BernoulliDropoutOptions)
        return options.training == "closed-form"

    @property
    def num_steps(self) -> int:
        return 1 if self.is_deterministic(self.options) else super().num_steps

    def make_descent(self) -> Descent:
        if self.options.training == "masks":
            return self._by_masks()
        return ClosedForm(self.problems, self._solve, BernoulliDropoutPosterior)

    def _solve(self, data: TrainingProblems) -> dict[str, Tensor]:
        options, model = self.options, (data.Phi, data.y, data.noise_variance)
        if options.optimise == "none":
            p = torch.full((1, 1), options.retain_probability, dtype=torch.float64, device=data.y.device)
            return {"m": optimal_m(*model, p, options.l), "retain_probability": p[:, 0]}
        if options.optimise == "shared":
            shared = optimal_shared_retain(*model, options.l)
            return {"m": shared.m, "retain_probability": shared.retain_probability[:, 0]}
        own = optimal_retain_per_weight(*model, options.l)
        return {"m": own.m, "retain_probability": own.retain_probability}

    def _by_masks(self) -> AdamDescent:
        """w = m∘ε in the form centre + spread·e, e = (ε − p)/√(p(1−p)); p = 1 has no spread."""
        options, p = self.options, self.options.retain_probability
        q = MaskParameters(len(self.problems), self.width, p).to(self.device)
        deviation = (p * (1 - p)) ** 0.5
        if options.chosen_estimator in ("exact", "local"):
            error = self.make_error()
        else:
            rows = make_rows(self.problems, options.rows(self.N), self.seeds)
            uniform = Noise(self.seeds, "masks", "uniform")

            def masks(*shape: int) -> Tensor:
                return ((uniform(*shape) < p).to(torch.float64) - p) / (deviation or 1.0)

            error = SampledError(rows, masks, options.chosen_estimator == "per-point")

        def gradient() -> Float[Tensor, " B"]:
            of_centre, of_spread = error.gradient(p * q.m, deviation * q.m)
            of_m = p * of_centre + deviation * of_spread + options.l**2 * p * q.m
            q.set_gradient(of_m)
            return of_m.sum(-1)

        return self.by_adam(q, gradient)

    def details(self) -> Sequence[Mapping[str, float]]:
        return mean_retain_probabilities(self.posterior())

    def objectives(self) -> Sequence[Objective]:
        optimise = self.options.optimise
        p = self.options.retain_probability if optimise == "none" else None
        return [BernoulliElbo(self.options.l, p, optimise == "per-weight")] * len(self.problems)
