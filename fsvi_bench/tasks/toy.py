"""The toy problem of Burt et al. (2020), appendix F.1: data drawn from the model itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsvi_bench.seeds import derived_generator

Array = NDArray[np.float64]

CENTRES = np.linspace(-2.0, 2.0, 20)
LENGTHSCALE = 0.2
NOISE_VARIANCE = 0.1**2
N_TRAIN = 40
TEST_GRID = np.linspace(-2.5, 2.5, 200)

#: The task's tensors; nothing is standardised, whitened or scaled.
TENSORS: dict[str, Any] = {
    "inducing_points": CENTRES[:, None], "lengthscales": [LENGTHSCALE], "outputscale": 1, "jitter": 0,
    "noise_variance": NOISE_VARIANCE, "input_mean": [0], "input_std": [1], "target_mean": 0, "target_std": 1,
}  # fmt: skip


def toy_function(x: Array, weights: Array) -> Array:
    """f(x) = Σ_j w_j exp(−½((x − c_j)/0.2)²) at x [n]."""
    scaled = (x[:, None] - CENTRES) / LENGTHSCALE
    return np.array([math.fsum(w * math.exp(-0.5 * z * z) for w, z in zip(weights, row)) for row in scaled])  # noqa: B905


def draw_toy(split: int) -> tuple[Array, Array]:
    """Inputs [240,1] and noisy targets [240]: first the 40 training points, then the test grid.

    Inputs, weights and noise have separate random streams, so each can be redrawn without changing the others. The data
    are identified by their bytes. They are therefore computed without BLAS or vectorised exponentials, whose last bits
    depend on the processor, and rounded to 12 decimals.
    """
    inputs, weights, noise = (derived_generator("toy", split, role) for role in ("inputs", "weights", "noise"))
    left, right = inputs.normal(-1.2, 0.3, 20), inputs.normal(1.2, 0.3, 20)
    x = np.concatenate([left, right, TEST_GRID])
    w = weights.standard_normal(len(CENTRES))
    y = toy_function(x, w) + np.sqrt(NOISE_VARIANCE) * noise.standard_normal(len(x))
    return x[:, None].round(12), y.round(12)
