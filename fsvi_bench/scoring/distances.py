"""Distances between the distributions of f under q and the exact posterior: MMD², energy distance, W₂ input by input.

They are for standardised targets, without noise. They need no density, so they apply to Gaussians and draws.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.shapes import Features, Matrix, Vector
from fsvi_bench.maths.two_sample import PairMeans, expected_kernel, expected_norm, pair_means, points_w2
from fsvi_bench.tasks.task import Task

INPUTS = 20  #: the first test inputs in split order, at which f is compared jointly
PART = 5000  #: maximum number of samples whose pairs are formed
COLUMNS = 2**24  #: values of f sorted at once: 128 MB


def gaussian_distances(mean: Vector, tril: Matrix, problem: Task) -> dict[str, float]:
    """Distances of N(mean, LLᵀ): closed forms, with E‖·‖ by quadrature."""
    values = [
        (Phi @ mean, _deviations(Phi, tril), *_exact(problem, Phi)) for Phi in (problem.Phi_test, problem.Phi_box)
    ]
    test, box = (((m - m_p).square() + (s - s_p).square()).sqrt().mean() for m, s, m_p, s_p in values)
    Phi = problem.Phi_test[:INPUTS]
    own = _covariance(Phi, tril)
    squared_length = _covariance(Phi, problem.truth.covariance_tril).trace()
    nothing = torch.zeros(1, len(Phi), dtype=own.dtype)
    pairs = PairMeans(expected_kernel(nothing, 2 * own, squared_length)[0], expected_norm(nothing, 2 * own)[0])
    offset = (Phi @ (mean - problem.truth.posterior.mean))[None]
    return {"w2_test": float(test), "w2_box": float(box)} | _joint(offset, own, pairs, problem)


def draws_distances(f_test: Float[Tensor, "n N_test"], problem: Task) -> dict[str, float]:
    """MMD² and energy distance of the distribution that n functions were drawn from: unbiased, so they may be negative.

    They are means over parts of the functions if all pairs would be too many.
    """
    Phi = problem.Phi_test[:INPUTS]
    exact = _covariance(Phi, problem.truth.covariance_tril)
    parts = f_test[:, :INPUTS].tensor_split(-(-len(f_test) // PART))
    each = [
        _joint(f - Phi @ problem.truth.posterior.mean, 0 * exact, pair_means(f, exact.trace()), problem) for f in parts
    ]
    return {name: sum(distances[name] for distances in each) / len(each) for name in each[0]}


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
    exact = _covariance(Phi, problem.truth.covariance_tril)
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


def samples_distances(samples: Float[Tensor, "S k"], problem: Task) -> dict[str, float]:
    """As `draws_distances` and `draws_w2`, without all function values at once."""
    found = draws_distances(samples @ problem.Phi_test[:INPUTS].mT, problem)
    for name, Phi in (("w2_test", problem.Phi_test), ("w2_box", problem.Phi_box)):
        rows = torch.split(Phi, max(1, COLUMNS // len(samples)))
        found[name] = sum(draws_w2(samples @ block.mT, problem, block) * len(block) for block in rows) / len(Phi)
    return found


def draws_w2(f: Float[Tensor, "n P"], problem: Task, Phi: Features) -> float:
    """Mean over inputs of W₂ between n equally weighted values of f and the exact posterior's Gaussian."""
    mean, scale = _exact(problem, Phi)
    blocks = (torch.split(of, max(1, COLUMNS // len(f)), -1) for of in (f, mean, scale))
    return float(torch.cat([points_w2(*block) for block in zip(*blocks, strict=True)]).mean())


def _joint(
    offset: Float[Tensor, "n d"], own: Float[Tensor, "d d"], pairs: PairMeans, problem: Task
) -> dict[str, float]:
    """MMD² and energy distance, from offsets of q's parts from the exact mean, their covariance, and means over pairs.

    MMD² has the kernel exp(−‖a − b‖²/2ℓ²) with ℓ² the sum of the exact posterior's variances; the energy distance is
    2E‖X − Y‖ − E‖X − X′‖ − E‖Y − Y′‖ (Székely and Rizzo 2013), without a root.
    """
    exact = _covariance(problem.Phi_test[:INPUTS], problem.truth.covariance_tril)
    squared_length, nothing = exact.trace(), torch.zeros_like(offset[:1])
    kernel = pairs.kernel + expected_kernel(nothing, 2 * exact, squared_length)[0]
    norm = pairs.distance + expected_norm(nothing, 2 * exact)[0]
    mmd2 = kernel - 2 * expected_kernel(offset, own + exact, squared_length).mean()
    return {
        "mmd2_test": float(mmd2),
        "energy_distance_test": float(2 * expected_norm(offset, own + exact).mean() - norm),
    }


def _exact(problem: Task, Phi: Features) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    """Mean and standard deviation of f under the exact posterior at each row."""
    return Phi @ problem.truth.posterior.mean, _deviations(Phi, problem.truth.covariance_tril)


def _deviations(Phi: Features, tril: Matrix) -> Float[Tensor, " P"]:
    return (Phi @ tril).square().sum(-1).sqrt()


def _covariance(Phi: Features, tril: Matrix) -> Float[Tensor, "d d"]:
    factor = Phi @ tril
    return factor @ factor.mT
