"""What Titsias's sparse GP predicts, in terms of the linear model on its features."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.blr import predictive_variance


def missing_variance(Phi: Float[Tensor, "*B n k"], outputscale: Float[Tensor, "*B"]) -> Float[Tensor, "*B n"]:
    """k(x,x) − φ(x)ᵀφ(x) ≥ 0, but for rounding: the GP's prior variance of f(x) that the k features do not have."""
    return outputscale[..., None] - Phi.square().sum(-1)


def titsias_predictive_variance(
    Phi: Float[Tensor, "*B n k"],
    factor: Float[Tensor, "*B k k"],
    noise_variance: Float[Tensor, "*B"],
    outputscale: Float[Tensor, "*B"],
) -> Float[Tensor, "*B n"]:
    """Variance of y at each row of Φ in Titsias's (2009, eq. 6) approximate GP, the noise included.

    Its q(u) is the exact posterior of the weights w = L⁻¹u, N(μ, FFᵀ), and f given u keeps the GP's conditional
    variance: k(x,x) − φᵀφ + φᵀFFᵀφ + σ². The linear model has φᵀFFᵀφ + σ² only. In the words of Quiñonero-Candela and
    Rasmussen (2005), at equal parameters, the linear model predicts as SoR and Titsias's GP as DTC (their eqs. 16b and
    20b): the means φᵀμ are the same.
    """
    return missing_variance(Phi, outputscale) + predictive_variance(Phi, factor, noise_variance)
