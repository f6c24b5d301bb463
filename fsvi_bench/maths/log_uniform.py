"""KL of a Gaussian to the improper log-uniform prior p(w) = C/|w|, and its published approximations.

For q(w) = N(μ, σ²) the divergence depends on u = μ²/(2σ²) alone, up to a constant that contains log C (Hron et al.
2018, proposition 2). All functions of this module fix the constant by KL = 0 at the minimum u = 0:

    KL(u) = ½ e^(−u) Σ_k u^k/k! [ψ(½ + k) − ψ(½)],    dKL/du = D₊(√u)/√u.

For KSW's q(w) = N(θ, αθ²), u = 1/(2α). (Hron et al. 2017 write u = 1/α at the end of their section 4, which contradicts
their own definition of u.) The paper's normalisation adds ½ψ(½) − ½ log(πe) − log C.

D₊ is Dawson's function, by SciPy on a CPU and by torch operations elsewhere. Since D₊(√v)/√v dv = 2 D₊(x) dx at v = x²,
KL(u) = 2 ∫₀^√u D₊(x) dx, and Rybicki's sampling sum D₊(x) = lim_{h→0} π^(−½) Σ_{n odd} exp(−(x − nh)²)/n, whose error
falls like exp(−(π/2h)²) (Computers in Physics 3, 85, 1989), can be integrated term by term. There are three pieces,
none of which cancels (those of D₊ itself are their derivatives):

* u < 1: the Taylor series u Σ_k (−u)^k/((k + 1)(3/2)_k);
* 1 ≤ u < 49: Σ_{n odd > 0} [2 erf(nh) + erf(x − nh) − erf(x + nh)]/n at x = √u, h = ¼;
* u ≥ 49: ½(log 4u + γ) − ½ Σ_k (2k−1)!!/(k (2u)^k), γ Euler's constant.

All values are in nats, elementwise, with a relative error of 1e-14 for all u ≥ 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy import special
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.elementwise import horner, sigmoid, with_slope
from fsvi_bench.maths.shapes import PerProblem

#: The limit of KL(α) + ½ log α as α → 0: ½(γ + log 2).
SMALL_ALPHA_CONSTANT = 0.5 * (float(np.euler_gamma) + math.log(2))
#: KSW's cubic for −E log|ε|, ε ~ N(1, α) (Kingma et al. 2015, section 3.3).
KSW_C1, KSW_C2, KSW_C3 = 1.16145124, -1.50204118, 0.58629921
#: Molchanov et al. 2017, eq. 14.
MOLCHANOV_K1, MOLCHANOV_K2, MOLCHANOV_K3 = 0.63576, 1.87320, 1.48695

_SERIES_END, _SAMPLING_END = 1.0, 49.0
_STEP = 0.25
_LAST = 53  #: the last odd n used: beyond it erf(nh ± 7) = 1 to rounding


#: From (3/2)_k and (1/2)_k: coefficients of D₊(√u)/√u in u, of its ratio to 1/(2u) in 1/u, and of their integrals.
_K = np.arange(22)
_SLOPE_TAYLOR = (-1.0) ** _K / special.poch(1.5, _K)
_SLOPE_ASYMPTOTIC = special.poch(0.5, _K)
_TAYLOR = _SLOPE_TAYLOR / (_K + 1)
_ASYMPTOTIC = 0.5 * _SLOPE_ASYMPTOTIC / np.maximum(_K, 1) * (_K > 0)

Piece = Callable[[Tensor], Tensor]


def _by_size(u: PerProblem, near: Piece, middle: Piece, far: Piece) -> PerProblem:
    value = torch.where(
        u < _SERIES_END,
        near(u.clamp(0, _SERIES_END)),
        torch.where(u < _SAMPLING_END, middle(u.clamp(_SERIES_END, _SAMPLING_END)), far(u.clamp(min=_SAMPLING_END))),
    )
    return torch.where(u >= 0, value, torch.nan)


def _divergence(u: PerProblem) -> PerProblem:
    n = _STEP * torch.arange(1, _LAST + 1, 2, dtype=u.dtype, device=u.device)

    def sampled(u: Tensor) -> Tensor:
        x = u.sqrt()[..., None]
        return ((2 * torch.erf(n) + torch.erf(x - n) - torch.erf(x + n)) * (_STEP / n)).sum(-1)

    def asymptotic(u: Tensor) -> Tensor:
        # log 4 + log u, since 4u may overflow.
        return 0.5 * (math.log(4) + u.log() + float(np.euler_gamma)) - horner(_ASYMPTOTIC, 1 / u)

    return _by_size(u, lambda u: u * horner(_TAYLOR, u), sampled, asymptotic)


def _slope(u: PerProblem) -> PerProblem:
    if u.device.type != "cpu":
        return _slope_by_torch(u)
    root = u.sqrt()
    return torch.where(u == 0, 1.0, torch.as_tensor(special.dawsn(root.numpy(force=True))) / root)


def _slope_by_torch(u: PerProblem) -> PerProblem:
    """The same by torch operations, on any device; on a CPU SciPy is faster."""
    n = torch.arange(1, _LAST + 1, 2, dtype=u.dtype, device=u.device)

    def sampled(u: Tensor) -> Tensor:
        x = u.sqrt()[..., None]
        both = (-(x - _STEP * n).square()).exp() - (-(x + _STEP * n).square()).exp()
        return (both / n).sum(-1) / (math.pi * u).sqrt()

    return _by_size(
        u,
        lambda u: horner(_SLOPE_TAYLOR, u),
        sampled,
        lambda u: 0.5 / u * horner(_SLOPE_ASYMPTOTIC, 1 / u),
    )


def _slope_derivative(u: PerProblem) -> PerProblem:
    """d/du of s(u) = D₊(√u)/√u, which is (1 − (1 + 2u) s)/(2u), or by series at both ends, where that cancels."""
    return _by_size(
        u,
        lambda u: horner((_K * _SLOPE_TAYLOR)[1:], u),
        lambda u: (1 - (1 + 2 * u) * log_uniform_kl_slope(u)) / (2 * u),
        lambda u: -0.5 * u.reciprocal().square() * horner((_K + 1) * _SLOPE_ASYMPTOTIC, 1 / u),
    )


def log_uniform_kl(u: PerProblem) -> PerProblem:
    """KL(N(μ, σ²) ‖ C/|w|) in nats at u = μ²/(2σ²), with KL(0) = 0 (Hron et al. 2018, eqs 3–5).

    It rises from 0 like u, and for large u like ½ log u. It is differentiable three times. It is NaN if u is negative
    or NaN, and infinite if u is.
    """
    return with_slope(u, _divergence, log_uniform_kl_slope)


def log_uniform_kl_slope(u: PerProblem) -> PerProblem:
    """dKL/du = D₊(√u)/√u, 1 at u = 0 (Hron et al. 2018, eq. 5)."""
    return with_slope(u, _slope, _slope_derivative)


def _require_alpha(alpha: PerProblem, function: str, largest: float = math.inf) -> None:
    if alpha.device.type != "cpu":
        return  # a look would wait for the GPU; methods keep α within the domain themselves
    if bool((alpha <= 0).any()):
        raise InputError(
            f"{function} got alpha = {float(alpha.min()):g}, expected alpha > 0; keep alpha positive, "
            "for instance by optimising log alpha"
        )
    if bool((alpha > largest).any()):
        raise InputError(
            f"{function} got alpha = {float(alpha.max()):g}, expected 0 < alpha <= {largest:g}, where the "
            f"approximation holds; clamp alpha at {largest:g} or choose the exact KL"
        )


def gaussian_dropout_kl(alpha: PerProblem) -> PerProblem:
    """KL(N(θ, αθ²) ‖ C/|w|), exact: `log_uniform_kl` at u = 1/(2α). It falls from ∞ at α → 0 to 0 at α → ∞.

    Raises:
        InputError: an α ≤ 0, on a CPU. (NaN is passed through, since it means a diverged problem, not bad input.)
    """
    _require_alpha(alpha, "the log-uniform KL")
    return log_uniform_kl(0.5 / alpha)


def ksw_cubic_kl(alpha: PerProblem) -> PerProblem:
    """KSW's cubic: constant − ½ log α − c₁α − c₂α² − c₃α³, for 0 < α ≤ 1 (Kingma et al. 2015, section 3.3).

    The paper does not state the constant. ½(γ + log 2) makes the formula exact as α → 0, as the paper claims, and
    comparable with `gaussian_dropout_kl`. Its largest error over (0, 1] is then 0.0403, at α = 0.122, always below the
    exact value; no other constant gives less than 0.0202. At large α it falls without bound, so an objective with free
    α has no optimum.

    Raises:
        InputError: an α ≤ 0 or > 1, on a CPU.
    """
    _require_alpha(alpha, "the cubic approximation of the log-uniform KL", 1.0)
    expectation = alpha * (KSW_C1 + alpha * (KSW_C2 + alpha * KSW_C3))
    return SMALL_ALPHA_CONSTANT - 0.5 * alpha.log() - expectation


def ksw_lower_bound_kl(alpha: PerProblem) -> PerProblem:
    """KSW's lower bound on −KL, hence an upper bound on the KL: constant − ½ log α, for 0 < α ≤ 1 (appendix C).

    The constant is ½(γ + log 2), exact as α → 0. Its largest error over (0, 1] is 0.2454, at α = 0.585. It drops the
    term −E log|ε|; the paper claims that this is ≥ 0 for all α, but that holds only for α < 2.42.

    Raises:
        InputError: an α ≤ 0 or > 1, on a CPU.
    """
    _require_alpha(alpha, "the lower bound for the log-uniform KL", 1.0)
    return SMALL_ALPHA_CONSTANT - 0.5 * alpha.log()


def molchanov_kl(alpha: PerProblem) -> PerProblem:
    """Molchanov et al.'s k₁ σ(−k₂ − k₃ log α) + ½ log(1 + 1/α), for all α > 0 (2017, eq. 14).

    Their constant C = −k₁ is kept, so the value vanishes as α → ∞, like `gaussian_dropout_kl`. The largest error over
    α > 0 is 0.0094, at log α = −3.51; as α → 0 the error tends to k₁ − ½(γ + log 2) = 5.8e-4.

    Raises:
        InputError: an α ≤ 0, on a CPU.
    """
    _require_alpha(alpha, "the sigmoid approximation of the log-uniform KL")
    return molchanov_kl_of_u(0.5 / alpha)


def molchanov_kl_of_u(u: PerProblem) -> PerProblem:
    """`molchanov_kl` at α = 1/(2u), differentiable down to u = 0, where its slope is 1: the gate falls like u^k₃."""

    def gate(u: Tensor) -> Tensor:
        return sigmoid(-MOLCHANOV_K2 + MOLCHANOV_K3 * (math.log(2) + u.log()))

    def slope(u: Tensor) -> Tensor:
        of_gate = torch.where(u == 0, 0.0, MOLCHANOV_K1 * MOLCHANOV_K3 * gate(u) * (1 - gate(u)) / u)
        return of_gate + 1 / (1 + 2 * u)

    return with_slope(u, lambda u: MOLCHANOV_K1 * gate(u) + 0.5 * torch.log1p(2 * u), slope)
