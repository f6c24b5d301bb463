"""The log-uniform prior 1/|w|, whole and truncated (Hron et al. 2018, section 3).

Whole, it gives a posterior an unnormalised mass of ∫ L(w)/|w| dw. With w = ±e^t the prior is uniform in t, so that the
mass between e^a and e^b on one side of 0 is ∫ L(±e^t) dt: what a likelihood that does not vanish at 0 makes infinite as
a → −∞ (proposition 1), and one that does not vanish in the tail as b → ∞. Moments are masses, too: E w^n takes the
"likelihood" w^n L(w).

Truncated, it is p(w) ∝ 1/|w| on [−e^b, −e^a] ∪ [e^a, e^b]. In the logistic example of section 3.2 the likelihood of
the one observation (x, y) = (1, 1) is σ(w) = 1/(1 + e^(−w)), and the posterior has the density σ(w)/(|w| (b − a)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import integrate
from scipy.special import expit

Numbers = Any  #: one, an array or a series; all functions are elementwise
Likelihood = Callable[[Any], Any]


def log_uniform_mass(likelihood: Likelihood, a: Numbers, b: Numbers, *, sides: Sequence[int] = (1,)) -> Numbers:
    """∫ likelihood(w)/|w| dw over e^a < |w| < e^b, w > 0 for side 1, w < 0 for side −1; negative where b < a.

    By adaptive quadrature over log |w|, to rounding of the largest of these masses.
    """
    width = b - a
    mass, _ = integrate.quad_vec(  # type: ignore[call-overload]  # its stubs know no lambda
        lambda share: width * sum(likelihood(side * np.exp(a + share * width)) for side in sides),
        0,
        1,
        epsrel=1e-13,
        norm="max",
    )
    return mass


def posterior_mean(a: Numbers, b: Numbers) -> Numbers:
    """E w (eq. 1) for log |w| in [a, b], to rounding of E|w| = (e^b − e^a)/(b − a).

    With h(x) = log(1 + e^x) = x + h(−x) it is [e^b − e^a + 2h(−e^b) − 2h(−e^a)]/(b − a). The difference of the last two
    terms is taken as one logarithm.
    """
    width = -np.exp(b) * np.expm1(a - b)
    return (width + 2 * np.log1p(np.expm1(-width) * expit(-np.exp(a)))) / (b - a)


def posterior_variance(a: Numbers, b: Numbers) -> Numbers:
    """E w² − (E w)², with the second moment (e^(2b) − e^(2a))/(2(b − a)) of eq. 2."""
    second_moment = -np.exp(2 * b) * np.expm1(2 * (a - b)) / (2 * (b - a))
    return second_moment - posterior_mean(a, b) ** 2
