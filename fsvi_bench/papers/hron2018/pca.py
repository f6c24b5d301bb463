"""Quasi-KL to a Gaussian is least on the principal subspace (Hron et al. 2018, propositions 6 and 7).

P = N(0, Σ) on R^D is approximated by Q = N(0, A diag(v) Aᵀ), A (D×K) with orthonormal columns, and by its convolution
with noise, N(0, A diag(v) Aᵀ + τI), which has a KL.

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
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.linalg import subspace_angles
from scipy.optimize import minimize
from torch import Tensor

from fsvi_bench.papers.hron2018.quasi_kl import quasi_kl_gaussian

MISSED = 1e-3  #: radians from the principal subspace, beyond which a start counts as ended elsewhere


class Target:
    """N(0, Σ) with given eigenvalues, largest first, along random directions."""

    def __init__(self, eigenvalues: Sequence[float], generator: torch.Generator) -> None:
        D = len(eigenvalues)
        self.eigenvalues = torch.tensor(eigenvalues, dtype=torch.float64)
        self.eigenvectors = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64)).Q
        precision = (self.eigenvectors / self.eigenvalues) @ self.eigenvectors.mT
        self.precision_tril = torch.linalg.cholesky(precision)

    def objective(self, basis: Tensor, variances: Tensor, noise_variance: float = 0.0) -> Tensor:
        """QKL of Q (proposition 6); with noise, the KL of its convolution less its part that depends on τ alone (7)."""
        zero = torch.zeros_like(self.eigenvalues)
        return quasi_kl_gaussian(zero, basis * variances.sqrt(), self.precision_tril, noise_variance)


def minimise(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Where L-BFGS-B on a differentiable loss of a vector ends, from a start."""

    def value_and_gradient(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        gradient, value = torch.func.grad_and_value(loss)(torch.tensor(flat))
        return float(value), gradient.numpy()

    options: Any = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-16, "gtol": 1e-11}
    found: Any = minimize(value_and_gradient, start.numpy(), jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(found.x)


def descend(target: Target, start: Tensor, noise_variance: float = 0.0) -> tuple[Tensor, Tensor]:
    """A and v at the end of L-BFGS-B over a D×K matrix, whose Q factor is A, and log v, from `start` and 0."""
    D, K = start.shape

    def subspace(free: Tensor) -> tuple[Tensor, Tensor]:
        return torch.linalg.qr(free[: D * K].reshape(D, K)).Q, free[D * K :].exp()

    first = torch.cat([start.flatten(), torch.zeros(K, dtype=torch.float64)])
    return subspace(minimise(lambda free: target.objective(*subspace(free), noise_variance), first))


def try_start(target: Target, start: Tensor) -> dict[str, float | bool]:
    """Proposition 6 by descent on the quasi-KL: the end's distances from the principal subspace and its variances."""
    (basis, variances), K = descend(target, start), start.shape[1]
    angle = float(subspace_angles(basis.numpy(), target.eigenvectors[:, :K].numpy()).max())
    error = float((variances.sort(descending=True).values / target.eigenvalues[:K] - 1).abs().max())
    quasi_kl = float(target.objective(basis, variances))
    return {"quasi_kl": quasi_kl, "angle": angle, "variance_error": error, "missed": angle > MISSED}


def covariance(basis: Tensor, variances: Tensor) -> Tensor:
    """A diag(v) Aᵀ."""
    return (basis * variances) @ basis.mT


def convolved_distances(target: Target, noise_variances: Sequence[float], start: Tensor) -> pd.DataFrame:
    """Proposition 7: ‖A diag(v) Aᵀ − PCA's‖_F at each noise variance, A and v found by descent; expected is τ√K."""
    K = start.shape[1]
    principal = covariance(target.eigenvectors[:, :K], target.eigenvalues[:K])
    ends = [covariance(*descend(target, start, tau)) for tau in noise_variances]
    columns = {
        "noise variance": noise_variances,
        "Frobenius distance": [float(torch.linalg.matrix_norm(end - principal)) for end in ends],
        "expected": math.sqrt(K) * np.asarray(noise_variances),
    }
    return pd.DataFrame(columns)


def at_choice(target: Target, choice: tuple[int, ...], noise_variance: float) -> dict[str, float]:
    """Gradient and Hessian at some eigenvectors (0 the leading one) with variances γ − τ.

    In the chart A = Q factor of U [I; 0] + L, of which only what lies below L's diagonal is free, and in log v: as many
    numbers as the manifold of (A, v) has dimensions, so that no flat direction is the parametrisation's.
    """
    D, K = len(target.eigenvalues), len(choice)
    order = [*choice, *(i for i in range(D) if i not in choice)]
    below = tuple(torch.tril_indices(D, K, offset=-1))
    variances = target.eigenvalues[list(choice)] - noise_variance

    def value(free: Tensor) -> Tensor:
        turned = torch.eye(D, K, dtype=torch.float64).index_put(below, free[K:])
        basis = target.eigenvectors[:, order] @ torch.linalg.qr(turned).Q
        return target.objective(basis, variances * free[:K].exp(), noise_variance)

    origin = torch.zeros(K + len(below[0]), dtype=torch.float64)
    slope, curvature = torch.func.grad(value)(origin), torch.linalg.eigvalsh(torch.func.hessian(value)(origin))
    return {
        "slope": float(slope.abs().max()),
        "least_curvature": float(curvature[0]),
        "largest_curvature": float(curvature[-1]),
    }


def stationary_points(target: Target, K: int, noise_variances: Sequence[float]) -> pd.DataFrame:
    """Section 5.1: all choices of eigenvectors, under each noise variance."""
    choices = list(itertools.combinations(range(len(target.eigenvalues)), K))
    points = [
        {
            "name": f"{{{', '.join(str(i + 1) for i in choice)}}}",
            "leading": choice == choices[0],
            "noise": tau,
            **at_choice(target, choice, tau),
        }
        for tau in noise_variances
        for choice in choices
    ]
    return pd.DataFrame(points)
