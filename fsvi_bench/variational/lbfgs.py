"""L-BFGS with a strong Wolfe line search, one optimiser per problem (PyTorch's own)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from fsvi_bench.posteriors.gaussian import GaussianPosterior, stack
from fsvi_bench.variational.descent import Descent
from fsvi_bench.variational.parameters import Parameters

HISTORY = 10  #: pairs kept, as in SciPy's L-BFGS-B, with which the paper's models were trained
GRADIENT_TOLERANCE = 1e-7
CHANGE_TOLERANCE = 1e-12  #: absolute, in nats and in parameters; losses are of order 1e3


class LbfgsDescent(Descent):
    """A step is one iteration, line search included. A problem that has converged, or diverged, takes no more steps.

    Args:
        q: parameters of each problem, a batch of one apiece.
        losses: for each problem, sets the gradient at its q and returns the loss there.
    """

    def __init__(self, q: Sequence[Parameters], losses: Sequence[Callable[[], float]]) -> None:
        self.q, self.losses = q, losses
        self._optimizers = [
            torch.optim.LBFGS(
                p.parameters(),
                history_size=HISTORY,
                tolerance_grad=GRADIENT_TOLERANCE,
                tolerance_change=CHANGE_TOLERANCE,
                line_search_fn="strong_wolfe",
            )
            for p in q
        ]
        self._done = [False] * len(q)
        self._diverged_at = torch.full((len(q),), -1, dtype=torch.int64)

    def run(self, steps: range) -> None:
        for problem in range(len(self.q)):
            if not self._done[problem]:
                self._run_one(problem, steps)

    def _run_one(self, problem: int, steps: range) -> None:
        optimizer, q, loss = self._optimizers[problem], self.q[problem], self.losses[problem]
        group = optimizer.param_groups[0]
        group["max_iter"], group["max_eval"] = len(steps), 100 * len(steps)

        def closure() -> float:
            q.refresh()
            value = loss()
            if math.isfinite(value):
                return value
            # One too far: from infinity, and a gradient that is no number, the line search turns back by halves.
            for parameter in q.parameters():
                assert parameter.grad is not None
                parameter.grad.fill_(math.nan)
            return math.inf

        before = self._iterations(problem)
        value = optimizer.step(closure)  # type: ignore[no-untyped-call]
        q.refresh()
        if not math.isfinite(float(value)):
            self._diverged_at[problem], self._done[problem] = steps.start, True
        elif self._iterations(problem) - before < len(steps):
            self._done[problem] = True

    def _iterations(self, problem: int) -> int:
        return self._state(problem, "n_iter")

    def _state(self, problem: int, name: str) -> int:
        """One of PyTorch's own counters."""
        optimizer = self._optimizers[problem]
        return int(optimizer.state[optimizer.param_groups[0]["params"][0]].get(name, 0))

    def posterior(self, k: int) -> GaussianPosterior:
        return stack([q.posterior(k)[0] for q in self.q])

    @property
    def diverged_at(self) -> Int[Tensor, " B"]:
        return self._diverged_at

    @property
    def evaluations(self) -> list[int]:
        return [self._state(problem, "func_evals") for problem in range(len(self.q))]

    @property
    def finished(self) -> bool:
        return all(self._done)
