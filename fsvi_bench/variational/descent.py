"""Ways down an objective for B problems side by side, each stopping, failing and converging on its own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.variational.parameters import PosteriorParameters


class Descent(ABC):
    """Steps of all problems; the first one is number 0."""

    @abstractmethod
    def run(self, steps: range) -> None:
        """Does these steps, which follow on those done before."""

    @abstractmethod
    def posterior(self, k: int) -> Posterior:
        """q over the first k weights, all problems."""

    @property
    @abstractmethod
    def diverged_at(self) -> Int[Tensor, " B"]:
        """The step at which a problem's loss was no number any more, −1 where it always was."""

    @property
    @abstractmethod
    def evaluations(self) -> list[int]:
        """How many gradients each problem has asked for."""

    @property
    def stopped_after(self) -> list[int | None]:
        """How many steps each problem took until nothing could move it any more; None for one still under way."""
        return [None if step < 0 else step + 1 for step in self.diverged_at.tolist()]

    @property
    def finished(self) -> bool:
        """True when no problem has anything left to do."""
        return None not in self.stopped_after


class DivergenceLog:
    """Remembers when a problem's loss first was not finite; costs no synchronisation with a GPU."""

    def __init__(self, B: int, device: torch.device) -> None:
        self.steps = torch.full((B,), -1, dtype=torch.int64, device=device)

    def note(self, step: int, loss: Float[Tensor, " B"]) -> None:
        self.steps.masked_fill_(~loss.isfinite() & (self.steps < 0), step)


@dataclass(frozen=True)
class LearningRate:
    """A learning rate over a run of `total` steps: constant, or falling to 0 linearly or along half a cosine."""

    initial: float
    schedule: Literal["constant", "linear", "cosine"]
    total: int

    def __call__(self, step: int) -> float:
        remaining = 1 - step / self.total
        if self.schedule == "linear":
            return self.initial * remaining
        if self.schedule == "cosine":
            return self.initial * 0.5 * (1 - math.cos(math.pi * remaining))
        return self.initial


def first_averaged_step(share: float, total: int) -> int:
    """The first of the last `share` of `total` steps: at least one of them, for a share above 0."""
    return total - max(round(share * total), 1)


class TailAverage:
    """Mean of the parameters' values after each step from `first_step` on (Polyak and Ruppert)."""

    def __init__(self, parameters: Iterable[nn.Parameter], first_step: int) -> None:
        self.parameters, self.first_step, self.count = list(parameters), first_step, 0
        self.means = [torch.zeros_like(parameter.data) for parameter in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """To be called after step number `step`."""
        if step < self.first_step:
            return
        self.count += 1
        for mean, parameter in zip(self.means, self.parameters, strict=True):
            mean += (parameter - mean) / self.count

    @torch.no_grad()
    def swap(self) -> None:
        """Exchanges the parameters and their means."""
        for mean, parameter in zip(self.means, self.parameters, strict=True):
            kept = parameter.clone()
            parameter.copy_(mean)
            mean.copy_(kept)


class AdamDescent(Descent):
    """Adam (Kingma and Ba 2015), elementwise and therefore each problem by itself.

    Args:
        set_gradient: draws what a step needs, hands its gradient to q and returns a loss per problem, or any number
            that is not finite whenever the loss is not.
        averaging: share of the steps, at the run's end, whose iterates are averaged; 0 takes the last one.
    """

    def __init__(
        self,
        q: PosteriorParameters,
        set_gradient: Callable[[], Float[Tensor, " B"]],
        learning_rate: LearningRate,
        averaging: float = 0.0,
    ) -> None:
        self.q, self.set_gradient, self.learning_rate = q, set_gradient, learning_rate
        self.optimizer = torch.optim.Adam(q.parameters(), lr=learning_rate.initial, fused=True)
        first_averaged = first_averaged_step(averaging, learning_rate.total)
        self._average = TailAverage(q.parameters(), first_averaged) if averaging else None
        self._log, self._steps = DivergenceLog(len(q.mean), q.mean.device), 0

    def run(self, steps: range) -> None:
        self._steps += len(steps)
        for step in steps:
            self._log.note(step, self.set_gradient())
            self.optimizer.param_groups[0]["lr"] = self.learning_rate(step)
            self.optimizer.step()
            self.q.refresh()
            if self._average is not None:
                self._average.update(step)

    def posterior(self, k: int) -> Posterior:
        if self._average is None or not self._average.count:
            return self.q.posterior(k)
        self._average.swap()
        self.q.refresh()
        averaged = self.q.posterior(k)
        self._average.swap()
        self.q.refresh()
        return averaged

    @property
    def diverged_at(self) -> Int[Tensor, " B"]:
        return self._log.steps

    @property
    def evaluations(self) -> list[int]:
        return [self._steps if stopped is None else stopped for stopped in self.stopped_after]
