"""Feature maps: the whitened Nyström features of a sparse GP, and a grid of radial basis functions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.linalg import solve_tril


def rbf_kernel(
    a: Float[Tensor, "*B n D"],
    b: Float[Tensor, "*B m D"],
    lengthscales: Float[Tensor, "*B D"],
    outputscale: Float[Tensor, "*B"],
) -> Float[Tensor, "*B n m"]:
    """outputscale · exp(−½ ‖(a − b)/ℓ‖²), one lengthscale per input dimension.

    Distances are taken from differences, not from ‖a‖² + ‖b‖² − 2aᵀb: features divide by the smallest eigenvalues of
    k(Z,Z), which would magnify the cancellation.
    """
    scaled_a, scaled_b = a / lengthscales[..., None, :], b / lengthscales[..., None, :]
    distance = torch.cdist(scaled_a, scaled_b, compute_mode="donot_use_mm_for_euclid_dist")
    return outputscale[..., None, None] * torch.exp(-0.5 * distance.square())


def inducing_tril(
    Z: Float[Tensor, "*B k D"],
    lengthscales: Float[Tensor, "*B D"],
    outputscale: Float[Tensor, "*B"],
    jitter: Float[Tensor, "*B"],
) -> Float[Tensor, "*B k k"]:
    """L = chol(k(Z,Z) + jitter·I), the root that defines the features.

    Raises:
        torch.linalg.LinAlgError: the jitter does not make the matrix positive definite. It is not raised here,
            since another jitter would be another task.
    """
    identity = torch.eye(Z.shape[-2], dtype=Z.dtype, device=Z.device)
    return torch.linalg.cholesky(rbf_kernel(Z, Z, lengthscales, outputscale) + jitter[..., None, None] * identity)


def nystrom_features(
    x: Float[Tensor, "*B n D"],
    Z: Float[Tensor, "*B k D"],
    lengthscales: Float[Tensor, "*B D"],
    outputscale: Float[Tensor, "*B"],
    tril: Float[Tensor, "*B k k"],
) -> Float[Tensor, "*B n k"]:
    """Rows φ(x) = L⁻¹k(Z,x), so that φ(x)ᵀφ(x') = k(x,Z)(k(Z,Z) + jitter·I)⁻¹k(Z,x'), the Nyström kernel."""
    return solve_tril(tril, rbf_kernel(Z, x, lengthscales, outputscale)).mT


def rbf_grid_features(
    x: Float[Tensor, "*B n D"], centres: Float[Tensor, "*B k D"], lengthscales: Float[Tensor, "*B D"]
) -> Float[Tensor, "*B n k"]:
    """φ_j(x) = exp(−½‖(x − c_j)/ℓ‖²), neither whitened nor scaled (Burt et al. 2020, appendix F.1)."""
    one = torch.ones(lengthscales.shape[:-1], dtype=x.dtype, device=x.device)
    return rbf_kernel(x, centres, lengthscales, one)
