"""Random number streams for networks, one per purpose."""

from __future__ import annotations

import torch

from fsvi_bench.seeds import derive_seed


def stream(device: str | torch.device, *parts: str | int) -> torch.Generator:
    """A generator for the purpose that `parts` name."""
    return torch.Generator(device).manual_seed(derive_seed(*parts) % 2**63)
