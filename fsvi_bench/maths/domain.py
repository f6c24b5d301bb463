"""Refusals of numbers outside the domain of a formula, in one plain sentence each. NaN is outside every domain."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fsvi_bench.errors import InputError


def require_retain_probability(values: Tensor | float) -> None:
    """Raises InputError unless all lie in (0, 1]."""
    wrong = _first_outside(values, lambda p: (p > 0) & (p <= 1))
    if wrong is not None:
        raise InputError(
            f"retain probability is {wrong:g}, expected a number in (0, 1]; give the probability to KEEP a weight, "
            "which is 1 minus the dropout rate"
        )


def require_open_probability(name: str, values: Tensor | float) -> None:
    """Raises InputError unless all lie in (0, 1)."""
    wrong = _first_outside(values, lambda p: (p > 0) & (p < 1))
    if wrong is not None:
        raise InputError(f"{name} is {wrong:g}, expected a number in (0, 1), both ends excluded; choose one inside")


def require_positive(name: str, values: Tensor | float) -> None:
    """Raises InputError unless all are positive and finite."""
    wrong = _first_outside(values, lambda x: (x > 0) & torch.isfinite(x))
    if wrong is not None:
        raise InputError(f"{name} is {wrong:g}, expected a positive finite number; give one above 0")


def _first_outside(values: Tensor | float, inside: Callable[[Tensor], Tensor]) -> float | None:
    tensor = torch.as_tensor(values, dtype=torch.float64)
    good = inside(tensor)
    return None if bool(good.all()) else float(tensor[~good].flatten()[0])
