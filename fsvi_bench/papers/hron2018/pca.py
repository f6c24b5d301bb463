"""Quasi-KL to a Gaussian is least on the principal subspace (Hron et al. 2018, propositions 6 and 7).

P = N(0, Σ) on R^D is approximated by Q = N(0, A diag(v) Aᵀ), A (D×K) with orthonormal columns, and by its convolution
with noise, N(0, A diag(v) Aᵀ + τI), which has a KL. Covariances come as the lower factor C of Σ⁻¹ = CCᵀ.

Where this deviates from the paper. The proof of proposition 6 writes P's density on the subspace as that of
N(0, AᵀΣA); restricted, not projected, P has the covariance (AᵀΣ⁻¹A)⁻¹, with which the stated formula is right. The
proof of proposition 7 drops τ/γ of the directions left out; with it, replacing a left-out eigenvalue γ by a kept one
changes the KL by ½[1 − τ/γ + log(τ/γ)] ≤ 0, most for the largest γ, so the claim stands for τ < γ_K. And the other
choices of K eigenvectors are stationary points but no local optima: rotating a kept eigenvector towards a left-out
one of larger eigenvalue lowers both objectives.

Optima are found here without these solutions, by descent, and curvatures by automatic differentiation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.papers.hron2018.quasi_kl import Factor, Square, quasi_kl_affine_gaussian
from fsvi_bench.papers.hron2018.quasi_kl_limits import centred_convolved_affine_kl

Variances = Float[Tensor, "*B K"]
SubspaceObjective = Callable[[Tensor, Tensor], Tensor]  #: (basis [D,K], variances [K]) ↦ nats


class PrincipalSubspace(NamedTuple):
    """Orthonormal directions and the variances along them, largest first."""

    basis: Factor
    variances: Variances


def pca_optimum(covariance: Square, K: int) -> PrincipalSubspace:
    """The minimiser of the quasi-KL: Σ's K leading eigenvectors and eigenvalues (proposition 6).

    Raises:
        InputError: K outside 1..D.
    """
    D = covariance.shape[-1]
    if not 1 <= K <= D:
        raise InputError(f"got a subspace of K = {K} dimensions, expected 1 to D = {D}; choose K in that range")
    eigenvalues, eigenvectors = torch.linalg.eigh(covariance)
    return PrincipalSubspace(eigenvectors.flip(-1)[..., :K], eigenvalues.flip(-1)[..., :K])


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
        zero = torch.zeros_like(self.eigenvalues)
        return quasi_kl_affine_gaussian(zero, basis * variances.sqrt(), zero, self.precision_tril)

    def convolved(self, noise_variance: float) -> SubspaceObjective:
        """KL(N(0, A diag(v) Aᵀ + τI) ‖ N(0, Σ)) less its part that depends on τ alone."""
        zero, tau = torch.zeros_like(self.eigenvalues), torch.tensor(noise_variance, dtype=torch.float64)
        return lambda basis, variances: centred_convolved_affine_kl(
            zero, basis * variances.sqrt(), tau, zero, self.precision_tril
        )


def minimise(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Where L-BFGS-B on a differentiable loss of a vector ends, from a start."""

    def value_and_gradient(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        gradient, value = torch.func.grad_and_value(loss)(torch.tensor(flat))
        return float(value), gradient.numpy()

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
    unit = torch.eye(D, dtype=torch.float64)
    generators = torch.stack([torch.outer(unit[i], unit[j]) - torch.outer(unit[j], unit[i]) for i, j in pairs])

    def value(free: Tensor) -> Tensor:
        turn, log_scale = torch.split(free, [len(pairs), len(choice)])
        rotated = target.eigenvectors @ torch.linalg.matrix_exp(torch.tensordot(turn, generators, 1))
        return objective(rotated[:, list(choice)], (gammas - noise_variance) * log_scale.exp())

    origin = torch.zeros(len(pairs) + len(choice), dtype=torch.float64)
    slope, hessian = torch.func.grad(value)(origin), torch.func.hessian(value)(origin)
    curvature = torch.linalg.eigvalsh(hessian)
    return Stationary(choice, float(slope.abs().max()), float(curvature[0]), float(curvature[-1]))
