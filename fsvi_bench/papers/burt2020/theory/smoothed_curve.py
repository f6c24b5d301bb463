"""A nonlinear model with one parameter, θ ~ N(0, 1) ↦ f_θ(x) = θ cos x + sin 2θx, as a law of its values at M inputs.

Proposition 4 of Burt et al. (2020) is about every g that is locally Lipschitz in its parameters. In general KL(Q_ε‖P)
has a slope ½(M − d) in log(1/ε²), d the information dimension of the law of g(θ) at the M inputs (Guionnet and
Shlyakhtenko 2007), which is at most k: the slope is at least ½(M − k), given finite second moments, without which the
KL to a Gaussian may be infinite at every ε. It is more than that where parameters are redundant. This g is an
immersion, d = k = 1: it has values on a smooth curve in R^M; the law Q_ε with white noise of variance ε² has the
density (with θ' = θ + εu)

    q_ε(f_θ + εξ) = ε^(1−M) (2π)^(−M/2) ∫ N(θ + εu; 0, 1) exp(−½‖ξ − (f_θ' − f_θ)/ε‖²) du.

As ε → 0 the curve is locally a line, and +∫ q_ε log q_ε − ½(M − 1) log(1/ε²) tends to

    −½(M − 1) log(2πe) − ½ log(2πe) − E log‖∂f_θ/∂θ‖.

Where 0 is the first of the inputs, ‖f_θ' − f_θ‖ ≥ |θ' − θ|, so that only |u| ≤ 10 + ‖ξ‖ matters (exp(−50) = 2e-22).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.gaussian import LOG_2PI, gaussian_log_density

_STEP = 1 / 32  #: at most


def curve(theta: Float[Tensor, "*S"], x: Float[Tensor, " M"]) -> Float[Tensor, "*S M"]:
    """f_θ(x)."""
    return theta[..., None] * x.cos() + (2 * theta[..., None] * x).sin()


def curve_speed(theta: Float[Tensor, "*S"], x: Float[Tensor, " M"]) -> Float[Tensor, "*S"]:
    """‖∂f_θ/∂θ‖ over the inputs."""
    return (x.cos() + 2 * x * (2 * theta[..., None] * x).cos()).square().sum(-1).sqrt()


def smoothed_curve_log_ratio(
    theta: Float[Tensor, " S"],
    noise: Float[Tensor, "S M"],
    noise_variance: float,
    x: Float[Tensor, " M"],
    tril_p: Float[Tensor, "M M"],
) -> Float[Tensor, " S"]:
    """log q_ε(y)/p(y) at y = f_θ(x) + ε·noise, p = N(0, LLᵀ): for standard normal draws its mean is KL(Q_ε‖P).

    Raises:
        ValueError: the first input is not 0, or ε² is not between 0 and 1.
    """
    if float(x[0]) != 0 or not 0 < noise_variance <= 1:
        raise ValueError(f"got the first input {float(x[0])} and ε² = {noise_variance}, expected 0 and 0 < ε² ≤ 1")
    epsilon = math.sqrt(noise_variance)
    reach = 10 + float(noise.square().sum(-1).max()) ** 0.5
    step = min(_STEP, 0.5 / float((1 + 2 * x.abs()).square().sum().sqrt()))
    u = torch.arange(-reach, reach + step, step, dtype=theta.dtype)
    centre = curve(theta, x)
    log_q = torch.stack(
        [_log_integral(*each, u, epsilon, x) + math.log(step) for each in zip(theta, centre, noise, strict=True)]
    )
    log_q = log_q + (1 - len(x)) * math.log(epsilon) - 0.5 * len(x) * LOG_2PI
    zero = torch.zeros_like(centre)
    return log_q - gaussian_log_density(centre + epsilon * noise, zero, tril_p.expand(len(theta), -1, -1))


def _log_integral(
    theta: Float[Tensor, ""],
    centre: Float[Tensor, " M"],
    noise: Float[Tensor, " M"],
    u: Float[Tensor, " nodes"],
    epsilon: float,
    x: Float[Tensor, " M"],
) -> Float[Tensor, ""]:
    """By the trapezoidal rule, but for the step, which is at most half of 1/‖∂f/∂θ‖, the width of the integrand.

    A Gaussian of that width is summed up to 2 exp(−2π² · 2²) = 1e-34 of its integral.
    """
    near = theta + epsilon * u
    away = noise - (curve(near, x) - centre) / epsilon
    return torch.logsumexp(-0.5 * (away.square().sum(-1) + near.square() + LOG_2PI), dim=0)


def smoothed_curve_kl_constant(x: Float[Tensor, " M"], tril_p: Float[Tensor, "M M"]) -> float:
    """lim KL(Q_ε‖P) − ½(M − 1) log(1/ε²), the expectations over θ by the trapezoidal rule."""
    theta = torch.arange(-9, 9 + 1e-4, 1e-3, dtype=x.dtype)
    weights = torch.exp(-0.5 * (theta.square() + LOG_2PI)) * 1e-3
    log_p = gaussian_log_density(
        curve(theta, x), torch.zeros(len(theta), len(x)).to(x), tril_p.expand(len(theta), -1, -1)
    )
    expected = (weights * (curve_speed(theta, x).log() + log_p)).sum()
    return float(-0.5 * len(x) * (1 + LOG_2PI) - expected)
