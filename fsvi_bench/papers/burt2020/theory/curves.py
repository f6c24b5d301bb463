"""Two models with one parameter whose values at a few inputs form a curve: a smooth curve and a space-filling one.

**A nonlinear model**, θ ~ N(0, 1) ↦ f_θ(x) = θ cos x + sin 2θx, and the distribution of its values at M inputs.

Proposition 4 of Burt et al. (2020) concerns every g that is locally Lipschitz in its parameters. In general KL(Q_ε‖P)
has the slope ½(M − d) in log(1/ε²), where d is the information dimension of the distribution of g(θ) at the M inputs
(Guionnet and Shlyakhtenko 2007). d is at most k, so the slope is at least ½(M − k), given finite second moments,
without which the KL to a Gaussian may be infinite for every ε. It is larger if parameters are redundant. This g is an
immersion with d = k = 1, whose values are on a smooth curve in R^M. Q_ε, with white noise of variance ε², has the
density (with θ' = θ + εu)

    q_ε(f_θ + εξ) = ε^(1−M) (2π)^(−M/2) ∫ N(θ + εu; 0, 1) exp(−½‖ξ − (f_θ' − f_θ)/ε‖²) du.

As ε → 0 the curve is locally a line, and +∫ q_ε log q_ε − ½(M − 1) log(1/ε²) tends to

    −½(M − 1) log(2πe) − ½ log(2πe) − E log‖∂f_θ/∂θ‖.

If the first input is 0, ‖f_θ' − f_θ‖ ≥ |θ' − θ|, so only |u| ≤ 10 + ‖ξ‖ contributes (exp(−50) = 2e-22).

**Hilbert's curve**: a continuous model with one parameter whose values at two inputs have a density.

Proposition 4 of Burt et al. (2020) requires a locally Lipschitz g, and its proof uses k + 1 inputs. Without this
condition these do not suffice: let θ be uniform on [0, 1] and (f(x₁), f(x₂)) = h(θ) for Hilbert's h, which is
continuous (Hölder with exponent ½) and maps length to area. Then the distribution at the two points is uniform on the
unit square, and its KL to a Gaussian is finite although M = 2 > k = 1. A Lipschitz curve such as θ ↦ (θ, θ) stays on a
null set. Rounding to cells of width 2^−n distinguishes the two: the KL of the rounded distributions converges for the
first, and grows by (M − k) log 2 with each n for the second. This uses only that h visits every cell once.

For processes, too, the proposition is false without the condition. Let u₁ = h₁, u₂ = h₁∘h₂, u₃ = h₁∘h₂∘h₂, …: all are
continuous, and by induction independent and uniform on [0, 1], since h maps length to area. Let P have f(x) = Z_n for x
in the n-th of [0, 1), [−1, 0), [1, 2), …, with Z_n standard normal and independent, which is not degenerate.
Choose a_n with Prob(|Z_n| ≤ a_n) = exp(−2^−n), and let g(θ)(x) be the u_n(θ)-quantile of Z_n given |Z_n| ≤ a_n. Every
g(·)(x) is continuous, and Q = g_*(uniform) is P given that all |Z_n| ≤ a_n: KL(Q, P) = Σ 2^−n = 1 nat. (KL(P, Q) is
infinite. Both are finite for a mixture of such Q with weights 2^−m if P's probability of the m-th event tends to 1 fast
enough. Each component comes from an interval of a θ on the real line; continuous paths without mass join them.)
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import special
from torch import Tensor
from torch.distributions import MultivariateNormal

from fsvi_bench.maths.gaussian import LOG_2PI

_STEP = 1 / 4  #: step of the trapezoidal rule, in widths of the integrand


def curve(theta: Float[Tensor, "*S"], x: Float[Tensor, " M"]) -> Float[Tensor, "*S M"]:
    """f_θ(x)."""
    return theta[..., None] * x.cos() + (2 * theta[..., None] * x).sin()


def curve_speed(theta: Float[Tensor, "*S"], x: Float[Tensor, " M"]) -> Float[Tensor, "*S"]:
    """‖∂f_θ/∂θ‖ over the inputs, at most ‖1 + 2|x|‖."""
    return (x.cos() + 2 * x * (2 * theta[..., None] * x).cos()).norm(dim=-1)


def smoothed_curve_log_ratio(
    theta: Float[Tensor, " S"],
    noise: Float[Tensor, "S M"],
    noise_variance: float,
    x: Float[Tensor, " M"],
    p: MultivariateNormal,
) -> Float[Tensor, " S"]:
    """log q_ε(y)/p(y) at y = f_θ(x) + ε·noise, x₀ = 0 and 0 < ε² ≤ 1: for standard normal draws its mean is KL(Q_ε‖P).

    It uses the trapezoidal rule. 1/‖∂f/∂θ‖ is the width of the integrand; with a step of a quarter of it, the relative
    error for a Gaussian is 2 exp(−2π² · 4²) = 1e-137.
    """
    epsilon, M = math.sqrt(noise_variance), len(x)
    reach = 10 + float(noise.norm(dim=-1).max())
    step = _STEP / float((1 + 2 * x.abs()).norm())
    u = torch.arange(-reach, reach + step, step, dtype=theta.dtype)

    def log_sum(theta: Tensor, noise: Tensor) -> Tensor:
        near = theta + epsilon * u
        away = noise - (curve(near, x) - curve(theta, x)) / epsilon
        return torch.logsumexp(-0.5 * (away.square().sum(-1) + near.square() + LOG_2PI), dim=0)

    log_integral = torch.vmap(log_sum, chunk_size=100)(theta, noise) + math.log(step)
    log_q = log_integral + (1 - M) * math.log(epsilon) - 0.5 * M * LOG_2PI
    return log_q - p.log_prob(curve(theta, x) + epsilon * noise)  # type: ignore[no-untyped-call]


def smoothed_curve_kl_constant(x: Float[Tensor, " M"], p: MultivariateNormal) -> float:
    """lim KL(Q_ε‖P) − ½(M − 1) log(1/ε²), with expectations over θ by the trapezoidal rule."""
    theta = torch.linspace(-9, 9, 18001, dtype=x.dtype)
    density = torch.exp(-0.5 * (theta.square() + LOG_2PI))
    log_p = p.log_prob(curve(theta, x))  # type: ignore[no-untyped-call]
    expected = torch.trapezoid(density * (curve_speed(theta, x).log() + log_p), theta)
    return float(-0.5 * len(x) * (1 + LOG_2PI) - expected)


def hilbert_cells(order: int) -> NDArray[np.int64]:
    """Cells of the 2^n × 2^n grid in the order in which the curve visits them, one per interval of θ of length 4^−n.

    For θ in the q-th quarter, h(θ) is h of the remainder, halved and placed in a quadrant: transposed for q = 0,
    unchanged for 1 and 2, transposed and rotated for 3. The cells of order n + 1 are inside those of order n, so the
    orders converge uniformly to a continuous curve.
    """
    x = y = np.zeros(1, dtype=np.int64)
    for size in 2 ** np.arange(order):
        x, y = (
            np.concatenate([y, x, x + size, 2 * size - 1 - y]),
            np.concatenate([x, y + size, y + size, size - 1 - x]),
        )
    return np.column_stack([x, y])


def rounded_kl(cells: NDArray[np.int64], order: int) -> float:
    """KL of a distribution on cells of the unit square, with equal weight per visit, to N(0, I₂) rounded to the same
    cells."""
    visited, visits = np.unique(cells, axis=0, return_counts=True)
    masses = special.ndtr((visited + 1) / 2**order) - special.ndtr(visited / 2**order)
    return float(special.rel_entr(visits / len(cells), masses.prod(axis=1)).sum())
