"""Models of network tasks: a network whose output weights can be integrated out, and a linear model.

The network, `collapsed-H`, has one hidden layer:

f(x) = b + Σ_h v_h tanh(a_hᵀx + c_h)/√H with priors a_h ~ N(0, I/D), c_h ~ N(0, 1), v_h ~ N(0, s_v²), b ~ N(0, s_b²),
and y = f(x) + N(0, σ²). Given the hidden weights u = (a, c), f is linear in (v, b): Bayesian linear regression on H + 1
features. The posterior is therefore a mixture over u of Gaussians.

All weights are whitened: u and w are standard normal under the prior. Permuting hidden units, or changing the signs of
a unit's weights, leaves f unchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.blr import PrecisionGaussian, blr_posterior_cholesky, log_evidence
from fsvi_bench.maths.linalg import solve_tril

TERMS = 64  #: of Mehler's formula: products are accurate to 1e-7 for s up to 2, and to 1e-5 for s up to 3
REACH, STEP = 14.0, 0.05  #: of the quadrature of c_m, which is accurate to rounding for s up to 5


@dataclass(frozen=True)
class Network:
    """The architecture and its priors; tensors may have any leading axes.

    Args:
        D: number of inputs.
        H: number of hidden units.
        output_scale: s_v, the prior standard deviation of the output weights.
        bias_scale: s_b, that of the output's bias.
    """

    D: int
    H: int
    output_scale: float = 1.0
    bias_scale: float = 1.0

    @property
    def k_hidden(self) -> int:
        """The number of hidden weights u: for each unit its D weights, then its bias."""
        return self.H * (self.D + 1)

    @property
    def k(self) -> int:
        """The number of all weights w: u, then v, then b."""
        return self.k_hidden + self.H + 1

    @property
    def outputs(self) -> slice:
        """Where the output weights v are in w: one for each hidden unit."""
        return slice(self.k_hidden, self.k_hidden + self.H)

    def features(self, u: Float[Tensor, "*S k_hidden"], x: Float[Tensor, "n D"]) -> Float[Tensor, "*S n m"]:
        """Ψ, of m = H + 1 columns, with f = Ψ(v, b) for whitened (v, b): s_v tanh(a_hᵀx + c_h)/√H, then s_b."""
        units = u.reshape(*u.shape[:-1], self.H, self.D + 1)
        a, c = units[..., :-1] / math.sqrt(self.D), units[..., -1]
        hidden = torch.tanh(x @ a.mT + c[..., None, :]) * (self.output_scale / math.sqrt(self.H))
        return torch.cat([hidden, torch.full_like(hidden[..., :1], self.bias_scale)], -1)

    def values(self, w: Float[Tensor, "*S k"], x: Float[Tensor, "n D"]) -> Float[Tensor, "*S n"]:
        """f at each input."""
        u, output = w[..., : self.k_hidden], w[..., self.k_hidden :]
        return (self.features(u, x) @ output[..., None])[..., 0]

    def kronecker_gram(self, J: Float[Tensor, "N k"], x: Float[Tensor, "N D"]) -> Float[Tensor, "k k"]:
        """JᵀJ by Kronecker factors (Martens and Grosse 2015): a block for each layer's weights, and one for its biases.

        The derivative in a hidden weight is g x_d/√D, with g that in the unit's bias: its block is GᵀG ⊗ XᵀX/(ND). The
        other blocks are exact.
        """
        place = torch.arange(self.k, device=J.device)
        units = place[: self.k_hidden].view(self.H, self.D + 1)
        weights, biases = units[:, :-1].flatten(), units[:, -1]
        gram = J.new_zeros(self.k, self.k)
        for block in (biases, place[self.outputs], place[-1:]):
            gram[block[:, None], block] = J[:, block].mT @ J[:, block]
        of_units = gram[biases[:, None], biases].contiguous()
        gram[weights[:, None], weights] = torch.kron(of_units, x.mT @ x / (len(x) * self.D))
        return gram

    def prior_covariance(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n n"]:
        """Of f at x: s_v² E tanh(aᵀx + c) tanh(aᵀx' + c) + s_b², whatever H."""
        gram = x @ x.mT / self.D + 1
        scale = gram.diagonal().sqrt()
        products = tanh_products(scale, gram / (scale[:, None] * scale))
        return self.output_scale**2 * products + self.bias_scale**2

    def output_posterior(
        self, u: Float[Tensor, "*S k_hidden"], x: Float[Tensor, "N D"], y: Float[Tensor, " N"], noise_variance: Tensor
    ) -> PrecisionGaussian:
        """The posterior of the whitened (v, b) given u."""
        return blr_posterior_cholesky(*self._regression(u, x, y, noise_variance))

    def log_likelihood(
        self, u: Float[Tensor, "*S k_hidden"], x: Float[Tensor, "N D"], y: Float[Tensor, " N"], noise_variance: Tensor
    ) -> Float[Tensor, "*S"]:
        """The collapsed likelihood log p(y | u) = log N(y; 0, ΨΨᵀ + σ²I), in nats, at a cost of N·H²."""
        regression = self._regression(u, x, y, noise_variance)
        return log_evidence(*regression, blr_posterior_cholesky(*regression))

    def _regression(
        self, u: Tensor, x: Tensor, y: Tensor, noise_variance: Float[Tensor, ""]
    ) -> tuple[Float[Tensor, "*S N m"], Float[Tensor, "*S N"], Float[Tensor, "*S"]]:
        """Features, targets and σ² of the regression given each u."""
        Psi = self.features(u, x)
        return Psi, y.expand(Psi.shape[:-1]), noise_variance.expand(Psi.shape[:-2])


def tanh_products(scale: Float[Tensor, " n"], correlation: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """E tanh(s_i z_i) tanh(s_j z_j) for standard normal z with these correlations.

    By Mehler's formula it is Σ_m c_m(s_i) c_m(s_j) ρ_ijᵐ over odd m, with c_m(s) = E tanh(sz) h_m(z) and the normalised
    Hermite polynomials h_m; c_m falls like exp(−π√m/2s), since tanh(sz) is analytic up to ±iπ/2s. What the sum leaves
    out is positive semidefinite, and is kept on the diagonal.
    """
    z, weights, hermite = (each.to(scale) for each in _hermite())
    values = torch.tanh(scale[:, None] * z)
    coefficients, square = (values * weights) @ hermite, correlation.square()
    total = torch.zeros_like(correlation)
    for c in coefficients.flip(1).unbind(1):
        total = torch.addr(total * square, c, c)
    total = total * correlation
    missing = (values.square() * weights).sum(1) - coefficients.square().sum(1)
    return total + torch.diag_embed(missing)


@cache
def _hermite() -> tuple[Float[Tensor, " nodes"], Float[Tensor, " nodes"], Float[Tensor, "nodes terms"]]:
    """Nodes z > 0 and weights of E g(z) for even g, by the midpoint rule, and h_m there for odd m < 2·TERMS."""
    z = torch.arange(STEP / 2, REACH, STEP, dtype=torch.float64)
    before, last, odd = torch.zeros_like(z), torch.ones_like(z), []
    for m in range(2 * TERMS - 1):
        before, last = last, (z * last - math.sqrt(m) * before) / math.sqrt(m + 1)
        odd += [last] if m % 2 == 0 else []
    return z, math.sqrt(2 / math.pi) * STEP * (-0.5 * z.square()).exp(), torch.stack(odd, 1)


def draw_outputs(posterior: PrecisionGaussian, noise: Float[Tensor, "*S m"]) -> Float[Tensor, "*S m"]:
    """Draws of the whitened (v, b) from standard normal numbers: mean + C⁻ᵀ noise for the precision CCᵀ."""
    return posterior.mean + solve_tril(posterior.precision_tril, noise[..., None], transpose=True)[..., 0]


@dataclass(frozen=True)
class LinearModel:
    """f(x) = φ(x)ᵀw with w ~ N(0, I).

    Args:
        feature_map: φ, such as a linear task's, which `to` moves to a device.
        k: the number of features.
    """

    feature_map: Any
    k: int

    def features(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n k"]:
        """φ at each input."""
        return self.feature_map.to(x.device)(x)  # type: ignore[no-any-return]

    def values(self, w: Float[Tensor, "*S k"], x: Float[Tensor, "n D"]) -> Float[Tensor, "*S n"]:
        """f at each input."""
        return w @ self.features(x).mT

    def kronecker_gram(self, J: Float[Tensor, "N k"], x: Float[Tensor, "N D"]) -> Float[Tensor, "k k"]:
        """JᵀJ: a layer with a single output has no other factor."""
        return J.mT @ J

    def prior_covariance(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n n"]:
        """Of f at x: ΦΦᵀ."""
        Phi = self.features(x)
        return Phi @ Phi.mT
