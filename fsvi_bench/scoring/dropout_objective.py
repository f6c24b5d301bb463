"""What dropout objectives ask for where their optima are known; see `fsvi_bench.scoring.objective`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fsvi_bench.maths.bernoulli_dropout import bernoulli_objective, optimal_m
from fsvi_bench.maths.bernoulli_optimum import optimal_retain_per_weight, optimal_shared_retain
from fsvi_bench.maths.blr import expected_log_likelihood
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.maths.gaussian_dropout import gaussian_dropout_optimum, gaussian_dropout_scale
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.scoring.objective import Objective, ObjectiveScores
from fsvi_bench.tasks.problem import Problem


@dataclass(frozen=True)
class BernoulliElbo(Objective):
    """−ELBO of Bernoulli dropout at a fixed retain probability, at the best shared one, or at the best ones.

    Its optimum has no density, so that its KL is infinite. Of the objective's minima over one probability per weight
    the one stands that is reached from the best shared one.
    """

    l: float  # noqa: E741 -- the literature's letter
    retain_probability: float | None
    per_weight: bool = False

    def scores(self, q: Posterior, problem: Problem) -> ObjectiveScores:
        assert isinstance(q, BernoulliDropoutPosterior)
        model = problem.Phi, problem.y, problem.task.noise_variance
        if self.retain_probability is not None:
            p = torch.tensor([self.retain_probability], dtype=torch.float64)
            least = bernoulli_objective(*model, optimal_m(*model, p, self.l), p, self.l)
        else:
            best = optimal_retain_per_weight if self.per_weight else optimal_shared_retain
            least = best(*model, self.l).objective
        value = bernoulli_objective(*model, q.m, q.retain_probabilities, self.l)
        return ObjectiveScores(math.inf, float(value - least))


@dataclass(frozen=True)
class NoisyLikelihood(Objective):
    """E_q[−log p(y|w)] over q = N(θ, αθ²) at a fixed α: all that Gaussian dropout minimises."""

    alpha: float

    def scores(self, q: FactorisedGaussian, problem: Problem) -> ObjectiveScores:  # type: ignore[override]
        alpha = torch.tensor([self.alpha], dtype=torch.float64)
        theta = gaussian_dropout_optimum(problem.Phi, problem.y, alpha)
        optimum = FactorisedGaussian(theta, gaussian_dropout_scale(theta, alpha))

        def value(of: FactorisedGaussian) -> float:
            tril = of.covariance_tril()
            return -float(expected_log_likelihood(problem.Phi, problem.y, problem.task.noise_variance, of.mean, tril))

        kl = gaussian_kl_to_precision(optimum.mean, optimum.covariance_tril(), *problem.truth.posterior)
        return ObjectiveScores(float(kl.total), value(q) - value(optimum))
