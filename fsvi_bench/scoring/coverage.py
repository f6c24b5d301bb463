"""Calibration: how many test targets lie within the central intervals of a posterior's predictive.

The central p-interval leaves (1 − p)/2 of the predictive, noise included, on either side. Of N_test targets a
calibrated model covers p, give or take √(p(1 − p)/N_test): hence beside the exact posterior's own coverage.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.mixtures import mixture_cdf
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.samples import SamplesPosterior
from fsvi_bench.scoring.predictive import (
    FAR,
    Predictive,
    exact_predictive,
    predictive_moments,
    spread_in_noise,
    switched_weights,
)
from fsvi_bench.tasks.task import Task

LEVELS = {"50": 0.5, "90": 0.9, "95": 0.95}
CHUNK = 2**21  #: numbers at a time: 16 MB


def coverage(q: Posterior, problem: Task, tril: Float[Tensor, "k k"]) -> dict[str, float] | None:
    """Share of the test targets within q's central 50, 90 and 95% predictive intervals.

    Gaussians by their moments, mixtures (dropout, spike-and-slab, samples) by their distribution function, to 1e-9;
    None for a mixture whose atoms lie too far apart, as for its density.
    """
    if isinstance(q, SamplesPosterior):
        return _shares((2 * samples_cdf(q.samples, problem) - 1).abs())
    weights = switched_weights(q)
    if weights is None:
        return _of_gaussian(predictive_moments(problem, problem.Phi_test, q.mean, tril), problem)
    if spread_in_noise(problem, problem.Phi_test, tril) > FAR:
        return None
    below = mixture_cdf(problem.y_test, problem.Phi_test, weights, problem.frozen.noise_variance).probability
    return None if bool(below.isnan().any()) else _shares((2 * below - 1).abs())


def exact_coverage(problem: Task) -> dict[str, float]:
    """The same of the exact posterior's predictive intervals."""
    return _of_gaussian(exact_predictive(problem, problem.Phi_test), problem)


def samples_cdf(samples: Float[Tensor, "S k"], problem: Task) -> Float[Tensor, " N_test"]:
    """P(Y ≤ y) at the test targets under the mixture of the samples' predictives N(φᵀw_s, σ²)."""
    Phi, y, scale = problem.Phi_test, problem.y_test, (2 * problem.frozen.noise_variance).sqrt()
    total = torch.zeros_like(y)
    for part in torch.split(samples, max(1, CHUNK // len(y))):
        total += torch.erfc((Phi @ part.mT - y[:, None]) / scale).sum(-1)  # 2Φ: torch's own Φ is ten times as slow
    return total / (2 * len(samples))


def _of_gaussian(predictive: Predictive, problem: Task) -> dict[str, float]:
    return _shares(torch.erf((problem.y_test - predictive.mean).abs() / (2 * predictive.variance).sqrt()))


def _shares(contents: Float[Tensor, " N_test"]) -> dict[str, float]:
    """Of the targets whose central interval, the one that ends at the target, has no more than the level's content."""
    return {name: int((contents <= p).sum()) / len(contents) for name, p in LEVELS.items()}
