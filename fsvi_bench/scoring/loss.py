"""An objective's value along a run, in nats: what every objective adds its own terms to, prepared once per problem."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.bernoulli_dropout import compress_rows
from fsvi_bench.maths.blr import expected_log_likelihood
from fsvi_bench.maths.functional_kl import Measurement
from fsvi_bench.maths.gaussian import LOG_2PI, gaussian_kl_standard_normal
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.tasks.task import Task
from fsvi_bench.variational.measurement import align, aligned

#: The value of an objective at one posterior on one problem.
Loss = Callable[[Posterior], float]


def misfit(problem: Task) -> Loss:
    """q ↦ −E_q[log p(y | Φ, w)] over all training rows, its constant ½N log 2πσ² included.

    The rows are replaced by the k + 1 of the triangular factor of [Φ, y]: the same sums of squares whatever N is.
    """
    Phi, y = compress_rows(problem.Phi.clone(), problem.y.clone())
    noise_variance = problem.frozen.noise_variance
    rows_left_out = 0.5 * (len(problem.y) - len(y)) * (LOG_2PI + float(noise_variance.log()))

    def value(q: Posterior) -> float:
        # Copies: how BLAS rounds must not depend on where q lies in its batch.
        mean, factor = q.mean.clone(), q.covariance_tril().clone()
        return rows_left_out - float(expected_log_likelihood(Phi, y, noise_variance, mean, factor))

    return value


def weight_space_loss(problem: Task, kl_weight: float = 1.0) -> Loss:
    """q ↦ −E_q[log p(y | Φ, w)] + kl_weight · KL(q ‖ N(0, I)): at weight 1, KL(q ‖ P_D) minus the log evidence."""
    of_data = misfit(problem)

    def value(q: Posterior) -> float:
        return of_data(q) + kl_weight * float(gaussian_kl_standard_normal(q.mean.clone(), q.covariance_tril().clone()))

    return value


def functional_kl(sets: Measurement, count: int, q: Posterior) -> float:
    """The mean of KL(Q_A ‖ P_A) over `count` measurement sets, prepared as one batch."""
    mean, factor = align(q.mean[None]), align_factor(q.covariance_tril())[None]
    return float(sets.kl(mean.expand(count, -1), factor.expand(count, -1, -1)).mean())


def align_factor(factor: Float[Tensor, "k k"]) -> Float[Tensor, "k_aligned k_aligned"]:
    """A covariance factor with a unit diagonal for the dummy weights."""
    k = factor.shape[-1]
    whole = torch.eye(aligned(k), dtype=factor.dtype)
    whole[:k, :k] = factor
    return whole
