"""Gaussian posteriors over the k weights: full covariance, fully factorised (FFG), and of lower rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.posteriors.base import Posterior, first_outside, noise


class GaussianPosterior(Posterior):
    """q(w) = N(mean, Σ); tensors may carry a leading axis of B problems."""

    family: ClassVar[Literal["full", "ffg"]]
    singular: ClassVar[bool] = False
    mean: Float[Tensor, "*B k"]

    @property
    def root(self) -> Float[Tensor, "*B k k"] | Float[Tensor, "*B k"]:
        """Root of Σ: its lower-triangular factor, or standard deviations."""
        _, root = self.tensors().values()
        return root

    def draw(self, generator: torch.Generator, n: int) -> Float[Tensor, "*B n k"]:
        return _draw(self.mean, self.covariance_tril(), generator, n)

    def out_of_domain(self) -> str | None:
        _, name = self.tensors()
        # A matrix of an untrusted file's standard deviations could be larger than the memory.
        deviations = self.root if self.root.ndim == self.mean.ndim else self.root.diagonal(dim1=-2, dim2=-1)
        return first_outside(name, deviations, deviations > 0, "positive numbers (standard deviations, or a diagonal)")


@dataclass(frozen=True, eq=False)
class FullGaussian(GaussianPosterior):
    """N(mean, LLᵀ) with L = `scale_tril`, lower triangular with a positive diagonal."""

    mean: Float[Tensor, "*B k"]
    scale_tril: Float[Tensor, "*B k k"]

    family = "full"
    kind = "gaussian-full"
    parameters = {"mean": 1, "scale_tril": 2}

    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        return self.scale_tril

    def malformed(self) -> str | None:
        above = self.scale_tril.triu(1).nan_to_num(0.0)  # NaN is not a wrong form: training diverged
        return (
            "its scale_tril has entries above the diagonal, expected a lower-triangular factor"
            if bool(above.any())
            else None
        )


@dataclass(frozen=True, eq=False)
class FactorisedGaussian(GaussianPosterior):
    """N(mean, diag(scale²)): independent weights with standard deviations `scale`."""

    mean: Float[Tensor, "*B k"]
    scale: Float[Tensor, "*B k"]

    family = "ffg"
    kind = "gaussian-ffg"
    parameters = {"mean": 1, "scale": 1}

    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        return torch.diag_embed(self.scale)


@dataclass(frozen=True, eq=False)
class FactorGaussian(Posterior):
    """N(mean, FFᵀ) with F = `factor`, 0 ≤ r ≤ k; singular, without a density, if r < k or F has lower rank."""

    mean: Float[Tensor, "*B k"]
    factor: Float[Tensor, "*B k r"]

    kind = "gaussian-factor"
    parameters = {"mean": 1, "factor": 2}

    @property
    def root(self) -> Float[Tensor, "*B k r"]:
        """F, as losses take it."""
        return self.factor

    @cached_property
    def singular(self) -> bool:
        """Whether this q, of one problem, has no density."""
        return rank(self.factor) < self.k

    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        missing = self.k - self.factor.shape[-1]
        return tril_of_gram(torch.nn.functional.pad(self.factor.mT, (0, 0, 0, missing)))

    def draw(self, generator: torch.Generator, n: int) -> Float[Tensor, "*B n k"]:
        return _draw(self.mean, self.factor, generator, n)

    def shapes(self, k: int) -> Mapping[str, tuple[int, ...]]:
        return {"mean": (k,), "factor": (k, self.factor.shape[-1])}

    def malformed(self) -> str | None:
        r = self.factor.shape[-1]
        return f"its factor has {r} columns, expected no more than its {self.k} rows" if r > self.k else None


def rank(factor: Float[Tensor, "k r"]) -> int:
    """Rank of F to float64's precision, whatever the units of the weights and the sizes of the columns, within a factor
    of 1e300.

    Columns, and then rows, are scaled to length 1. Those that are zero or not finite count as 0.
    """
    if not factor.numel():
        return 0
    for dim in (0, 1):
        factor = factor / factor.abs().amax(dim, keepdim=True)  # so that no square underflows or overflows
        factor = (factor / torch.linalg.vector_norm(factor, dim=dim, keepdim=True)).nan_to_num(0.0)
    return int(torch.linalg.matrix_rank(factor))


def _draw(
    mean: Float[Tensor, "*B k"], factor: Float[Tensor, "*B k r"], generator: torch.Generator, n: int
) -> Float[Tensor, "*B n k"]:
    """n draws of N(mean, FFᵀ)."""
    return mean[..., None, :] + noise(torch.randn, generator, n, like=factor[..., 0, :]) @ factor.mT
