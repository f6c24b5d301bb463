"""What a truncated log-uniform prior does to a posterior: the logistic example of Hron et al. 2018, section 3.2.

The prior is p(w) ∝ 1/|w| on [−e^b, −e^a] ∪ [e^a, e^b], the likelihood of the one observation (x, y) = (1, 1) is
σ(w) = 1/(1 + e^(−w)). The posterior has the density σ(w)/(|w| (b − a)) there, and its moments are elementary (eqs 1–2).
With widths L = b − a and δ = e^b − e^a:

    E|w| = δ/L,    E w = E|w| + (2/L) log[(1 + e^(−e^b))/(1 + e^(−e^a))],    E w² = (e^(2b) − e^(2a))/(2L).

Each is evaluated without cancellation for a → −∞, a → b and large b; e^b itself is infinite from b = 709.8 on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.elementwise import horner

#: 2k/(2k+1)!, the coefficients of cosh y − sinh(y)/y in y².
_SINHC_GAP = [0.0, 2 / 6, 4 / 120, 6 / 5040, 8 / 362880, 10 / 39916800, 12 / 6227020800, 14 / 1307674368000]
_SHORT = 2.0  #: an interval shorter than this takes the series


class Moments(NamedTuple):
    """Mean and variance, elementwise."""

    mean: Float[Tensor, "*B"]
    variance: Float[Tensor, "*B"]


def _require_interval(a: Float[Tensor, "*B"], b: Float[Tensor, "*B"]) -> None:
    wrong = (a >= b) | a.isnan() | b.isnan()
    if bool(wrong.any()):
        low, high = a[wrong][0], b[wrong][0]
        raise InputError(
            f"the truncated log-uniform prior got a = {float(low):g} and b = {float(high):g}, expected a < b; "
            "give the ends of log |w| in rising order"
        )


def _mean_tanh(a: Float[Tensor, "*B"], b: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """∫ tanh(w/2) dw over [e^a, e^b], which is 2 log[cosh(e^b/2)/cosh(e^a/2)].

    Up to e^b = 20 from cosh β − cosh α = 2 sinh((β+α)/2) sinh((β−α)/2), beyond it from the exponentials that remain.
    """
    low, high = a.exp(), b.exp()
    width = -high * torch.expm1(a - b)
    top = high.clamp(max=20.0)
    bottom, near_width = low.minimum(top), width.minimum(top)
    ratio = 2 * torch.sinh((top + bottom) / 4) * torch.sinh(near_width / 4) / torch.cosh(bottom / 2)
    near = 2 * torch.log1p(ratio)
    far = width + 2 * torch.log1p(torch.expm1(-width) * torch.sigmoid(-low))
    return torch.where(high <= 20.0, near, far)


def _absolute_variance(a: Float[Tensor, "*B"], b: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Variance of |w|, which is log-uniform on [e^a, e^b]."""
    L = b - a
    half = L.clamp(max=_SHORT) / 2
    gap = horner(_SINHC_GAP, half.square())
    short = (a + b).exp() * torch.sinh(half) / half * gap
    wide = L.clamp(min=_SHORT)
    long = (2 * b).exp() * (-torch.expm1(-2 * wide) / (2 * wide) - (torch.expm1(-wide) / wide).square())
    return torch.where(L < _SHORT, short, long)


def truncated_log_uniform_posterior(a: Float[Tensor, "*B"], b: Float[Tensor, "*B"]) -> Moments:
    """Posterior mean and variance of w (Hron et al. 2018, eqs 1–2) for log |w| in [a, b]; a = −∞ gives the limit.

    The variance is var|w| + (E|w| − E w)(E|w| + E w), a sum of positive terms.

    Raises:
        InputError: a ≥ b, or NaN.
    """
    _require_interval(a, b)
    low, high, L = a.exp(), b.exp(), b - a
    mean = _mean_tanh(a, b) / L
    width = -high * torch.expm1(-L)
    absolute = width / L
    negative_mass = -2 * torch.log1p(torch.expm1(-width) * torch.sigmoid(-low)) / L
    variance = _absolute_variance(a, b) + negative_mass * (absolute + mean)
    return Moments(mean, variance)


def truncated_log_uniform_posterior_density(
    w: Float[Tensor, "*B"], a: Float[Tensor, "*B"], b: Float[Tensor, "*B"]
) -> Float[Tensor, "*B"]:
    """Density σ(w)/(|w| (b − a)) of the same posterior, 0 outside of its support."""
    _require_interval(a, b)
    log_size = w.abs().log()
    inside = (log_size >= a) & (log_size <= b)
    return torch.where(inside, torch.sigmoid(w) * torch.exp(-log_size) / (b - a), 0.0)


class Interval(NamedTuple):
    """The ends a, b of the support of log |w|."""

    a: Float[Tensor, "*B"]
    b: Float[Tensor, "*B"]


def sequence_to_zero(size: Float[Tensor, "*B"]) -> Interval:
    """a = −size, b = log log |a|: posterior mean and variance → 0 as size → ∞ (size > e)."""
    return Interval(-size, size.log().log())


def sequence_to_constant(b: Float[Tensor, "*B"], limit: float) -> Interval:
    """a = b − e^b/limit: the posterior mean → `limit`, the variance → ∞ as b → ∞."""
    if not limit > 0:
        raise InputError(
            f"the sequence to a constant got the limit {limit:g}, expected a positive one: with (x, y) = (1, 1) the "
            "posterior mean is positive; give a limit > 0"
        )
    return Interval(b - b.exp() / limit, b)


def sequence_to_infinity(b: Float[Tensor, "*B"]) -> Interval:
    """a = −b, the ends of a floating-point range: the posterior mean grows like e^b/(2b) as b → ∞."""
    return Interval(-b, b)
