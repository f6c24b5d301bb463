"""PyTorch's L-BFGS with a strong Wolfe line search, one iteration per step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

HISTORY = 10  #: number of stored pairs, as in SciPy's L-BFGS-B, which trained the paper's models
GRADIENT_TOLERANCE = 1e-7
CHANGE_TOLERANCE = 1e-12  #: absolute, in nats and in parameters; losses are of order 1e3


class LBFGS(torch.optim.LBFGS):
    """A step is one iteration including its line search, so results do not depend on how a run is split into calls.

    PyTorch evaluates the loss again at the start of every call. That point is usually the line search's last
    evaluation; the value and gradient in the state are then reused, including after loading a checkpoint.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(
            parameters,
            max_iter=1,
            max_eval=100,
            history_size=HISTORY,
            tolerance_grad=GRADIENT_TOLERANCE,
            tolerance_change=CHANGE_TOLERANCE,
            line_search_fn="strong_wolfe",
        )
        self.param_groups[0]["loss_before"] = math.inf
        self.converged = False

    def step(self, closure: Callable[[], Tensor]) -> float:  # type: ignore[override]
        """One iteration; returns the loss at its start, which is not finite if the search cannot continue.

        `converged` is set by PyTorch's convergence tests, which PyTorch itself applies within one call only.
        """
        start, group = self._position(), self.param_groups[0]
        value = float(super().step(lambda: self._evaluate(closure)))  # type: ignore[no-untyped-call, arg-type]
        moved = float((self._position() - start).abs().max())
        small = abs(group["loss_before"] - value) < CHANGE_TOLERANCE or moved <= CHANGE_TOLERANCE
        self.converged, group["loss_before"] = small and math.isfinite(value), value
        return value

    def _position(self) -> Float[Tensor, " n"]:
        return parameters_to_vector(self.param_groups[0]["params"]).detach()

    def _evaluate(self, closure: Callable[[], Tensor]) -> float:
        parameters, position = self.param_groups[0]["params"], self._position()
        last = self.state[parameters[0]]
        if "position" in last and torch.equal(position, last["position"]):
            for parameter, gradient in zip(parameters, last["gradients"], strict=True):
                parameter.grad = gradient
            return last["value"]
        self.zero_grad()
        loss = closure()
        loss.backward()  # type: ignore[no-untyped-call]
        value = float(loss.detach())
        if not math.isfinite(value):
            # The step was too long: on an infinite value and a NaN gradient the line search halves it.
            value = math.inf
            for parameter in parameters:
                parameter.grad.fill_(math.nan)
        last.update(position=position, value=value, gradients=[parameter.grad for parameter in parameters])
        return value
