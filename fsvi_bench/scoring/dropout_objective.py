"""What dropout methods minimise, and what that asks for where the optimum is known; see `scoring.objective`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.bernoulli_dropout import bernoulli_objective, compress_rows, optimal_m
from fsvi_bench.maths.bernoulli_optimum import optimal_retain_per_weight, optimal_shared_retain
from fsvi_bench.maths.blr import expected_log_likelihood
from fsvi_bench.maths.gaussian import LOG_2PI, gaussian_kl_to_precision
from fsvi_bench.maths.gaussian_dropout import gaussian_dropout_optimum, gaussian_dropout_scale
from fsvi_bench.maths.log_uniform import ksw_cubic_kl, ksw_lower_bound_kl, log_uniform_kl, molchanov_kl
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.scoring.loss import Loss, misfit, weight_space_loss
from fsvi_bench.scoring.objective import Objective, ObjectiveScores
from fsvi_bench.tasks.task import Task


@dataclass(frozen=True)
class BernoulliElbo(Objective):
    """−ELBO of Bernoulli dropout at a fixed retain probability, at the best shared one, or at the best ones.

    Its optimum has no density, so that its KL is infinite. Of the objective's minima over one probability per weight
    the one stands that is reached from the best shared one.
    """

    l: float  # noqa: E741 -- the literature's letter
    retain_probability: float | None
    per_weight: bool = False

    def loss(self, problem: Task) -> Loss:
        return _bernoulli_loss(problem, self.l)

    def scores(self, q: Posterior, problem: Task) -> ObjectiveScores:
        assert isinstance(q, BernoulliDropoutPosterior)
        model = problem.Phi, problem.y, problem.frozen.noise_variance
        if self.retain_probability is not None:
            p = torch.tensor([self.retain_probability], dtype=torch.float64)
            least = bernoulli_objective(*model, optimal_m(*model, p, self.l), p, self.l)
        else:
            best = optimal_retain_per_weight if self.per_weight else optimal_shared_retain
            least = best(*model, self.l).objective
        value = bernoulli_objective(*model, q.m, q.retain_probabilities, self.l)
        return ObjectiveScores(math.inf, float(value - least))


@dataclass(frozen=True)
class RelaxedBernoulliElbo(Objective):
    """What concrete dropout minimises with relaxed masks, followed with the hard ones that it is scored with."""

    l: float  # noqa: E741 -- the literature's letter

    def loss(self, problem: Task) -> Loss:
        return _bernoulli_loss(problem, self.l)


def _bernoulli_loss(problem: Task, l: float) -> Loss:  # noqa: E741 -- the literature's letter
    """−E_q[log p(y, w)] minus the entropy of the masks: the quasi-KL minus the log evidence under N(0, l⁻²I).

    Each mask counts, also where m_i = 0 lays its two atoms on one another.
    """
    Phi, y = compress_rows(problem.Phi.clone(), problem.y.clone())
    noise_variance, k = problem.frozen.noise_variance, Phi.shape[-1]
    of_rows = 0.5 * len(problem.y) * (LOG_2PI + float(noise_variance.log()))
    constant = of_rows + k * (0.5 * LOG_2PI - math.log(l))

    def value(q: Posterior) -> float:
        assert isinstance(q, BernoulliDropoutPosterior)
        m, p = q.m.clone(), q.retain_probabilities.clone()
        return constant + float(bernoulli_objective(Phi, y, noise_variance, m, p, l))

    return value


@dataclass(frozen=True)
class LogUniformElbo(Objective):
    """E_q[−log p(y|w)] + kl_scale · KL(q ‖ log-uniform) over q = N(θ, αθ²), the KL exact or as approximated there.

    No density integrates to one that is log-uniform, so the KL has a free constant; see `maths.log_uniform`.
    """

    kl: Literal["exact", "cubic", "lower-bound", "sigmoid"]
    kl_scale: float = 1.0

    def loss(self, problem: Task) -> Loss:
        of_data = misfit(problem)

        def value(q: Posterior) -> float:
            assert isinstance(q, FactorisedGaussian)
            return of_data(q) + self.kl_scale * float(self._of_weights(q.mean.clone(), q.scale.clone()).sum())

        return value

    def _of_weights(self, theta: Float[Tensor, " k"], scale: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
        if self.kl == "exact":
            return log_uniform_kl(0.5 * (theta / scale).square())
        alpha = (scale / theta).square()
        if self.kl == "sigmoid":
            return molchanov_kl(alpha)
        # Kept at or below 1 in training, which its recovery from q's scale may miss by rounding.
        return (ksw_cubic_kl if self.kl == "cubic" else ksw_lower_bound_kl)(alpha.clamp(max=1.0))


@dataclass(frozen=True)
class ScaledElbo(Objective):
    """E_q[−log p(y|w)] + kl_scale · KL(q ‖ N(0, I))."""

    kl_scale: float = 1.0

    def loss(self, problem: Task) -> Loss:
        return weight_space_loss(problem, self.kl_scale)


@dataclass(frozen=True)
class NoisyLikelihood(Objective):
    """E_q[−log p(y|w)] over q = N(θ, αθ²) at a fixed α: all that Gaussian dropout minimises."""

    alpha: float

    def loss(self, problem: Task) -> Loss:
        return misfit(problem)

    def scores(self, q: FactorisedGaussian, problem: Task) -> ObjectiveScores:  # type: ignore[override]
        alpha = torch.tensor([self.alpha], dtype=torch.float64)
        theta = gaussian_dropout_optimum(problem.Phi, problem.y, alpha)
        optimum = FactorisedGaussian(theta, gaussian_dropout_scale(theta, alpha))

        def value(of: FactorisedGaussian) -> float:
            tril = of.covariance_tril()
            return -float(expected_log_likelihood(problem.Phi, problem.y, problem.frozen.noise_variance, of.mean, tril))

        kl = gaussian_kl_to_precision(optimum.mean, optimum.covariance_tril(), *problem.truth.posterior)
        return ObjectiveScores(float(kl.total), value(q) - value(optimum))
