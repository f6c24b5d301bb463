"""Variational dropout's objective for one weight, in the additive and in the multiplicative parametrisation.

Both minimise E_q[−log p(y|w)] + KL(q ‖ C/|w|) over Gaussians. KSW's multiplicative form has q = N(θ, αθ²) and a KL of α
alone; Molchanov et al.'s additive form has q = N(μ, σ²) and the KL of μ²/(2σ²). Where μ ≠ 0 they are one function in
two coordinates. But the additive form also contains μ = 0 with σ > 0, where the KL has its minimum, and which the
multiplicative one meets only as α → ∞: minima on that line are the additive form's alone (Hron et al. 2017, section 4).
Three of them for data of one weight:

* y = w² + noise: (0, ⅓y) is a local minimum of the additive form (σ² = ⅓y balances the data term, the KL makes μ = 0
  stable); in the multiplicative one the same value is an infimum along α → ∞, taken nowhere.
* y = w + noise with σ held: beside the minimum near y there is one near 0, if y is many noise deviations away, since
  the KL grows like log|μ| only. With α held, the objective is a parabola in θ.
* y = w + noise, both free: with t = y/noise sd, stationary points have (1 + 2u)² D₊(√u)/√u = t², which rises from 1. At
  |t| ≤ 1 there is none: the weight is pruned, μ and σ go to 0 with u → 0, in the multiplicative form α → ∞.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.log_uniform import gaussian_dropout_kl, log_uniform_kl

#: (mean, variance) of q ↦ E_q[−log p(y|w)] up to a constant, elementwise.
ExpectedLoss = Callable[[Tensor, Tensor], Tensor]


def linear_loss(target: float, precision: float) -> ExpectedLoss:
    """E ½ precision (w − target)², a weight seen through y = w + noise."""

    def loss(mean: Float[Tensor, "*B"], variance: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        return 0.5 * precision * ((mean - target).square() + variance)

    return loss


def square_loss(target: float, precision: float) -> ExpectedLoss:
    """E ½ precision (w² − target)², a weight used twice: y = w·w + noise. E w² = μ² + σ², var w² = 2σ⁴ + 4μ²σ²."""

    def loss(mean: Float[Tensor, "*B"], variance: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        spread = 2 * variance.square() + 4 * mean.square() * variance
        return 0.5 * precision * ((mean.square() + variance - target).square() + spread)

    return loss


def additive_objective(
    mean: Float[Tensor, "*B"], variance: Float[Tensor, "*B"], expected_loss: ExpectedLoss
) -> Float[Tensor, "*B"]:
    """Expected loss + KL for q = N(μ, σ²), σ² > 0."""
    return expected_loss(mean, variance) + log_uniform_kl(0.5 * mean.square() / variance)


def multiplicative_objective(
    theta: Float[Tensor, "*B"], alpha: Float[Tensor, "*B"], expected_loss: ExpectedLoss
) -> Float[Tensor, "*B"]:
    """Expected loss + KL for q = N(θ, αθ²).

    Raises:
        InputError: an α ≤ 0.
    """
    return expected_loss(theta, alpha * theta.square()) + gaussian_dropout_kl(alpha)
