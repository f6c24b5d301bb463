"""Optimal retain probabilities of Bernoulli dropout in Bayesian linear regression: one shared p, or one p_i per weight.

Without data p* = ½, and 1 − p* falls exponentially with N, so p* soon rounds to 1. Optima are therefore found and
reported as logits. p = 1 itself is never optimal, since the entropy's slope is infinite there (Gal 2016, §6.3: p* → 1
only in the limit of data). No p below ½ is optimal, since at a fixed mean p∘m all terms except the entropy fall with p.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.batching import matvec
from fsvi_bench.maths.bernoulli_dropout import (
    bernoulli_entropy,
    bernoulli_objective,
    compress_rows,
    optimal_m,
)
from fsvi_bench.maths.domain import require_positive
from fsvi_bench.maths.elementwise import on_and_off, sigmoid
from fsvi_bench.maths.linalg import identity
from fsvi_bench.maths.shapes import Features, Matrix, PerProblem, Targets, Vector

SATURATION = 40.0  #: from this logit on, p rounds to 1 in float64
GRID = 64  #: intervals on [0, SATURATION] that are searched for sign changes of the slope
BISECTIONS = 80


class BernoulliOptimum(NamedTuple):
    """A minimiser of `bernoulli_objective` in m and p, and its value there; the logits are log p/(1−p)."""

    m: Vector
    retain_probability: Float[Tensor, "*B p"]  #: axis of size 1 if shared, else k
    logit: Float[Tensor, "*B p"]
    objective: PerProblem


class RetainProfile(NamedTuple):
    """min over m of the objective as a function of one shared p, in O(k) per value of p.

    With D = diag(ΦᵀΦ) + σ²l²I and [Φ; σl I] D^(-½) = U diag(s) Qᵀ (SVD), the ridge problem of `optimal_m` is diagonal:
    m*(p) = D^(-½) Q (s∘u)/((1−p) + p s²) with u = Uᵀ[y; 0]. All sums below have terms of the same sign.
    """

    back: Matrix  #: D^(-½) Q
    s: Vector
    u: Vector
    residual_square: PerProblem  #: the minimum of ‖y − Φθ‖² + σ²l²‖θ‖², the ridge problem of p = 1
    noise_variance: PerProblem

    def m(self, logit: PerProblem) -> Vector:
        """m*(p)."""
        coordinates = self.s * self.u / self._denominator(logit[..., None])[..., 0, :]
        return matvec(self.back, coordinates)

    def objective(self, logit: Float[Tensor, "*B n"]) -> Float[Tensor, "*B n"]:
        """The objective at (m*(p), p) for n values of p each."""
        p, drop = on_and_off(logit)
        excess = (self.u[..., None, :].square() * drop[..., None] / self._denominator(logit)).sum(-1)
        misfit = (self.residual_square[..., None] + excess) / (2 * self.noise_variance[..., None])
        return misfit - self.s.shape[-1] * bernoulli_entropy(p)

    def slope(self, logit: Float[Tensor, "*B n"]) -> Float[Tensor, "*B n"]:
        """d objective/dp = k logit p − ½ Σ m_i²(φ_iᵀφ_i/σ² + l²) at m = m*(p), with the sign of d objective/d logit."""
        ratio = (self.s * self.u)[..., None, :] / self._denominator(logit)
        return self.s.shape[-1] * logit - ratio.square().sum(-1) / (2 * self.noise_variance[..., None])

    def _denominator(self, logit: Float[Tensor, "*B n"]) -> Float[Tensor, "*B n k"]:
        p, drop = on_and_off(logit)
        return drop[..., None] + p[..., None] * self.s[..., None, :].square()


def retain_profile(
    Phi: Features,
    y: Targets,
    noise_variance: PerProblem,
    prior_lengthscale: float = 1.0,
) -> RetainProfile:
    """The objective's profile over a shared p, from one QR and one SVD.

    Raises:
        InputError: a σ² or l that is not positive.
    """
    require_positive("noise variance", noise_variance)
    require_positive("prior length-scale", prior_lengthscale)
    k = Phi.shape[-1]
    decay = prior_lengthscale * noise_variance.sqrt()[..., None, None]
    prior = decay * identity(k, Phi, k + 1)
    R = torch.linalg.qr(torch.cat([torch.cat([Phi, y[..., None]], dim=-1), prior], dim=-2), mode="r").R
    factor, rotated = R[..., :k, :k], R[..., :k, k]
    D_rsqrt = factor.square().sum(-2).rsqrt()
    U, s, Qt = torch.linalg.svd(factor * D_rsqrt[..., None, :])
    return RetainProfile(D_rsqrt[..., None] * Qt.mT, s, matvec(U.mT, rotated), R[..., k, k].square(), noise_variance)


def optimal_shared_retain(
    Phi: Features,
    y: Targets,
    noise_variance: PerProblem,
    prior_lengthscale: float = 1.0,
) -> BernoulliOptimum:
    """Global minimiser of the objective in m and one p, if a grid of `GRID` logits separates local minima.

    Raises:
        InputError: a σ² or l that is not positive.
    """
    profile = retain_profile(Phi, y, noise_variance, prior_lengthscale)
    # Beyond saturation the slope's second term is constant, so its last root is known; one more step is beyond it.
    saturated = torch.full_like(noise_variance, SATURATION)[..., None]
    last = torch.maximum(saturated, SATURATION - profile.slope(saturated) / Phi.shape[-1]) + 1
    grid = torch.linspace(0, SATURATION, GRID + 1, dtype=Phi.dtype, device=Phi.device)
    edges = torch.cat([grid.expand(*noise_variance.shape, -1), last], dim=-1)
    slopes = profile.slope(edges)
    descends_then_rises = (slopes[..., :-1] <= 0) & (slopes[..., 1:] > 0)
    low = bisect(lambda logit: profile.slope(logit) > 0, edges[..., :-1], edges[..., 1:], BISECTIONS)
    values = torch.where(descends_then_rises, profile.objective(low), torch.inf)
    best = values.argmin(-1, keepdim=True)
    logit = low.gather(-1, best)
    return BernoulliOptimum(profile.m(logit[..., 0]), sigmoid(logit), logit, values.gather(-1, best)[..., 0])


def bisect(past: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, steps: int) -> Tensor:
    """Lower ends of the brackets [low, high] of a root after `steps` bisections, elementwise."""
    for _ in range(steps):
        middle = 0.5 * (low + high)
        beyond = past(middle)
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    return low


def optimal_retain_logits(
    mean: Vector,
    Phi: Features,
    noise_variance: PerProblem,
    prior_lengthscale: float = 1.0,
    offset: Vector | None = None,
) -> Vector:
    """Logits of the p_i that minimise the objective + Σ b_i p_i (b = `offset`, 0) at a given mean θ = p∘m.

    As a function of p_i it is a_i/p_i + b_i p_i − H(p_i), a_i = ½θ_i²(φ_iᵀφ_i/σ² + l²), which is convex. Its minimiser
    is the root of η + b − a(1 + e^(−η))² in the logit η, a concave increasing function. Bisection starts from a − b
    (where the function is negative) and max(0, 4a − b) (where it is not); Newton then converges from below.
    """
    a = 0.5 * mean.square() * (Phi.square().sum(-2) / noise_variance[..., None] + prior_lengthscale**2)
    b = torch.zeros_like(a) if offset is None else offset
    low, high = a - b, (4 * a - b).clamp(min=0.0)
    low = bisect(lambda logit: logit + b - a * (1 + torch.exp(-logit)).square() >= 0, low, high, 20)
    for _ in range(8):
        tail = torch.exp(-low)
        value = low + b - a * (1 + tail).square()
        low = low - value / (1 + 2 * a * tail * (1 + tail))
    return low


def fixed_point(
    step: Callable[[Vector], Vector],
    start: Vector,
    tolerance: float,
    max_iterations: int,
) -> Vector:
    """Repeats `step` until no entry changes by more than `tolerance` · (1 + |entry|).

    Each problem of a batch stops separately, so its result does not depend on the others.
    """
    current, moving = start, torch.ones_like(start[..., :1], dtype=torch.bool)
    for _ in range(max_iterations):
        following = torch.where(moving, step(current), current)
        moving = ((following - current).abs() > tolerance * (1 + following.abs())).any(-1, keepdim=True)
        current = following
        if not bool(moving.any()):
            break
    return current


def optimal_retain_per_weight(
    Phi: Features,
    y: Targets,
    noise_variance: PerProblem,
    prior_lengthscale: float = 1.0,
    start: Vector | None = None,
    offset: Vector | None = None,
) -> BernoulliOptimum:
    """A local minimiser in m and p_1, …, p_k of the objective + Σ b_i p_i (b = `offset`, 0), from the logits `start`.

    By default it starts from the shared optimum and is therefore at least as good. It uses coordinate descent in the
    mean θ = p∘m and in p; both steps are exact, so the objective never rises. There are several minima (a dropped
    weight, p_i = ½, tends to stay dropped). It stops as `fixed_point`.

    Raises:
        InputError: a σ² or l that is not positive.
    """
    rows, targets = compress_rows(Phi, y)
    if start is None:
        start = optimal_shared_retain(rows, targets, noise_variance, prior_lengthscale).logit.expand_as(Phi[..., 0, :])

    def m_of(logit: Vector) -> Vector:
        return optimal_m(rows, targets, noise_variance, sigmoid(logit), prior_lengthscale)

    def step(logit: Vector) -> Vector:
        return optimal_retain_logits(sigmoid(logit) * m_of(logit), rows, noise_variance, prior_lengthscale, offset)

    logit = fixed_point(step, start, tolerance=1e-10, max_iterations=2000)
    m, p = m_of(logit), sigmoid(logit)
    return BernoulliOptimum(m, p, logit, bernoulli_objective(rows, targets, noise_variance, m, p, prior_lengthscale))


def coordinate_ascent_masks(
    Phi: Features,
    y: Targets,
    noise_variance: PerProblem,
    m: Vector,
    start: Vector,
    prior_lengthscale: float = 1.0,
    max_sweeps: int = 1000,
) -> Vector:
    """Logits of the mean-field q(ε) = Π q(ε_i) given m, by CAVI: each in turn at its free-form optimum (Gal, lemma 1).

    The target is the posterior restricted to the points m∘ε. Each update is the exact minimiser of
    `bernoulli_objective` in p_i, so no sweep raises the objective. `start` holds logits; it stops as `fixed_point`. A
    weight with m_i = 0 gets p_i = ½.

    Raises:
        InputError: a σ² or l that is not positive.
    """
    require_positive("noise variance", noise_variance)
    require_positive("prior length-scale", prior_lengthscale)
    rows, residual = compress_rows(Phi, y)
    columns = rows * m[..., None, :]
    squares, noise = columns.square().sum(-2), noise_variance[..., None]
    offset = -0.5 * (squares / noise + prior_lengthscale**2 * m.square())

    def sweep(current: Vector) -> Vector:
        logit, retain = current.clone(), sigmoid(current)
        rest = residual - matvec(columns, retain)
        for i in range(m.shape[-1]):
            column, old = columns[..., i], retain[..., i]
            pull = (column * rest).sum(-1) + squares[..., i] * old
            logit[..., i] = pull / noise_variance + offset[..., i]
            rest = rest - column * (sigmoid(logit[..., i]) - old)[..., None]
        return logit

    return fixed_point(sweep, start, tolerance=1e-12, max_iterations=max_sweeps)
