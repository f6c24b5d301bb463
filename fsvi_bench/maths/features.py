"""Feature maps: the whitened Nyström features of a sparse GP, and a grid of radial basis functions.

The kernels equal GPyTorch's RBFKernel and MaternKernel with one lengthscale per input, as the tests verify. They are
implemented here for two reasons. GPyTorch expands ‖a − b‖² into inner products, which cancels and would change the last
digits of every frozen task's features. And its import takes over a second, which a run on frozen tasks does not need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.linalg import identity, solve_tril
from fsvi_bench.maths.shapes import Matrix, PerProblem

Kernel = Literal["rbf", "matern12", "matern32", "matern52"]

#: k(a,b)/outputscale from r = ‖(a − b)/ℓ‖, which may be overwritten (Rasmussen and Williams 2006, eq. 4.9 and 4.17)
_OF_DISTANCE: dict[Kernel, Callable[[Tensor], Tensor]] = {
    "rbf": lambda r: r.square_().mul_(-0.5).exp_(),
    "matern12": lambda r: torch.exp(-r),
    "matern32": lambda r: (1 + 3**0.5 * r) * torch.exp(-(3**0.5) * r),
    "matern52": lambda r: (1 + 5**0.5 * r + 5 / 3 * r.square()) * torch.exp(-(5**0.5) * r),
}


def ard_kernel(
    a: Float[Tensor, "*B n D"],
    b: Float[Tensor, "*B m D"],
    lengthscales: Float[Tensor, "*B D"],
    outputscale: PerProblem,
    kernel: Kernel = "rbf",
) -> Float[Tensor, "*B n m"]:
    """A kernel matrix, with one lengthscale per input dimension.

    Distances are computed from differences, not from ‖a‖² + ‖b‖² − 2aᵀb: features divide by the smallest eigenvalues
    of k(Z,Z), which would amplify the cancellation.
    """
    scaled_a, scaled_b = a / lengthscales[..., None, :], b / lengthscales[..., None, :]
    distance = torch.cdist(scaled_a, scaled_b, compute_mode="donot_use_mm_for_euclid_dist")
    return _OF_DISTANCE[kernel](distance).mul_(outputscale[..., None, None])


def inducing_tril(
    Z: Float[Tensor, "*B k D"],
    lengthscales: Float[Tensor, "*B D"],
    outputscale: PerProblem,
    jitter: PerProblem,
    kernel: Kernel = "rbf",
) -> Matrix:
    """L = chol(k(Z,Z) + jitter·I), the root that defines the features.

    Raises:
        torch.linalg.LinAlgError: the matrix is not positive definite with this jitter. The jitter is not increased,
            since that would define a different task.
    """
    K = ard_kernel(Z, Z, lengthscales, outputscale, kernel)
    return torch.linalg.cholesky(K + jitter[..., None, None] * identity(Z.shape[-2], Z))


def nystrom_features(
    x: Float[Tensor, "*B n D"],
    Z: Float[Tensor, "*B k D"],
    lengthscales: Float[Tensor, "*B D"],
    outputscale: PerProblem,
    tril: Matrix,
    kernel: Kernel = "rbf",
) -> Float[Tensor, "*B n k"]:
    """Rows φ(x) = L⁻¹k(Z,x), so that φ(x)ᵀφ(x') = k(x,Z)(k(Z,Z) + jitter·I)⁻¹k(Z,x'), the Nyström kernel."""
    return solve_tril(tril, ard_kernel(Z, x, lengthscales, outputscale, kernel)).mT


def rbf_grid_features(
    x: Float[Tensor, "*B n D"], centres: Float[Tensor, "*B k D"], lengthscales: Float[Tensor, "*B D"]
) -> Float[Tensor, "*B n k"]:
    """φ_j(x) = exp(−½‖(x − c_j)/ℓ‖²), neither whitened nor scaled (Burt et al. 2020, appendix F.1)."""
    one = torch.ones(lengthscales.shape[:-1], dtype=x.dtype, device=x.device)
    return ard_kernel(x, centres, lengthscales, one)
