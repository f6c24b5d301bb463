"""KL of a Gaussian to the improper log-uniform prior p(w) = C/|w|, and its published approximations.

For q(w) = N(μ, σ²) the divergence depends on u = μ²/(2σ²) alone, up to a constant that contains log C (Hron et al.
2018, proposition 2). The constant is fixed here, for every function of this page, by KL = 0 at the minimum u = 0:

    KL(u) = ½ e^(−u) Σ_k u^k/k! [ψ(½ + k) − ψ(½)],    dKL/du = D₊(√u)/√u.

With KSW's q(w) = N(θ, αθ²) it is u = 1/(2α). (Hron et al. 2017 write u = 1/α at the end of their section 4; that
contradicts their own definition of u.) The paper's own normalisation adds ½ψ(½) − ½ log(πe) − log C.

Since D₊(√v)/√v dv = 2 D₊(x) dx at v = x², KL(u) = 2 ∫₀^√u D₊(x) dx, and Rybicki's sampling sum for D₊ (see
`maths.dawson`) integrates term by term. Three pieces, none of which cancels:

* u < 1: the Taylor series u Σ_k (−u)^k/((k + 1)(3/2)_k);
* 1 ≤ u < 49: Σ_{n odd > 0} [2 erf(nh) + erf(x − nh) − erf(x + nh)]/n at x = √u, h = ¼;
* u ≥ 49: ½(log 4u + γ) − ½ Σ_k (2k−1)!!/(k (2u)^k), γ Euler's constant.

All in nats, elementwise, to a relative 1e-14 for all u ≥ 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.dawson import dawson, double_factorial, horner
from fsvi_bench.maths.elementwise import sigmoid, with_slope

#: What KL(α) + ½ log α tends to as α → 0: ½(γ + log 2).
SMALL_ALPHA_CONSTANT = 0.5 * (float(np.euler_gamma) + math.log(2))
#: KSW's cubic for −E log|ε|, ε ~ N(1, α) (Kingma et al. 2015, section 3.3).
KSW_C1, KSW_C2, KSW_C3 = 1.16145124, -1.50204118, 0.58629921
#: Molchanov et al. 2017, eq. 14.
MOLCHANOV_K1, MOLCHANOV_K2, MOLCHANOV_K3 = 0.63576, 1.87320, 1.48695

_SERIES_END, _SAMPLING_END = 1.0, 49.0
_STEP = 0.25
_LAST = 53  #: the last odd n: beyond it erf(nh ± 7) = 1 to rounding


def _rising_half(k: int) -> float:
    """(3/2)_k = (2k+1)!!/2^k."""
    return double_factorial(2 * k + 1) / 2.0**k


#: Coefficients in u of KL(u)/u and of D₊(√u)/√u, and in 1/(2u) of what the two are short of ½(log 4u + γ) and 1/(2u).
_TAYLOR = [(-1.0) ** k / ((k + 1) * _rising_half(k)) for k in range(19)]
_SLOPE_TAYLOR = [(-1.0) ** k / _rising_half(k) for k in range(20)]
_ASYMPTOTIC = [0.0, *(double_factorial(2 * k - 1) / (2.0 * k) for k in range(1, 22))]
_SLOPE_ASYMPTOTIC = [float(double_factorial(2 * k - 1)) for k in range(22)]


def _by_size(
    u: Float[Tensor, "*B"], near: Float[Tensor, "*B"], middle: Float[Tensor, "*B"], far: Float[Tensor, "*B"]
) -> Float[Tensor, "*B"]:
    value = torch.where(u < _SERIES_END, near, torch.where(u < _SAMPLING_END, middle, far))
    return torch.where(u >= 0, value, torch.nan)


def _integrated_sampling_sum(u: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    x = u.sqrt()[..., None]
    n = torch.arange(1, _LAST + 1, 2, dtype=u.dtype, device=u.device)
    return ((2 * torch.erf(n * _STEP) + torch.erf(x - n * _STEP) - torch.erf(x + n * _STEP)) / n).sum(-1)


def _divergence(u: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    near, far = u.clamp(0, _SERIES_END), u.clamp(min=_SAMPLING_END)
    series = u * horner(_TAYLOR, near)
    sampled = _integrated_sampling_sum(u.clamp(_SERIES_END, _SAMPLING_END))
    # log 4 + log u, since 4u may overflow where its logarithm does not.
    asymptotic = 0.5 * (math.log(4) + far.log() + float(np.euler_gamma)) - horner(_ASYMPTOTIC, 0.5 / far)
    return _by_size(u, series, sampled, asymptotic)


def _slope_derivative(u: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """d/du of s(u) = D₊(√u)/√u, which is (1 − (1 + 2u) s)/(2u); the ends, where that cancels, by their series."""
    near, far = u.clamp(0, _SERIES_END), u.clamp(min=_SAMPLING_END)
    middle = u.clamp(_SERIES_END, _SAMPLING_END)
    series = horner([k * c for k, c in enumerate(_SLOPE_TAYLOR)][1:], near)
    recurrence = (1 - (1 + 2 * middle) * log_uniform_kl_slope(middle)) / (2 * middle)
    inverse = 0.5 / far
    asymptotic = -2 * inverse.square() * horner([(k + 1) * c for k, c in enumerate(_SLOPE_ASYMPTOTIC)], inverse)
    return _by_size(u, series, recurrence, asymptotic)


class _LogUniformKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return _divergence(u)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        (u,) = ctx.saved_tensors
        return grad_outputs[0] * log_uniform_kl_slope(u)


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        root = u.sqrt()
        return torch.where(u == 0, 1.0, dawson(root) / root)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        (u,) = ctx.saved_tensors
        return grad_outputs[0] * _slope_derivative(u)


def log_uniform_kl(u: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """KL(N(μ, σ²) ‖ C/|w|) in nats at u = μ²/(2σ²), with KL(0) = 0 (Hron et al. 2018, eqs 3–5).

    Rises from 0 like u, for large u like ½ log u. Differentiable three times. NaN where u is negative or NaN, infinite
    where u is.
    """
    return _LogUniformKL.apply(u)  # type: ignore[no-untyped-call]


def log_uniform_kl_slope(u: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """dKL/du = D₊(√u)/√u, 1 at u = 0 (Hron et al. 2018, eq. 5)."""
    return _Slope.apply(u)  # type: ignore[no-untyped-call]


def _require_positive(alpha: Float[Tensor, "*B"], function: str) -> None:
    if bool((alpha <= 0).any()):
        raise InputError(
            f"{function} got alpha = {float(alpha.min()):g}, expected alpha > 0; keep alpha positive, "
            "for instance by optimising log alpha"
        )


def _require_at_most_one(alpha: Float[Tensor, "*B"], function: str) -> None:
    _require_positive(alpha, function)
    if bool((alpha > 1).any()):
        raise InputError(
            f"{function} got alpha = {float(alpha.max()):g}, expected 0 < alpha <= 1, outside of which it is no "
            "approximation; clamp alpha at 1 or choose the exact KL"
        )


def gaussian_dropout_kl(alpha: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """KL(N(θ, αθ²) ‖ C/|w|), exact: `log_uniform_kl` at u = 1/(2α). It falls from ∞ at α → 0 to 0 at α → ∞.

    Raises:
        InputError: an α ≤ 0. (A NaN passes through: it is a diverged problem, not bad input.)
    """
    _require_positive(alpha, "the log-uniform KL")
    return log_uniform_kl(0.5 / alpha)


def ksw_cubic_kl(alpha: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """KSW's cubic: constant − ½ log α − c₁α − c₂α² − c₃α³, for 0 < α ≤ 1 (Kingma et al. 2015, section 3.3).

    The paper leaves the constant open; ½(γ + log 2) makes the formula exact as α → 0, where the paper says that it is,
    and comparable with `gaussian_dropout_kl`. Its largest error over (0, 1] is then 0.0404, at α = 0.123, always
    below the exact value; no other constant brings it under 0.0202. At large α it falls without bound, so an objective
    with free α has no optimum.

    Raises:
        InputError: an α ≤ 0 or > 1.
    """
    _require_at_most_one(alpha, "the cubic approximation of the log-uniform KL")
    expectation = alpha * (KSW_C1 + alpha * (KSW_C2 + alpha * KSW_C3))
    return SMALL_ALPHA_CONSTANT - 0.5 * alpha.log() - expectation


def ksw_lower_bound_kl(alpha: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """KSW's lower bound of −KL, so an upper bound of the KL: constant − ½ log α, for 0 < α ≤ 1 (appendix C).

    The constant is ½(γ + log 2), exact as α → 0. Its largest error over (0, 1] is 0.2454, at α = 0.585. It drops
    −E log|ε| ≥ 0, which the paper claims for all α; that holds for α < 2.42 only.

    Raises:
        InputError: an α ≤ 0 or > 1.
    """
    _require_at_most_one(alpha, "the lower bound for the log-uniform KL")
    return SMALL_ALPHA_CONSTANT - 0.5 * alpha.log()


def molchanov_kl(alpha: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Molchanov et al.'s k₁ σ(−k₂ − k₃ log α) + ½ log(1 + 1/α), for all α > 0 (2017, eq. 14).

    Their constant C = −k₁ is kept: it makes the form vanish as α → ∞, as `gaussian_dropout_kl` does. Its largest
    error over α > 0 is 0.0094, at log α = −3.52; as α → 0 it tends to k₁ − ½(γ + log 2) = 5.8e-4.

    Raises:
        InputError: an α ≤ 0.
    """
    _require_positive(alpha, "the sigmoid approximation of the log-uniform KL")
    log_alpha = alpha.log()
    # log(1 + 1/α) as the softplus of −log α: 1/α may overflow.
    softplus = torch.nn.functional.softplus(-log_alpha, threshold=50.0)
    return MOLCHANOV_K1 * torch.sigmoid(-MOLCHANOV_K2 - MOLCHANOV_K3 * log_alpha) + 0.5 * softplus


def molchanov_kl_of_u(u: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """`molchanov_kl` at α = 1/(2u), differentiable down to u = 0, where its slope is 1: the gate falls like u^k₃."""

    def slope(u: Tensor) -> Tensor:
        gate = sigmoid(-MOLCHANOV_K2 + MOLCHANOV_K3 * (math.log(2) + u.log()))
        of_gate = torch.where(u == 0, 0.0, MOLCHANOV_K1 * MOLCHANOV_K3 * gate * (1 - gate) / u)
        return of_gate + 1 / (1 + 2 * u)

    return with_slope(u, lambda u: molchanov_kl(0.5 / u), slope)
