"""What the paper's claims look at beside a cell's scores: overfitting to the training set, and variances in the box."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.blr import expected_log_likelihood, predictive_variance
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.seeds import derived_generator
from fsvi_bench.tasks.task import Task

FRESH_POINTS = 1000


class Closeness(NamedTuple):
    """All are 0 for the exact posterior."""

    log_likelihood_excess: float  #: E_q[log p(y|Φ,w)] on the training set minus the exact posterior's, nats
    mean_log_likelihood_excess: float  #: log p(y|Φ,E_q[w]) minus the same at the exact mean, which no variance touches
    log_variance_ratio: float  #: mean over fresh points of the training box of log(var_q f / var_exact f)


class Examiner:
    """Compares posteriors of one problem with its exact one; what all comparisons share is computed once."""

    def __init__(self, problem: Task) -> None:
        self._problem, truth = problem, problem.truth
        self._Phi = _fresh_features(problem)
        self._likelihood = self._expected_log_likelihood(truth.posterior.mean, truth.covariance_tril)
        self._likelihood_of_mean = self._log_likelihood(truth.posterior.mean)
        self._variance = self._variances(truth.covariance_tril)

    def __call__(self, q: Posterior) -> Closeness:
        """Of one posterior. A variance of 0 anywhere makes the ratio's logarithm −∞, as it should."""
        excess = self._expected_log_likelihood(q.mean, q.covariance_tril()) - self._likelihood
        ratio = self._variances(q.covariance_tril()) / self._variance
        return Closeness(excess, self._log_likelihood(q.mean) - self._likelihood_of_mean, float(ratio.log().mean()))

    def _log_likelihood(self, weights: Float[Tensor, " k"]) -> float:
        return self._expected_log_likelihood(weights, weights.new_zeros(len(weights), len(weights)))

    def _expected_log_likelihood(self, mean: Float[Tensor, " k"], factor: Float[Tensor, "k k"]) -> float:
        problem = self._problem
        return float(expected_log_likelihood(problem.Phi, problem.y, problem.frozen.noise_variance, mean, factor))

    def _variances(self, tril: Float[Tensor, "k k"]) -> Float[Tensor, " n"]:
        return predictive_variance(self._Phi, tril, torch.zeros((), dtype=torch.float64))


def _fresh_features(problem: Task) -> Float[Tensor, "n k"]:
    """Features at points of the training box that neither training nor scoring has seen."""
    low, high = problem.bounding_box
    generator = derived_generator("burt2020 claims", problem.frozen.sha256, "fresh box points")
    unit = torch.from_numpy(generator.random((FRESH_POINTS, len(low))))
    return problem.feature_map(low + (high - low) * unit)
