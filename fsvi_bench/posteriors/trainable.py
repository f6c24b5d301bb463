"""Posteriors for gradient-based training: modules over B problems; calling one returns the current q for autograd.

`posterior` returns the same q as a frozen posterior, detached from autograd.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy, deepcopy
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fsvi_bench.maths.batching import filled, matvec, one_by_one, parameter
from fsvi_bench.maths.elementwise import sigmoid, softplus
from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.posteriors.base import Family, Posterior
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian


class TrainablePosterior(nn.Module, ABC):
    """q over k weights of B problems; every parameter has a leading axis of B.

    Args:
        basis: columns of an orthonormal basis, in which the parameters of q's location are coordinates. As Adam's step
            sizes are one per coordinate, they fit best where the loss's Hessian is diagonal (`maths.blr.eigenbasis`).
    """

    k: int
    basis: Float[Tensor, "B k_filled k_filled"] | None

    def __init__(self, basis: Float[Tensor, "B k_filled k_filled"] | None = None) -> None:
        super().__init__()
        self.register_buffer("basis", basis)

    @abstractmethod
    def forward(self) -> Any:
        """The current q: a named tuple of tensors [B, ...] for a loss."""

    @property
    def is_rotated(self) -> bool:
        """Whether `forward` returns all of q in the basis, so that losses need features in it, too."""
        return False

    @property
    def has_scale(self) -> bool:
        """Whether `rescale` has an effect."""
        named = any(name in ("log_scale", "lower") for name, _ in self.named_parameters())
        return named or type(self).rescale is not TrainablePosterior.rescale

    def terms(self) -> Any:
        """q in the weights' own coordinates, as losses over the weights take it."""
        return self()

    def located(self, coordinates: Float[Tensor, "B k"]) -> Float[Tensor, "B k"]:
        """The weights that have these coordinates in the basis."""
        return coordinates if self.basis is None else matvec(self.basis, coordinates)[:, : coordinates.shape[1]]

    def coordinates(self, weights: Float[Tensor, "B k"]) -> Float[Tensor, "B k"]:
        """The inverse of `located`."""
        return weights if self.basis is None else matvec(self.basis.mT, weights)[:, : weights.shape[1]]

    def start(self, mean: Float[Tensor, "B k"], scale: float) -> None:
        """Moves q from the prior to this mean, with this multiple of the prior's standard deviations."""
        with torch.no_grad():
            self.get_parameter("mean")[:, : self.k] = self.coordinates(mean)
        self.rescale(scale)

    @torch.no_grad()
    def rescale(self, factor: float) -> None:
        """Multiplies the standard deviations of the k weights."""
        for name, logs in self.named_parameters():
            if name == "log_scale":
                logs[:, : self.k] += math.log(factor)
            elif name == "lower":
                logs.diagonal(dim1=-2, dim2=-1)[:, : self.k] += math.log(factor)

    @torch.no_grad()
    def posterior(self) -> Posterior:
        """A copy without gradients; by default a Gaussian with the mean and root from `terms`."""
        mean, root, *_ = self.terms()
        if root.ndim == 2:  # its sign is that of the mean if it is a multiple of the mean
            return FactorisedGaussian(mean[:, : self.k].clone(), root[:, : self.k].abs())
        return FullGaussian(mean[:, : self.k].clone(), root[:, : self.k, : self.k].clone())

    def only(self, problem: int) -> nn.Module:
        """One problem's q as a batch of one; its parameters share memory with this module's."""
        one = copy(self)
        one._parameters = {
            name: nn.Parameter(values.data[problem : problem + 1]) for name, values in self.named_parameters()
        }
        if self.basis is not None:
            one._buffers = {**self._buffers, "basis": self.basis[problem : problem + 1]}
        return one


class Average(nn.Module):
    """The running mean of a posterior's parameters over its iterates.

    As `torch.optim.swa_utils.AveragedModel`, whose count is a tensor that a GPU has to be waited for at every update.
    """

    def __init__(self, q: TrainablePosterior) -> None:
        super().__init__()
        self.module: Any = deepcopy(q).requires_grad_(False)
        self.count = 0  #: of iterates in the mean
        #: Log odds of certain weights, which are not trained; their differences are NaN.
        self.some_infinite = any(bool(each.isinf().any()) for each in q.parameters())

    @torch.no_grad()
    def update(self, q: TrainablePosterior) -> None:
        """Adds the current iterate to the mean."""
        self.count += 1
        torch._foreach_lerp_([*self.module.parameters()], [*q.parameters()], 1 / self.count)
        if self.some_infinite:
            for mean, iterate in zip(self.module.parameters(), q.parameters(), strict=True):
                mean.copy_(torch.where(iterate.isinf(), iterate, mean))

    def get_extra_state(self) -> int:
        return self.count

    def set_extra_state(self, state: int) -> None:
        self.count = state


class TrainableGaussian(TrainablePosterior):
    """q(w) = N(mean, LLᵀ), initialised at the prior N(0, I).

    For `full`, the parameters of L are its strict lower triangle, divided by `off_diagonal`, and the logarithm of its
    diagonal. For any other family, L is diagonal, given by its logarithm.

    With a basis, `full` is a Gaussian over the coordinates in it, and the entries of a row of L are relative to the one
    on the diagonal: a step of given size is then as large in a direction of small variance as in any other.

    Args:
        off_diagonal: factor of the entries below the diagonal. Adam's steps do not depend on a gradient's scale, so
            these entries have this multiple of the learning rate.
        basis: of the coordinates; other families have only their mean in it.
    """

    def __init__(
        self,
        family: Family,
        B: int,
        k: int,
        off_diagonal: float = 1.0,
        basis: Float[Tensor, "B k_filled k_filled"] | None = None,
    ) -> None:
        super().__init__(basis)
        self.k, self.width = k, filled(k)
        self.mean = parameter(B, self.width)
        if family == "full":
            zeros = torch.zeros(B, self.width, self.width, dtype=torch.float64)
            self.lower = nn.Parameter(zeros)
            eye = torch.eye(self.width, dtype=torch.float64)
            # A part of the state: parameters mean nothing without their factor.
            self.register_buffer("mask", eye + off_diagonal * torch.ones_like(eye).tril(-1))
        else:
            self.log_scale = parameter(B, self.width)

    @property
    def is_rotated(self) -> bool:
        return self.basis is not None and "lower" in self._parameters

    def forward(self) -> Gaussian:
        mean = self.mean[:, : self.width]
        if "lower" in self._parameters:
            root = _LogDiagonalTril if self.basis is None else _RelativeTril
            return Gaussian(mean, root.apply(self.lower, self.mask))  # type: ignore[no-untyped-call]
        return Gaussian(self.located(mean), self.log_scale[:, : self.width].exp())

    def terms(self) -> Gaussian:
        q = self()
        if self.basis is None or not self.is_rotated:
            return q
        return Gaussian(self.located(q.mean), one_by_one(tril_of_gram, q.root.mT @ self.basis.mT))


class _LogDiagonalTril(torch.autograd.Function):
    """A matrix times a triangular mask, then the exponential of its diagonal, in one pass; autograd needs four."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor, mask: Tensor) -> Tensor:
        tril = lower * mask
        tril.diagonal(dim1=-2, dim2=-1).exp_()
        ctx.save_for_backward(mask, tril.diagonal(dim1=-2, dim2=-1).clone())
        return tril

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        mask, diagonal = ctx.saved_tensors
        gradient = grad_outputs[0] * mask  # takes an eighth of the time of `tril`
        gradient.diagonal(dim1=-2, dim2=-1).mul_(diagonal)
        return gradient, None


class _RelativeTril(torch.autograd.Function):
    """The same with the entries of each row relative to the diagonal one: diag(exp d)(I + strict triangle)."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor, mask: Tensor) -> Tensor:
        tril = lower * mask
        diagonal = tril.diagonal(dim1=-2, dim2=-1)
        scale = diagonal.exp()
        diagonal.fill_(1.0)
        tril *= scale[..., None]
        ctx.save_for_backward(mask, tril, scale)
        return tril

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        mask, tril, scale = ctx.saved_tensors
        # What a loss leaves above the diagonal is undefined, so it is taken out by the mask, whose diagonal is 1.
        of_lower = grad_outputs[0] * mask
        of_scale = (grad_outputs[0].tril() * tril).sum(-1)
        of_lower *= scale[..., None]
        of_lower.diagonal(dim1=-2, dim2=-1).copy_(of_scale)
        return of_lower, None


class Dropout(NamedTuple):
    """Bernoulli dropout of B problems: w_i = m_i ε_i, ε_i ~ Bernoulli(p_i)."""

    m: Float[Tensor, "B k"]
    retain_probability: Float[Tensor, "B k"]
    log_odds: Float[Tensor, "B k"]
    entropy: Float[Tensor, " B"]  #: of the masks ε


class TrainableDropout(TrainablePosterior):
    """Bernoulli dropout with m initialised at 0, and p given or learned as log odds: one shared, or one per weight."""

    def __init__(
        self,
        B: int,
        k: int,
        retain_probability: float,
        learned: bool = False,
        per_weight: bool = False,
        basis: Float[Tensor, "B k_filled k_filled"] | None = None,
    ) -> None:
        super().__init__(basis)
        self.k, self.count = k, k if per_weight else 1
        self.m = parameter(B, k)
        log_odds = torch.tensor(retain_probability, dtype=torch.float64).logit()
        self.log_odds = parameter(B, self.count, float(log_odds)).requires_grad_(learned)

    @torch.no_grad()
    def start(self, mean: Float[Tensor, "B k"], scale: float) -> None:
        """Moves m there."""
        self.m[:, : self.k] = self.coordinates(mean)

    def forward(self) -> Dropout:
        m, log_odds = self.located(self.m[:, : self.k]), self.log_odds[:, : self.count].expand(-1, self.k)
        p = sigmoid(log_odds)
        certain = log_odds.isinf()
        entropy = torch.where(certain, 0.0, softplus(log_odds) - p * torch.where(certain, 0.0, log_odds))
        return Dropout(m, p, log_odds, entropy.sum(-1))

    @torch.no_grad()
    def posterior(self) -> BernoulliDropoutPosterior:
        m, p, *_ = self()
        return BernoulliDropoutPosterior(m.clone(), (p if self.count > 1 else p[:, 0]).clone())


class Multiplicative(NamedTuple):
    """N(θ, αθ²) of B problems, or N(θ, σ²) with α = σ²/θ²."""

    theta: Float[Tensor, "B k"]
    scale: Float[Tensor, "B k"]  #: standard deviations; √α θ has the sign of θ
    log_alpha: Float[Tensor, "B k"]


class TrainableMultiplicative(TrainablePosterior):
    """N(θ, αθ²), one α per problem or one per weight; initialised at the prior's E w², θ²(1+α) = 1."""

    def __init__(
        self,
        B: int,
        k: int,
        alpha: float,
        learned: bool = False,
        per_weight: bool = False,
        basis: Float[Tensor, "B k_filled k_filled"] | None = None,
    ) -> None:
        super().__init__(basis)
        self.k, self.count = k, k if per_weight else 1
        self.theta = parameter(B, k, (1 + alpha) ** -0.5)
        self.theta.data[:, :k] = self.coordinates(self.theta.data[:, :k])
        log_alpha = torch.tensor(alpha, dtype=torch.float64).log()
        self.log_alpha = parameter(B, self.count, float(log_alpha)).requires_grad_(learned)

    def forward(self) -> Multiplicative:
        theta, log_alpha = self.located(self.theta[:, : self.k]), self.log_alpha[:, : self.count].expand(-1, self.k)
        return Multiplicative(theta, (0.5 * log_alpha).exp() * theta, log_alpha)


class TrainableAdditive(TrainablePosterior):
    """N(θ, σ²) with parameters θ and log σ² (Molchanov et al. 2017), initialised at the prior N(0, 1)."""

    def __init__(self, B: int, k: int, basis: Float[Tensor, "B k_filled k_filled"] | None = None) -> None:
        super().__init__(basis)
        self.k, self.theta, self.log_variance = k, parameter(B, k), parameter(B, k)

    def forward(self) -> Gaussian:
        return Gaussian(self.located(self.theta[:, : self.k]), (0.5 * self.log_variance[:, : self.k]).exp())

    @torch.no_grad()
    def rescale(self, factor: float) -> None:
        self.log_variance[:, : self.k] += 2 * math.log(factor)
