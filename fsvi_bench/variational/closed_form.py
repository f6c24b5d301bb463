"""The way down in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.tasks.training_problems import TrainingProblems
from fsvi_bench.variational.descent import Descent


class ClosedForm(Descent):
    """Solves for the optimum at the first step; there is no posterior before it.

    Problem by problem, on copies: how LAPACK rounds must not depend on the batch. A problem whose targets are no
    numbers has a solution of NaN, which names it as diverged and spares the others.

    Args:
        solve: the parameters of one problem's posterior, by name, each with a leading axis of 1.
        make: the posterior of a batch with these parameters.
    """

    def __init__(
        self,
        problems: TrainingProblems,
        solve: Callable[[TrainingProblems], Mapping[str, Tensor]],
        make: Callable[..., Posterior],
    ) -> None:
        self.problems, self.B, self._solve, self._make = problems, len(problems), solve, make

    def run(self, steps: range) -> None:
        solved = []
        for b in range(self.B):
            one = self.problems.only(b)
            if bool(one.y.isfinite().all()):
                solved.append(self._solve(one))
            else:
                found = self._solve(replace(one, y=torch.zeros_like(one.y)))
                solved.append({name: torch.full_like(tensor, torch.nan) for name, tensor in found.items()})
        self._posterior = self._make(**{name: torch.cat([each[name] for each in solved]) for name in solved[0]})

    def posterior(self, k: int) -> Posterior:
        return self._posterior

    @property
    def diverged_at(self) -> Int[Tensor, " B"]:
        return torch.full((self.B,), -1, dtype=torch.int64)

    @property
    def evaluations(self) -> list[int]:
        return [0] * self.B
