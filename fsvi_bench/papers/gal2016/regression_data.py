"""One-dimensional regression problems with known truth, for the experiments of Gal (2016), sections 6.4 and 6.7."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.seeds import derived_generator


class RegressionData(NamedTuple):
    """In float32."""

    x: Float[Tensor, "N D"]
    y: Float[Tensor, " N"]
    x_test: Float[Tensor, "N_test D"]
    y_test: Float[Tensor, " N_test"]


class Problem(NamedTuple):
    """y = f(x) + N(0, noise²)."""

    name: str
    draw_inputs: Callable[[np.random.Generator, int], np.ndarray]
    f: Callable[[np.ndarray], np.ndarray]
    noise: float  #: standard deviation

    def draw(self, N: int, N_test: int = 1000, seed: int = 0, device: str = "cpu") -> RegressionData:
        """Training and test points, from streams of their own."""
        tensors = []
        for role, n in (("train", N), ("test", N_test)):
            rng = derived_generator("networks", self.name, role, seed)
            x = self.draw_inputs(rng, n)
            y = self.f(x) + self.noise * rng.standard_normal(n)
            tensors += [torch.as_tensor(each, dtype=torch.float32, device=device) for each in (x[:, None], y)]
        return RegressionData(*tensors)


#: The stand-in for Snelson and Ghahramani's data, which have no licence to be passed on. Like those: one input on
#: [0, 6], here shifted to [−3, 3], a smooth function of a few wiggles between about ±1, and Gaussian noise, here of a
#: precision of 12.8, between the model precisions 10 and 20 of section 6.4.
WAVES = Problem(
    "waves", lambda rng, n: rng.uniform(-3, 3, n), lambda x: 0.8 * np.sin(1.5 * x) + 0.5 * np.sin(3.1 * x + 0.5), 0.28
)
#: Of section 6.7. The text does not say where x lies: standard normal is a declared choice.
LINE = Problem("line", lambda rng, n: rng.standard_normal(n), lambda x: 2 * x + 8, 1.0)
