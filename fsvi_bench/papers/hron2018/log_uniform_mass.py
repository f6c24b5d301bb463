"""Unnormalised posterior mass under the log-uniform prior, ∫ L(w)/|w| dw over one side of 0.

With w = ±e^t the prior is uniform in t, so that the mass between e^a and e^b is ∫ L(±e^t) dt: what a likelihood that
does not vanish at 0 makes infinite as a → −∞ (Hron et al. 2018, proposition 1), and one that does not vanish in the
tail as b → ∞. Moments are masses, too: E w^n takes the "likelihood" w^n L(w).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_PANEL = 0.25  #: in t; functions of e^t that vary on the scale of one are then smooth to rounding within a panel

Likelihood = Callable[[Tensor], Tensor]  #: elementwise


def log_uniform_mass(likelihood: Likelihood, a: float, b: float, *, side: int = 1) -> Float[Tensor, ""]:
    """∫ likelihood(w)/|w| dw over e^a < |w| < e^b, w > 0 for side 1, w < 0 for side −1.

    By a composite Gauss–Legendre rule in log |w|: to rounding if the likelihood is smooth there (kinks at 0 do no harm)
    and decays no faster than exp(−|w|²) with a factor of order one.
    """
    panels = max(1, math.ceil((b - a) / _PANEL))
    width = (b - a) / panels
    nodes = torch.as_tensor((_NODES + 1) / 2, dtype=torch.float64)
    weights = torch.as_tensor(_WEIGHTS / 2, dtype=torch.float64)
    t = a + width * (torch.arange(panels, dtype=torch.float64)[:, None] + nodes)
    return width * (likelihood(side * t.exp()) * weights).sum()


def cumulative_log_uniform_mass(
    likelihood: Likelihood, log_sizes: Float[Tensor, " S"], *, side: int = 1
) -> Float[Tensor, " S"]:
    """Mass between the first of the rising `log_sizes` and each of them, 0 for the first."""
    ends = log_sizes.tolist()
    steps = [log_uniform_mass(likelihood, low, high, side=side) for low, high in itertools.pairwise(ends)]
    return torch.cat([torch.zeros(1, dtype=torch.float64), torch.stack(steps).cumsum(0)])
