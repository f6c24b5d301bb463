"""Memory layout of B problems in a batch, such that on a CPU each result is bitwise the same as alone.

The rounding of BLAS, LAPACK and vectorised loops depends on shape and alignment. Three rules make a problem's result
independent of its place in the batch. They are applied here, where problems and parameters are loaded:

* every matrix of a batch starts on a cache line: its sides are multiples of `SIDE`, padded with zeros;
* every parameter has a whole number of cache lines per problem, so that an optimiser's loop never splits one;
* a matrix-vector product is computed as a matrix-matrix product, since BLAS uses another routine for B = 1.

Features get zero columns, so a padded q has extra weights on which no function value depends. These stay at the prior
and are left out of every posterior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

LINE = 8  #: float64 numbers per cache line
SIDE = 4

S = TypeVar("S", bound="Stacked")


class Stacked:
    """A frozen dataclass of tensors, or of such dataclasses, with a leading axis of B problems."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def map(self: S, change: Callable[[Tensor], Tensor]) -> S:
        """A copy with `change` applied to every tensor."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        changed = {name: change(value) for name, value in named.items() if isinstance(value, Tensor)}
        nested = {name: value.map(change) for name, value in named.items() if isinstance(value, Stacked)}
        return replace(self, **changed, **nested)  # type: ignore[type-var]

    def to(self: S, device: torch.device) -> S:
        return self.map(lambda tensor: tensor.to(device))

    def narrow(self: S, start: int, stop: int) -> S:
        """The problems from `start` to `stop`, the latter excluded."""
        return self.map(lambda tensor: tensor[start:stop])

    def only(self: S, problem: int) -> S:
        """A batch of one, copied so that its memory alignment does not depend on the others."""
        return self.map(lambda tensor: tensor[problem : problem + 1].clone())


def filled(n: int, to: int = SIDE) -> int:
    """The next multiple of `to`."""
    return n + -n % to


def fill(matrices: Float[Tensor, "*B n k"]) -> Float[Tensor, "*B n_filled k_filled"]:
    """Pads matrices with zero rows and columns to multiples of `SIDE`."""
    n, k = matrices.shape[-2:]
    return pad(matrices, (0, -k % SIDE, 0, -n % SIDE)) if n % SIDE or k % SIDE else matrices


def fill_diagonal(gram: Float[Tensor, "*B n n"], start: int) -> Float[Tensor, "*B n n"]:
    """Writes 1s on the diagonal from row `start`, so that a padded matrix keeps its determinant."""
    torch.linalg.diagonal(gram)[..., start:] = 1.0
    return gram


def parameter(B: int, k: int, value: float = 0.0) -> nn.Parameter:
    """k numbers per problem, padded to whole cache lines."""
    return nn.Parameter(torch.full((B, filled(k, LINE)), value, dtype=torch.float64))


def matvec(matrix: Float[Tensor, "*B n k"], vector: Float[Tensor, "*B up_to_k"]) -> Float[Tensor, "*B n"]:
    """The product, with the vector padded by zeros to the number of columns."""
    return products(matrix, vector[..., None, :])[..., 0, :]


def products(matrix: Float[Tensor, "*B n k"], vectors: Float[Tensor, "*B S up_to_k"]) -> Float[Tensor, "*B S n"]:
    """The product with each of S vectors, padded likewise. Vectors as rows take a third of the time of columns."""
    S, k = vectors.shape[-2:]
    return (pad(vectors, (0, matrix.shape[-1] - k, 0, -S % SIDE)) @ matrix.mT)[..., :S, :]


def one_by_one(function: Callable[..., Tensor], *batches: Tensor | None) -> Tensor:
    """Applies a function to each problem on copies, for functions whose shapes do not follow the rules above."""
    B = next(len(batch) for batch in batches if batch is not None)
    parts = ([None if batch is None else batch[b : b + 1].clone() for batch in batches] for b in range(B))
    return torch.cat([function(*part) for part in parts])
