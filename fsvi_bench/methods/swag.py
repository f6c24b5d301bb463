"""SWAG: a Gaussian fitted to the iterates of SGD (Maddox, Garipov, Izmailov, Vetrov and Wilson 2019)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, PositiveInt
from torch import Tensor

from fsvi_bench.maths.batching import one_by_one, parameter
from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.methods.base import Method, MethodOptions, PositiveShare, StepOptions
from fsvi_bench.methods.data import Batch
from fsvi_bench.methods.points import Points, energies, largest_curvature
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.posteriors.trainable import TrainablePosterior

LEAST_VARIANCE = 1e-30  #: as in the paper's code


class Swag(Method):
    """N(mean, ½(diagonal + rank-K)) of the iterates of SGD with a constant step, one for each pass over the data.

    SGD descends −log p(y, w). Its step is a fraction of the largest stable one, 2(1 + momentum)/λ_max(Λ), since a
    learning rate that suits one task diverges on the next; a network's λ_max is that of the start. Until two iterates
    are collected q is N(iterate, I). Its objective, and the loss in traces, are those of the iterate.
    """

    class Options(StepOptions):
        """`rank`: how many of the last iterates make the low-rank part. Once the share `burn_in` of the steps is over
        (the paper's 161 of 300 epochs), the iterate after each `every` steps is collected, by default after a pass over
        the data."""

        step_size: PositiveShare = 0.1
        momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
        burn_in: Annotated[float, Field(ge=0, lt=1)] = 0.5
        every: PositiveInt | Literal["epoch"] = "epoch"
        rank: Annotated[int, Field(ge=2)] = 20

    families = ("full",)
    networks = "weights"
    step: Float[Tensor, " B"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        stable = 2 * (1 + self.options.momentum) / largest_curvature(self.problems, self.q().w)
        self.register_buffer("step", self.options.step_size * stable)

    @classmethod
    def is_deterministic(cls, options: MethodOptions) -> bool:
        return options.minibatch == "full"  # type: ignore[attr-defined]

    def initial(self) -> Iterates:
        return Iterates(len(self.problems), self.problems.k, self.options.rank)

    def configure_optimizers(self) -> torch.optim.SGD:
        """Each problem has a step of its own, by which `training_step` multiplies its loss."""
        return torch.optim.SGD(self.q.parameters(), lr=1.0, momentum=self.options.momentum)

    def loss(self, q: Points, batch: Batch) -> Float[Tensor, " B"]:
        return energies(q, batch)[:, 0]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        losses = self.loss(self.q(), batch)
        self.note(losses.detach())
        return (self.step * losses).sum()

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Lightning's hook; `on_train_batch_end` would be too late, after a checkpoint of the step is written."""
        super().optimizer_step(*args, **kwargs)
        after = self.steps_done - math.floor(round(self.options.burn_in * self.num_steps, 9))
        every = self.options.every
        every = math.ceil(self.problems.N / self.rows_per_step) if every == "epoch" else every
        if after > 0 and after % every == 0:
            self.q.collect()


class Iterates(TrainablePosterior):
    """An iterate of SGD for each problem, started at 0, and running moments of those that were collected."""

    count: Int[Tensor, ""]
    mean: Float[Tensor, "B k"]
    squares: Float[Tensor, "B k"]  #: sums of squared differences from the mean
    deviations: Float[Tensor, "B rank k"]  #: of the last iterates, each from the mean at its time; newest last

    def __init__(self, B: int, k: int, rank: int) -> None:
        super().__init__()
        self.k, self.w = k, parameter(B, k)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        for name in ("mean", "squares"):
            self.register_buffer(name, torch.zeros_like(self.w.data))
        self.register_buffer("deviations", torch.zeros(B, rank, self.w.shape[1], dtype=torch.float64))

    @torch.no_grad()
    def start(self, mean: Float[Tensor, "B k"], scale: float) -> None:
        """Moves the iterate there."""
        self.w[:, : self.k] = mean

    def forward(self) -> Points:
        return Points(self.w[:, None, : self.k])

    @torch.no_grad()
    def collect(self) -> None:
        """Adds the current iterate to the moments (Welford), and its difference from their mean to the deviations."""
        self.count += 1
        before = self.w - self.mean
        self.mean += before / self.count
        after = self.w - self.mean
        self.squares += before * after
        self.deviations = torch.cat([self.deviations[:, 1:], after[:, None]], 1)

    @torch.no_grad()
    def posterior(self) -> FullGaussian:
        """½ diag(variances) + ½ DDᵀ/(K − 1), K the number of deviations (Maddox et al. 2019, section 3.2)."""
        count, (rank, k) = int(self.count), (self.deviations.shape[1], self.k)
        if count < 2:
            return FullGaussian(self.w[:, :k].clone(), torch.diag_embed(torch.ones_like(self.w[:, :k])))
        scale = (0.5 * self.squares[:, :k] / count).clamp(min=0.5 * LEAST_VARIANCE).sqrt()
        deviations = self.deviations[..., :k] / (2 * (min(count, rank) - 1)) ** 0.5
        rows = torch.cat([torch.diag_embed(scale), deviations], 1)
        return FullGaussian(self.mean[:, :k].clone(), one_by_one(tril_of_gram, rows))
