"""Quantities for the paper's claims that are not scores: overfitting to the training set, and variances in the box."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    mean_log_likelihood_excess: float  #: log p(y|Φ,E_q[w]) minus the same at the exact mean; independent of variances
    log_variance_ratio: float  #: mean over fresh points of the training box of log(var_q f / var_exact f)


def closeness(problem: Task, posteriors: Iterable[Posterior]) -> Iterator[Closeness]:
    """The closeness of each posterior of a problem. A variance of 0 anywhere makes the log ratio −∞, as it should."""
    fresh, truth = fresh_features(problem), problem.truth
    exact = _measured(problem, fresh, truth.posterior.mean, truth.covariance_tril)
    for q in posteriors:
        yield Closeness(*(_measured(problem, fresh, q.mean, q.covariance_tril()) - exact).tolist())


def fresh_features(problem: Task) -> Float[Tensor, "n k"]:
    """Features at points of the training box that neither training nor scoring uses."""
    low, high = problem.bounding_box
    generator = derived_generator("burt2020 claims", problem.frozen.sha256, "fresh box points")
    unit = torch.from_numpy(generator.random((FRESH_POINTS, len(low))))
    return problem.feature_map(low + (high - low) * unit)


def _measured(
    problem: Task, fresh: Float[Tensor, "n k"], mean: Float[Tensor, " k"], factor: Float[Tensor, "k k"]
) -> Float[Tensor, " 3"]:
    """The terms of `Closeness`'s differences, for weights N(mean, factor factorᵀ)."""
    data = problem.Phi, problem.y, problem.frozen.noise_variance, mean
    log_likelihood = expected_log_likelihood(*data, factor)
    log_likelihood_of_mean = expected_log_likelihood(*data, torch.zeros_like(factor))
    log_variance = predictive_variance(fresh, factor, torch.zeros((), dtype=torch.float64)).log().mean()
    return torch.stack([log_likelihood, log_likelihood_of_mean, log_variance])
