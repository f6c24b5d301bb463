"""Gaussian posteriors over the k weights: full covariance, and fully factorised (FFG)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Family = Literal["full", "ffg"]


class GaussianPosterior(ABC):
    """q(w) = N(mean, Σ); tensors may carry a leading axis of B problems."""

    family: Family
    mean: Float[Tensor, "*B k"]

    @abstractmethod
    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        """Lower-triangular L with LLᵀ = Σ and a positive diagonal."""

    @abstractmethod
    def __getitem__(self, problem: int) -> GaussianPosterior:
        """The posterior of one problem of a batch."""

    @abstractmethod
    def cpu(self) -> GaussianPosterior:
        """The same posterior with its tensors on the CPU."""

    @property
    def k(self) -> int:
        return int(self.mean.shape[-1])


@dataclass(frozen=True, eq=False)
class FullGaussian(GaussianPosterior):
    """N(mean, LLᵀ) with L = `scale_tril`, lower triangular with a positive diagonal."""

    mean: Float[Tensor, "*B k"]
    scale_tril: Float[Tensor, "*B k k"]
    family: Literal["full"] = "full"

    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        return self.scale_tril

    def __getitem__(self, problem: int) -> FullGaussian:
        return FullGaussian(self.mean[problem], self.scale_tril[problem])

    def cpu(self) -> FullGaussian:
        return FullGaussian(self.mean.cpu(), self.scale_tril.cpu())


@dataclass(frozen=True, eq=False)
class FactorisedGaussian(GaussianPosterior):
    """N(mean, diag(scale²)): independent weights with standard deviations `scale`."""

    mean: Float[Tensor, "*B k"]
    scale: Float[Tensor, "*B k"]
    family: Literal["ffg"] = "ffg"

    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        return torch.diag_embed(self.scale)

    def __getitem__(self, problem: int) -> FactorisedGaussian:
        return FactorisedGaussian(self.mean[problem], self.scale[problem])

    def cpu(self) -> FactorisedGaussian:
        return FactorisedGaussian(self.mean.cpu(), self.scale.cpu())


def unstack(posterior: GaussianPosterior) -> Sequence[GaussianPosterior]:
    """The B posteriors of a batch, one by one."""
    return [posterior[problem] for problem in range(posterior.mean.shape[0])]


def stack(posteriors: Sequence[GaussianPosterior]) -> GaussianPosterior:
    """B posteriors of one family as one with a leading axis."""
    means = torch.stack([q.mean for q in posteriors])
    if posteriors[0].family == "ffg":
        return FactorisedGaussian(means, torch.stack([q.scale for q in posteriors]))  # type: ignore[attr-defined]
    return FullGaussian(means, torch.stack([q.covariance_tril() for q in posteriors]))


def defect(posterior: GaussianPosterior, k: int) -> str | None:
    """What keeps one posterior from being a Gaussian over k weights at all (its form), or None."""
    tril = posterior.covariance_tril()
    for name, tensor, shape in (("mean", posterior.mean, (k,)), ("covariance factor", tril, (k, k))):
        if tensor.dtype != torch.float64:
            return f"its {name} has type {str(tensor.dtype).removeprefix('torch.')}, expected float64"
        if tuple(tensor.shape) != shape:
            return f"its {name} has shape {list(tensor.shape)}, expected {list(shape)}"
    if bool(tril.triu(1).any()):
        return "its covariance factor has entries above the diagonal"
    return None


def divergence(posterior: GaussianPosterior) -> str | None:
    """Why the numbers of a well-formed posterior say that training diverged, or None."""
    tril = posterior.covariance_tril()
    if not bool(torch.isfinite(posterior.mean).all()) or not bool(torch.isfinite(tril).all()):
        return "the posterior holds NaN or infinity"
    smallest = float(tril.diagonal().min())
    return None if smallest > 0 else f"a standard deviation of the posterior is {smallest:g}"
