"""The log-uniform prior 1/|w|, whole and truncated (Hron et al. 2018, section 3).

Whole, it gives a posterior an unnormalised mass of ∫ L(w)/|w| dw. With w = ±e^t the prior is uniform in t, so that the
mass between e^a and e^b on one side of 0 is ∫ L(±e^t) dt: what a likelihood that does not vanish at 0 makes infinite as
a → −∞ (proposition 1), and one that does not vanish in the tail as b → ∞. Moments are masses, too: E w^n takes the
"likelihood" w^n L(w).

Truncated, it is p(w) ∝ 1/|w| on [−e^b, −e^a] ∪ [e^a, e^b]. In the logistic example of section 3.2 the likelihood of
the one observation (x, y) = (1, 1) is σ(w) = 1/(1 + e^(−w)); the posterior has the density σ(w)/(|w| (b − a)) there,
and its moments are elementary (eqs 1–2). With widths L = b − a and δ = e^b − e^a:

    E|w| = δ/L,    E w = E|w| + (2/L) log[(1 + e^(−e^b))/(1 + e^(−e^a))],    E w² = (e^(2b) − e^(2a))/(2L).

Each is evaluated without cancellation for a → −∞, a → b and large b; e^b itself is infinite from b = 709.8 on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.elementwise import horner

_NODES, _WEIGHTS = map(torch.from_numpy, np.polynomial.legendre.leggauss(20))
_PANEL = 0.25  #: in t; functions of e^t that vary on the scale of one are then smooth to rounding within a panel
#: 2k/(2k+1)!, the coefficients of cosh y − sinh(y)/y in y².
_SINHC_GAP = [2 * k / math.factorial(2 * k + 1) for k in range(8)]
_SHORT = 2.0  #: an interval shorter than this takes the series

Batch = Float[Tensor, "*B"]
Likelihood = Callable[[Tensor], Tensor]  #: elementwise


def log_uniform_mass(likelihood: Likelihood, a: float, b: float, *, side: int = 1) -> Float[Tensor, ""]:
    """∫ likelihood(w)/|w| dw over e^a < |w| < e^b, w > 0 for side 1, w < 0 for side −1; negative if b < a.

    By a composite Gauss–Legendre rule in log |w|: to rounding if the likelihood is smooth there (kinks at 0 do no harm)
    and decays no faster than exp(−|w|²) with a factor of order one.
    """
    panels = max(1, math.ceil(abs(b - a) / _PANEL))
    width = (b - a) / panels
    t = a + width * (torch.arange(panels, dtype=torch.float64)[:, None] + (_NODES + 1) / 2)
    return width * (likelihood(side * t.exp()) * _WEIGHTS / 2).sum()


def cumulative_log_uniform_mass(
    likelihood: Likelihood, log_sizes: Float[Tensor, " S"], *, side: int = 1
) -> Float[Tensor, " S"]:
    """Mass between the first of `log_sizes` and each of them: 0 for the first, negative where they fall."""
    ends = itertools.pairwise(log_sizes.tolist())
    steps = torch.stack([log_uniform_mass(likelihood, low, high, side=side) for low, high in ends])
    return torch.nn.functional.pad(steps.cumsum(0), (1, 0))


class Moments(NamedTuple):
    """Mean and variance, elementwise."""

    mean: Batch
    variance: Batch


def _mean_tanh(a: Batch, b: Batch) -> Batch:
    """∫ tanh(w/2) dw over [e^a, e^b], which is 2 log[cosh(e^b/2)/cosh(e^a/2)].

    Up to e^b = 20 from cosh β − cosh α = 2 sinh((β+α)/2) sinh((β−α)/2), beyond it from the exponentials that remain.
    """
    low, high = a.exp(), b.exp()
    width = -high * torch.expm1(a - b)
    top = high.clamp(max=20.0)
    bottom, near_width = low.minimum(top), width.minimum(top)
    ratio = 2 * torch.sinh((top + bottom) / 4) * torch.sinh(near_width / 4) / torch.cosh(bottom / 2)
    far = width + 2 * torch.log1p(torch.expm1(-width) * torch.sigmoid(-low))
    return torch.where(high <= 20.0, 2 * torch.log1p(ratio), far)


def _absolute_variance(a: Batch, b: Batch) -> Batch:
    """Variance of |w|, which is log-uniform on [e^a, e^b]."""
    L = b - a
    half = L.clamp(max=_SHORT) / 2
    gap = horner(_SINHC_GAP, half.square())
    short = (a + b).exp() * torch.sinh(half) / half * gap
    wide = L.clamp(min=_SHORT)
    long = (2 * b).exp() * (-torch.expm1(-2 * wide) / (2 * wide) - (torch.expm1(-wide) / wide).square())
    return torch.where(L < _SHORT, short, long)


def truncated_log_uniform_posterior(a: Batch, b: Batch) -> Moments:
    """Posterior mean and variance of w (Hron et al. 2018, eqs 1–2) for log |w| in [a, b]; a = −∞ gives the limit.

    The variance is var|w| + (E|w| − E w)(E|w| + E w), a sum of positive terms.

    Raises:
        InputError: a ≥ b, or NaN.
    """
    wrong = ~(a < b)
    if bool(wrong.any()):
        raise InputError(
            f"the truncated log-uniform prior got a = {float(a[wrong][0]):g} and b = {float(b[wrong][0]):g}, "
            "expected a < b; give the ends of log |w| in rising order"
        )
    low, high, L = a.exp(), b.exp(), b - a
    mean = _mean_tanh(a, b) / L
    width = -high * torch.expm1(-L)
    negative_mass = -2 * torch.log1p(torch.expm1(-width) * torch.sigmoid(-low)) / L
    return Moments(mean, _absolute_variance(a, b) + negative_mass * (width / L + mean))


def sequence_to_zero(size: Batch) -> tuple[Batch, Batch]:
    """a = −size, b = log log |a|: posterior mean and variance → 0 as size → ∞ (size > e)."""
    return -size, size.log().log()


def sequence_to_constant(b: Batch, limit: float) -> tuple[Batch, Batch]:
    """a = b − e^b/limit with limit > 0: the posterior mean → `limit`, the variance → ∞ as b → ∞."""
    return b - b.exp() / limit, b


def sequence_to_infinity(b: Batch) -> tuple[Batch, Batch]:
    """a = −b, the ends of a floating-point range: the posterior mean grows like e^b/(2b) as b → ∞."""
    return -b, b
