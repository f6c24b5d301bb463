"""What gradient methods move: a Gaussian's unconstrained parameters for B problems, started at the prior N(0, I).

Every problem's numbers lie in blocks whose size is a multiple of a cache line, so that an optimiser's vectorised loops
treat a problem alike alone and in any batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from fsvi_bench.posteriors.base import Family, Posterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian

CACHE_LINE = 8  #: float64 numbers


def rounded_up(n: int) -> int:
    """The next multiple of a cache line."""
    return n + -n % CACHE_LINE


def widened(vector: Float[Tensor, "B k"]) -> Float[Tensor, "B c"]:
    """Zeros up to a whole cache line."""
    return pad(vector, (0, rounded_up(vector.shape[-1]) - vector.shape[-1]))


class PosteriorParameters(nn.Module, ABC):
    """Parameters of q for B problems and k weights (aligned: the last ones may be dummies that no score sees)."""

    @abstractmethod
    def refresh(self) -> None:
        """To be called after every change of the parameters."""

    @abstractmethod
    def posterior(self, k: int) -> Posterior:
        """q over the first k weights, as a copy."""

    @property
    @abstractmethod
    def mean(self) -> Float[Tensor, "B k"]:
        """q's mean, a view."""


class FullParameters(PosteriorParameters):
    """N(mean, LLᵀ). L's diagonal has its logarithm for a parameter; within `factor` it is a mirror without gradient."""

    def __init__(self, B: int, k: int) -> None:
        super().__init__()
        self.k = k
        self._mean = nn.Parameter(torch.zeros(B, rounded_up(k), dtype=torch.float64))
        self._factor = nn.Parameter(torch.eye(k, dtype=torch.float64).repeat(B, 1, 1))
        self._log_diagonal = nn.Parameter(torch.zeros(B, rounded_up(k), dtype=torch.float64))
        self.register_buffer("_below", torch.ones(k, k, dtype=torch.float64).tril(-1))

    @torch.no_grad()
    def refresh(self) -> None:
        self._factor.diagonal(dim1=-2, dim2=-1).copy_(self._log_diagonal[:, : self.k].exp())

    @property
    def mean(self) -> Float[Tensor, "B k"]:
        return self._mean.detach()[:, : self.k]

    @property
    def factor(self) -> Float[Tensor, "B k k"]:
        """L, lower triangular with a positive diagonal; a view."""
        return self._factor.detach()

    def set_gradient(self, mean: Float[Tensor, "B k"], factor: Float[Tensor, "B k k"]) -> None:
        """Takes ∂loss/∂mean and ∂loss/∂L, whatever stands above the diagonal, and keeps the latter's memory."""
        diagonal = factor.diagonal(dim1=-2, dim2=-1) * self.factor.diagonal(dim1=-2, dim2=-1)
        self._mean.grad, self._log_diagonal.grad = widened(mean), widened(diagonal)
        self._factor.grad = factor.mul_(self.get_buffer("_below"))

    def posterior(self, k: int) -> FullGaussian:
        return FullGaussian(self.mean[:, :k].clone(), self.factor[:, :k, :k].clone())


class FactorisedParameters(PosteriorParameters):
    """N(mean, diag(exp(log_scale)²))."""

    def __init__(self, B: int, k: int) -> None:
        super().__init__()
        self.k = k
        self._mean = nn.Parameter(torch.zeros(B, rounded_up(k), dtype=torch.float64))
        self._log_scale = nn.Parameter(torch.zeros(B, rounded_up(k), dtype=torch.float64))

    def refresh(self) -> None:
        """Nothing mirrors anything here."""

    @property
    def mean(self) -> Float[Tensor, "B k"]:
        return self._mean.detach()[:, : self.k]

    @property
    def scale(self) -> Float[Tensor, "B k"]:
        """Standard deviations."""
        return self._log_scale.detach()[:, : self.k].exp()

    def set_gradient(self, mean: Float[Tensor, "B k"], log_scale: Float[Tensor, "B k"]) -> None:
        """Takes ∂loss/∂mean and ∂loss/∂(log scale)."""
        self._mean.grad, self._log_scale.grad = widened(mean), widened(log_scale)

    def posterior(self, k: int) -> FactorisedGaussian:
        return FactorisedGaussian(self.mean[:, :k].clone(), self.scale[:, :k].clone())


Parameters = FullParameters | FactorisedParameters


def make_parameters(family: Family, B: int, k: int) -> Parameters:
    """Parameters of a family, at the prior."""
    return FullParameters(B, k) if family == "full" else FactorisedParameters(B, k)
