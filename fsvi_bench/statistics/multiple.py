"""Several tests at once. SciPy corrects for the false discovery rate only."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from fsvi_bench.errors import InputError
from fsvi_bench.statistics.arrays import one_row


def holm(p_values: ArrayLike) -> Float[np.ndarray, " m"]:
    """Adjusted p-values of m tests, in their order: those at most α are rejected at family-wise error rate α.

    The i-th smallest becomes max over j ≤ i of (m − j + 1) p_(j), at most 1 (Holm 1979, *A simple sequentially
    rejective multiple test procedure*, Scand. J. Statist. 6). The tests may depend on each other in any way.

    Raises:
        InputError: a value out of [0, 1], or NaN.
    """
    p = one_row("p_values", p_values)
    if p.min() < 0 or p.max() > 1:
        raise InputError(f"p_values go from {p.min():g} to {p.max():g}, expected numbers in [0, 1]")
    order = np.argsort(p)
    stepwise = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(stepwise, 1.0)[np.argsort(order)]
