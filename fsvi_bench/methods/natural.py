"""Natural-gradient steps on a Gaussian's precision and mean, for a batch of B problems.

For a Gaussian family the natural gradient in the precision is twice the gradient in the covariance, so a step of size
ρ on −E_q[log p(y|w)] + c·KL(Q_A ‖ P_A) is

    Λ ← Λ + ρ [ΦᵀΦ/σ² + c (VVᵀ − V(VᵀΣV)⁻¹Vᵀ)],    μ ← μ − ρ Λ⁻¹∇_μ,    ∇_μ = Hμ − Φᵀy/σ²,    H = ΦᵀΦ/σ² + c VVᵀ

with the new Λ; for a factorised q, the diagonals of these matrices. If A determines every weight and c = 1, the bracket
is ΦᵀΦ/σ² + I − Λ, and a single step with ρ = 1 reaches the exact posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fsvi_bench.maths.batching import filled, matvec
from fsvi_bench.maths.functional_kl import Gaussian, functional_kl
from fsvi_bench.maths.linalg import inverse_tril
from fsvi_bench.methods.data import Batch
from fsvi_bench.posteriors.base import Family
from fsvi_bench.posteriors.trainable import TrainablePosterior


class NaturalGaussian(TrainablePosterior):
    """q(w) = N(mean, Λ⁻¹), initialised at the prior; Λ [B,k,k], or its diagonal [B,k] for a factorised q."""

    def __init__(self, family: Family, B: int, k: int) -> None:
        super().__init__()
        self.k, width = k, filled(k)
        self.mean = nn.Parameter(torch.zeros(B, width, dtype=torch.float64), requires_grad=False)
        precision = torch.ones(B, width, dtype=torch.float64)
        precision = torch.diag_embed(precision) if family == "full" else precision
        self.precision = nn.Parameter(precision, requires_grad=False)

    def forward(self) -> Gaussian:
        return Gaussian(self.mean, root_of_inverse(self.precision))


class NaturalGradient(torch.optim.Optimizer):
    """Steps of size ρ_t = lr · (1 + t)^(−decay) along natural gradients, read from the parameters' `grad`.

    A problem's step is halved until its precision stays positive definite. Since V(VᵀΣV)⁻¹Vᵀ ≼ Λ, a step of size ρ
    leaves at least (1 − ρc)Λ. So halving ends once ρc ≤ ½ at the latest: the largest number of halvings is known before
    the step, and on a GPU all of them are computed, without waiting for a result. For a factorised q the direction
    Λ⁻¹∇_μ ignores the correlation of features, and ρ_t would overshoot along it. The mean's step is therefore at most
    the minimiser of the objective along its direction, computed with the curvature H.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "decay": decay, "step": 0})

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Any = None, *, hessian: Callable[[Tensor], Tensor], kl_weight: float
    ) -> None:
        """One step; `hessian` multiplies vectors [B,k] by H, and `kl_weight` is c."""
        if closure is not None:
            closure()
        (group,) = self.param_groups
        mean, precision = group["params"]
        size = group["lr"] * (1 + group["step"]) ** -group["decay"]
        group["step"] += 1
        halvings = max(0, math.ceil(math.log2(2 * size * kl_weight))) if kl_weight else 0
        sizes = mean.new_full((len(mean),), size)
        new, tril, sizes = _positive_definite_step(precision, precision.grad, sizes, halvings)
        if tril is None:
            direction = mean.grad / new
            best = (mean.grad * direction).sum(-1) / (direction * hessian(direction)).sum(-1)
            # If the gradient is 0, `best` is 0/0 and any step size is correct.
            sizes = torch.fmin(best, sizes)
        else:
            columns = torch.nn.functional.pad(mean.grad[..., None], (0, 7))
            direction = torch.cholesky_solve(columns, tril)[..., 0]
        mean.copy_(mean - sizes[:, None] * direction)
        precision.copy_(new)


def _positive_definite_step(
    precision: Tensor, gradient: Tensor, sizes: Float[Tensor, " B"], halvings: int
) -> tuple[Tensor, Tensor | None, Float[Tensor, " B"]]:
    """The new precision, its Cholesky factor (None for a diagonal), and the step sizes used after up to `halvings`."""
    full, tril = precision.ndim == 3, None
    for remaining in reversed(range(halvings + 1)):
        new = precision - sizes.view(-1, *[1] * (precision.ndim - 1)) * gradient
        if full:
            tril, info = torch.linalg.cholesky_ex(new)
            # Halving does not repair NaN, so such problems must not delay the others.
            failed = (info != 0) & new.sum((-2, -1)).isfinite()
        else:
            failed = (new <= 0).any(-1)
        if not remaining or (failed.device.type == "cpu" and not bool(failed.any())):
            break
        sizes = torch.where(failed, 0.5 * sizes, sizes)
    return new, tril, sizes


def natural_step(q: NaturalGaussian, optimizer: Any, batch: Batch, kl_weight: float) -> None:
    """One step of the module's formulas, with all training rows and one measurement set."""
    rows, A = batch.rows, batch.A

    def hessian(vector: Float[Tensor, "B k"]) -> Float[Tensor, "B k"]:
        return matvec(rows.gram, vector) + kl_weight * A.project(vector)

    q.mean.grad = hessian(q.mean) - rows.moment
    if q.precision.ndim == 3:
        q.precision.grad = A.precision_gradient(q.precision).mul_(-kl_weight).sub_(rows.gram)
    else:
        # ∂KL/∂(log s) = s² · 2∂KL/∂(s²), so times Λ it is the natural gradient in Λ.
        of_log_scale = _log_scale_gradient(q, batch)
        q.precision.grad = -rows.Phi.square().sum(-2) - kl_weight * of_log_scale * q.precision
    optimizer.step(hessian=hessian, kl_weight=kl_weight)


@torch.enable_grad()
def _log_scale_gradient(q: NaturalGaussian, batch: Batch) -> Float[Tensor, "B k"]:
    log_scale = q.precision.log().mul_(-0.5).requires_grad_()
    kl = functional_kl(Gaussian(q.mean, log_scale.exp()), batch.A)
    (gradient,) = torch.autograd.grad(kl.sum(), log_scale)
    return gradient


def root_of_inverse(precision: Tensor) -> Tensor:
    """Lower factor L of Λ⁻¹: with the rows and columns of Λ reversed, Λ = UUᵀ for an upper U, and L = U⁻ᵀ.

    For a diagonal Λ [B,k], the standard deviations.
    """
    if precision.ndim == 2:
        return precision.rsqrt()
    tril, info = torch.linalg.cholesky_ex(precision.flip(-1, -2))
    tril = torch.where((info == 0)[..., None, None], tril, torch.nan)
    upper = tril.flip(-1, -2)
    return inverse_tril(upper.mT).tril()
