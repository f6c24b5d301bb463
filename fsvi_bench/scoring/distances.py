"""Distances between the distributions of f under q and the exact posterior: MMD², energy distance, W₂ input by input.

They are for standardised targets, without noise. They need no density, so they apply to Gaussians and draws.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.shapes import Features, Matrix, Vector
from fsvi_bench.maths.two_sample import PairMeans, expected_kernel, expected_norm, pair_means, points_w2
from fsvi_bench.tasks.task import Task

INPUTS = 20  #: the first test inputs in split order, at which f is compared jointly
PART = 5000  #: maximum number of samples whose pairs are formed
COLUMNS = 2**24  #: values of f sorted at once: 128 MB
SMALLEST = 1e-280  #: squared length of the kernel; rounding decides smaller ones, or they are 0


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
    """MMD² and energy distance of the distribution that n functions were drawn from: unbiased for independent draws, so
    they may be negative. Of an autocorrelated chain they are too large.

    They are means over parts of the functions if all pairs would be too many.
    """
    Phi = problem.Phi_test[:INPUTS]
    exact = _covariance(Phi, problem.truth.covariance_tril)
    parts = f_test[:, :INPUTS].tensor_split(-(-len(f_test) // PART))
    each = [
        _joint(f - Phi @ problem.truth.posterior.mean, 0 * exact, pair_means(f, exact.trace()), problem) for f in parts
    ]
    return {name: sum(distances[name] for distances in each) / len(each) for name in each[0]}


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
    2E‖X − Y‖ − E‖X − X′‖ − E‖Y − Y′‖ (Székely and Rizzo 2013), without a root. MMD² is left out where ℓ is 0: far from
    all inducing points, features are 0, and so is f.
    """
    exact = _covariance(problem.Phi_test[:INPUTS], problem.truth.covariance_tril)
    squared_length, nothing = exact.trace(), torch.zeros_like(offset[:1])
    norm = pairs.distance + expected_norm(nothing, 2 * exact)[0]
    found = {"energy_distance_test": float(2 * expected_norm(offset, own + exact).mean() - norm)}
    if squared_length > SMALLEST:
        kernel = pairs.kernel + expected_kernel(nothing, 2 * exact, squared_length)[0]
        found["mmd2_test"] = float(kernel - 2 * expected_kernel(offset, own + exact, squared_length).mean())
    return found


def _exact(problem: Task, Phi: Features) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    """Mean and standard deviation of f under the exact posterior at each row."""
    return Phi @ problem.truth.posterior.mean, _deviations(Phi, problem.truth.covariance_tril)


def _deviations(Phi: Features, tril: Matrix) -> Float[Tensor, " P"]:
    return (Phi @ tril).square().sum(-1).sqrt()


def _covariance(Phi: Features, tril: Matrix) -> Float[Tensor, "d d"]:
    factor = Phi @ tril
    return factor @ factor.mT
