"""From features Φ_A at a measurement set to the bases that the functional KL is computed in."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from fsvi_bench.maths.functional_kl import ALIGNMENT, Complement, Measurement, Patched, Span
from fsvi_bench.maths.linalg import solve_tril
from fsvi_bench.maths.projection import RANK_TOLERANCE, row_space

#: Estimated smallest singular value of Φ_A over its Frobenius norm from which on full rank is taken for granted (or
#: ten times the rank tolerance, if that is more). Below, the singular value decomposition decides on the rank.
SAFE_RATIO = 1e-8
PROBES = 8


def measure(
    Phi_A: Float[Tensor, "B M k"],
    *,
    jitter: float = 0.0,
    rank_tolerance: float = RANK_TOLERANCE,
    avoid_inverse: bool = False,
) -> Measurement:
    """Prepares measurement sets with features Φ_A; k must be a multiple of `ALIGNMENT`.

    With `avoid_inverse`, always through the row space itself: q's covariance is then never inverted, which keeps digits
    if q loses rank in directions that A does not see.

    Raises:
        ValueError: the measurement set is empty.
    """
    M, k = Phi_A.shape[-2:]
    if M == 0:
        raise ValueError("the measurement set is empty, expected at least one input")
    if jitter > 0:
        return _with_jitter(Phi_A, jitter)
    if k <= M:
        regular, LU = _everything(Phi_A)
    else:
        regular, LU = _span(Phi_A) if avoid_inverse or k - M >= M else _complement(Phi_A)
    safe = _is_safe(LU, Phi_A, max(SAFE_RATIO, 10 * rank_tolerance))
    if bool(safe.all()):
        return regular
    places = [int(place) for place in (~safe).nonzero()]
    return Patched(regular, tuple((place, _decomposed(Phi_A[place], rank_tolerance)) for place in places))


def _with_jitter(Phi_A: Float[Tensor, "B M k"], jitter: float) -> Span:
    M, rows = Phi_A.shape[-2], _aligned_rows(Phi_A)
    gram = rows @ rows.mT
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    diagonal[..., :M] += jitter
    diagonal[..., M:] = 1.0
    tril, info = torch.linalg.cholesky_ex(gram)
    # Where jitter does not suffice there is no marginal density; NaN becomes NaN in the loss, which names the problem.
    tril = torch.where((info == 0)[..., None, None], tril, torch.nan)
    inverse = solve_tril(tril, torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device).expand_as(gram))
    slack = jitter * (inverse @ inverse.mT)
    slack.diagonal(dim1=-2, dim2=-1)[..., M:] = 1.0
    return Span(rows.mT @ inverse.mT, slack)


def _everything(Phi_A: Float[Tensor, "B M k"]) -> tuple[Measurement, Tensor]:
    """M ≥ k: where Φ_A is far from losing rank, A sees every weight, and the KL is that of the weights."""
    k = Phi_A.shape[-1]
    LU, _, _ = torch.linalg.lu_factor_ex(_aligned_rows(Phi_A))
    return Complement(Phi_A.new_zeros(len(Phi_A), ALIGNMENT, k), 0), LU


def _span(Phi_A: Float[Tensor, "B M k"]) -> tuple[Measurement, Tensor]:
    """V by Householder's QR of Φ_Aᵀ; the rank is looked at in the same LU decomposition as everywhere."""
    M, rows = Phi_A.shape[-2], _aligned_rows(Phi_A)
    LU, _, _ = torch.linalg.lu_factor_ex(rows.mT)
    basis = torch.linalg.qr(rows.mT).Q
    slack = None
    if rows.shape[-2] > M:
        basis[..., M:] = 0.0
        slack = basis.new_zeros(len(rows), rows.shape[-2], rows.shape[-2])
        slack.diagonal(dim1=-2, dim2=-1)[..., M:] = 1.0
    return Span(basis, slack), LU[..., :M]


def _complement(Phi_A: Float[Tensor, "B M k"]) -> tuple[Measurement, Tensor]:
    """N from Φ_Aᵀ = PLU with partial pivoting.

    With L = [L₁; L₂] split after M rows, Φ_A P[−L₁⁻ᵀL₂ᵀ; I] = Uᵀ(−L₁ᵀL₁⁻ᵀL₂ᵀ + L₂ᵀ) = 0: these columns span the null
    space, and the identity within them keeps them well-conditioned. They are orthonormalised by Cholesky.
    """
    M, k = Phi_A.shape[-2:]
    nullity = k - M
    LU, pivots, _ = torch.linalg.lu_factor_ex(Phi_A.mT)
    permutation = torch.lu_unpack(LU, pivots, unpack_data=False)[0]
    upper, lower = LU[..., :M, :], LU[..., M:, :]
    left = torch.linalg.solve_triangular(upper, lower, upper=False, left=False, unitriangular=True)
    raw = torch.cat([-left, torch.eye(nullity, dtype=LU.dtype, device=LU.device).expand(len(LU), -1, -1)], dim=-1)
    raw = pad(raw, (0, 0, 0, -nullity % ALIGNMENT)) @ permutation.mT
    gram = raw @ raw.mT
    gram.diagonal(dim1=-2, dim2=-1)[..., nullity:] = 1.0
    tril, _ = torch.linalg.cholesky_ex(gram)
    return Complement(solve_tril(tril, raw), nullity), LU


def _decomposed(Phi_A: Float[Tensor, "M k"], rank_tolerance: float) -> Span:
    """One degenerate set, by singular values; one that is not finite gets a basis of NaN."""
    if not bool(Phi_A.isfinite().all()):
        return Span(Phi_A.new_full((1, Phi_A.shape[-1], ALIGNMENT), torch.nan))
    basis = row_space(Phi_A, rank_tolerance).clone()
    return Span(basis[None])


def _aligned_rows(Phi_A: Float[Tensor, "B M k"]) -> Float[Tensor, "B m k"]:
    fill = -Phi_A.shape[-2] % ALIGNMENT
    return pad(Phi_A, (0, 0, 0, fill)) if fill else Phi_A


def _is_safe(LU: Float[Tensor, "B n m"], Phi_A: Float[Tensor, "B M k"], ratio: float) -> Tensor:
    """Whether the smallest singular value is clearly more than `ratio` of the largest.

    Pivots alone do not tell: I minus the strict upper triangle of ones has pivots 1 and is all but singular. ‖(LU)⁻¹g‖
    for a few Gaussian g does, with L's first rows: each is at least |u·g|/σ_min with u·g standard normal, and leaving
    rows out only lowers σ_min. False for a set that is not finite.
    """
    m = min(LU.shape[-2:])
    square, probes = LU[..., :m, :m], _probes(m).to(LU.device).expand(len(LU), -1, -1)
    lower = torch.linalg.solve_triangular(square, probes, upper=False, unitriangular=True)
    largest = torch.linalg.solve_triangular(square, lower, upper=True).square().sum(-2).amax(-1)
    return largest * Phi_A.square().sum((-2, -1)) * ratio**2 < 1


@cache
def _probes(m: int) -> Float[Tensor, "m probes"]:
    return torch.from_numpy(np.random.Generator(np.random.PCG64(0)).standard_normal((m, PROBES)))
