"""The limits that lead to the quasi-KL: convolution and discretisation (Hron et al. 2018, theorems 4 and 5).

A singular Q has no KL to P. Convolved with N(0, τI), or both laws put into cells of width Δ, it has one, which grows
without bound as τ or Δ falls; less a shift s that does not depend on Q it tends to QKL(Q‖P). Functions named
`centred_*` return KL − s, with s's divergent part cancelled by hand, so that nothing is lost at small τ or Δ:

* convolution: s = −½(D − K) log(2πeτ) (propositions 8 and 9; K the dimension of Q's support, 0 if countable);
* discretisation of a countable support: s = −D log Δ (proposition 21). The paper's grids end in two half-lines per
  axis; ours does not end, which is the same once Q's atoms lie inside.

For affine supports discretisation has no such limit: `centred_discretised_line_kl` shows what the paper says in words,
that the orientation of the support stays in it. P is Gaussian throughout; all in nats.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.papers.hron2018.quasi_kl import Batch, Factor, Square, Vector, gaussian_cross_entropy

_REACH, _STEP = 10.0, 0.125  #: trapezoidal rule against N(0, 1): exp(−½·10²) = 2e-22
_NODES, _WEIGHTS = map(torch.from_numpy, np.polynomial.legendre.leggauss(64))

Atoms = Float[Tensor, "*B D S"]  #: S in each dimension


def convolution_shift(noise_variance: Batch, codimension: int) -> Batch:
    """s = −½(D − K) log(2πeτ) of theorems 4 and 5, `codimension` being D − K."""
    return -0.5 * codimension * (1 + LOG_2PI + noise_variance.log())


def discretisation_shift(cell_width: Batch, dimension: int) -> Batch:
    """s = −D log Δ of theorem 4."""
    return -dimension * cell_width.log()


def atoms_cross_entropy(
    locations: Atoms,
    probabilities: Atoms,
    mean_p: Vector,
    precision_tril_p: Square,
) -> Batch:
    """−E log N(x; mean_p, Λ⁻¹) for independent coordinates x_d with atoms `locations` of weight `probabilities`."""
    mean = (probabilities * locations).sum(-1)
    variance = (probabilities * (locations - mean[..., None]).square()).sum(-1)
    return gaussian_cross_entropy(mean, torch.diag_embed(variance.sqrt()), mean_p, precision_tril_p)


def atoms_quasi_kl(
    locations: Atoms,
    probabilities: Atoms,
    mean_p: Vector,
    precision_tril_p: Square,
) -> Batch:
    """Theorem 4's limit E log(q/p) for a q with independent coordinates, such as dropout; S^D atoms, none enumerated.

    A coordinate's atoms must be distinct, as in `quasi_kl_countable`; one of weight 0 does not count.
    """
    negative_entropy = torch.xlogy(probabilities, probabilities).sum((-2, -1))
    return negative_entropy + atoms_cross_entropy(locations, probabilities, mean_p, precision_tril_p)


def centred_convolved_kl(
    locations: Atoms,
    probabilities: Atoms,
    noise_variance: Batch,
    mean_p: Vector,
    precision_tril_p: Square,
) -> Batch:
    """KL(Q * N(0, τI) ‖ P) − s for a Q with independent coordinates on atoms (theorem 4, convolution).

    A coordinate's negative entropy is −½ log 2πτ + Σ_i q_i E log Σ_j q_j exp(−½(ξ + (x_i − x_j)/√τ)²), ξ ~ N(0, 1). The
    trapezoidal rule is exact to rounding there: with d = |x_i − x_j|/√τ the logarithm's singularities lie at a distance
    of π/d from the real axis, and where that is small, the weight exp(−d²/8) of their place is smaller still.
    """
    nodes = torch.arange(-_REACH, _REACH + _STEP / 2, _STEP, dtype=torch.float64)
    weights = torch.exp(-0.5 * nodes.square()) * (_STEP / math.sqrt(2 * math.pi))
    difference = (locations[..., :, None] - locations[..., None, :]) / noise_variance.sqrt()[..., None, None, None]
    exponent = -0.5 * (difference[..., None, :] + nodes[:, None]).square() + probabilities.log()[..., None, None, :]
    expected_log = (torch.logsumexp(exponent, dim=-1) * weights).sum(-1)
    # The shift ½ log(2πeτ) per coordinate leaves its ½.
    negative_entropy = (0.5 + (probabilities * expected_log).sum(-1)).sum(-1)
    noise = 0.5 * noise_variance * precision_tril_p.square().sum((-2, -1))
    return negative_entropy + atoms_cross_entropy(locations, probabilities, mean_p, precision_tril_p) + noise


def centred_convolved_affine_kl(
    offset_q: Vector,
    factor_q: Factor,
    noise_variance: Batch,
    mean_p: Vector,
    precision_tril_p: Square,
) -> Batch:
    """KL(N(offset, FFᵀ + τI) ‖ P) − s for a Gaussian Q on an affine subspace (theorem 5), in closed form.

    log det(FFᵀ + τI) = Σ_k log(s_k² + τ) + (D − K) log τ with F's singular values s_k; the shift takes the last term.
    """
    singular = torch.linalg.svdvals(factor_q)
    inside = (singular.square() + noise_variance[..., None]).log().sum(-1)
    negative_entropy = -0.5 * (factor_q.shape[-1] * (1 + LOG_2PI) + inside)
    noise = 0.5 * noise_variance * precision_tril_p.square().sum((-2, -1))
    return negative_entropy + gaussian_cross_entropy(offset_q, factor_q, mean_p, precision_tril_p) + noise


def log_mean_normal_density(lower: Batch, width: Batch) -> Batch:
    """log of (1/width)∫ N(x; 0, 1) dx over [lower, lower + width], for widths up to 30.

    By a Gauss–Legendre rule of 64 nodes: a difference of distribution functions would cancel in narrow cells.
    """
    x = lower[..., None] + width[..., None] * (_NODES + 1) / 2
    return torch.logsumexp((_WEIGHTS / 2).log() - 0.5 * x.square(), dim=-1) - 0.5 * LOG_2PI


def centred_discretised_kl(
    locations: Atoms,
    probabilities: Atoms,
    cell_width: Batch,
    mean_p: Vector,
    scale_p: Vector,
    *,
    shift: float = 0.5,
) -> Batch:
    """KL of the discretised laws less s = −D log Δ (theorem 4, discretisation), P = N(mean_p, diag(scale_p²)).

    Along each axis the cells are [(j − shift)Δ, (j + 1 − shift)Δ); halving Δ refines them for shift 0. With the default
    0 is a cell's centre, so that dropout's atom at 0 is met to second order in Δ. Atoms in one cell are merged.
    """
    width = cell_width[..., None, None]
    cell = torch.floor(locations / width + shift)
    shared = (cell[..., :, None] == cell[..., None, :]).to(locations.dtype)
    merged = (shared * probabilities[..., None, :]).sum(-1)
    mean, scale = mean_p[..., None], scale_p[..., None]
    lower = ((cell - shift) * width - mean) / scale
    log_p = log_mean_normal_density(lower, (width / scale).expand_as(lower)) - scale.log()
    return (torch.xlogy(probabilities, merged) - probabilities * log_p).sum((-2, -1))


def line_orientation_term(angle: float) -> float:
    """What discretisation adds to the quasi-KL of a line in the plane, for 0 ≤ angle ≤ π/4 of irrational slope.

    A line of direction (cos, sin) cuts square cells of width 1 into chords whose logarithm, averaged over the line's
    length, is −log cos − ½ tan: the chord is 1/cos for a share 1 − tan of the length, and in the corners, a share tan,
    it has the density 2ℓ cos² on [0, 1/cos].
    """
    return -math.log(math.cos(angle)) - 0.5 * math.tan(angle)


def centred_discretised_line_kl(
    angle: float, cell_width: float, scale_q: float, *, shift: float = 0.5
) -> Float[Tensor, ""]:
    """KL + log Δ of the discretised laws for Q = N(0, scale_q²) along a line in the plane and P = N(0, I₂).

    The line passes the origin at `angle` (radians); the cells are those of `centred_discretised_kl`. As Δ → 0 it
    tends to QKL plus a term that depends on the angle, 0 along an axis and `line_orientation_term` at irrational
    slopes, so no one shift serves all subspaces of one dimension (the paper's remark after theorem 5).
    """
    direction = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    reach = 9.0 * scale_q
    last = math.ceil(reach / cell_width) + 1
    edges = (torch.arange(-last, last + 1, dtype=torch.float64) - shift) * cell_width
    t = (
        torch.cat([edges / component for component in direction if component.abs() > 1e-15])
        .clamp(-reach, reach)
        .sort()
        .values
    )
    length, middle = t.diff(), (t[1:] + t[:-1]) / 2
    log_q = log_mean_normal_density(t[:-1] / scale_q, length / scale_q) - math.log(scale_q)
    cell = torch.floor(middle[:, None] * direction / cell_width + shift)
    log_p = log_mean_normal_density((cell - shift) * cell_width, torch.full_like(cell, cell_width)).sum(-1)
    mass = log_q.exp() * length
    # log(mass/(Δ² p)) + log Δ with mass = length · q.
    return (mass * (log_q - log_p) + torch.xlogy(mass, length / cell_width)).sum()
