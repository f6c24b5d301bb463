"""Titsias's collapsed bound of sparse GP regression with a hand-derived gradient, batched, in torch.

Notation: K = k(Z,Z) + jitter·I = LLᵀ, U = k(Z,X), s = outputscale, A = L⁻¹U/σ, B = I + AAᵀ,
m = (K + UUᵀ/σ²)⁻¹Uy/σ² (the optimal mean's weights). Titsias (2009), eq. 9:

    F = log N(y; 0, UᵀK⁻¹U + σ²I) − (N·s − tr UᵀK⁻¹U)/(2σ²)
      = −½[N log 2πσ² + log|B| + (yᵀy − mᵀUy)/σ² + N·s/σ² − tr AAᵀ].

Differentiating the second line, with P⁻¹ = (K + UUᵀ/σ²)⁻¹ = L⁻ᵀB⁻¹L⁻¹ and C = K⁻¹ − P⁻¹ − mmᵀ:

    ∂F/∂U  = (C U + m yᵀ)/σ²
    ∂F/∂K  = ½(C − L⁻ᵀAAᵀL⁻¹)
    ∂F/∂σ² = −½[N/σ² − tr(B⁻¹AAᵀ)/σ² − (yᵀy − 2mᵀUy + mᵀUUᵀm)/σ⁴ − N·s/σ⁴ + tr(AAᵀ)/σ²]
    ∂F/∂s  = −N/(2σ²) + (the kernel's own scaling, ⟨∂F/∂U, U⟩/s + ⟨∂F/∂K, K − jitter·I⟩/s)

The first has the cost of one k×k×N product, where autograd through the factorisations takes several.
`fsvi_bench.maths.sgpr_lapack` evaluates the same formulas for one problem on a CPU.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.features import rbf_kernel
from fsvi_bench.maths.linalg import logdet_of_tril, solve_tril


class BoundAndGradient(NamedTuple):
    """The total bound (nats over all N points, not per point) and its gradient in the constrained parameters."""

    bound: Float[Tensor, "*B"]
    inducing_points: Float[Tensor, "*B k D"]
    lengthscales: Float[Tensor, "*B D"]
    outputscale: Float[Tensor, "*B"]
    noise_variance: Float[Tensor, "*B"]


def collapsed_bound_and_gradient(
    X: Float[Tensor, "*B N D"],
    y: Float[Tensor, "*B N"],
    inducing_points: Float[Tensor, "*B k D"],
    lengthscales: Float[Tensor, "*B D"],
    outputscale: Float[Tensor, "*B"],
    noise_variance: Float[Tensor, "*B"],
    jitter: float,
) -> BoundAndGradient:
    """The collapsed bound of SGPR with an ARD RBF kernel and zero mean, and its gradient.

    Raises:
        torch.linalg.LinAlgError: k(Z,Z) + jitter·I is not positive definite.
    """
    Z, N, variance = inducing_points, X.shape[-2], noise_variance
    identity = torch.eye(Z.shape[-2], dtype=X.dtype, device=X.device)
    K_without_jitter = rbf_kernel(Z, Z, lengthscales, outputscale)
    U = rbf_kernel(Z, X, lengthscales, outputscale)
    L = torch.linalg.cholesky(K_without_jitter + jitter * identity)
    A = solve_tril(L, U) / variance.sqrt()[..., None, None]
    AAt = A @ A.mT
    LB = torch.linalg.cholesky(identity + AAt)
    Ay = A @ y[..., None]
    whitened_mean = torch.cholesky_solve(Ay, LB) / variance.sqrt()[..., None, None]  # Lᵀm
    m = solve_tril(L, whitened_mean, transpose=True)
    yy, mUy = y.square().sum(-1), (m.mT @ (U @ y[..., None]))[..., 0, 0]
    trace_AAt = AAt.diagonal(dim1=-2, dim2=-1).sum(-1)
    bound = -0.5 * (
        N * (math.log(2 * math.pi) + variance.log())
        + logdet_of_tril(LB)
        + (yy - mUy + N * outputscale) / variance
        - trace_AAt
    )

    B_inverse = torch.cholesky_inverse(LB)
    L_inverse = solve_tril(L, identity.expand_as(L))
    # K⁻¹ − P⁻¹ = L⁻ᵀ(I − B⁻¹)L⁻¹ keeps the digits that subtracting the two inverses would lose.
    C = L_inverse.mT @ (identity - B_inverse) @ L_inverse - m @ m.mT
    grad_U = (C @ U + m * y[..., None, :]) / variance[..., None, None]
    grad_K = 0.5 * (C - L_inverse.mT @ AAt @ L_inverse)
    W, W_K = grad_U * U, grad_K * K_without_jitter
    grad_Z, grad_lengthscales = _pull_back_distances(W, W_K, Z, X, lengthscales)
    mUUm = (U.mT @ m).square().sum((-2, -1))
    fit = (yy - 2 * mUy + mUUm + N * outputscale) / variance
    grad_variance = -0.5 * (N - (B_inverse * AAt).sum((-2, -1)) - fit + trace_AAt) / variance
    grad_outputscale = (W.sum((-2, -1)) + W_K.sum((-2, -1))) / outputscale - N / (2 * variance)
    return BoundAndGradient(bound, grad_Z, grad_lengthscales, grad_outputscale, grad_variance)


def _pull_back_distances(
    W: Float[Tensor, "*B k N"],
    W_K: Float[Tensor, "*B k k"],
    Z: Float[Tensor, "*B k D"],
    X: Float[Tensor, "*B N D"],
    lengthscales: Float[Tensor, "*B D"],
) -> tuple[Float[Tensor, "*B k D"], Float[Tensor, "*B D"]]:
    """Gradients in Z and ℓ from W = ∂F/∂U ∘ U and W_K = ∂F/∂K ∘ K, where ∂k(z,x)/∂z = k(z,x)(x − z)/ℓ²."""
    scale = lengthscales[..., None, :]
    row, row_K = W.sum(-1)[..., None], W_K.sum(-1)[..., None]
    WX, WKZ = W @ X, W_K @ Z
    grad_Z = ((WX - row * Z) + 2 * (WKZ - row_K * Z)) / scale.square()
    column = W.sum(-2)[..., None]
    squared = (column * X.square()).sum(-2) - 2 * (Z * WX).sum(-2) + (row * Z.square()).sum(-2)
    squared_K = 2 * ((row_K * Z.square()).sum(-2) - (Z * WKZ).sum(-2))
    return grad_Z, (squared + squared_K) / lengthscales**3


class CollapsedBound(torch.autograd.Function):
    """`collapsed_bound_and_gradient` as a differentiable function, so that it can stand inside a torch model."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, y: Tensor, *parameters_and_jitter: Any) -> Tensor:
        bound, *gradient = collapsed_bound_and_gradient(X, y, *parameters_and_jitter)
        ctx.save_for_backward(*gradient)
        return bound

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        (grad,) = grad_outputs
        scaled = [g * grad.reshape(grad.shape + (1,) * (g.ndim - grad.ndim)) for g in ctx.saved_tensors]
        return None, None, *scaled, None


def collapsed_bound(
    X: Float[Tensor, "*B N D"],
    y: Float[Tensor, "*B N"],
    inducing_points: Float[Tensor, "*B k D"],
    lengthscales: Float[Tensor, "*B D"],
    outputscale: Float[Tensor, "*B"],
    noise_variance: Float[Tensor, "*B"],
    jitter: float,
) -> Float[Tensor, "*B"]:
    """The collapsed bound, differentiable in Z, lengthscales, outputscale and noise variance (not in X and y)."""
    result: Tensor = CollapsedBound.apply(  # type: ignore[no-untyped-call]
        X, y, inducing_points, lengthscales, outputscale, noise_variance, jitter
    )
    return result
