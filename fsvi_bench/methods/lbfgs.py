"""L-BFGS with a strong Wolfe line search (PyTorch's own), an iteration a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

HISTORY = 10  #: pairs kept, as in SciPy's L-BFGS-B, with which the paper's models were trained
GRADIENT_TOLERANCE = 1e-7
CHANGE_TOLERANCE = 1e-12  #: absolute, in nats and in parameters; losses are of order 1e3


class LBFGS(torch.optim.LBFGS):
    """A step is one iteration, line search included, so that no result depends on how a run is cut into calls.

    PyTorch evaluates the loss anew at the start of every call. Where that is the point of the line search's last
    evaluation, as it mostly is, the value and gradient that the state holds are taken, also of a checkpoint.
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
        """One iteration; returns the loss at its start, which is not finite where the search cannot go on.

        `converged` is then what PyTorch's own tests would say, which end with a call.
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
            # One too far: from infinity, and a gradient that is no number, the line search turns back by halves.
            value = math.inf
            for parameter in parameters:
                parameter.grad.fill_(math.nan)
        last.update(position=position, value=value, gradients=[parameter.grad for parameter in parameters])
        return value
