"""Natural-gradient steps on a Gaussian's precision and mean, B problems side by side.

For a Gaussian family the natural gradient in the precision is twice the gradient in the covariance, so a step of size
ρ on −E_q[log p(y|w)] + c·KL(Q_A ‖ P_A) is

    Λ ← Λ + ρ [ΦᵀΦ/σ² + c (VVᵀ − V(VᵀΣV)⁻¹Vᵀ)],    μ ← μ − ρ Λ⁻¹∇_μ

with the new Λ; for a factorised q, the diagonal of each. If A sees every weight and c = 1, the bracket is
ΦᵀΦ/σ² + I − Λ, and ρ = 1 arrives at the exact posterior at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fsvi_bench.maths.functional_kl import Measurement, as_columns
from fsvi_bench.maths.linalg import solve_tril
from fsvi_bench.posteriors.base import Family
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian, GaussianPosterior
from fsvi_bench.variational.descent import Descent, DivergenceLog, first_averaged_step
from fsvi_bench.variational.likelihood import FullBatch

MAX_HALVINGS = 60


@dataclass(frozen=True)
class StepSize:
    """ρ_t = initial · (1 + t)^(−decay)."""

    initial: float = 0.5
    decay: float = 0.6

    def __call__(self, step: int) -> float:
        return self.initial * (1 + step) ** -self.decay


class NaturalDescent(Descent):
    """Natural-gradient steps from the prior, with all training rows and a new measurement set at each step.

    A step is halved, for that problem alone, until the precision stays positive definite. For a factorised q the
    direction Λ⁻¹∇_μ knows nothing of how features are correlated, and ρ_t would overshoot along it; the mean's step is
    then at most the one that minimises the objective along its direction.

    Args:
        averaging: share of the steps, at the run's end, whose precisions and means are averaged; 0 takes the last.
    """

    def __init__(
        self,
        family: Family,
        likelihood: FullBatch,
        next_measurement: Callable[[], Measurement],
        step_size: StepSize,
        total: int,
        kl_weight: float = 1.0,
        averaging: float = 0.0,
    ) -> None:
        B = len(likelihood.moment)
        self.family, self.likelihood, self.next_measurement = family, likelihood, next_measurement
        self.step_size, self.kl_weight = step_size, kl_weight
        self.mean = torch.zeros_like(likelihood.moment)
        #: Λ [B,k,k], or its diagonal [B,k] for a factorised q
        self.precision = torch.ones_like(self.mean)
        if family == "full":
            self.precision = torch.diag_embed(self.precision)
        self._first_averaged = first_averaged_step(averaging, total) if averaging else None
        self._averaged = 0
        self._mean_of_means, self._mean_of_precisions = torch.zeros_like(self.mean), torch.zeros_like(self.precision)
        self._log, self._steps = DivergenceLog(B, self.mean.device), 0

    def run(self, steps: range) -> None:
        self._steps += len(steps)
        step = self._full_step if self.family == "full" else self._diagonal_step
        for t in steps:
            step(self.next_measurement(), self.step_size(t))
            self._log.note(t, self.mean.sum(-1) + self.precision.flatten(1).sum(-1))
            if self._first_averaged is not None and t >= self._first_averaged:
                self._averaged += 1
                self._mean_of_means += (self.mean - self._mean_of_means) / self._averaged
                self._mean_of_precisions += (self.precision - self._mean_of_precisions) / self._averaged

    def _mean_gradient(self, measurement: Measurement) -> Float[Tensor, "B k"]:
        seen = measurement.project(as_columns(self.mean))[..., 0]
        return self.likelihood.mean_gradient(self.mean).add_(seen, alpha=self.kl_weight)

    def _full_step(self, measurement: Measurement, rho: float) -> None:
        change = measurement.precision_gradient(self.precision).mul_(self.kl_weight).add_(self.likelihood.precision)
        sizes = self.mean.new_full((len(self.mean),), rho)
        for _ in range(MAX_HALVINGS):
            precision = self.precision + sizes[:, None, None] * change
            tril, info = torch.linalg.cholesky_ex(precision)
            # What is no number will not become one by halves, and need not hold up the others.
            failed = (info != 0) & precision.sum((-2, -1)).isfinite()
            if not bool(failed.any()):
                break
            sizes = torch.where(failed, 0.5 * sizes, sizes)
        gradient = as_columns(self._mean_gradient(measurement))
        direction = solve_tril(tril, solve_tril(tril, gradient), transpose=True)[..., 0]
        self.mean = self.mean - sizes[:, None] * direction
        self.precision = precision

    def _diagonal_step(self, measurement: Measurement, rho: float) -> None:
        kl = measurement.gradient_diagonal(self.mean, self.precision.rsqrt())
        # ∂KL/∂(log s) = s² · 2∂KL/∂(s²), so times Λ it is the natural gradient in Λ.
        change = self.likelihood.precision_diagonal() + self.kl_weight * kl.log_scale * self.precision
        sizes = self.mean.new_full((len(self.mean),), rho)
        for _ in range(MAX_HALVINGS):
            precision = self.precision + sizes[:, None] * change
            failed = (precision <= 0).any(-1)
            if not bool(failed.any()):
                break
            sizes = torch.where(failed, 0.5 * sizes, sizes)
        gradient = self._mean_gradient(measurement)
        direction = gradient / precision
        columns = as_columns(direction)
        curvature = (self.likelihood.precision @ columns).add_(measurement.project(columns), alpha=self.kl_weight)
        best = (gradient * direction).sum(-1) / (direction * curvature[..., 0]).sum(-1)
        # Where the gradient is 0, best is 0/0 and any step will do.
        self.mean = self.mean - torch.fmin(best, sizes)[:, None] * direction
        self.precision = precision

    def posterior(self, k: int) -> GaussianPosterior:
        mean, precision = self.mean, self.precision
        if self._averaged:
            mean, precision = self._mean_of_means, self._mean_of_precisions
        if self.family == "ffg":
            return FactorisedGaussian(mean[:, :k].clone(), precision[:, :k].rsqrt())
        return FullGaussian(mean[:, :k].clone(), tril_of_inverse(precision)[:, :k, :k].clone())

    @property
    def diverged_at(self) -> Int[Tensor, " B"]:
        return self._log.steps

    @property
    def evaluations(self) -> list[int]:
        return [self._steps if stopped is None else stopped for stopped in self.stopped_after]


def tril_of_inverse(precision: Float[Tensor, "B k k"]) -> Float[Tensor, "B k k"]:
    """Lower factor L of Λ⁻¹: with the rows and columns of Λ reversed, Λ = UUᵀ for an upper U, and L = U⁻ᵀ."""
    tril, info = torch.linalg.cholesky_ex(precision.flip(-1, -2))
    tril = torch.where((info == 0)[..., None, None], tril, torch.nan)
    upper = tril.flip(-1, -2)
    identity = torch.eye(upper.shape[-1], dtype=upper.dtype, device=upper.device).expand_as(upper)
    return torch.linalg.solve_triangular(upper.mT, identity, upper=False).tril()
