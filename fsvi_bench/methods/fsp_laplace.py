"""FSP-Laplace: Laplace's approximation under a Gaussian process prior, at a context set (Cinquin et al. 2024).

The log prior of a function is −½ of its norm in the prior's RKHS, taken at context inputs C. With an orthonormal basis
V (k×r) of the row space of Φ_C it is −½‖Vᵀw‖², since Φ_Cᵀ(Φ_CΦ_Cᵀ)⁺Φ_C = VVᵀ: the prior N(0, I) in directions that C
constrains, and a flat prior in the others. The posterior's mean is the mode (ΦᵀΦ/σ² + VVᵀ)⁺Φᵀy/σ². If rank Φ_C = k,
mean and covariance are the exact posterior's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.batching import fill
from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.maths.linalg import inverse_tril, tril_of_gram
from fsvi_bench.maths.projection import RANK_TOLERANCE, least_squares, row_space
from fsvi_bench.methods.base import Method, MethodOptions, Optimum
from fsvi_bench.methods.data import Batch, Rows, distinct_rows, expected_nll
from fsvi_bench.methods.inputs import training_rows
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.weight_space import kl_to
from fsvi_bench.posteriors.gaussian import FactorGaussian
from fsvi_bench.tasks.task import BOX_POINTS, Task


class FspLaplace(Method):
    """The Gaussian at the mode with the objective's curvature there.

    `truncation: none` inverts the whole curvature; the pseudo-inverse gives variance 0 to directions that neither the
    data nor C constrain. `context-span` inverts its restriction to the row space of Φ_C, V(Vᵀ(ΦᵀΦ/σ² + I)V)⁻¹Vᵀ, which
    has no density if r < k.
    """

    class Options(MethodOptions):
        """`data`: all training inputs; `inducing-points`: those of the features; `box`: the first `context_points` of
        the box inputs; `mixed`: distinct training inputs for half of them."""

        context: Literal["data", "box", "mixed", "inducing-points"] = "data"
        context_points: Annotated[int, Field(ge=1, le=BOX_POINTS)] = 100
        truncation: Literal["none", "context-span"] = "none"

        @property
        def from_data(self) -> int:
            """How many of a mixed context's points are training inputs."""
            return self.context_points // 2

    families = ("factor",)
    deterministic = True

    @classmethod
    def check(cls, options: MethodOptions, problem: TrainingData | NetworkData) -> None:
        if options.context == "mixed":  # type: ignore[attr-defined]
            wanted, there = options.from_data, len(distinct_rows(problem.X[0]))  # type: ignore[attr-defined]
            if wanted > there:
                raise InputError(
                    f"a mixed context needs {wanted} distinct training inputs, but a split has only {there}; choose "
                    "fewer context_points"
                )

    def context(self, problem: TrainingData) -> Float[Tensor, "M k"]:
        """Φ_C of one problem."""
        options = self.options
        self.check(options, problem)  # tasks that are given to the class have not been checked
        if options.context == "data":
            return problem.Phi[0]
        if options.context == "inducing-points":
            return problem.feature_map(problem.feature_map.inducing_points)[0]
        from_data = options.from_data if options.context == "mixed" else 0
        rows = torch.from_numpy(distinct_rows(problem.X[0])[:from_data])
        return torch.cat([problem.Phi[0, rows], problem.Phi_box[0, : options.context_points - from_data]])

    def loss(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        """What the mode minimises, at q's mean; the objective does not depend on the covariance."""
        at_mean = Gaussian(q.mean, torch.zeros_like(q.mean))
        return expected_nll(at_mean, batch.rows) + 0.5 * (q.mean @ batch.Phi_A).square().sum(-1)

    def held_out(self, place: int, task: Task, sets: int) -> Sequence[Batch]:
        problem = TrainingData.of(task)
        return [Batch(Rows.whole(problem), Phi_A=fill(row_space(self.context(problem))))]

    def optimum(self, place: int, task: Task) -> Optimum:
        q = self.solved[place]
        return Optimum(self.objective(place, task), kl_to(task.truth.posterior, q))

    def solve(self, problem: TrainingData) -> FactorGaussian:
        (Phi, y), V = training_rows(problem), row_space(self.context(problem))
        curvature = torch.cat([Phi, V.mT])
        mean = least_squares(curvature, y)
        if self.options.truncation == "context-span":
            # VᵀΛV = CCᵀ with C from the rows [ΦV; I]; its inverse has the factor C⁻ᵀ.
            factor = V @ inverse_tril(tril_of_gram(curvature @ V)).mT
        else:
            _, s, Vh = torch.linalg.svd(curvature, full_matrices=False)
            known = s > RANK_TOLERANCE * s[0]
            factor = Vh[known].mT / s[known]
        missing = problem.k - factor.shape[1]
        return FactorGaussian(mean[None], torch.nn.functional.pad(factor, (0, missing))[None])
