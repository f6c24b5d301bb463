"""The spectral Stein gradient estimator: ∇ log density from samples alone (Shi, Sun and Zhu 2018).

With the kernel matrix K_ij = exp(−‖x_i − x_j‖²/2h²) = UΛUᵀ of S samples, the eigenfunctions are
ψ_j(x) = √S/λ_j Σ_s U_sj k(x, x_s), their coefficients β_j = −mean_s ∇ψ_j(x_s), and score(x) = Σ_j β_j ψ_j(x) over the
J largest eigenvalues. With the kernel's derivative written out,

    β_j = Uᵀ_j Y / (√S λ_j h²),    Y = KX − diag(K1) X,

and at the samples, where ψ_j(x_i) = √S U_ij, score = U_J Λ_J⁻¹ U_Jᵀ Y / h².
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fsvi_bench.maths.batching import SIDE, one_by_one
from fsvi_bench.maths.linalg import identity


def squared_distances(a: Float[Tensor, "*B n d"], b: Float[Tensor, "*B m d"]) -> Float[Tensor, "*B n m"]:
    """‖a_i − b_j‖² = ‖a_i‖² + ‖b_j‖² − 2 a_iᵀb_j, never negative."""
    sizes = a.square().sum(-1)[..., :, None] + b.square().sum(-1)[..., None, :]
    return (sizes - 2 * (a @ b.mT)).clamp_(min=0.0)


def median_bandwidth(squared: Float[Tensor, "*B S S"]) -> Float[Tensor, "*B"]:
    """Median of the distances over pairs i < j (the mean of the two middle values if their number is even)."""
    pairs = squared.flatten(-2)[..., _pair_index(squared.shape[-1]).to(squared.device)]
    middle = [(pairs.shape[-1] - 1) // 2, pairs.shape[-1] // 2]
    if pairs.device.type == "cpu":
        # NumPy finds both order statistics in one pass, torch in two.
        pairs.numpy().partition(middle, axis=-1)
        return pairs[..., middle].sqrt().mean(-1)
    return torch.stack([pairs.kthvalue(place + 1, dim=-1).values for place in middle], -1).sqrt().mean(-1)


@cache
def _pair_index(S: int) -> Int[Tensor, " pairs"]:
    """Flat row-major indices of the entries i < j of an S×S matrix."""
    row, column = torch.triu_indices(S, S, offset=1)
    return row * S + column


def leading_count(eigenvalues: Float[Tensor, "*B S"], share: float) -> Int[Tensor, "*B"]:
    """J, the smallest number of eigenvalues (in descending order) whose sum reaches `share` of the trace.

    Eigenvalues within rounding error of 0 are never included, since the score divides by them.
    """
    partial = eigenvalues.cumsum(-1)
    J = 1 + (partial[..., :-1] < share * partial[..., -1:]).sum(-1)
    rounding = eigenvalues.shape[-1] * torch.finfo(eigenvalues.dtype).eps * eigenvalues[..., :1]
    return torch.minimum(J, (eigenvalues > rounding).sum(-1))


class GaussianKernel(NamedTuple):
    """k(a, b) = exp(−‖a − b‖²/2h²) of the samples of each problem."""

    finite: Bool[Tensor, "*B 1 1"]  #: False where samples or distances are not, or all are equal: K is the identity
    precision: Float[Tensor, "*B 1 1"]  #: 1/h²
    K: Float[Tensor, "*B S S"]


def gaussian_kernel(centred: Float[Tensor, "*B S d"], bandwidth: float | None) -> GaussianKernel:
    """The kernel matrix at the given h, or (None) at the median distance."""
    squared = squared_distances(centred, centred)
    torch.linalg.diagonal(squared).zero_()
    h = median_bandwidth(squared) if bandwidth is None else squared.new_full(squared.shape[:-2], bandwidth)
    precision = h[..., None, None].square().reciprocal()
    total = (centred.sum((-2, -1)) + squared.sum((-2, -1)))[..., None, None]
    finite = total.isfinite() & precision.isfinite() & (precision > 0)
    precision = torch.where(finite, precision, 1.0)
    # Without the identity, LAPACK would fail for the whole batch.
    K = torch.where(finite, squared.mul_(-0.5 * precision).exp_(), identity(squared.shape[-1], squared))
    return GaussianKernel(finite, precision, K)


def kernel_shift(weights: Float[Tensor, "*B S S"], samples: Float[Tensor, "*B S d"]) -> Float[Tensor, "*B S d"]:
    """Σ_m weights_im (x_m − x_i) for each sample."""
    return weights @ samples - weights.sum(-1, keepdim=True) * samples


def spectral_stein_score(
    samples: Float[Tensor, "*B S d"],
    queries: Float[Tensor, "*B Q d"] | None = None,
    *,
    share: float = 0.99,
    bandwidth: float | None = None,
    n_eigen: int | None = None,
) -> Float[Tensor, "*B Q d"]:
    """Estimated ∇ log density of the samples' distribution at the queries (default: at the samples).

    Args:
        share: fraction of the kernel matrix's trace in the J leading eigenvalues; J ≥ 1.
        bandwidth: h; by default the median distance between samples.
        n_eigen: J, instead of `share`.

    The result is NaN for a set of samples that is not finite; the rest of the batch is not affected.
    """
    if samples.ndim == 3 and samples.shape[0] > 1 and samples.shape[-2] % SIDE:
        alone = partial(spectral_stein_score, share=share, bandwidth=bandwidth, n_eigen=n_eigen)
        return one_by_one(alone, samples, queries)
    # Distances from inner products lose digits if samples share an offset, which does not affect scores.
    centre = samples.mean(-2, keepdim=True)
    samples, queries = samples - centre, None if queries is None else queries - centre
    finite, precision, K = gaussian_kernel(samples, bandwidth)
    eigenvalues, U = torch.linalg.eigh(K)
    # Eigenvalues are in ascending order. Those that are not among the J largest get the weight 0.
    S = K.shape[-1]
    J = leading_count(eigenvalues.flip(-1), share)[..., None] if n_eigen is None else n_eigen
    chosen = torch.arange(S, device=K.device) >= S - J
    weights = torch.where(chosen, eigenvalues.reciprocal(), 0.0)
    Y = precision * kernel_shift(K, samples)
    coefficients = weights[..., None] * (U.mT @ Y)
    if queries is None:
        score = U @ coefficients
    else:
        cross = torch.exp(-0.5 * precision * squared_distances(queries, samples))
        score = cross @ (U @ (weights[..., None] * coefficients))
    return torch.where(finite, score, torch.nan)
