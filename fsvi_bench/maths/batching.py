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
from dataclasses import fields, replace
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

LINE = 8  #: float64 numbers of a cache line
SIDE = 4

S = TypeVar("S", bound="Stacked")


class Stacked:
    """A frozen dataclass whose tensors, and fields of this kind, have a leading axis of B problems."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def map(self: S, change: Callable[[Tensor], Tensor]) -> S:
        """The same with every tensor changed."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        changed = {name: change(value) for name, value in named.items() if isinstance(value, Tensor)}
        nested = {name: value.map(change) for name, value in named.items() if isinstance(value, Stacked)}
        return replace(self, **changed, **nested)  # type: ignore[type-var]

    def to(self: S, device: torch.device) -> S:
        return self.map(lambda tensor: tensor.to(device))

    def narrow(self: S, start: int, stop: int) -> S:
        """The problems from `start` on, before `stop`."""
        return self.map(lambda tensor: tensor[start:stop])

    def only(self: S, problem: int) -> S:
        """A batch of one, as a copy: where a problem lies in memory must not depend on the others."""
        return self.map(lambda tensor: tensor[problem : problem + 1].clone())


def filled(n: int, to: int = SIDE) -> int:
    """The next multiple."""
    return n + -n % to


def fill(matrices: Float[Tensor, "*B n k"]) -> Float[Tensor, "*B n_filled k_filled"]:
    """Zero rows and columns up to multiples of `SIDE`."""
    n, k = matrices.shape[-2:]
    return pad(matrices, (0, -k % SIDE, 0, -n % SIDE)) if n % SIDE or k % SIDE else matrices


def fill_diagonal(gram: Float[Tensor, "*B n n"], start: int) -> Float[Tensor, "*B n n"]:
    """Writes 1s on the diagonal from there on, so that a matrix which is filled up keeps its determinant."""
    torch.linalg.diagonal(gram)[..., start:] = 1.0
    return gram


def parameter(B: int, k: int, value: float = 0.0) -> nn.Parameter:
    """k numbers per problem, and what fills the last cache line."""
    return nn.Parameter(torch.full((B, filled(k, LINE)), value, dtype=torch.float64))


def matvec(matrix: Float[Tensor, "*B n k"], vector: Float[Tensor, "*B up_to_k"]) -> Float[Tensor, "*B n"]:
    """The product, with as many zeros at the vector's end as the matrix has columns to fill."""
    return products(matrix, vector[..., None, :])[..., 0, :]


def products(matrix: Float[Tensor, "*B n k"], vectors: Float[Tensor, "*B S up_to_k"]) -> Float[Tensor, "*B S n"]:
    """The product with each of S vectors, likewise. As rows they take a third of the time that they take as columns."""
    S, k = vectors.shape[-2:]
    return (pad(vectors, (0, matrix.shape[-1] - k, 0, -S % SIDE)) @ matrix.mT)[..., :S, :]


def one_by_one(function: Callable[..., Tensor], *batches: Tensor | None) -> Tensor:
    """A function of each problem alone, on copies, where its own shapes do not fit the rules."""
    B = next(len(batch) for batch in batches if batch is not None)
    parts = ([None if batch is None else batch[b : b + 1].clone() for batch in batches] for b in range(B))
    return torch.cat([function(*part) for part in parts])
