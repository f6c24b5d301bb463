"""The functional KL divergence between the values of two linear models at a set of inputs, free of jitter.

For features Φ_A (M×k) of rank r, the pushforward N(Φ_A μ, Φ_A Σ Φ_Aᵀ) is singular as soon as r < M. Both measures
live on the column space of Φ_A, where a density exists: with V (k×r, orthonormal) spanning the row space of Φ_A,
KL(Q_A ‖ P_A) = KL(N(Vᵀμ_q, VᵀΣ_qV) ‖ N(Vᵀμ_p, VᵀΣ_pV)), exact for any M (Burt et al. 2020, eq. 6 without jitter).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.gaussian import gaussian_kl
from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.maths.shapes import Matrix, PerProblem, Vector

RANK_TOLERANCE = 1e-9


def row_space(Phi_A: Float[Tensor, "M k"], rank_tolerance: float = RANK_TOLERANCE) -> Float[Tensor, "k r"]:
    """Orthonormal basis V of the row space of Φ_A: right singular vectors with s_i > rank_tolerance · s_1.

    Raises:
        ValueError: there are no rows.
    """
    if len(Phi_A) == 0:
        raise ValueError("the measurement set is empty, expected at least one input")
    _, singular_values, right = torch.linalg.svd(Phi_A, full_matrices=False)
    rank = int((singular_values > rank_tolerance * singular_values[0]).sum())
    return right[:rank].mT


def projected_kl(
    basis: Float[Tensor, "k r"],
    mean_q: Vector,
    factor_q: Matrix,
    mean_p: Vector,
    factor_p: Matrix,
) -> PerProblem:
    """KL between the projections Vᵀw of w ~ N(mean, FFᵀ); any square factors F will do.

    VᵀFFᵀV is factorised by a QR of FᵀV, so the projected covariance is never formed.
    """
    return gaussian_kl(
        (mean_q[..., None, :] @ basis)[..., 0, :],
        tril_of_gram(factor_q.mT @ basis),
        (mean_p[..., None, :] @ basis)[..., 0, :],
        tril_of_gram(factor_p.mT @ basis),
    )


def least_squares(
    rows: Float[Tensor, "m k"], targets: Float[Tensor, " n"], rank_tolerance: float = RANK_TOLERANCE
) -> Float[Tensor, " k"]:
    """The shortest w that minimises ‖targets − rows w‖², with zeros for targets that are not given (n ≤ m).

    By singular values; directions with s_i ≤ rank_tolerance · s_1 count as unseen.
    """
    U, s, Vh = torch.linalg.svd(rows, full_matrices=False)
    known = s > rank_tolerance * s[0]
    return Vh[known].mT @ ((U[: len(targets), known].mT @ targets) / s[known])
