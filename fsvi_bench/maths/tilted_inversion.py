"""Log densities of sums of independent variables plus Gaussian noise: Esscher tilt, then Fourier inversion.

Y = Σ_i X_i + √ν z with X_i = 0 or, with probability r_i, N(a_i, v_i); v_i = 0 gives scaled Bernoulli variables. With
the cumulant generating function K(ξ) = νξ²/2 + Σ_i log(1 − r_i + r_i exp(a_i ξ + v_i ξ²/2)),

    f(y) = exp(K(ξ) − ξy) f_ξ(y)    for any ξ,

where f_ξ is the density of the same kind of sum with r̃_i/(1 − r̃_i) = r_i/(1 − r_i)·exp(a_i ξ + v_i ξ²/2) and
ã_i = a_i + v_i ξ, and noise N(νξ, ν). At the saddle point, K'(ξ) = y, the tilted sum has its mean at y, however far out
y lies, and f_ξ(y) is inverted from its characteristic function ψ by the trapezoidal rule at midpoints,

    f_ξ(y) = (h/π) Σ_{j≥0} Re ψ(t_j) + aliases,    t_j = (j + ½)h.

By Poisson's formula the aliases are Σ_{n≠0} (−1)ⁿ f_ξ(y + 2πn/h), which Chernoff's bound makes negligible for a step
that follows from K itself; |ψ(t)| ≤ exp(−νt²/2) bounds what is cut off. Rounding is left: it is absolute, and so the
digits are lost where f_ξ(y) is far below its peak, between atoms far apart (`fsvi_bench.maths.mixture_enumeration`
mends that). The saddle point is that of Daniels (1954), who replaces f_ξ(y) by 1/√(2πK''(ξ)); here it is computed.

Every row is computed alone: its result has the same bits whatever shares the batch (on a CPU, with one thread). So
its functions are those of `fsvi_bench.maths.elementwise`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from fsvi_bench.maths.elementwise import on_and_off, softplus
from fsvi_bench.maths.gaussian import LOG_2PI

EPS = torch.finfo(torch.float64).eps
#: Aliases and what is cut off come to less than about exp(−40) = 4e-18 of a Gaussian's peak, below rounding.
NEGLIGIBLE = 40.0
#: Grids come in multiples of this: no vectorised loop over complex numbers has a remainder.
FINE = 8
#: Rows with grids larger than this (tilted spread above about 20,000 noise standard deviations) are not inverted.
MAX_NODES = 2**18
#: Complex numbers at a time: 4 MB in each of a handful of arrays.
CHUNK = 2**18
SADDLE_TOLERANCE, SADDLE_STEPS = 1e-3, 200

Fields = TypeVar("Fields", bound=tuple[Tensor, ...])


class IndependentSum(NamedTuple):
    """P sums Σ_i X_i + N(0, noise), and where their densities are asked for. r_i < 1; r_i = 0 is log odds −∞."""

    y: Float[Tensor, " P"]
    noise: Float[Tensor, " P"]  #: ν, a variance
    size: Float[Tensor, " P"]  #: magnitude of the numbers that y is a difference of
    log_odds: Float[Tensor, "P k"]  #: log r_i − log(1 − r_i)
    log_off: Float[Tensor, "P k"]  #: log(1 − r_i)
    location: Float[Tensor, "P k"]  #: a_i
    spread: Float[Tensor, "P k"]  #: v_i, a variance


class Tilt(NamedTuple):
    """The tilted sums: f(y) = exp(log_factor) f_ξ(y)."""

    xi: Float[Tensor, " P"]
    log_factor: Float[Tensor, " P"]  #: K(ξ) − ξy
    rounding: Float[Tensor, " P"]  #: estimated error of log_factor
    log_odds: Float[Tensor, "P k"]
    on: Float[Tensor, "P k"]  #: r̃_i
    off: Float[Tensor, "P k"]  #: 1 − r̃_i without cancellation
    location: Float[Tensor, "P k"]  #: ã_i
    variance: Float[Tensor, " P"]  #: K''(ξ)


class Inverted(NamedTuple):
    """Log densities, and the logs of what bounds their absolute errors from the inversion (not from the tilt)."""

    log_density: Float[Tensor, " P"]
    log_error: Float[Tensor, " P"]
    cost: Float[Tensor, " P"]  #: characteristic-function factors evaluated


def take_rows(fields: Fields, rows: Tensor | slice) -> Fields:
    """The same rows of every field."""
    return type(fields)(*(field[rows] for field in fields))


def tilted_log_odds(s: IndependentSum, xi: Float[Tensor, " P"]) -> Float[Tensor, "P k"]:
    column = xi[:, None]
    return s.log_odds + (s.location + 0.5 * column * s.spread) * column


def slope_and_curvature(s: IndependentSum, xi: Float[Tensor, " P"]) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    """K'(ξ) − y and K''(ξ)."""
    on, off = on_and_off(tilted_log_odds(s, xi))
    location = s.location + s.spread * xi[:, None]
    slope = s.noise * xi + (on * location).sum(-1) - s.y
    return slope, s.noise + (on * (s.spread + off * location * location)).sum(-1)


def saddle_point(s: IndependentSum) -> Float[Tensor, " P"]:
    """ξ with K'(ξ) = y, to a thousandth of the tilted standard deviation: any ξ would be right, this one is good.

    Newton's method, which bisects where it would leave the bracket or has not halved the slope. The bracket: for ξ ≥ 0
    every term r̃(a + vξ) of K' is at least min(a, 0), for ξ ≤ 0 at most max(a, 0).
    """
    low = ((s.y - s.location.clamp(min=0).sum(-1)) / s.noise).clamp(max=0)
    high = ((s.y - s.location.clamp(max=0).sum(-1)) / s.noise).clamp(min=0)
    xi, before = torch.zeros_like(s.y), torch.full_like(s.y, torch.inf)
    for _ in range(SADDLE_STEPS):
        slope, curvature = slope_and_curvature(s, xi)
        done = slope.abs() <= SADDLE_TOLERANCE * curvature.sqrt()
        if bool(done.all()):
            break
        low, high = torch.where(slope < 0, xi, low), torch.where(slope > 0, xi, high)
        newton = xi - slope / curvature
        good = (newton > low) & (newton < high) & (slope.abs() <= 0.5 * before)
        xi = torch.where(done, xi, torch.where(good, newton, 0.5 * (low + high)))
        before = slope.abs()
    return xi


def tilt_at(s: IndependentSum, xi: Float[Tensor, " P"]) -> Tilt:
    """The Esscher tilt by ξ."""
    log_odds = tilted_log_odds(s, xi)
    on, off = on_and_off(log_odds)
    location = s.location + s.spread * xi[:, None]
    variance = s.noise + (on * (s.spread + off * location * location)).sum(-1)
    growth, gaussian = softplus(log_odds), 0.5 * s.noise * xi * xi
    log_factor = gaussian + (s.log_off + growth).sum(-1) - xi * s.y
    sizes = xi.abs() * (s.size + (on * location.abs()).sum(-1)) + gaussian + (growth - s.log_off).sum(-1)
    # To first order in the rounding of y, and to second, which is what is left where ξ = 0.
    rounding = 4 * EPS * (1 + sizes) + (4 * EPS * s.size).square() / s.noise
    return Tilt(xi, log_factor, rounding, log_odds, on, off, location, variance)


def log_density_bound(s: IndependentSum, tilted: Tilt) -> Float[Tensor, " P"]:
    """An upper bound of log f(y), since f_ξ is nowhere above the peak 1/√(2πν) of its noise."""
    return tilted.log_factor - 0.5 * (LOG_2PI + s.noise.log())


def alias_distance(s: IndependentSum, tilted: Tilt, level: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
    """d with f_ξ(y ± nd) ≤ exp(−n·level)/√(2πν), n = 1, 2, …: see `chernoff_distances`."""
    return torch.maximum(*chernoff_distances(s, tilted, level))


def chernoff_distances(
    s: IndependentSum, tilted: Tilt, level: Float[Tensor, " P"]
) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    """Distances (up, down) from y beyond which Chernoff's bound of the tilted sum is below exp(−level).

    log P_ξ(Y ≥ y + d) and log f_ξ(y + d) + ½log(2πν) are at most C(η) − ηd for η > 0, C(η) = K(ξ + η) − K(ξ) − ηy, and
    likewise downwards; the least d over five η between what is best for a Gaussian of the tilted variance and for the
    noise beyond the ends of a bounded sum. Negative where y itself lies further out.
    """
    root, deviation = (2 * level).sqrt(), tilted.variance.sqrt()
    ratio = (deviation / s.noise.sqrt()).log()
    growth, distances = softplus(tilted.log_odds), []
    for sign in (1.0, -1.0):
        nearest = torch.full_like(level, torch.inf)
        for factor, power in ((0.6, 0.0), (1.0, 0.0), (1.0, 1 / 3), (1.0, 2 / 3), (1.0, 1.0)):
            eta = factor * root / deviation * (power * ratio).exp()
            step = sign * eta
            change = softplus(tilted_log_odds(s, tilted.xi + step)) - growth
            cumulant = step * s.noise * (tilted.xi + 0.5 * step) + change.sum(-1) - step * s.y
            nearest = torch.minimum(nearest, (cumulant + level) / eta)
        distances.append(nearest)
    return distances[0], distances[1]


def grid(
    s: IndependentSum, tilted: Tilt, reach: Float[Tensor, " P"] | float = 0.0
) -> tuple[Float[Tensor, " P"], Int[Tensor, " P"]]:
    """Step and number of nodes of the trapezoidal rule that serves every target within `reach` of y."""
    level = NEGLIGIBLE + 0.5 * (tilted.variance / s.noise).log()
    step = 2 * math.pi / (alias_distance(s, tilted, level) + reach)
    return step, whole_blocks((2 * level / s.noise).sqrt() / step)


def whole_blocks(count: Float[Tensor, " P"]) -> Int[Tensor, " P"]:
    """At least as many nodes, 8 times 1, 2, 3 or 4 times a power of two; 8 · MAX_NODES or so if there are more."""
    blocks = (count / FINE).clamp(max=MAX_NODES).ceil()
    power = torch.exp2((blocks / 4).log2().ceil().clamp(min=0))
    return (FINE * power * (blocks / power).ceil()).long()


def invert(s: IndependentSum, tilted: Tilt, wanted: Bool[Tensor, " P"] | None = None) -> Inverted:
    """Log density at y by inversion, row by row in chunks of equal grids.

    A row that is not wanted, whose grid would exceed MAX_NODES, or whose K is not known to a nat, gets the log density
    −∞ and the upper bound for its error.
    """
    step, nodes = grid(s, tilted)
    log_density, log_error = torch.full_like(s.y, -torch.inf), log_density_bound(s, tilted)
    # Where K is known to less than a nat, so is the step that follows from it.
    feasible = (nodes > 0) & (nodes <= MAX_NODES) & (tilted.rounding < 1)
    if wanted is not None:
        feasible &= wanted
    here = torch.zeros_like(s.y)[:, None]
    for part, n in _parts_of_equal_grids(nodes, feasible, s.location.shape[1]):
        density, error = _invert_equal_grids(take_rows(s, part), take_rows(tilted, part), step[part], n, here[part])
        log_density[part], log_error[part] = density[:, 0], error[:, 0]
    return Inverted(log_density, log_error, torch.where(feasible, nodes, 0).to(step.dtype) * s.location.shape[1])


def invert_around(
    s: IndependentSum, tilted: Tilt, offsets: Float[Tensor, "P m"]
) -> tuple[Float[Tensor, "P m"], Float[Tensor, "P m"]]:
    """Log densities at y + offset from one tilt and one evaluation of ψ, and the logs of their absolute errors.

    A fine enough step for y is fine enough for y + δ once the aliases' distance has grown by |δ|. Digits are lost as
    f_ξ falls off from its mean y. Where `invert` would give none: −∞, and ∞ for the error.
    """
    step, nodes = grid(s, tilted, offsets.abs().amax(-1))
    log_density, log_error = torch.full_like(offsets, -torch.inf), torch.full_like(offsets, torch.inf)
    feasible = (nodes > 0) & (nodes <= MAX_NODES) & (tilted.rounding < 1)
    for part, n in _parts_of_equal_grids(nodes, feasible, max(s.location.shape[1], offsets.shape[1])):
        log_density[part], log_error[part] = _invert_equal_grids(
            take_rows(s, part), take_rows(tilted, part), step[part], n, offsets[part]
        )
    return log_density, log_error


def _parts_of_equal_grids(
    nodes: Int[Tensor, " P"], feasible: Bool[Tensor, " P"], width: int
) -> Iterator[tuple[Int[Tensor, " rows"], int]]:
    """Feasible rows with the same number n of nodes, as many at a time as memory is meant to hold."""
    for n in torch.unique(nodes[feasible]).tolist():
        rows = (feasible & (nodes == n)).nonzero()[:, 0]
        for part in rows.split(max(1, CHUNK // (n * width))):
            yield part, n


def _invert_equal_grids(
    s: IndependentSum, tilted: Tilt, step: Float[Tensor, " P"], n: int, offsets: Float[Tensor, "P m"]
) -> tuple[Float[Tensor, "P m"], Float[Tensor, "P m"]]:
    density, rounding = torch.zeros_like(offsets), torch.zeros_like(offsets)
    nodes = torch.arange(n, dtype=step.dtype, device=step.device) + 0.5
    at_once = max(FINE, CHUNK // max(s.location.shape[1], offsets.shape[1]) // FINE * FINE)
    for part in torch.split(nodes, at_once):
        real, error = _integrand(s, tilted, part * step[:, None], offsets)
        density += real.sum(-1) * step[:, None] / math.pi
        rounding += error.sum(-1) * step[:, None] / math.pi
    # See `grid`: two aliases, and what is cut off, each relative to a Gaussian's peak.
    discretisation = math.exp(-NEGLIGIBLE) * (2 / math.sqrt(2 * math.pi) + 4) / tilted.variance.sqrt()
    log_error = (rounding + discretisation[:, None] + density.clamp(max=0).abs()).log()
    log_factor = tilted.log_factor[:, None] - tilted.xi[:, None] * offsets
    return log_factor + density.clamp(min=0).log(), log_factor + log_error


def _integrand(
    s: IndependentSum, tilted: Tilt, t: Float[Tensor, "P n"], offsets: Float[Tensor, "P m"]
) -> tuple[Float[Tensor, "P m n"], Float[Tensor, "P m n"]]:
    """Re ψ(t) exp(−it(y + offset)) and its estimated rounding error."""
    product = characteristic_product(s, tilted, t)
    centre = (s.y - s.noise * tilted.xi)[:, None] + offsets
    noise = (-0.5 * s.noise[:, None] * t * t).exp()
    angle = centre[:, :, None] * t[:, None]
    real = (product.real[:, None] * angle.cos() + product.imag[:, None] * angle.sin()) * noise[:, None]
    # Phases have relative errors of eps; the product of k factors adds some more, at random.
    magnitude = EPS * (product.real.abs() + product.imag.abs()) * noise
    phase = centre.abs() + (tilted.on * tilted.location.abs()).sum(-1)[:, None]
    many = 4 + 2 * math.sqrt(s.location.shape[1])
    return real, magnitude[:, None] * (many + phase[:, :, None] * t[:, None])


def characteristic_product(s: IndependentSum, tilted: Tilt, t: Float[Tensor, "P n"]) -> Complex[Tensor, "P n"]:
    """Π_i (1 − r̃_i + r̃_i exp(iã_i t − v_i t²/2)); exp(iãt) of an even grid is a product of coarse and fine steps."""
    fine = torch.polar(tilted.on[:, :, None], tilted.location[:, :, None] * t[:, None, :FINE])
    first = t[:, None, ::FINE] - t[:, None, :1]
    coarse = torch.polar(torch.ones_like(first), tilted.location[:, :, None] * first)
    factors = (coarse[..., None] * fine[:, :, None, :]).flatten(-2)
    if bool(s.spread.any()):
        factors *= (-0.5 * s.spread[:, :, None] * (t * t)[:, None, :]).exp()
    factors += tilted.off[:, :, None]
    while (k := factors.shape[1]) > 1:
        half = k // 2
        factors[:, :half] *= factors[:, k - half :]
        factors = factors[:, : k - half]
    return factors[:, 0]
