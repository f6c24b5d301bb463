"""Functions of single numbers that round alike wherever a number stands in a batch.

torch's own `sigmoid` and `logaddexp` round differently in the vectorised body of a loop and in its remainder, so that a
problem's result would depend, in its last bit, on what shares its batch. `exp`, `log` and `log1p` do not.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def on_and_off(log_odds: Float[Tensor, "*B"]) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
    """Probabilities (r, 1 − r), both to full relative precision."""
    small = (-log_odds.abs()).exp()
    larger = 1 / (1 + small)
    smaller, positive = small * larger, log_odds > 0
    return torch.where(positive, larger, smaller), torch.where(positive, smaller, larger)


def sigmoid(x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """1/(1 + e⁻ˣ)."""
    return on_and_off(x)[0]


def softplus(x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """log(1 + eˣ)."""
    return x.clamp(min=0) + (-x.abs()).exp().log1p()
