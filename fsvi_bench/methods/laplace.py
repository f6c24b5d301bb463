"""Laplace's approximation: with the full curvature, its diagonal or its largest eigenvalues (Daxberger et al. 2021)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor

from fsvi_bench.maths.blr import blr_posterior, covariance_tril, mean_field_optimum_scale
from fsvi_bench.maths.linalg import identity
from fsvi_bench.methods.base import ExactLimit, Method, MethodOptions
from fsvi_bench.methods.networks import Linearised, NetworkData, require_part
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.gaussian import FullGaussian


class Laplace(Method):
    """N(m*, Λ̃⁻¹) with an approximation Λ̃ of Λ = I + ΦᵀΦ/σ².

    `full` is the exact posterior, since the log joint is quadratic; so are a last layer's Laplace, and a Kronecker
    one with a single output. `diag` keeps Λ's diagonal, and is EXACT-FFG. `low-rank` keeps the `rank` largest
    eigenvalues of ΦᵀΦ/σ²: Λ̃ = I + U_r D_r U_rᵀ.

    A network's Λ is that of its tangent at a mode (Gauss-Newton), and so are the functions drawn (the linearised
    predictive). Its mode is found by L-BFGS from a draw of the prior, so it depends on the seed. `kronecker` takes the
    Kronecker factors of its layers.
    """

    class Options(MethodOptions):
        """With a rank of k or more, `low-rank` is `full`; so is `kronecker` for a linear model."""

        structure: Literal["full", "diag", "low-rank", "kronecker"] = "full"
        rank: PositiveInt = 10

    families = ("full",)
    networks = "tangent"
    deterministic = True
    exact_limits = {"full": ExactLimit({"structure": "full"}, tolerance=1e-9)}

    @classmethod
    def check(cls, options: MethodOptions, problem: TrainingData | NetworkData) -> None:
        super().check(options, problem)
        assert isinstance(options, Laplace.Options)
        if options.structure == "kronecker" and isinstance(problem, NetworkData):
            require_part(problem.model, "kronecker_gram", "structure=kronecker")

    def solve(self, problem: TrainingData) -> FullGaussian:
        if self.options.structure == "kronecker" and isinstance(problem, Linearised):
            gram = problem.feature_map.network.model.kronecker_gram(problem.Phi[0], problem.X[0])
            precision = gram / problem.noise_variance + identity(problem.k, gram)
            return FullGaussian(problem.feature_map.at, covariance_tril(torch.linalg.cholesky(precision))[None])
        exact = blr_posterior(problem.Phi, problem.y, problem.noise_variance)
        if self.options.structure == "diag":
            return FullGaussian(exact.mean, torch.diag_embed(mean_field_optimum_scale(exact.precision_tril)))
        if self.options.structure == "low-rank" and self.options.rank < problem.k:
            tril = low_rank_tril(problem.Phi[0] / problem.noise_variance.sqrt(), self.options.rank)
            return FullGaussian(exact.mean, tril[None])
        return FullGaussian(exact.mean, covariance_tril(exact.precision_tril))


def low_rank_tril(rows: Float[Tensor, "n k"], rank: int) -> Float[Tensor, "k k"]:
    """Factor of (I + U_r D_r U_rᵀ)⁻¹, U_r D_r U_rᵀ being the best approximation of rank r of AᵀA for rows A.

    With the singular values s_i of A, the precision's factor is that of [diag(s_1, ..., s_r)U_rᵀ; I].
    """
    _, s, V = torch.linalg.svd(rows, full_matrices=False)
    curvature = s[:rank, None] * V[:rank]
    zero = torch.zeros_like(curvature[:, 0])
    kept = blr_posterior(curvature, zero, torch.ones_like(s[0]))
    return covariance_tril(kept.precision_tril)
