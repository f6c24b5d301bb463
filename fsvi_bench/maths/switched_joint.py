"""Joint predictive densities of linear models with independent weights that may be zero, by sequential Monte Carlo.

y = Φw + σz for τ targets at once, w_i = 0 or N(mean_i, scale_i²): a mixture of 2ᵏ Gaussians in τ dimensions, too
many to add up. Weights are drawn one after the other, given y. Those still to come are taken for Gaussians with their
own moments, which gives each draw's proposal in closed form, and the ratio of the true factor to the Gaussian one is
the draw's importance weight (Doucet and Johansen 2009, §3.4, with a look-ahead as in Lin, Chen and Liu 2013).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.maths.linalg import identity, logdet_of_tril, solve_tril, tril_of_gram
from fsvi_bench.maths.mixtures import SwitchedWeights

FLIPS = 4  #: per weight, after which the search for a Gaussian ends
PRODUCTS = 2**22  #: numbers in the matrices ΦᵀK⁻¹Φ that are in memory at once: 32 MB
ENOUGH = 0.5  #: share of particles that must count; with fewer, a group is resampled


def log_density_ratio(
    y: Float[Tensor, "R t"],
    Phi: Float[Tensor, "t k"],
    q: SwitchedWeights,
    noise_variance: Float[Tensor, ""],
    generator: torch.Generator,
    groups: int,
    size: int,
) -> Float[Tensor, "R groups"]:
    """log of estimates of q(y)/g(y), g the Gaussian with q's moments: for each y one of each independent group.

    The estimates of the ratio are unbiased, so their logarithms are too small by about half their variance.
    """
    sigma = noise_variance.sqrt()
    p, off, mean, scale = q.retain_probability, q.drop_probability, q.mean, q.scale
    centre = p * mean
    variance = p * (scale.square() + off * mean.square())
    Phi = Phi / sigma
    # Large effects first: the rest of the sum is then smooth compared with the noise.
    order = (variance * Phi.square().sum(0)).argsort(descending=True, stable=True)
    covariance = identity(len(Phi), Phi) + (Phi * variance) @ Phi.mT
    r = (y / sigma - Phi @ centre)[:, None, None, :].expand(-1, groups, size, -1).clone()
    log_weight, total = r.new_zeros(r.shape[:-1]), r.new_zeros(r.shape[:2])
    for i in order.tolist():
        v, feature = variance[i], Phi[:, i]
        if not v > 0:  # it does not vary
            continue
        covariance = covariance - v * torch.outer(feature, feature)
        direction = torch.linalg.solve(covariance, feature)
        c, s = feature @ direction, r @ direction
        # Off: w_i − centre is one number. On: a Gaussian times exp(δs − ½δ²c), which is one again.
        at_zero, at_slab, slab = -centre[i], mean[i] - centre[i], scale[i].square()
        log_off = off[i].log() + at_zero * s - 0.5 * at_zero.square() * c
        shrunk = 1 + slab * c
        pull = s - c * at_slab
        log_on = p[i].log() + at_slab * s - 0.5 * at_slab.square() * c
        log_on = log_on + 0.5 * slab * pull.square() / shrunk - 0.5 * shrunk.log()
        gaussian = 0.5 * v * s.square() / (1 + v * c) - 0.5 * torch.log1p(v * c)
        both = torch.logaddexp(log_off, log_on)
        log_weight = log_weight + both - gaussian
        on = torch.rand(s.shape, generator=generator, dtype=s.dtype) < (log_on - both).exp()
        noise = torch.randn(s.shape, generator=generator, dtype=s.dtype)
        drawn = at_slab + slab * pull / shrunk + (slab / shrunk).sqrt() * noise
        r.view(-1, len(Phi)).addr_(torch.where(on, drawn, at_zero).flatten(), feature, alpha=-1)
        _resample(r, log_weight, total, generator)
    return total + log_weight.logsumexp(-1) - torch.tensor(size, dtype=r.dtype).log()


def component_log_density(
    y: Float[Tensor, "R t"], Phi: Float[Tensor, "t k"], q: SwitchedWeights, noise_variance: Float[Tensor, ""]
) -> Float[Tensor, " R"]:
    """A lower bound on log q(y): the density of y with one of the 2ᵏ Gaussians, the best that a search finds.

    From the most likely Gaussian, the search flips for each y the weight that gains most, while one gains. If slabs are
    10³ times as wide as the noise or more, rounding can end it earlier.
    """
    parts = y.split(max(1, PRODUCTS // Phi.shape[1] ** 2))  # type: ignore[no-untyped-call]
    return torch.cat([_best_component(part, Phi, q, noise_variance) for part in parts])


def _best_component(
    y: Float[Tensor, "R t"], Phi: Float[Tensor, "t k"], q: SwitchedWeights, noise_variance: Float[Tensor, ""]
) -> Float[Tensor, " R"]:
    """K is the covariance of the current Gaussian and r its residual, both in units of the noise."""
    sigma = noise_variance.sqrt()
    Phi, y = Phi / sigma, y / sigma
    mean, slab, logit = q.mean, q.scale.square(), q.retain_probability.log() - q.drop_probability.log()
    likely = q.retain_probability >= q.drop_probability
    tril = _tril(Phi, likely * q.scale)
    white = solve_tril(tril, Phi)
    slope = solve_tril(tril, (y - Phi @ (likely * mean)).mT).mT @ white
    on, gram = likely.repeat(len(y), 1), (white.mT @ white).expand(len(y), -1, -1)
    slabs = bool(slab.any())
    if slabs:  # each y has its own K
        gram = gram.clone()
    for _ in range(FLIPS * len(mean)):
        # φᵀK⁻¹φ and φᵀK⁻¹r as they are with this weight off, and what it gains by being on.
        own = gram.diagonal(dim1=-2, dim2=-1)
        shrunk = torch.where(on, 1 - slab * own, 1.0)
        c, s = own / shrunk, (slope + torch.where(on, mean * own, 0.0)) / shrunk
        grown = 1 + slab * c
        at_slab = mean * s - 0.5 * mean.square() * c + 0.5 * slab * (s - mean * c).square() / grown - 0.5 * grown.log()
        gain, place = torch.where(on, -(logit + at_slab), logit + at_slab).max(-1)
        better = gain > 0
        if not bool(better.any()):
            break
        moved, by = better.nonzero()[:, 0], place[better]
        sign = torch.where(on[moved, by], -1.0, 1.0).to(y.dtype)
        step, width, row = (sign * mean[by])[:, None], (sign * slab[by])[:, None], gram[moved, by]
        width = width / (1 + width * own[moved, by, None])
        slope[moved] -= (step + width * (slope[moved, by, None] - step * own[moved, by, None])) * row
        if slabs:
            gram[moved] -= width[..., None] * row[:, :, None] * row[:, None, :]
        on[moved, by] = ~on[moved, by]
    tril = _tril(Phi, on * q.scale) if slabs else identity(len(Phi), Phi).expand(len(y), -1, -1)
    white = solve_tril(tril, (y - (on * mean) @ Phi.mT)[..., None])[..., 0]
    log_normal = -0.5 * (white.square().sum(-1) + logdet_of_tril(tril) + y.shape[1] * (noise_variance.log() + LOG_2PI))
    return log_normal + torch.where(on, q.retain_probability.log(), q.drop_probability.log()).sum(-1)


def _tril(Phi: Float[Tensor, "t k"], scale: Float[Tensor, "*R k"]) -> Float[Tensor, "*R t t"]:
    """L with LLᵀ = I + Φ diag(scale²) Φᵀ."""
    effects = (Phi * scale[..., None, :]).mT
    return tril_of_gram(torch.cat([effects, identity(len(Phi), Phi).expand(*effects.shape[:-2], -1, -1)], -2))


def _resample(
    r: Float[Tensor, "R G P t"],
    log_weight: Float[Tensor, "R G P"],
    total: Float[Tensor, "R G"],
    generator: torch.Generator,
) -> None:
    """Systematic resampling, in place, of the groups in which too few particles count."""
    size = log_weight.shape[-1]
    share = log_weight.softmax(-1)
    poor = share.square().sum(-1) * size * ENOUGH > 1
    if not bool(poor.any()):
        return
    cumulative = share[poor].cumsum(-1)
    start = torch.rand(len(cumulative), 1, generator=generator, dtype=r.dtype)
    ticks = (torch.arange(size, dtype=r.dtype) + start) / size * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, ticks).clamp(max=size - 1)
    kept = r[poor]
    r[poor] = kept.gather(1, chosen[..., None].expand_as(kept))
    total[poor] += log_weight[poor].logsumexp(-1) - torch.tensor(size, dtype=r.dtype).log()
    log_weight[poor] = 0.0
