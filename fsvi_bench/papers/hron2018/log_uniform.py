"""The log-uniform prior 1/|w|, untruncated and truncated (Hron et al. 2018, section 3).

The untruncated prior gives a posterior an unnormalised mass of ∫ L(w)/|w| dw. With w = ±e^t the prior is uniform in t,
so the mass between e^a and e^b on one side of 0 is ∫ L(±e^t) dt. It diverges as a → −∞ for a likelihood that does not
vanish at 0 (proposition 1), and as b → ∞ for one that does not vanish in the tail. Moments are masses too: E w^n uses
the "likelihood" w^n L(w).

The truncated prior is p(w) ∝ 1/|w| on [−e^b, −e^a] ∪ [e^a, e^b]. In the logistic example of section 3.2 the likelihood
of the one observation (x, y) = (1, 1) is σ(w) = 1/(1 + e^(−w)), and the posterior has the density σ(w)/(|w| (b − a)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import integrate
from scipy.special import expit

Numbers = Any  #: a number, an array or a series; all functions are elementwise
Likelihood = Callable[[Any], Any]


def log_uniform_mass(likelihood: Likelihood, a: Numbers, b: Numbers, *, sides: Sequence[int] = (1,)) -> Numbers:
    """∫ likelihood(w)/|w| dw over e^a < |w| < e^b, w > 0 for side 1, w < 0 for side −1; negative if b < a.

    It uses adaptive quadrature over log |w|, to rounding of the largest of these masses.
    """
    width = b - a
    mass, _ = integrate.quad_vec(  # type: ignore[call-overload]  # its stubs do not accept a lambda
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
    terms is computed as one logarithm.
    """
    width = -np.exp(b) * np.expm1(a - b)
    return (width + 2 * np.log1p(np.expm1(-width) * expit(-np.exp(a)))) / (b - a)


def posterior_variance(a: Numbers, b: Numbers) -> Numbers:
    """E w² − (E w)², with the second moment (e^(2b) − e^(2a))/(2(b − a)) of eq. 2."""
    second_moment = -np.exp(2 * b) * np.expm1(2 * (a - b)) / (2 * (b - a))
    return second_moment - posterior_mean(a, b) ** 2
