"""L-BFGS with a strong Wolfe line search, one optimiser per problem (PyTorch's own)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils import parameters_to_vector

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
        self.searches = [Search(one, loss) for one, loss in zip(q, losses, strict=True)]

    def run(self, steps: range) -> None:
        for search in self.searches:
            for step in steps:
                if search.stopped_after is None:
                    search.iterate(step)

    def posterior(self, k: int) -> GaussianPosterior:
        return stack([search.q.posterior(k)[0] for search in self.searches])

    @property
    def diverged_at(self) -> Int[Tensor, " B"]:
        return torch.tensor([search.diverged_at for search in self.searches])

    @property
    def stopped_after(self) -> list[int | None]:
        return [search.stopped_after for search in self.searches]

    @property
    def evaluations(self) -> list[int]:
        return [search.evaluations for search in self.searches]


class Search:
    """One problem's optimiser, an iteration at a time, so that no result depends on how a run is cut into ranges.

    PyTorch evaluates the loss anew at the start of every call. Where that is the point of the line search's last
    evaluation, as it mostly is, the gradient is still there.
    """

    def __init__(self, q: Parameters, loss: Callable[[], float]) -> None:
        self.q, self.loss = q, loss
        self.evaluations, self.diverged_at = 0, -1
        self.stopped_after: int | None = None
        self.optimizer = torch.optim.LBFGS(
            q.parameters(),
            max_iter=1,
            max_eval=100,
            history_size=HISTORY,
            tolerance_grad=GRADIENT_TOLERANCE,
            tolerance_change=CHANGE_TOLERANCE,
            line_search_fn="strong_wolfe",
        )
        self._evaluated_at: Tensor | None = None
        self._value = self._loss_before = math.inf

    def iterate(self, step: int) -> None:
        """Iteration number `step`; PyTorch's own tests of convergence end with a call, so the same are made here."""
        start = self._position()
        value = float(self.optimizer.step(self._evaluate))  # type: ignore[no-untyped-call]
        self.q.refresh()
        if not math.isfinite(value):
            self.diverged_at, self.stopped_after = step, step + 1
        elif (
            abs(self._loss_before - value) < CHANGE_TOLERANCE
            or float((self._position() - start).abs().max()) <= CHANGE_TOLERANCE
        ):
            self.stopped_after = step + 1
        self._loss_before = value

    def _position(self) -> Float[Tensor, " n"]:
        return parameters_to_vector(self.q.parameters()).detach()

    def _evaluate(self) -> float:
        self.q.refresh()
        position = self._position()
        if self._evaluated_at is not None and torch.equal(position, self._evaluated_at):
            return self._value
        self.evaluations += 1
        self._evaluated_at, self._value = position, self.loss()
        if not math.isfinite(self._value):
            # One too far: from infinity, and a gradient that is no number, the line search turns back by halves.
            self._value = math.inf
            for parameter in self.q.parameters():
                assert parameter.grad is not None
                parameter.grad.fill_(math.nan)
        return self._value
