"""The likelihood of one target y given f: N(f, σ²), or Bernoulli(sigmoid(f)) where there is no noise variance.

Targets of the latter are 0 and 1. Its curvature −∂² log p(y | f)/∂f² is sigmoid(f) sigmoid(−f), at most ¼.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from fsvi_bench.maths.gaussian import normal_log_density

LARGEST_CURVATURE = 0.25  #: of a Bernoulli likelihood


def log_density(
    y: Float[Tensor, "*#B"], f: Float[Tensor, "*#B"], noise_variance: Float[Tensor, "*#B"] | None
) -> Float[Tensor, "*#B"]:
    """log p(y | f), elementwise."""
    if noise_variance is None:
        return logsigmoid((2 * y - 1) * f)
    return normal_log_density(y, f, noise_variance)


class Working(NamedTuple):
    """Of a Bernoulli likelihood near f: with targets `residual` and noise 1, rows `root`·∂f/∂w give Newton's step."""

    root: Float[Tensor, "*B"]  #: the curvature's
    residual: Float[Tensor, "*B"]  #: ∂ log p(y | f)/∂f over `root`


def working(y: Float[Tensor, "*B"], f: Float[Tensor, "*B"]) -> Working:
    """With s = 2y − 1 the slope is s·sigmoid(−sf), and the root 1/(2 cosh(f/2)): neither is divided by 0."""
    sign = 2 * y - 1
    return Working(0.5 / torch.cosh(0.5 * f), sign * torch.exp(-0.5 * sign * f))
