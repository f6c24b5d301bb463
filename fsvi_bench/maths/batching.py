"""How B problems lie side by side so that, on a CPU, each comes out as it would alone, to the last bit.

BLAS, LAPACK and vectorised loops round by shape and alignment, not by value. Three rules keep a problem's place in its
batch out of its result, and they are kept here, where problems and parameters are loaded:

* every matrix of a batch starts on a cache line: its sides are multiples of `SIDE`, filled up with zeros;
* every parameter's share per problem is a whole number of cache lines, so that an optimiser's loop never splits one;
* a matrix-vector product is a matrix-matrix product: BLAS treats B = 1 apart.

Features get zero columns, so a q over filled-up weights has dummies that no function value depends on. They stay at
the prior and are left out of every posterior.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

LINE = 8  #: float64 numbers of a cache line
SIDE = 4


def filled(n: int, to: int = SIDE) -> int:
    """The next multiple."""
    return n + -n % to


def fill(matrices: Float[Tensor, "*B n k"]) -> Float[Tensor, "*B n_filled k_filled"]:
    """Zero rows and columns up to multiples of `SIDE`."""
    n, k = matrices.shape[-2:]
    return pad(matrices, (0, -k % SIDE, 0, -n % SIDE)) if n % SIDE or k % SIDE else matrices


def parameter(B: int, k: int, value: float = 0.0) -> nn.Parameter:
    """k numbers per problem, and what fills the last cache line."""
    return nn.Parameter(torch.full((B, filled(k, LINE)), value, dtype=torch.float64))


def matvec(matrix: Float[Tensor, "*B n k"], vector: Float[Tensor, "*B up_to_k"]) -> Float[Tensor, "*B n"]:
    """The product, with as many zeros at the vector's end as the matrix has columns to fill."""
    columns = pad(vector[..., None], (0, LINE - 1, 0, matrix.shape[-1] - vector.shape[-1]))
    return (matrix @ columns)[..., 0]


def products(matrix: Float[Tensor, "*B n k"], vectors: Float[Tensor, "*B S up_to_k"]) -> Float[Tensor, "*B S n"]:
    """The product with each of S vectors, likewise."""
    S, k = vectors.shape[-2:]
    return (matrix @ pad(vectors, (0, matrix.shape[-1] - k, 0, -S % LINE)).mT).mT[..., :S, :]


def one_by_one(function: Callable[..., Tensor], *batches: Tensor | None) -> Tensor:
    """A function of each problem alone, on copies, where its own shapes do not fit the rules."""
    B = next(len(batch) for batch in batches if batch is not None)
    parts = ([None if batch is None else batch[b : b + 1].clone() for batch in batches] for b in range(B))
    return torch.cat([function(*part) for part in parts])
