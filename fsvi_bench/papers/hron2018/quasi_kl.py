"""Quasi-KL divergence of a singular q, and the limits that lead to it (Hron et al. 2018, sections 4 and 5).

QKL(Q‖P) = E_Q log(q/p) = KL(Q‖P_S) − log Z_S with Z_S = ∫_S p dm_S and P_S = P restricted to Q's support S (eq. 9).
Both densities on S are with respect to m_S: the counting measure if S is countable, and the K-dimensional Lebesgue
(arc-length) measure if S is an affine subspace. QKL is a score, not a divergence: its lower bound is −log Z_S, not 0,
and it depends on coordinates.

A singular Q has no KL to P. After convolution with N(0, τI), or after discretising both distributions into cells of
width Δ, it has one, which grows without bound as τ or Δ falls. Minus a shift s that does not depend on Q it tends to
QKL(Q‖P). Functions named `centred_*` return KL − s, with the divergent part of s cancelled analytically, so no digits
are lost at small τ or Δ:

* convolution: s = −½(D − K) log(2πeτ) (theorems 4 and 5; K the dimension of Q's support, 0 if countable);
* discretisation of a countable support: s = −D log Δ (theorem 4). The paper's grids end in two half-lines per axis; the
  grid here is infinite, which is equivalent once it contains Q's atoms.

For affine supports discretisation has no such limit: `centred_discretised_line_kl` shows that the result depends on the
support's orientation, as the paper remarks.

P is always Gaussian; for affine supports it is N(0, Λ⁻¹), in coordinates relative to its mean, with Λ = CCᵀ and C =
`precision_tril_p`. All values are in nats.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.gaussian import LOG_2PI, normal_log_density
from fsvi_bench.maths.linalg import logdet_of_tril, square_norm, tril_of_gram

_XI = torch.linspace(-10, 10, 161, dtype=torch.float64)  #: trapezoidal rule against N(0, 1): exp(−½·10²) = 2e-22
_NODES, _WEIGHTS = map(torch.from_numpy, np.polynomial.legendre.leggauss(64))

Batch = Float[Tensor, "*B"]
Broadcast = Float[Tensor, "*#B"]
Vector = Float[Tensor, "*B D"]
Atoms = Float[Tensor, "*B D S"]
Factor = Float[Tensor, "*B D K"]
Square = Float[Tensor, "*#B D D"]


# --- Countable supports: theorem 4 ------------------------------------------------------------------------------------


def quasi_kl_countable(probabilities: Float[Tensor, "*B S"], log_density_p: Float[Tensor, "*B S"]) -> Batch:
    """Σ_i q_i [log q_i − log p(x_i)] over the atoms of q; an atom of probability 0 adds 0 for any p.

    The atoms must be distinct: atoms that coincide must be merged first by adding their probabilities.
    """
    energy = torch.where(probabilities > 0, -probabilities * log_density_p, 0.0)
    return (torch.xlogy(probabilities, probabilities) + energy).sum(-1)


class IndependentAtoms(NamedTuple):
    """A discrete q with independent coordinates, such as dropout, and the target p = N(mean_p, diag(scale_p²)).

    KL and QKL are sums over coordinates, so the S^D atoms are not enumerated.
    """

    locations: Atoms
    probabilities: Atoms
    mean_p: Vector
    scale_p: Vector

    def quasi_kl(self) -> Batch:
        """E_q log(q/p), the right-hand side of equation 6."""
        return quasi_kl_countable(self.probabilities, self._log_density_p()).sum(-1)

    def centred_convolved_kl(self, noise_variance: float) -> Batch:
        """KL(Q * N(0, τI) ‖ P) − s.

        A coordinate's negative entropy is −½ log 2πτ + Σ_i q_i E log Σ_j q_j exp(−½(ξ + (x_i − x_j)/√τ)²), ξ ~ N(0, 1).
        The trapezoidal rule is exact to rounding here: with d = |x_i − x_j|/√τ the logarithm's singularities are at a
        distance of π/d from the real axis, and if that is small, their weight exp(−d²/8) is even smaller.
        """
        difference = (self.locations[..., :, None] - self.locations[..., None, :]) / math.sqrt(noise_variance)
        exponent = -0.5 * (difference[..., None, :] + _XI[:, None]).square()
        log_sum = torch.logsumexp(exponent + self.probabilities.log()[..., None, None, :], dim=-1)
        log_q = log_sum @ torch.softmax(-0.5 * _XI.square(), dim=0)
        # Of a coordinate's shift ½ log(2πeτ), only ½ remains.
        log_ratio = 0.5 + log_q - self._log_density_p()
        noise = 0.5 * noise_variance * (self.scale_p**-2).sum(-1)
        return (self.probabilities * log_ratio).sum((-2, -1)) + noise

    def centred_discretised_kl(self, cell_width: float) -> Batch:
        """KL of the discretised distributions minus s.

        Along each axis the cells are [(j − ½)Δ, (j + ½)Δ): 0 is the centre of a cell, so dropout's atom at 0 is
        accurate to second order in Δ. Atoms in the same cell are merged.
        """
        cell = torch.round(self.locations / cell_width)
        shared = cell[..., :, None] == cell[..., None, :]
        merged = (shared * self.probabilities[..., None, :]).sum(-1)
        mean, scale = self.mean_p[..., None], self.scale_p[..., None]
        log_p = log_mean_normal_density((cell * cell_width - mean) / scale, cell_width / scale) - scale.log()
        return (self.probabilities * (merged.log() - log_p)).sum((-2, -1))

    def _log_density_p(self) -> Atoms:
        return normal_log_density(self.locations, self.mean_p[..., None], self.scale_p[..., None].square())


def log_mean_normal_density(centre: Broadcast, width: Broadcast) -> Broadcast:
    """log of the mean of N(0, 1)'s density over cells given by centre and width, for widths up to 30.

    It uses a Gauss–Legendre rule of 64 nodes, since a difference of distribution functions cancels in narrow cells.
    """
    x = centre[..., None] + width[..., None] * _NODES / 2
    return torch.logsumexp((_WEIGHTS / 2).log() - 0.5 * x.square(), dim=-1) - 0.5 * LOG_2PI


# --- Affine supports: theorem 5 and equation 9 ------------------------------------------------------------------------


def quasi_kl_gaussian(
    mean_q: Vector, factor_q: Factor, precision_tril_p: Square, noise_variance: float = 0.0
) -> Broadcast:
    """QKL(Q ‖ N(0, Λ⁻¹)) for Q the distribution of mean + F z, z ~ N(0, I_K), on an affine subspace; the KL if K = D.

    With noise it is KL(Q * N(0, τI) ‖ P) − s, whose limit is the quasi-KL (eq. 7). With F's singular values s_k,
    log det(FFᵀ + τI) = Σ_k log(s_k² + τ) + (D − K) log τ; the shift cancels the last term. F, D×K, must have full
    column rank. Otherwise the support has fewer dimensions, and the value is +∞ or, by rounding, large.
    """
    D, K = factor_q.shape[-2:]
    inside = (torch.linalg.svdvals(factor_q).square() + noise_variance).log().sum(-1)
    entropy = 0.5 * (K * (1 + LOG_2PI) + inside)
    columns = torch.cat([factor_q, mean_q[..., None]], dim=-1)
    trace, noise = square_norm(precision_tril_p.mT @ columns), noise_variance * square_norm(precision_tril_p)
    cross_entropy = 0.5 * (D * LOG_2PI - logdet_of_tril(precision_tril_p) + trace + noise)
    return cross_entropy - entropy


def restrict_gaussian(basis: Factor, precision_tril_p: Square) -> tuple[Float[Tensor, "*B K K"], Batch]:
    """R and log Z_S of equation 9 for the span of an orthonormal basis A, with P_S = N(0, (RRᵀ)⁻¹) in coordinates of A.

    RRᵀ = AᵀΛA, and log Z_S is the logarithm of the integral of p over S.
    """
    D, K = basis.shape[-2:]
    tril = tril_of_gram(precision_tril_p.mT @ basis)
    return tril, 0.5 * (logdet_of_tril(precision_tril_p) - logdet_of_tril(tril) - (D - K) * LOG_2PI)


def direction(angle: Batch) -> Float[Tensor, "*B 2"]:
    """(cos, sin), the direction of a line in the plane."""
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def centred_discretised_line_kl(angle: Float[Tensor, ""], cell_width: float, scale_q: float) -> Float[Tensor, ""]:
    """KL + log Δ of the discretised distributions for Q = N(0, scale_q²) along a line in the plane and P = N(0, I₂).

    The line passes through the origin at `angle` (radians); the cells are those of `IndependentAtoms`. As Δ → 0 it
    tends to QKL plus a term that depends on the angle: 0 along an axis and `line_orientation_term` for irrational
    slopes. So no single shift is valid for all subspaces of the same dimension (the paper's remark after theorem 5).
    """
    along, width, reach = direction(angle), angle.new_tensor(cell_width), 9.0 * scale_q
    last = math.ceil(reach / cell_width) + 1
    edges = (torch.arange(-last, last, dtype=torch.float64) + 0.5) * width
    # An edge that the line does not cross is crossed at infinity.
    t = (edges[:, None] / along).clamp(-reach, reach).flatten().sort().values
    length, middle = t.diff(), (t[1:] + t[:-1]) / 2
    log_q = log_mean_normal_density(middle / scale_q, length / scale_q) - math.log(scale_q)
    cell = torch.round(middle[:, None] * along / width)
    log_p = log_mean_normal_density(cell * width, width).sum(-1)
    mass = log_q.exp() * length
    # log(mass/(Δ² p)) + log Δ with mass = length · q.
    return (mass * (log_q - log_p) + torch.xlogy(mass, length / width)).sum()


def line_orientation_term(angle: Batch) -> Batch:
    """The term that discretisation adds to the quasi-KL of a line in the plane, for 0 ≤ angle ≤ π/4, irrational slope.

    Square cells of width 1 cut a line of direction (cos, sin) into chords. The mean of the log chord length over the
    line's length is −log cos − ½ tan: the chord is 1/cos for a proportion 1 − tan of the length, and in the corners, a
    proportion tan, it has the density 2ℓ cos² on [0, 1/cos].
    """
    return -angle.cos().log() - 0.5 * angle.tan()
