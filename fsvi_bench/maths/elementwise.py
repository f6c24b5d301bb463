"""Elementwise functions whose rounding does not depend on a number's place in a batch.

torch's `sigmoid` and `logaddexp` round differently in the vectorised body of a loop and in its remainder, so the last
bit of a problem's result would depend on the rest of its batch. `exp`, `log` and `log1p` do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fsvi_bench.maths.shapes import PerProblem


def on_and_off(log_odds: PerProblem) -> tuple[PerProblem, PerProblem]:
    """Probabilities (r, 1 − r), both to full relative precision."""
    small = (-log_odds.abs()).exp()
    larger = 1 / (1 + small)
    smaller, positive = small * larger, log_odds > 0
    return torch.where(positive, larger, smaller), torch.where(positive, smaller, larger)


class _WithSlope(torch.autograd.Function):
    """An elementwise function and its derivative, which is differentiable if `slope` is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        return value(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        return grad_outputs[0] * ctx.slope(*ctx.saved_tensors), None, None


def with_slope(x: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Tensor:
    """`value(x)` with the derivative `slope(x)`."""
    return _WithSlope.apply(x, value, slope)  # type: ignore[no-untyped-call]


def sigmoid(x: PerProblem) -> PerProblem:
    """1/(1 + e⁻ˣ)."""
    return with_slope(x, lambda x: on_and_off(x)[0], lambda x: sigmoid(x) * sigmoid(-x))


def softplus(x: PerProblem) -> PerProblem:
    """log(1 + eˣ)."""
    return with_slope(x, lambda x: x.clamp(min=0) + (-x.abs()).exp().log1p(), sigmoid)


def horner(coefficients: Sequence[float] | NDArray[Any], x: PerProblem) -> PerProblem:
    """Σ_k coefficients[k] x^k."""
    value = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value
