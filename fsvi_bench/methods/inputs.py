"""Methods regularised by an expectation over a fixed distribution ρ of inputs: training inputs, box inputs or both.

For a network, which has no second moment E_ρ[φφᵀ] of features, measurement sets are drawn from ρ instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.methods.base import GaussianOptions, Method, MethodOptions, Optimum
from fsvi_bench.methods.data import Batch, Rows, TaskData, fill_columns, fixed_sets
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.weight_space import kl_to
from fsvi_bench.tasks.task import Task


class LawOptions(GaussianOptions):
    """The distribution ρ of inputs: the training inputs, the 1,000 box inputs, or half the weight on each.

    `training`: `closed-form` takes the objective's optimum; `adam` descends the objective, as `GaussianOptions` say.
    """

    rho: Literal["data", "box", "mixed"] = "data"
    training: Literal["closed-form", "adam"] = "closed-form"


class LawMethod(Method):
    """A method whose regulariser depends on ρ through G = E_ρ[φφᵀ]; its optimum is a formula, or found numerically."""

    Options: ClassVar[type[MethodOptions]] = LawOptions
    seen: Float[Tensor, "B k k"]  #: roots R of G = RᵀR

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.is_network:
            alone = map(self.problems.only, range(len(self.problems)))
            self.register_buffer("seen", torch.stack([self.root(problem) for problem in alone]))

    def root(self, problem: TrainingData) -> Float[Tensor, "k k"]:
        """R with RᵀR = G, or what a method uses in its place."""
        return root_of_second_moment(problem, self.options.rho)

    def root_at(self, place: int) -> Float[Tensor, "k k"]:
        """R of one problem on the CPU, as a copy: how LAPACK rounds depends on where a matrix lies in memory."""
        return self.seen[place].cpu().clone()

    @classmethod
    def is_deterministic(cls, options: MethodOptions) -> bool:
        return options.training == "closed-form" or options.minibatch == "full"  # type: ignore[attr-defined]

    @classmethod
    def trains_with(cls, options: MethodOptions) -> bool:
        return options.training == "adam"  # type: ignore[attr-defined]

    def data(self) -> TaskData:
        return self._data() if self.is_network else self._data(fixed_A=self.seen)

    def held_out(self, place: int, task: Task, sets: int) -> Sequence[Batch]:
        if self.is_network:
            return super().held_out(place, task, sets)
        Phi_A = fill_columns(self.root_at(place)[None])
        return [Batch(Rows.whole(TrainingData.of(task)), *fixed_sets(Phi_A, self.design))]

    def cost(self) -> dict[str, int]:
        return super().cost() if self.is_network else {"likelihood_rows": self.rows_per_step}

    def optimum(self, place: int, task: Task) -> Optimum:
        q = self.solved[place]
        value = self.objective(place, task, q=Gaussian(q.mean[None], q.root[None]))
        return Optimum(value, kl_to(task.truth.posterior, q))


def root_of_second_moment(problem: TrainingData, rho: Literal["data", "box", "mixed"]) -> Float[Tensor, "k k"]:
    """R with RᵀR = E_ρ[φφᵀ] of one problem, by QR."""
    laws = {"data": [problem.Phi], "box": [problem.Phi_box], "mixed": [problem.Phi, problem.Phi_box]}[rho]
    rows = torch.cat([Phi[0] / (len(laws) * Phi.shape[1]) ** 0.5 for Phi in laws])
    R = torch.linalg.qr(rows, mode="r").R
    return pad(R, (0, 0, 0, problem.k - len(R)))


def training_rows(problem: TrainingData) -> tuple[Float[Tensor, "n k"], Float[Tensor, " n"]]:
    """Φ/σ and y/σ of one problem, or at most k + 1 rows with the same inner products."""
    rows = Rows.whole(problem)
    return rows.Phi[0, :, : problem.k], rows.y[0]
