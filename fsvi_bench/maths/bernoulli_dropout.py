"""Bernoulli dropout in Bayesian linear regression: w_i = m_i ε_i, ε_i ~ Bernoulli(p_i) (Gal 2016, §§6.3 and 6.5).

p is the RETAIN probability throughout, as in Gal's §6.3 (his other sections write p for the drop probability). Gal uses
unit noise and the prior N(0, I); here the noise variance is σ² and the prior N(0, l⁻²I), where l is the
`prior_lengthscale`. l = 1 gives the task's prior. A `retain_probability` is [*B, k], or [*B, 1] for one shared p.

The rows (Φ, y) may be replaced by those of the triangular factor of [Φ, y] (`compress_rows`): all functions depend only
on inner products of the columns, so k + 1 rows suffice for any N.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.batching import matvec
from fsvi_bench.maths.blr import ridge
from fsvi_bench.maths.domain import require_positive, require_retain_probability
from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.maths.linalg import logdet_of_tril
from fsvi_bench.maths.shapes import Features, Matrix, PerProblem, Shared, Targets, Vector


class FactorisedMoments(NamedTuple):
    """Mean and standard deviations of a q with independent weights; a standard deviation may be 0."""

    mean: Vector
    scale: Vector


def compress_rows(Phi: Features, y: Targets) -> tuple[Float[Tensor, "*B n k"], Float[Tensor, "*B n"]]:
    """n = min(N, k+1) rows with the same inner products: the triangular factor of [Φ, y]."""
    R = torch.linalg.qr(torch.cat([Phi, y[..., None]], dim=-1), mode="r").R
    return R[..., :-1].contiguous(), R[..., -1].contiguous()


def bernoulli_entropy(retain_probability: Vector) -> Vector:
    """H(p) = −p log p − (1−p) log(1−p) in nats, elementwise; 0 at both ends."""
    return torch.special.entr(retain_probability) + torch.special.entr(1 - retain_probability)


def bernoulli_moments(m: Vector, retain_probability: Shared) -> FactorisedMoments:
    """Mean p m and standard deviation √(p(1−p)) |m| of w = m ε; NaN for p outside [0, 1]."""
    return FactorisedMoments(retain_probability * m, (retain_probability * (1 - retain_probability)).sqrt() * m.abs())


def bernoulli_objective(
    Phi: Features,
    y: Targets,
    noise_variance: PerProblem,
    m: Vector,
    retain_probability: Shared,
    prior_lengthscale: float = 1.0,
) -> PerProblem:
    """The negative ELBO of q without its constants, in nats (Gal 2016, before eq. 6.4; half of his 𝓛 at σ = l = 1).

    (‖y − Φ(p∘m)‖² + Σ p_i(1−p_i) φ_iᵀφ_i m_i²)/2σ² + ½l² Σ p_i m_i² − Σ H(p_i).

    With the constants it is a quasi-KL: if no m_i is 0,
    QKL(q ‖ P_D) = objective + ½N log 2πσ² + ½k log 2π − k log l + log evidence, for P_D and evidence under N(0, l⁻²I).

    Raises:
        InputError: a retain probability is outside (0, 1], or σ² or l is not positive.
    """
    _require_domain(noise_variance, retain_probability, prior_lengthscale)
    p = retain_probability.expand_as(m)
    residual = y - matvec(Phi, p * m)
    spread = (p * (1 - p) * m.square() * _gram_diagonal(Phi)).sum(-1)
    misfit = (residual.square().sum(-1) + spread) / (2 * noise_variance)
    decay = 0.5 * prior_lengthscale**2 * (p * m.square()).sum(-1)
    return misfit + decay - bernoulli_entropy(p).sum(-1)


def optimal_m(
    Phi: Features,
    y: Targets,
    noise_variance: PerProblem,
    retain_probability: Shared,
    prior_lengthscale: float = 1.0,
) -> Vector:
    """m*(p), the minimiser of `bernoulli_objective` at a given p (Gal 2016, eq. 6.5, with one p_i per weight).

    In the mean θ = p∘m the objective is a ridge regression, ‖y − Φθ‖² + Σ d_i θ_i² with
    d_i = ((1−p_i) φ_iᵀφ_i + σ²l²)/p_i. Gal remarks that m* is the MAP only if p = 1 or diag(ΦᵀΦ) is constant; this
    should read "ΦᵀΦ is diagonal", since p then cancels from his eq. 6.5.

    Raises:
        InputError: as `bernoulli_objective`.
    """
    _require_domain(noise_variance, retain_probability, prior_lengthscale)
    p = retain_probability
    decay = prior_lengthscale**2 * noise_variance[..., None]
    return ridge(Phi, y, ((1 - p) * _gram_diagonal(Phi) + decay) / p) / p


def bernoulli_quasi_kl(
    m: Vector,
    retain_probability: Shared,
    exact_mean: Vector,
    precision_tril: Matrix,
) -> PerProblem:
    """E_q[log q − log p_D], q's mass function against the density of P_D = N(mean, (CCᵀ)⁻¹) (Hron et al. 2018, eq. 9).

    If m_i = 0, both atoms of w_i coincide in one point with mass 1 and no entropy, so the value jumps by H(p_i) there.
    It depends on the coordinates and is not a divergence: it can be negative.

    Raises:
        InputError: a retain probability is outside (0, 1].
    """
    require_retain_probability(retain_probability)
    mean, scale = bernoulli_moments(m, retain_probability)
    shift = matvec(precision_tril.mT, mean - exact_mean)
    precision_diagonal = precision_tril.square().sum(-1)
    mahalanobis = shift.square().sum(-1) + (precision_diagonal * scale.square()).sum(-1)
    log_density = 0.5 * (logdet_of_tril(precision_tril) - mahalanobis - m.shape[-1] * LOG_2PI)
    return -atom_entropy(m, retain_probability) - log_density


def atom_entropy(m: Vector, retain_probability: Shared) -> PerProblem:
    """Entropy of q's atoms in nats: Σ H(p_i) over the weights with m_i ≠ 0."""
    entropies = bernoulli_entropy(retain_probability.expand_as(m))
    return torch.where(m == 0, 0.0, entropies).sum(-1)


def discrete_prior_kl(
    m: Float[Tensor, "*B K"],
    retain_probability: PerProblem,
    cell_volume: float,
    prior_lengthscale: float = 1.0,
) -> PerProblem:
    """KL of one weight row, q = p δ_m + (1−p) δ_0, to a prior ∝ exp(−½l²‖w‖²) on a grid (Gal 2016, eq. 6.6).

    The K weights of a row are kept or dropped together; for independent weights give rows of length 1 and sum.
    ½l²p‖m‖² − H(p) + log Z, Z ≈ (2π/l²)^{K/2}/|Δ| with |Δ| = `cell_volume` of the grid, exact up to a term that
    vanishes like exp(−2π²/(lΔ)²). Unlike `continuous_prior_constant` it stays finite. If m = 0 there is one atom and
    no entropy, which Gal's formula omits.

    Raises:
        InputError: a retain probability is outside (0, 1], or the cell volume or l is not positive.
    """
    require_retain_probability(retain_probability)
    require_positive("cell volume", cell_volume)
    require_positive("prior length-scale", prior_lengthscale)
    volume, lengthscale = m.new_tensor(cell_volume), m.new_tensor(prior_lengthscale)
    log_normaliser = m.shape[-1] * (0.5 * LOG_2PI - lengthscale.log()) - volume.log()
    square = m.square().sum(-1)
    entropy = torch.where(square == 0, 0.0, bernoulli_entropy(retain_probability[..., None])[..., 0])
    return 0.5 * prior_lengthscale**2 * retain_probability * square - entropy + log_normaliser


def continuous_prior_constant(spread: PerProblem, row_length: int, prior_lengthscale: float = 1.0) -> PerProblem:
    """C in KL ≈ ½l²p‖m‖² − H(p) + C to the prior N(0, l⁻²I), with a row's atoms widened to N(·, s²I), s = `spread`.

    C = ½K(l²s² − 1 − log l²s²). The entropy of a widened atom is ½K log 2πe s², so C, and with it the bound's
    looseness, grows like −K log s as s → 0 (Gal 2016, §6.5 and his appendix A). It is exact up to the atoms' overlap.

    Raises:
        InputError: the spread or l is not positive.
    """
    require_positive("spread", spread)
    require_positive("prior length-scale", prior_lengthscale)
    ratio = (prior_lengthscale * spread).square()
    return 0.5 * row_length * (ratio - 1 - ratio.log())


def _gram_diagonal(Phi: Tensor) -> Tensor:
    return Phi.square().sum(-2)


def _require_domain(noise_variance: Tensor, retain_probability: Tensor, prior_lengthscale: float) -> None:
    require_retain_probability(retain_probability)
    require_positive("noise variance", noise_variance)
    require_positive("prior length-scale", prior_lengthscale)
