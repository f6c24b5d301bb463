"""MMD² of particles as they are, and what it is for draws of the exact posterior; the leaderboard ranks by it."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.two_sample import expected_kernel, pair_means
from fsvi_bench.scoring.distances import INPUTS
from fsvi_bench.tasks.task import Task


class PointsMmd2(NamedTuple):
    """MMD² of n equally weighted points, and its mean and standard deviation for n draws of the exact posterior."""

    value: float
    of_draws: float
    deviation: float


def points_mmd2(f_test: Float[Tensor, "n N_test"], problem: Task) -> PointsMmd2:
    """MMD² between n functions themselves, equally weighted, and the exact posterior: 0 only if they are equal.

    `mmd2_test` is that of the distribution that the functions were drawn from. It leaves out the pairs i = i, so two
    functions that were placed rather than drawn can have less than 0; this cannot be less than 0.

    For draws, let h(x, x′) = k(x, x′) − μ(x) − μ(x′) + c with μ(x) = E k(x, Y) and c = E k(Y, Y′). All h(x_i, x_j)
    with i ≠ j are uncorrelated, and each with all h(x_i, x_i) = 1 − 2μ(x_i) + c. Hence MMD² = Σ_ij h(x_i, x_j)/n² has
    the mean (1 − c)/n and the variance 2(n − 1)/n³ (E k² − 2E μ² + c²) + 4/n³ (E μ² − c²).
    """
    Phi, n = problem.Phi_test[:INPUTS], len(f_test)
    factor = Phi @ problem.truth.covariance_tril
    exact = factor @ factor.mT
    squared_length, nothing = exact.trace(), torch.zeros(1, len(Phi), dtype=exact.dtype)
    offset = f_test[:, :INPUTS] - Phi @ problem.truth.posterior.mean
    among = (1 + (n - 1) * pair_means(offset, squared_length).kernel) / n
    c = expected_kernel(nothing, 2 * exact, squared_length)[0]
    value = among - 2 * expected_kernel(offset, exact, squared_length).mean() + c
    squares = expected_kernel(nothing, 2 * exact, squared_length / 2)[0]  # E k²: k² is a kernel of this length
    spread = torch.linalg.eigvalsh(exact).clamp(min=0) / squared_length
    means = torch.exp(-(spread.log1p() + 0.5 * (2 * spread / (1 + spread)).log1p()).sum())  # E μ²
    variance = 2 * (n - 1) / n**3 * (squares - 2 * means + c**2) + 4 / n**3 * (means - c**2)
    return PointsMmd2(float(value), float(1 - c) / n, math.sqrt(max(0.0, float(variance))))
