"""Seeds derived for each purpose: equal parts give equal streams, and streams do not affect one another."""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(*parts: str | int) -> int:
    """A 64-bit seed from the SHA-256 of the parts, e.g. `derive_seed(task_sha256, method, family, seed, role)`."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "little")


def derived_generator(*parts: str | int) -> np.random.Generator:
    """A NumPy generator for one purpose, seeded by `derive_seed`."""
    return np.random.default_rng(derive_seed(*parts))
