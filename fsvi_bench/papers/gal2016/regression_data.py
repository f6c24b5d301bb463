"""One-dimensional regression problems with known truth, for the experiments of Gal (2016), sections 6.4 and 6.7."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.seeds import derived_generator

WAVE_NOISE = 0.28  # a noise precision of 12.8, between the model precisions 10 and 20 of section 6.4


@dataclass(frozen=True)
class RegressionData:
    """float32 unless made otherwise."""

    x: Float[Tensor, "N D"]
    y: Float[Tensor, " N"]
    x_test: Float[Tensor, "N_test D"]
    y_test: Float[Tensor, " N_test"]

    def to(self, device: str | torch.device) -> RegressionData:
        return RegressionData(*(t.to(device) for t in (self.x, self.y, self.x_test, self.y_test)))


def waves(N: int = 5000, N_test: int = 1000, seed: int = 0, dtype: torch.dtype = torch.float32) -> RegressionData:
    """The stand-in for Snelson and Ghahramani's data, which have no licence to be passed on.

    Like those: one input on [0, 6], here shifted to [−3, 3], a smooth function of a few wiggles between about ±1, and
    Gaussian noise of standard deviation 0.28: f(x) = 0.8 sin(1.5 x) + 0.5 sin(3.1 x + 0.5).
    """

    def f(x: np.ndarray) -> np.ndarray:
        return 0.8 * np.sin(1.5 * x) + 0.5 * np.sin(3.1 * x + 0.5)

    return _data("waves", lambda rng, n: rng.uniform(-3, 3, n), f, WAVE_NOISE, (N, N_test, seed), dtype)


def line(N: int, N_test: int = 1000, seed: int = 0, dtype: torch.dtype = torch.float32) -> RegressionData:
    """y = 2x + 8 + N(0, 1) of section 6.7. The text does not say where x lies: standard normal is a declared choice."""
    return _data("line", lambda rng, n: rng.standard_normal(n), lambda x: 2 * x + 8, 1.0, (N, N_test, seed), dtype)


def _data(
    name: str,
    inputs: Callable[[np.random.Generator, int], np.ndarray],
    f: Callable[[np.ndarray], np.ndarray],
    noise: float,
    sizes_and_seed: tuple[int, int, int],
    dtype: torch.dtype,
) -> RegressionData:
    N, N_test, seed = sizes_and_seed
    if N < 1 or N_test < 1:
        raise InputError(f"got {N} training and {N_test} test points, expected at least one of each")
    tensors = []
    for role, n in (("train", N), ("test", N_test)):
        rng = derived_generator("networks", name, role, seed)
        x = inputs(rng, n)
        y = f(x) + noise * rng.standard_normal(n)
        tensors += [torch.as_tensor(x, dtype=dtype)[:, None], torch.as_tensor(y, dtype=dtype)]
    return RegressionData(*tensors)
