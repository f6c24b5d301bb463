"""Checks that numbers are in the domain of a formula. NaN is outside every domain."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from fsvi_bench.errors import InputError


def require_retain_probability(values: Tensor | float) -> None:
    """Raises InputError unless all are in (0, 1]."""
    p = _float64(values)
    keep = "a number in (0, 1]; give the probability to KEEP a weight, which is 1 minus the dropout rate"
    _require("retain probability", p, (p > 0) & (p <= 1), keep)


def require_probability(name: str, values: Tensor | float) -> None:
    """Raises InputError unless all are in [0, 1]."""
    p = _float64(values)
    _require(name, p, (p >= 0) & (p <= 1), "a number in [0, 1]; give a probability")


def require_open_probability(name: str, values: Tensor | float) -> None:
    """Raises InputError unless all are in (0, 1)."""
    p = _float64(values)
    _require(name, p, (p > 0) & (p < 1), "a number in (0, 1), both ends excluded; choose a number in between")


def require_positive(name: str, values: Tensor | float) -> None:
    """Raises InputError unless all are positive and finite."""
    x = _float64(values)
    _require(name, x, (x > 0) & torch.isfinite(x), "a positive finite number; give a number above 0")


def _float64(values: Tensor | float) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def _require(name: str, values: Tensor, good: Bool[Tensor, ...], expected: str) -> None:
    if not bool(good.all()):
        raise InputError(f"{name} is {float(values[~good].flatten()[0]):g}, expected {expected}")
