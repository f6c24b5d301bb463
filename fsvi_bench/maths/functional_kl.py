"""The functional KL divergence of q = N(μ, Σ) to the prior N(0, I) at measurement sets, differentiable in q.

Function values at A depend on the weights only through the row space of the features Φ_A. Let V (k×r) be an orthonormal
basis of the row space and N (k×(k−r)) one of its orthogonal complement. Then (Burt et al. 2020, eq. 6, without jitter)

    KL(Q_A ‖ P_A) = ½ [tr K − r + ‖Vᵀμ‖² − log det K],    K = VᵀΣV,
    ∂KL/∂μ = VVᵀμ,    ∂KL/∂L = VVᵀL − V K⁻¹ VᵀL,    Σ = LLᵀ,

since d tr K = 2 tr(LᵀVVᵀ dL) and d log det K = 2 tr(LᵀV K⁻¹Vᵀ dL). `Span` computes this from V, with matrices of
size r. `Complement` computes the same from N, with matrices of size k − r: VVᵀ = I − NNᵀ, and for any positive definite
Σ with inverse Λ, by inverting the blocks of Σ in the basis [V, N],

    V K⁻¹ Vᵀ = Λ − ΛN (NᵀΛN)⁻¹ NᵀΛ,    log det K = log det Σ + log det NᵀΛN.

With X = L⁻¹N the gradient becomes L − N(NᵀL) − L⁻ᵀ + L⁻ᵀX (XᵀX)⁻¹Xᵀ, whose third term is diag(1/L_ii) on and below the
diagonal. At M = 80, k = 100 this needs a third of the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from fsvi_bench.maths.batching import SIDE, Stacked, fill, fill_diagonal, matvec
from fsvi_bench.maths.linalg import identity, inverse_tril, logdet_of_tril, solve_tril, square_norm, tril_of_gram
from fsvi_bench.maths.projection import RANK_TOLERANCE
from fsvi_bench.maths.shapes import Matrix, PerProblem, Vector

#: If the estimated smallest singular value of Φ_A over its Frobenius norm exceeds this ratio (or ten times the rank
#: tolerance, if larger), Φ_A is assumed to have full rank. Otherwise its singular values determine the rank.
SAFE_RATIO = 1e-8
PROBES = 8


class Gaussian(NamedTuple):
    """N(mean, Σ) of B problems, given by a root of Σ: a lower-triangular L [B,k,k], or standard deviations [B,k]."""

    mean: Vector
    root: Matrix | Vector

    def spread(self, rows: Float[Tensor, "B n k"]) -> Float[Tensor, "B n m"]:
        """Rows times the root (with m columns): their squares sum to the variances of the rows' function values."""
        return rows @ self.root if self.root.ndim == 3 else rows * self.root[:, None]

    def draws(self, noise: Float[Tensor, "B S m"]) -> Float[Tensor, "B S k"]:
        """w = mean + root·noise for standard normal noise."""
        moved = noise @ self.root.mT if self.root.ndim == 3 else noise * self.root[:, None]
        return moved + self.mean[:, None]

    def filled(self) -> Gaussian:
        """Filled up like the features (see `maths.batching`): the extra weights are at the prior."""
        extra = -self.mean.shape[-1] % SIDE
        if self.root.ndim == 2:
            return Gaussian(pad(self.mean, (0, extra)), pad(self.root, (0, extra), value=1.0))
        root = pad(self.root, (0, extra, 0, extra))
        torch.linalg.diagonal(root[:, root.shape[1] - extra :, root.shape[2] - extra :])[:] = 1.0
        return Gaussian(pad(self.mean, (0, extra)), root)


def functional_kl(q: Gaussian, A: MeasurementSets) -> PerProblem:
    """KL(Q_A ‖ P_A) in nats; NaN if a Cholesky factor does not exist.

    A single q (a batch of one) is evaluated at every set. Without gradients (`torch.no_grad`) a `Span` computes the
    determinant by QR, which is accurate for a nearly singular Σ and infinite if Q_A has no density. A `Complement`
    inverts L: the KL is infinite if q has no density, and can lose all digits if q's standard deviation in some
    direction is below 1e-7.
    """
    if len(q.mean) == 1 < len(A):
        q = Gaussian(*(tensor.expand(len(A), *tensor.shape[1:]) for tensor in q))
    if isinstance(A, Mixed):
        return torch.cat([functional_kl(_part(q, place), one) for place, one in enumerate(A.sets)])
    if not torch.is_grad_enabled():
        return A.value(q)
    if q.root.ndim == 3:
        return _FunctionalKL.apply(q.mean, q.root, A)  # type: ignore[no-untyped-call]
    return A.factorised(q)


class _FunctionalKL(torch.autograd.Function):
    """For a full Σ, with the gradients above, which are computed along with the value."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, tril: Tensor, A: Span | Complement) -> Tensor:
        kl, *gradients = A.full(mean, tril)
        ctx.save_for_backward(*gradients)
        return kl

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        return *scaled(ctx.saved_tensors, grad_outputs[0]), None


def scaled(gradients: tuple[Tensor, ...], weight: PerProblem) -> tuple[Tensor, Tensor]:
    """Gradients [B,k] and [B,k,k] times the incoming one. On a CPU the product is skipped if that is 1, as is usual."""
    mean, tril = gradients
    if weight.device.type == "cpu" and bool((weight == 1).all()):
        return mean, tril
    return weight[:, None] * mean, weight[:, None, None] * tril


class _Sets(Stacked):
    """Measurement sets of B problems."""

    def project(self, vector: Vector) -> Vector:
        """VVᵀ times a vector, computed as one of several rows, since BLAS uses another routine for a single one."""
        return self.project_rows(pad(vector[:, None], (0, 0, 0, SIDE - 1)))[:, 0]

    def project_rows(self, rows: Float[Tensor, "B n k"]) -> Float[Tensor, "B n k"]:
        """Rows times VVᵀ."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Span(_Sets):
    """One set per problem, by a basis W of its row space and a root R of the slack RRᵀ added to K (None: no slack).

    Without jitter W = V is orthonormal. Its columns beyond the rank of the set are zero, and R is zero except for 1s
    on the diagonal there: they add nothing to the KL, and shapes do not depend on ranks. Jitter j on both marginals
    gives the basis W = Φ_Aᵀ C⁻ᵀ, CCᵀ = Φ_AΦ_Aᵀ + jI, with R = √j C⁻¹: then N(Φ_Aμ, Φ_AΣΦ_Aᵀ + jI) and
    N(0, Φ_AΦ_Aᵀ + jI) become N(Wᵀμ, WᵀΣW + RRᵀ) and N(0, I).
    """

    basis: Float[Tensor, "B k m"]
    slack_root: Float[Tensor, "B m m"] | None = None
    slack: Float[Tensor, "B m m"] | None = None

    def full(self, mean: Vector, tril: Matrix) -> tuple[Tensor, Tensor, Tensor]:
        """KL and its derivatives in μ and L; entries of the latter above the diagonal are undefined."""
        T = self.basis.mT @ tril
        K = self._with_slack(T @ T.mT)
        C, info = torch.linalg.cholesky_ex(K)
        kl = self._kl(K, C, info, mean)
        T -= torch.cholesky_solve(T, C)
        return kl, self.project(mean), self.basis @ T

    def factorised(self, q: Gaussian) -> PerProblem:
        """KL of independent weights, for autograd."""
        scaled = self.basis * q.root[..., None]
        K = self._with_slack(scaled.mT @ scaled)
        C, info = torch.linalg.cholesky_ex(K)
        return self._kl(K, C, info, q.mean)

    def value(self, q: Gaussian) -> PerProblem:
        """KL without forming K. The root of Σ may have any number of columns, and Σ any rank."""
        root = q.spread(self.basis.mT).mT
        if self.slack_root is not None:
            root = torch.cat([root, self.slack_root.mT], -2)
        mahalanobis = matvec(self.basis.mT, q.mean).square().sum(-1)
        trace, logdet = root.square().sum((-2, -1)), logdet_of_tril(tril_of_gram(root))
        return 0.5 * (trace - root.shape[-1] + mahalanobis - logdet)

    @cached_property
    def projector(self) -> Matrix:
        """VVᵀ."""
        return self.basis @ self.basis.mT

    def project_rows(self, rows: Float[Tensor, "B n k"]) -> Float[Tensor, "B n k"]:
        """Rows times VVᵀ."""
        return rows @ self.basis @ self.basis.mT

    def precision_gradient(self, precision: Matrix) -> Matrix:
        """2 ∂KL/∂Σ = VVᵀ − V(VᵀΣV)⁻¹Vᵀ at Σ = Λ⁻¹: the natural gradient of the KL in Λ."""
        T = solve_tril(torch.linalg.cholesky_ex(precision).L, self.basis)
        C = torch.linalg.cholesky_ex(self._with_slack(T.mT @ T)).L
        whitened = torch.linalg.solve_triangular(C.mT, self.basis, upper=True, left=False)
        return self.projector - whitened @ whitened.mT

    def _with_slack(self, K: Float[Tensor, "B m m"]) -> Float[Tensor, "B m m"]:
        return K if self.slack is None else K + self.slack

    def _kl(self, K: Tensor, C: Tensor, info: Tensor, mean: Tensor) -> PerProblem:
        trace, mahalanobis = torch.linalg.diagonal(K).sum(-1), matvec(self.basis.mT, mean).square().sum(-1)
        kl = 0.5 * (trace - K.shape[-1] + mahalanobis - logdet_of_tril(C))
        return torch.where(info == 0, kl, torch.nan)


@dataclass(frozen=True, eq=False)
class Complement(_Sets):
    """One set per problem, by an orthonormal basis N of its null space: `nullity` rows of Nᵀ, padded with zeros."""

    null_rows: Float[Tensor, "B n k"]
    nullity: int

    def full(self, mean: Vector, tril: Matrix) -> tuple[Tensor, Tensor, Tensor]:
        """KL and its derivatives in μ and L; entries of the latter above the diagonal are undefined."""
        diagonal = torch.linalg.diagonal(tril)
        unseen = self.null_rows @ tril
        seen = torch.baddbmm(tril, self.null_rows.mT, unseen, alpha=-1)
        X = solve_tril(tril, self.null_rows.mT)
        C, info = self._cholesky(X.mT @ X)
        seen_mean = self.project(mean)
        trace, mahalanobis = square_norm(tril) - square_norm(unseen), (mean * seen_mean).sum(-1)
        kl = self._kl(trace, mahalanobis, logdet_of_tril(tril) + logdet_of_tril(C), info)
        # L⁻ᵀX (XᵀX)⁻¹Xᵀ, the small inverse applied on the small side.
        seen.baddbmm_(solve_tril(tril, X, transpose=True), torch.cholesky_solve(X.mT, C))
        torch.linalg.diagonal(seen).sub_(diagonal.reciprocal())
        return kl, seen_mean, seen

    def factorised(self, q: Gaussian) -> PerProblem:
        """KL of independent weights, for autograd."""
        scaled = self.null_rows / q.root[:, None]
        C, info = self._cholesky(scaled @ scaled.mT)
        trace = (q.root.square() * (1 - self.null_rows.square().sum(-2))).sum(-1)
        logdet = 2 * q.root.log().sum(-1) + logdet_of_tril(C)
        return self._kl(trace, (q.mean * self.project(q.mean)).sum(-1), logdet, info)

    def value(self, q: Gaussian) -> PerProblem:
        """KL, infinite if q has no density."""
        kl = self.full(*q)[0] if q.root.ndim == 3 else self.factorised(q)
        return torch.where(kl.isnan(), torch.inf, kl)

    @cached_property
    def projector(self) -> Matrix:
        """VVᵀ = I − NNᵀ."""
        projector = -self.null_rows.mT @ self.null_rows
        torch.linalg.diagonal(projector).add_(1.0)
        return projector

    def project_rows(self, rows: Float[Tensor, "B n k"]) -> Float[Tensor, "B n k"]:
        """Rows times VVᵀ."""
        return torch.baddbmm(rows, rows @ self.null_rows.mT, self.null_rows, alpha=-1)

    def precision_gradient(self, precision: Matrix) -> Matrix:
        """2 ∂KL/∂Σ = VVᵀ − V(VᵀΣV)⁻¹Vᵀ at Σ = Λ⁻¹: the natural gradient of the KL in Λ."""
        rows = self.null_rows @ precision
        whitened = solve_tril(self._cholesky(rows @ self.null_rows.mT)[0], rows)
        return whitened.mT @ whitened + self.projector - precision

    def _kl(self, trace: Tensor, mahalanobis: Tensor, logdet: Tensor, info: Tensor) -> PerProblem:
        rank = self.null_rows.shape[-1] - self.nullity
        return torch.where(info == 0, 0.5 * (trace - rank + mahalanobis - logdet), torch.nan)

    def _cholesky(self, gram: Float[Tensor, "B n n"]) -> tuple[Tensor, Tensor]:
        tril, info = torch.linalg.cholesky_ex(fill_diagonal(gram, self.nullity))
        return tril, info


@dataclass(frozen=True, eq=False)
class Mixed(_Sets):
    """Sets of which some are rank-deficient, on a CPU: each problem is a batch of one, in the form that suits its set.

    So a problem's numbers do not depend on its batch. On a GPU `_alike` gives all sets of a batch one form.
    """

    sets: tuple[Span | Complement, ...]

    def narrow(self, start: int, stop: int) -> Mixed:
        """The problems from `start` to `stop`, the latter excluded."""
        return Mixed(self.sets[start:stop])

    def only(self, problem: int) -> Any:
        """One problem's set."""
        return self.sets[problem]

    @property
    def projector(self) -> Matrix:
        """VVᵀ."""
        return torch.cat([one.projector for one in self.sets])

    def project_rows(self, rows: Float[Tensor, "B n k"]) -> Float[Tensor, "B n k"]:
        """Rows times VVᵀ."""
        return torch.cat([one.project_rows(rows[b : b + 1].clone()) for b, one in enumerate(self.sets)])

    def precision_gradient(self, precision: Matrix) -> Matrix:
        """2 ∂KL/∂Σ at Σ = Λ⁻¹."""
        return torch.cat([one.precision_gradient(precision[b : b + 1].clone()) for b, one in enumerate(self.sets)])


MeasurementSets = Span | Complement | Mixed


def measure(
    Phi_A: Float[Tensor, "B M k"], *, jitter: float = 0.0, rank_tolerance: float = RANK_TOLERANCE, span: bool = False
) -> MeasurementSets:
    """Prepares one measurement set per problem from its features (padded as in `maths.batching`).

    With `span`, the KL at fewer inputs than weights is always computed from the row space itself. q's covariance is
    then never inverted, which is accurate even if q is nearly singular in directions that A does not constrain.

    Raises:
        ValueError: the measurement set is empty.
    """
    M, k = Phi_A.shape[-2:]
    if M == 0:
        raise ValueError("the measurement set is empty, expected at least one input")
    if jitter > 0:
        return _with_jitter(Phi_A, jitter)
    regular, LU = _full_rank(Phi_A) if k <= M else (_span if span or k - M >= M else _complement)(Phi_A)
    safe = _looked_at(_is_safe(LU, Phi_A, max(SAFE_RATIO, 10 * rank_tolerance)))
    if all(safe):
        return regular
    if Phi_A.device.type != "cpu":
        return _alike(Phi_A, safe, rank_tolerance)
    return Mixed(
        tuple(
            regular.only(b) if good else _decomposed(Phi_A[b : b + 1].clone(), rank_tolerance)
            for b, good in enumerate(safe)
        )
    )


def _looked_at(flags: Bool[Tensor, " B"]) -> list[bool]:
    """The flags on the host. The host waits for a GPU only here, which is between steps (`MeasurementStream.sets`)."""
    return flags.tolist()  # type: ignore[no-any-return]


def _alike(Phi_A: Float[Tensor, "B M k"], safe: Sequence[bool], rank_tolerance: float) -> Span:
    """All sets in one form and shape, whatever their ranks: V by QR for full rank, by singular values otherwise."""
    M, k = Phi_A.shape[-2:]
    whole = Span(identity(k, Phi_A).repeat(len(Phi_A), 1, 1)) if k <= M else _span(Phi_A)[0]
    width = whole.basis.shape[-1]
    slack = Phi_A.new_zeros(len(Phi_A), width, width) if whole.slack is None else whole.slack
    places = torch.tensor([b for b, good in enumerate(safe) if not good], device=Phi_A.device)
    found = _decomposed(Phi_A[places], rank_tolerance)
    slack = slack.index_copy(0, places, found.slack)  # type: ignore[arg-type]
    return Span(whole.basis.index_copy(0, places, found.basis), slack, slack)


def _with_jitter(Phi_A: Float[Tensor, "B M k"], jitter: float) -> Span:
    M, rows = Phi_A.shape[-2], fill(Phi_A)
    gram = rows @ rows.mT
    torch.linalg.diagonal(gram)[..., :M] += jitter
    C, info = torch.linalg.cholesky_ex(fill_diagonal(gram, M))
    # If the jitter is too small there is no marginal density. NaN propagates to the loss, which reports the problem.
    C = torch.where((info == 0)[..., None, None], C, torch.nan)
    inverse = inverse_tril(C)
    slack_root = fill_diagonal(jitter**0.5 * inverse, M)
    return Span(rows.mT @ inverse.mT, slack_root, slack_root @ slack_root.mT)


def _full_rank(Phi_A: Float[Tensor, "B M k"]) -> tuple[Complement, Tensor]:
    """For M ≥ k: if Φ_A is well-conditioned, A determines every weight, and the KL is that of the weights."""
    LU, _, _ = torch.linalg.lu_factor_ex(fill(Phi_A))
    return Complement(Phi_A.new_zeros(len(Phi_A), SIDE, Phi_A.shape[-1]), 0), LU


def _span(Phi_A: Float[Tensor, "B M k"]) -> tuple[Span, Tensor]:
    """V by Householder QR of Φ_Aᵀ; the rank is checked by the same LU decomposition as elsewhere."""
    M, rows = Phi_A.shape[-2], fill(Phi_A)
    LU, _, _ = torch.linalg.lu_factor_ex(rows.mT)
    basis = torch.linalg.qr(rows.mT).Q
    if rows.shape[-2] == M:
        return Span(basis), LU
    basis[..., M:] = 0.0
    slack = fill_diagonal(basis.new_zeros(len(rows), rows.shape[-2], rows.shape[-2]), M)
    return Span(basis, slack, slack), LU[..., :M]


def _complement(Phi_A: Float[Tensor, "B M k"]) -> tuple[Complement, Tensor]:
    """N from Φ_Aᵀ = PLU with partial pivoting.

    With L = [L₁; L₂] split after M rows, Φ_A P[−L₁⁻ᵀL₂ᵀ; I] = Uᵀ(−L₁ᵀL₁⁻ᵀL₂ᵀ + L₂ᵀ) = 0: these columns span the null
    space, and the identity within them keeps them well-conditioned. They are orthonormalised by Cholesky.
    """
    M, k = Phi_A.shape[-2:]
    nullity = k - M
    LU, pivots, _ = torch.linalg.lu_factor_ex(Phi_A.mT)
    permutation = torch.lu_unpack(LU, pivots, unpack_data=False)[0]
    upper, lower = LU[..., :M, :], LU[..., M:, :]
    left = torch.linalg.solve_triangular(upper, lower, upper=False, left=False, unitriangular=True)
    raw = torch.cat([-left, identity(nullity, LU).expand(len(LU), -1, -1)], dim=-1)
    raw = pad(raw, (0, 0, 0, -nullity % SIDE)) @ permutation.mT
    gram = fill_diagonal(raw @ raw.mT, nullity)
    return Complement(solve_tril(torch.linalg.cholesky_ex(gram).L, raw), nullity), LU


def _decomposed(Phi_A: Float[Tensor, "B M k"], rank_tolerance: float) -> Span:
    """Sets of any rank, by singular value decomposition; a set that is not finite gets a basis of NaN.

    V consists of the right singular vectors with s_i > rank_tolerance · s_1, as in `maths.projection.row_space`. Masks
    take the place of its other columns.
    """
    finite = Phi_A.isfinite().flatten(1).all(-1)[:, None, None]
    _, s, right = torch.linalg.svd(torch.where(finite, Phi_A, 0.0), full_matrices=False)
    kept = s > rank_tolerance * s[:, :1]
    basis = torch.where(finite, torch.where(kept[:, None], right.mT, 0.0), torch.nan)
    columns = (0, -s.shape[-1] % SIDE)
    slack = torch.diag_embed(1 - pad(kept.to(s.dtype), columns))
    return Span(pad(basis, columns), slack, slack)


def _part(q: Gaussian, b: int) -> Gaussian:
    return Gaussian(q.mean[b : b + 1].clone(), q.root[b : b + 1].clone())


def _is_safe(LU: Float[Tensor, "B n m"], Phi_A: Float[Tensor, "B M k"], ratio: float) -> Tensor:
    """Whether the smallest singular value is clearly more than `ratio` of the largest.

    Pivots alone do not show it: I minus the strict upper triangle of ones has pivots 1 and is nearly singular. It is
    estimated by ‖(LU)⁻¹g‖ for a few Gaussian g, with L's first rows: each is at least |u·g|/σ_min with u·g standard
    normal, and leaving rows out only lowers σ_min. Returns False for a set that is not finite.
    """
    m = min(LU.shape[-2:])
    square, probes = LU[..., :m, :m], _probes(m).to(LU.device).expand(len(LU), -1, -1)
    lower = torch.linalg.solve_triangular(square, probes, upper=False, unitriangular=True)
    largest = torch.linalg.solve_triangular(square, lower, upper=True).square().sum(-2).amax(-1)
    return largest * square_norm(Phi_A) * ratio**2 < 1


@cache
def _probes(m: int) -> Float[Tensor, "m probes"]:
    return torch.from_numpy(np.random.Generator(np.random.PCG64(0)).standard_normal((m, PROBES)))
