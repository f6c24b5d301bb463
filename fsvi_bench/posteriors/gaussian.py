"""Gaussian posteriors over the k weights: full covariance, fully factorised (FFG), and of lower rank."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.posteriors.base import Posterior, first_outside


class GaussianPosterior(Posterior):
    """q(w) = N(mean, Σ); tensors may carry a leading axis of B problems."""

    family: ClassVar[Literal["full", "ffg"]]
    mean: Float[Tensor, "*B k"]

    @property
    @abstractmethod
    def root(self) -> Float[Tensor, "*B k k"] | Float[Tensor, "*B k"]:
        """Of Σ: its lower-triangular factor, or standard deviations."""

    @property
    def singular(self) -> bool:
        return False

    def draw(self, generator: torch.Generator, n: int) -> Float[Tensor, "*B n k"]:
        *batch, k = self.mean.shape
        noise = torch.randn(*batch, n, k, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
        return self.mean[..., None, :] + noise @ self.covariance_tril().mT

    def out_of_domain(self) -> str | None:
        deviations, (_, name) = self.covariance_tril().diagonal(dim1=-2, dim2=-1), self.tensors()
        return first_outside(name, deviations, deviations > 0, "positive numbers (standard deviations, or a diagonal)")


@dataclass(frozen=True, eq=False)
class FullGaussian(GaussianPosterior):
    """N(mean, LLᵀ) with L = `scale_tril`, lower triangular with a positive diagonal."""

    mean: Float[Tensor, "*B k"]
    scale_tril: Float[Tensor, "*B k k"]
    family: ClassVar[Literal["full", "ffg"]] = "full"
    kind: ClassVar[str] = "gaussian-full"
    parameters: ClassVar[Mapping[str, int]] = {"mean": 1, "scale_tril": 2}

    @property
    def root(self) -> Float[Tensor, "*B k k"]:
        return self.scale_tril

    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        return self.scale_tril

    def malformed(self) -> str | None:
        above = self.scale_tril.triu(1).nan_to_num(0.0)  # NaN is no fault of the form: training diverged
        return "its scale_tril has entries above the diagonal" if bool(above.any()) else None


@dataclass(frozen=True, eq=False)
class FactorisedGaussian(GaussianPosterior):
    """N(mean, diag(scale²)): independent weights with standard deviations `scale`."""

    mean: Float[Tensor, "*B k"]
    scale: Float[Tensor, "*B k"]
    family: ClassVar[Literal["full", "ffg"]] = "ffg"
    kind: ClassVar[str] = "gaussian-ffg"
    parameters: ClassVar[Mapping[str, int]] = {"mean": 1, "scale": 1}

    @property
    def root(self) -> Float[Tensor, "*B k"]:
        return self.scale

    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        return torch.diag_embed(self.scale)


@dataclass(frozen=True, eq=False)
class FactorGaussian(Posterior):
    """N(mean, FFᵀ) with F = `factor` of full column rank r ≤ k; singular if r < k."""

    mean: Float[Tensor, "*B k"]
    factor: Float[Tensor, "*B k r"]

    kind: ClassVar[str] = "gaussian-factor"
    parameters: ClassVar[Mapping[str, int]] = {"mean": 1, "factor": 2}

    @property
    def singular(self) -> bool:
        return self.factor.shape[-1] < self.k

    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        missing = self.k - self.factor.shape[-1]
        return tril_of_gram(torch.nn.functional.pad(self.factor.mT, (0, 0, 0, missing)))

    def draw(self, generator: torch.Generator, n: int) -> Float[Tensor, "*B n k"]:
        *batch, _, r = self.factor.shape
        noise = torch.randn(*batch, n, r, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
        return self.mean[..., None, :] + noise @ self.factor.mT

    def shapes(self, k: int) -> Mapping[str, tuple[int, ...]]:
        return {"mean": (k,), "factor": (k, self.factor.shape[-1])}
