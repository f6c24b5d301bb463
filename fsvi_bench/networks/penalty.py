"""The KL divergence to the log-uniform prior by name, as a function of α = σ²/μ², elementwise."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

KLFunction = Callable[[Tensor], Tensor]

EULER_GAMMA = 0.5772156649015329
CONSTANT = 0.5 * (EULER_GAMMA + math.log(2))  # makes the exact KL 0 at α → ∞, that is at u = 1/(2α) = 0
CUBIC = (1.16145124, -1.50204118, 0.58629921)


def lower_bound_kl(alpha: Tensor) -> Tensor:
    """−½ log α + constant, an upper bound of the KL for α ≤ 1 (Kingma, Salimans and Welling 2015, appendix C)."""
    return CONSTANT - 0.5 * alpha.log()


def cubic_kl(alpha: Tensor) -> Tensor:
    """The cubic approximation of Kingma, Salimans and Welling (2015), section 3.3, for α ≤ 1."""
    c1, c2, c3 = CUBIC
    return lower_bound_kl(alpha) - alpha * (c1 + alpha * (c2 + alpha * c3))


KL_FUNCTIONS: dict[str, KLFunction] = {"cubic": cubic_kl, "lower-bound": lower_bound_kl}
