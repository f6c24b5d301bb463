"""Propositions 6 and 7 of Hron et al. (2018), without their solutions: optima by descent, curvature by autograd."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from fsvi_bench.papers.hron2018.quasi_kl_pca import PrincipalSubspace, convolved_pca_kl, pca_quasi_kl

#: (basis [D,K], variances [K]) ↦ nats.
SubspaceObjective = Callable[[Tensor, Tensor], Tensor]


class Target:
    """N(0, Σ) with given eigenvalues, largest first, along random directions."""

    def __init__(self, eigenvalues: Sequence[float], generator: torch.Generator) -> None:
        D = len(eigenvalues)
        self.eigenvalues = torch.tensor(eigenvalues, dtype=torch.float64)
        draws = torch.randn(D, D, generator=generator, dtype=torch.float64)
        self.eigenvectors = torch.linalg.qr(draws).Q
        self.covariance = (self.eigenvectors * self.eigenvalues) @ self.eigenvectors.mT
        precision = (self.eigenvectors / self.eigenvalues) @ self.eigenvectors.mT
        self.precision_tril = torch.linalg.cholesky(precision)

    def quasi_kl(self, basis: Tensor, variances: Tensor) -> Tensor:
        return pca_quasi_kl(basis, variances, self.precision_tril)

    def convolved(self, noise_variance: float) -> SubspaceObjective:
        tau = torch.tensor(noise_variance, dtype=torch.float64)
        return lambda basis, variances: convolved_pca_kl(basis, variances, tau, self.precision_tril)


def minimise(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Where L-BFGS-B on a differentiable loss of a vector ends, from a start."""

    def value_and_gradient(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        free = torch.tensor(flat, dtype=torch.float64, requires_grad=True)
        value = loss(free)
        (gradient,) = torch.autograd.grad(value, free)
        return float(value.detach()), gradient.numpy()

    options: Any = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-16, "gtol": 1e-11}
    found: Any = minimize(value_and_gradient, start.numpy(), jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(found.x)


def descend(objective: SubspaceObjective, start: Tensor) -> PrincipalSubspace:
    """The end of L-BFGS-B over a D×K matrix, whose Q factor is the basis, and log variances, from `start` and 1."""
    first = torch.cat([start.flatten(), torch.zeros(start.shape[1], dtype=torch.float64)])
    end = minimise(lambda free: objective(*_split(free, start.shape)), first)
    return PrincipalSubspace(*_split(end, start.shape))


def _split(flat: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    D, K = shape
    return torch.linalg.qr(flat[: D * K].reshape(D, K)).Q, flat[D * K :].exp()


def largest_angle(basis: Tensor, other: Tensor) -> float:
    """The largest principal angle between two subspaces of one dimension [radians]; small angles are exact."""
    outside = basis - other @ (other.mT @ basis)
    return math.asin(min(1.0, float(torch.linalg.matrix_norm(outside, ord=2))))


def outer(subspace: PrincipalSubspace) -> Tensor:
    """A diag(v) Aᵀ."""
    return (subspace.basis * subspace.variances) @ subspace.basis.mT


class Stationary(NamedTuple):
    """A choice of eigenvectors (0 the leading one), the largest slope there, and the extreme curvatures."""

    choice: tuple[int, ...]
    slope: float
    least_curvature: float
    largest_curvature: float


def at_choice(target: Target, choice: tuple[int, ...], noise_variance: float) -> Stationary:
    """Gradient and Hessian at some eigenvectors with variances γ − τ, quasi-KL for τ = 0, KL after convolution else.

    In the generators of rotations U exp(Ω)[:, choice] that move the chosen directions (each pair once), and in log v:
    as many as the manifold of (A, v) has dimensions, so that no flat direction is the parametrisation's.
    """
    D, gammas = len(target.eigenvalues), target.eigenvalues[list(choice)]
    objective = target.quasi_kl if noise_variance == 0 else target.convolved(noise_variance)
    pairs = [(i, j) for i, j in itertools.combinations(range(D), 2) if i in choice or j in choice]
    rows, columns = (list(index) for index in zip(*pairs, strict=True))

    def value(free: Tensor) -> Tensor:
        skew = torch.zeros(D, D, dtype=torch.float64).index_put(
            (torch.tensor(rows), torch.tensor(columns)), free[: len(pairs)]
        )
        rotated = target.eigenvectors @ torch.linalg.matrix_exp(skew - skew.mT)
        return objective(rotated[:, list(choice)], (gammas - noise_variance) * free[len(pairs) :].exp())

    origin = torch.zeros(len(pairs) + len(choice), dtype=torch.float64)
    slope, hessian = torch.func.grad(value)(origin), torch.func.hessian(value)(origin)
    curvature = torch.linalg.eigvalsh(hessian)
    return Stationary(choice, float(slope.abs().max()), float(curvature[0]), float(curvature[-1]))
