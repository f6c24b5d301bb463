"""Triangular factors: computation by QR, determinants, solves and products."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.batching import LINE
from fsvi_bench.maths.shapes import PerProblem, Square


def positive_diagonal_tril(upper: Square) -> Square:
    """Rᵀ with the signs of its columns flipped so that the diagonal is positive; RᵀR is unchanged."""
    sign = torch.where(torch.linalg.diagonal(upper) < 0, -1.0, 1.0).to(upper.dtype)
    return (upper * sign[..., None]).mT


def tril_of_gram(factor: Float[Tensor, "*B m n"]) -> Square:
    """Lower factor C, with positive diagonal, of FᵀF = CCᵀ for m ≥ n, by QR without forming FᵀF.

    The rows are sorted by decreasing norm, which leaves FᵀF unchanged: Householder QR loses the digits of a small row
    that comes before large ones. This makes the determinant of F = diag(scales)·V with orthogonal V accurate for any
    scales. It does not help if small directions are spread over rows of similar norm: digits are then lost like
    cond(F). A rank-deficient F gives zeros (or rounding errors) on the diagonal of C, not an error.
    """
    order = factor.square().sum(-1).argsort(dim=-1, descending=True, stable=True)
    sorted_rows = factor.gather(-2, order[..., None].expand_as(factor))
    mode = "reduced" if sorted_rows.requires_grad else "r"  # Q takes as long as R and is needed for gradients only
    return positive_diagonal_tril(torch.linalg.qr(sorted_rows, mode=mode).R)


def logdet_of_tril(tril: Square) -> PerProblem:
    """log det(LLᵀ) = 2 Σ log L_ii."""
    return 2 * torch.linalg.diagonal(tril).log().sum(-1)


def solve_tril(tril: Square, right: Float[Tensor, "*B n m"], *, transpose: bool = False) -> Float[Tensor, "*B n m"]:
    """L⁻¹R, or L⁻ᵀR with `transpose`."""
    return torch.linalg.solve_triangular(tril.mT if transpose else tril, right, upper=transpose)


def inverse_tril(tril: Square) -> Square:
    """L⁻¹."""
    return solve_tril(tril, identity(tril.shape[-1], tril).expand_as(tril))


def identity(n: int, like: Tensor, columns: int | None = None) -> Float[Tensor, "n columns"]:
    """The first `columns` columns of I, padded with zeros, with the dtype and device of another tensor."""
    return torch.eye(n, n if columns is None else columns, dtype=like.dtype, device=like.device)


def product_tril(matrix: Square, tril: Square) -> Square:
    """AL on and below the diagonal; entries above it are undefined.

    The last columns of L begin with zeros, and the first rows of their product are not needed. Computing two blocks of
    columns takes a quarter less time (k = 100).
    """
    half = tril.shape[-1] // 2 // LINE * LINE
    product = torch.zeros_like(tril)
    product[..., :half] = matrix @ tril[..., :half]
    product[..., half:, half:] = matrix[..., half:, half:] @ tril[..., half:, half:]
    return product


def square_norm(matrix: Float[Tensor, "*B n m"]) -> PerProblem:
    """‖A‖_F², without allocating an array of squares."""
    return torch.linalg.vector_norm(matrix, dim=(-2, -1)).square()
