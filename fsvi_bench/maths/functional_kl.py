"""The functional KL divergence of q = N(μ, LLᵀ) to the prior N(0, I) at a measurement set, with gradients by hand.

Function values at A depend on the weights through the row space of the features Φ_A only. Let V (k×r) be an orthonormal
basis of it and N (k×(k−r)) one of its orthogonal complement. Then (Burt et al. 2020, eq. 6, free of jitter)

    KL(Q_A ‖ P_A) = ½ [tr K − r + ‖Vᵀμ‖² − log det K],    K = VᵀΣV,
    ∂KL/∂μ = VVᵀμ,    ∂KL/∂L = VVᵀL − V K⁻¹ VᵀL,

since d tr K = 2 tr(LᵀVVᵀ dL) and d log det K = 2 tr(LᵀV K⁻¹Vᵀ dL). `Span` computes this from V, with matrices of
size r. `Complement` computes the same from N, with matrices of size k − r: VVᵀ = I − NNᵀ, and for any positive definite
Σ with inverse Λ, by inverting the blocks of Σ in the basis [V, N],

    V K⁻¹ Vᵀ = Λ − ΛN (NᵀΛN)⁻¹ NᵀΛ,    log det K = log det Σ + log det NᵀΛN.

With X = L⁻¹N the gradient becomes L − N(NᵀL) − L⁻ᵀ + L⁻ᵀX (XᵀX)⁻¹Xᵀ, whose third term is diag(1/L_ii) on and below the
diagonal. At M = 80, k = 100 this takes a third of the arithmetic.

Every matrix of a batch must start on a cache line (sides that are multiples of `ALIGNMENT`): BLAS rounds by alignment,
and a problem's last bits would depend on its place in the batch. Columns of V or N that a set has no use for are zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from fsvi_bench.maths.linalg import logdet_of_tril, solve_tril, tril_of_gram

ALIGNMENT = 4


class FullGradient(NamedTuple):
    """KL(Q_A ‖ P_A) and its derivatives in μ and L; NaN where no Cholesky factor exists.

    What the derivative in L holds above the diagonal is of no use.
    """

    kl: Float[Tensor, " B"]
    mean: Float[Tensor, "B k"]
    factor: Float[Tensor, "B k k"]


class DiagonalGradient(NamedTuple):
    """KL(Q_A ‖ P_A) of a factorised q = N(μ, diag(s²)), and its derivatives in μ and log s."""

    kl: Float[Tensor, " B"]
    mean: Float[Tensor, "B k"]
    log_scale: Float[Tensor, "B k"]


class Measurement(ABC):
    """One measurement set per problem of a batch, prepared for the functional KL."""

    @abstractmethod
    def gradient(self, mean: Float[Tensor, "B k"], factor: Float[Tensor, "B k k"]) -> FullGradient:
        """Value and gradient for q = N(mean, LLᵀ), L lower triangular."""

    @abstractmethod
    def gradient_diagonal(self, mean: Float[Tensor, "B k"], scale: Float[Tensor, "B k"]) -> DiagonalGradient:
        """Value and gradient for q = N(mean, diag(scale²))."""

    @abstractmethod
    def kl(self, mean: Float[Tensor, "B k"], factor: Float[Tensor, "B k k"]) -> Float[Tensor, " B"]:
        """The value alone, with care for a Σ that is all but singular: its determinant comes from a QR, not from K.

        Infinity where q has no density at a set.
        """

    @abstractmethod
    def project(self, columns: Float[Tensor, "B k c"]) -> Float[Tensor, "B k c"]:
        """VVᵀ times a matrix."""

    @abstractmethod
    def precision_gradient(self, precision: Float[Tensor, "B k k"]) -> Float[Tensor, "B k k"]:
        """2 ∂KL/∂Σ = VVᵀ − V(VᵀΣV)⁻¹Vᵀ at Σ = Λ⁻¹: the natural gradient of the KL in Λ."""

    @abstractmethod
    def narrow(self, start: int, stop: int) -> Measurement:
        """The problems from `start` on, before `stop`."""


@dataclass(frozen=True, eq=False)
class Span(Measurement):
    """A measurement set by a basis W of its row space, and a slack that is added to K (None: zero everywhere).

    Without jitter W = V is orthonormal and the slack is zero but for 1s at unused columns. Jitter j on both marginals
    is the basis W = Φ_Aᵀ C⁻ᵀ, CCᵀ = Φ_AΦ_Aᵀ + jI, with the slack j C⁻¹C⁻ᵀ: then N(Φ_Aμ, Φ_AΣΦ_Aᵀ + jI) and
    N(0, Φ_AΦ_Aᵀ + jI) become N(Wᵀμ, WᵀΣW + slack) and N(0, I).
    """

    basis: Float[Tensor, "B k m"]
    slack: Float[Tensor, "B m m"] | None = None

    def gradient(self, mean: Float[Tensor, "B k"], factor: Float[Tensor, "B k k"]) -> FullGradient:
        T = self.basis.mT @ factor
        K = self._with_slack(T @ T.mT)
        tril, info = torch.linalg.cholesky_ex(K)
        projected = self.basis.mT @ as_columns(mean)
        kl = self._kl(K, tril, info, projected[..., 0])
        T -= _inverse(tril, info) @ T
        return FullGradient(kl, (self.basis @ projected)[..., 0], self.basis @ T)

    def gradient_diagonal(self, mean: Float[Tensor, "B k"], scale: Float[Tensor, "B k"]) -> DiagonalGradient:
        scaled = self.basis * scale[..., None]
        K = self._with_slack(scaled.mT @ scaled)
        tril, info = torch.linalg.cholesky_ex(K)
        whitened = _right_whitened(scaled, tril)
        projected = self.basis.mT @ as_columns(mean)
        kl = self._kl(K, tril, info, projected[..., 0])
        log_scale = scaled.square().sum(-1) - whitened.square().sum(-1)
        return DiagonalGradient(kl, (self.basis @ projected)[..., 0], log_scale)

    def kl(self, mean: Float[Tensor, "B k"], factor: Float[Tensor, "B k k"]) -> Float[Tensor, " B"]:
        root = factor.mT @ self.basis
        if self.slack is not None:
            # LAPACK would fail at NaN for the whole batch; the basis of such a set is NaN too, and so is its KL.
            values, vectors = torch.linalg.eigh(self.slack.nan_to_num())
            root = torch.cat([root, (vectors * values.clamp(min=0).sqrt()[..., None, :]).mT], -2)
        projected = (self.basis.mT @ as_columns(mean))[..., 0]
        logdet = logdet_of_tril(tril_of_gram(root))
        return 0.5 * (root.square().sum((-2, -1)) - root.shape[-1] + projected.square().sum(-1) - logdet)

    def project(self, columns: Float[Tensor, "B k c"]) -> Float[Tensor, "B k c"]:
        return self.basis @ (self.basis.mT @ columns)

    def precision_gradient(self, precision: Float[Tensor, "B k k"]) -> Float[Tensor, "B k k"]:
        tril, _ = torch.linalg.cholesky_ex(precision)
        T = solve_tril(tril, self.basis)
        K_tril, _ = torch.linalg.cholesky_ex(self._with_slack(T.mT @ T))
        whitened = _right_whitened(self.basis, K_tril)
        return self.basis @ self.basis.mT - whitened @ whitened.mT

    def narrow(self, start: int, stop: int) -> Span:
        return Span(self.basis[start:stop], None if self.slack is None else self.slack[start:stop])

    def _with_slack(self, K: Float[Tensor, "B m m"]) -> Float[Tensor, "B m m"]:
        return K if self.slack is None else K + self.slack

    def _kl(self, K: Tensor, tril: Tensor, info: Tensor, projected_mean: Tensor) -> Float[Tensor, " B"]:
        trace = K.diagonal(dim1=-2, dim2=-1).sum(-1)
        kl = 0.5 * (trace - K.shape[-1] + projected_mean.square().sum(-1) - logdet_of_tril(tril))
        return torch.where(info == 0, kl, torch.nan)


@dataclass(frozen=True, eq=False)
class Complement(Measurement):
    """A measurement set by an orthonormal basis N of what it does not see: `nullity` rows of Nᵀ, then unused zeros."""

    null_rows: Float[Tensor, "B n k"]
    nullity: int

    def gradient(self, mean: Float[Tensor, "B k"], factor: Float[Tensor, "B k k"]) -> FullGradient:
        diagonal = factor.diagonal(dim1=-2, dim2=-1)
        unseen = self.null_rows @ factor
        seen = torch.baddbmm(factor, self.null_rows.mT, unseen, alpha=-1)
        X = solve_tril(factor, self.null_rows.mT)
        tril, info = self._cholesky(X.mT @ X)
        seen_mean = self.project(as_columns(mean))[..., 0]
        trace = (factor * seen).sum((-2, -1))
        logdet = logdet_of_tril(factor) + logdet_of_tril(tril)
        rank = factor.shape[-1] - self.nullity
        kl = 0.5 * (trace - rank + (mean * seen_mean).sum(-1) - logdet)
        # L⁻ᵀX (XᵀX)⁻¹Xᵀ, the small inverse applied on the small side.
        seen.baddbmm_(solve_tril(factor, X, transpose=True), _inverse(tril, info) @ X.mT)
        seen.diagonal(dim1=-2, dim2=-1).sub_(diagonal.reciprocal())
        return FullGradient(torch.where(info == 0, kl, torch.nan), seen_mean, seen)

    def gradient_diagonal(self, mean: Float[Tensor, "B k"], scale: Float[Tensor, "B k"]) -> DiagonalGradient:
        Xt = self.null_rows / scale[..., None, :]
        tril, info = self._cholesky(Xt @ Xt.mT)
        leverage = solve_tril(tril, Xt).square().sum(-2)
        seen = scale.square() * (1 - self.null_rows.square().sum(-2))
        seen_mean = self.project(as_columns(mean))[..., 0]
        logdet = 2 * scale.log().sum(-1) + logdet_of_tril(tril)
        rank = scale.shape[-1] - self.nullity
        kl = 0.5 * (seen.sum(-1) - rank + (mean * seen_mean).sum(-1) - logdet)
        return DiagonalGradient(torch.where(info == 0, kl, torch.nan), seen_mean, seen - 1 + leverage)

    def kl(self, mean: Float[Tensor, "B k"], factor: Float[Tensor, "B k k"]) -> Float[Tensor, " B"]:
        return self.gradient(mean, factor).kl.nan_to_num(nan=torch.inf)

    def project(self, columns: Float[Tensor, "B k c"]) -> Float[Tensor, "B k c"]:
        return torch.baddbmm(columns, self.null_rows.mT, self.null_rows @ columns, alpha=-1)

    def precision_gradient(self, precision: Float[Tensor, "B k k"]) -> Float[Tensor, "B k k"]:
        rows = self.null_rows @ precision
        tril, _ = self._cholesky(rows @ self.null_rows.mT)
        whitened = solve_tril(tril, rows)
        gradient = whitened.mT @ whitened - self.null_rows.mT @ self.null_rows - precision
        gradient.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return gradient

    def narrow(self, start: int, stop: int) -> Complement:
        return Complement(self.null_rows[start:stop], self.nullity)

    def _cholesky(self, gram: Float[Tensor, "B n n"]) -> tuple[Tensor, Tensor]:
        gram.diagonal(dim1=-2, dim2=-1)[..., self.nullity :] = 1.0
        tril, info = torch.linalg.cholesky_ex(gram)
        return tril, info


@dataclass(frozen=True, eq=False)
class Patched(Measurement):
    """A measurement of which some problems' sets are degenerate and treated apart, each by its own `Span`."""

    regular: Measurement
    exceptions: tuple[tuple[int, Span], ...]  #: (place in the batch, a batch of one)

    def gradient(self, mean: Float[Tensor, "B k"], factor: Float[Tensor, "B k k"]) -> FullGradient:
        return self._patch("gradient", mean, factor)

    def gradient_diagonal(self, mean: Float[Tensor, "B k"], scale: Float[Tensor, "B k"]) -> DiagonalGradient:
        return self._patch("gradient_diagonal", mean, scale)

    def kl(self, mean: Float[Tensor, "B k"], factor: Float[Tensor, "B k k"]) -> Float[Tensor, " B"]:
        return self._patch("kl", mean, factor)

    def project(self, columns: Float[Tensor, "B k c"]) -> Float[Tensor, "B k c"]:
        return self._patch("project", columns)

    def precision_gradient(self, precision: Float[Tensor, "B k k"]) -> Float[Tensor, "B k k"]:
        return self._patch("precision_gradient", precision)

    def narrow(self, start: int, stop: int) -> Measurement:
        inside = tuple((place - start, span) for place, span in self.exceptions if start <= place < stop)
        regular = self.regular.narrow(start, stop)
        return Patched(regular, inside) if inside else regular

    def _patch(self, name: str, *arguments: Tensor) -> Any:
        """Everything by the regular way, then the exceptions' results put in place of theirs."""
        result = getattr(self.regular, name)(*arguments)
        for place, span in self.exceptions:
            # A copy, since where a matrix lies in memory must not depend on the batch.
            alone = getattr(span, name)(*(argument[place : place + 1].clone() for argument in arguments))
            for whole, part in zip(_tensors(result), _tensors(alone), strict=True):
                whole[place] = part[0]
        return result


def _tensors(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else result


def _inverse(tril: Float[Tensor, "B m m"], info: Tensor) -> Float[Tensor, "B m m"]:
    """(CCᵀ)⁻¹, NaN where there was no factor: LAPACK would fail for the whole batch."""
    found = (info == 0)[..., None, None]
    identity = torch.eye(tril.shape[-1], dtype=tril.dtype, device=tril.device)
    return torch.where(found, torch.cholesky_inverse(torch.where(found, tril, identity)), torch.nan)


def _right_whitened(rows: Float[Tensor, "B k m"], tril: Float[Tensor, "B m m"]) -> Float[Tensor, "B k m"]:
    """R C⁻ᵀ, so that its Gram matrix of rows is R (CCᵀ)⁻¹ Rᵀ."""
    return torch.linalg.solve_triangular(tril.mT, rows, upper=True, left=False)


def as_columns(vector: Float[Tensor, "*B k"], width: int = 8) -> Float[Tensor, "*B k width"]:
    """A vector as the first of `width` columns, the others zero: BLAS treats one matrix–vector product apart."""
    return pad(vector[..., None], (0, width - 1))
