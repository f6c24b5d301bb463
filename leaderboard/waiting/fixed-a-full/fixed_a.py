"""FIXEDA: the functional KL at one measurement set, drawn once (Burt et al. 2020, section 4 and appendix E)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt, model_validator
from torch import Tensor

from fsvi_bench.maths.functional_kl import Measurement
from fsvi_bench.maths.measurement import measure
from fsvi_bench.methods.base import ExactLimit, MethodOptions, TrainingProblems
from fsvi_bench.methods.descending import DescentMethod, FunctionalOptions
from fsvi_bench.posteriors.base import Family
from fsvi_bench.scoring.objective import FixedFunctionalKL, Objective
from fsvi_bench.variational.descent import AdamDescent, Descent
from fsvi_bench.variational.gradients import set_gradient
from fsvi_bench.variational.lbfgs import LbfgsDescent
from fsvi_bench.variational.likelihood import FullBatch, make_likelihood
from fsvi_bench.variational.measurement import MeasurementDesign, MeasurementStream, align, aligned
from fsvi_bench.variational.parameters import FullParameters, Parameters, make_parameters


class FixedAOptions(FunctionalOptions):
    """`lbfgs`, as in the paper, takes all training rows at every step and no learning rate; `adam` takes both."""

    optimizer: Literal["lbfgs", "adam"] = "lbfgs"
    minibatch: PositiveInt | Literal["full", "M"] = "full"

    @model_validator(mode="after")
    def _consistent(self) -> FixedAOptions:
        if self.optimizer == "lbfgs" and (self.minibatch != "full" or self.averaging):
            raise ValueError("optimizer=lbfgs takes minibatch=full and averaging=0; choose optimizer=adam for others")
        return self


#: An A that sees every weight.
_SEES_ALL = ExactLimit({"M": 60, "max_steps": 300}, tolerance=1e-6)


class FixedA(DescentMethod):
    """−E_q[log p(y|w)] + kl_weight · KL(Q_A ‖ P_A) at one A for the whole run.

    With M < k it has no safe optimum: whatever A does not see of Σ is shrunk without end, and KL(q ‖ P_D) rises with
    the number of steps. The mean converges: (ΦᵀΦ + σ²VVᵀ)⁺Φᵀy is one optimal mean (appendix E).

    Args:
        A: measurement inputs [B,M,D] (standardised), in place of a draw; M is then theirs, not the option's.
    """

    Options: ClassVar[type[MethodOptions]] = FixedAOptions
    options: FixedAOptions
    exact_limits: ClassVar[Mapping[Family, ExactLimit]] = {"full": _SEES_ALL, "ffg": _SEES_ALL}

    def __init__(
        self,
        problems: TrainingProblems,
        family: Family,
        options: MethodOptions,
        seeds: Sequence[int],
        A: Float[Tensor, "B M D"] | None = None,
    ) -> None:
        super().__init__(problems, family, options, seeds)
        self.Phi_A = self._draw() if A is None else self._features(A)

    def _draw(self) -> Float[Tensor, "B M k"]:
        stream = MeasurementStream(self.problems, self.options.design(), self.seeds)
        return stream.draw(1)[0, ..., : self.problems.k].clone()

    def _features(self, A: Float[Tensor, "B M D"]) -> Float[Tensor, "B M k"]:
        """Problem by problem on copies: how LAPACK rounds must not depend on the batch."""
        maps = self.problems.feature_map
        return torch.stack([maps[problem](inputs.clone()) for problem, inputs in enumerate(A)])

    def make_descent(self) -> Descent:
        self.Phi_A = self.Phi_A.to(self.device)
        return self._make_lbfgs() if self.options.optimizer == "lbfgs" else self._make_adam()

    def _measure(self, Phi_A: Float[Tensor, "B M k"]) -> Measurement:
        options = self.options
        return measure(
            align(Phi_A), jitter=options.kl_jitter, rank_tolerance=options.rank_tolerance, avoid_inverse=True
        )

    def _make_adam(self) -> AdamDescent:
        options, data, N = self.options, self.problems, self.problems.y.shape[1]
        q = make_parameters(self.family, len(data), aligned(data.k)).to(self.device)
        likelihood = make_likelihood(data, options.rows(N), self.seeds)
        measurement, kl_weight = self._measure(self.Phi_A), options.weight(options.rows(N), N)

        def gradient() -> Float[Tensor, " B"]:
            likelihood.advance()
            return set_gradient(q, measurement, likelihood, kl_weight)

        return AdamDescent(q, gradient, options.learning_rate(), options.averaging)

    def _make_lbfgs(self) -> LbfgsDescent:
        data, k = self.problems, aligned(self.problems.k)
        parameters = [make_parameters(self.family, 1, k).to(self.device) for _ in range(len(data))]
        return LbfgsDescent(parameters, [self._loss(problem, q) for problem, q in enumerate(parameters)])

    def _loss(self, problem: int, q: Parameters) -> Callable[[], float]:
        likelihood = FullBatch(self.problems.only(problem))
        measurement = self._measure(self.Phi_A[problem : problem + 1].clone())
        kl_weight = self.options.weight(1, 1)

        def loss() -> float:
            kl = set_gradient(q, measurement, likelihood, kl_weight)
            if isinstance(q, FullParameters):
                return float(likelihood.value(q.mean, q.factor) + kl_weight * kl)
            return float(likelihood.value_diagonal(q.mean, q.scale) + kl_weight * kl)

        return loss

    def cost(self) -> dict[str, int]:
        return {**self.options.cost(self.problems.y.shape[1]), "measurement_rows": self.Phi_A.shape[1]}

    def objectives(self) -> Sequence[Objective]:
        N = self.problems.y.shape[1]
        kl_weight = self.options.weight(self.options.rows(N), N)
        design = MeasurementDesign(self.Phi_A.shape[1], "mixed", self.options.kl_jitter, self.options.rank_tolerance)
        return [FixedFunctionalKL(Phi_A.cpu(), design, kl_weight) for Phi_A in self.Phi_A]
