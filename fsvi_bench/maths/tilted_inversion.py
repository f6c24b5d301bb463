"""Log densities of sums of independent variables plus Gaussian noise, by Esscher tilting and Fourier inversion.

Y = Σ_i X_i + √ν z with X_i = 0 or, with probability r_i, N(a_i, v_i); v_i = 0 gives scaled Bernoulli variables. With
the cumulant generating function K(ξ) = νξ²/2 + Σ_i log(1 − r_i + r_i exp(a_i ξ + v_i ξ²/2)),

    f(y) = exp(K(ξ) − ξy) f_ξ(y)    for any ξ,

where f_ξ is the density of the same kind of sum with r̃_i/(1 − r̃_i) = r_i/(1 − r_i)·exp(a_i ξ + v_i ξ²/2) and
ã_i = a_i + v_i ξ, and noise N(νξ, ν). At the saddle point, K'(ξ) = y, the tilted sum has the mean y, even for y far in
the tails, and f_ξ(y) is computed from its characteristic function ψ by the trapezoidal rule at midpoints,

    f_ξ(y) = (h/π) Σ_{j≥0} Re ψ(t_j) + aliases,    t_j = (j + ½)h.

By Poisson's formula the aliases are Σ_{n≠0} (−1)ⁿ f_ξ(y + 2πn/h). A step h chosen from K by Chernoff's bound makes them
negligible; |ψ(t)| ≤ exp(−νt²/2) bounds the truncation error. With ψ(t)/(it) in place of ψ(t) the same sum is an
integral of the density (`fourier_sums`). The remaining error is rounding, which is absolute: digits are lost where
f_ξ(y) is far below its peak, between atoms that are far apart (`fsvi_bench.maths.mixture_enumeration` handles these).
The saddle point is that of Daniels (1954), who approximates f_ξ(y) by 1/√(2πK''(ξ)); here f_ξ(y) is computed.

Every row is computed independently: its result is bitwise the same in any batch (on a CPU with one thread). Therefore
it uses the functions of `fsvi_bench.maths.elementwise`.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from fsvi_bench.maths.elementwise import on_and_off, softplus
from fsvi_bench.maths.gaussian import LOG_2PI

EPS = torch.finfo(torch.float64).eps
#: Aliases and truncation error are below about exp(−40) = 4e-18 of a Gaussian's peak, less than rounding.
NEGLIGIBLE = 40.0
#: Grid sizes are multiples of this, so vectorised loops over complex numbers have no remainder.
FINE = 8
#: Rows with larger grids (tilted spread above about 20,000 noise standard deviations) are not inverted.
MAX_NODES = 2**18
#: Complex numbers processed at a time: 4 MB in each of a few arrays.
CHUNK = 2**18
SADDLE_TOLERANCE, SADDLE_STEPS = 1e-3, 200

PerSum = Float[Tensor, " P"]
PerTerm = Float[Tensor, "P k"]  #: one number per variable of each sum
Fields = TypeVar("Fields", bound=tuple[Tensor, ...])


class IndependentSum(NamedTuple):
    """P sums Σ_i X_i + N(0, noise), and the points y of their densities. r_i < 1; r_i = 0 has log odds −∞."""

    y: PerSum
    noise: PerSum  #: ν, a variance
    size: PerSum  #: magnitude of the numbers of which y is a difference
    log_odds: PerTerm  #: log r_i − log(1 − r_i)
    log_off: PerTerm  #: log(1 − r_i)
    location: PerTerm  #: a_i
    spread: PerTerm  #: v_i, a variance


class Tilt(NamedTuple):
    """The tilted sums: f(y) = exp(log_factor) f_ξ(y)."""

    xi: PerSum
    log_factor: PerSum  #: K(ξ) − ξy
    rounding: PerSum  #: estimated error of log_factor
    log_odds: PerTerm
    on: PerTerm  #: r̃_i
    off: PerTerm  #: 1 − r̃_i without cancellation
    location: PerTerm  #: ã_i
    slope: PerSum  #: K'(ξ) − y
    variance: PerSum  #: K''(ξ)

    def log_peak(self, s: IndependentSum) -> PerSum:
        """An upper bound on log f(y), since f_ξ never exceeds the peak 1/√(2πν) of its noise."""
        return self.log_factor - 0.5 * (LOG_2PI + s.noise.log())


class Grid(NamedTuple):
    """The trapezoidal rule for targets within a given distance of y, and where the tilted sum's mass ends."""

    step: PerSum
    nodes: Int[Tensor, " P"]
    above: PerSum  #: P_ξ(Y ≥ y + above) ≤ exp(−NEGLIGIBLE); negative if y is beyond that point
    below: PerSum


class Inverted(NamedTuple):
    """Log densities, and logs of bounds on their absolute errors."""

    log_density: Float[Tensor, "P m"]
    log_error: Float[Tensor, "P m"]  #: from the inversion
    log_total: Float[Tensor, "P m"]  #: from the inversion and the tilt's rounding
    cost: PerSum  #: characteristic-function factors evaluated


def take_rows(fields: Fields, rows: Tensor | slice) -> Fields:
    """The same rows of every field."""
    return type(fields)(*(field[rows] for field in fields))


def tilted_log_odds(s: IndependentSum, xi: PerSum) -> PerTerm:
    column = xi[:, None]
    return s.log_odds + (s.location + 0.5 * column * s.spread) * column


def tilt_at(s: IndependentSum, xi: PerSum) -> Tilt:
    """The Esscher tilt by ξ."""
    log_odds = tilted_log_odds(s, xi)
    on, off = on_and_off(log_odds)
    location = s.location + s.spread * xi[:, None]
    slope = s.noise * xi + (on * location).sum(-1) - s.y
    variance = s.noise + (on * (s.spread + off * location * location)).sum(-1)
    growth, gaussian = softplus(log_odds), 0.5 * s.noise * xi * xi
    log_factor = gaussian + (s.log_off + growth).sum(-1) - xi * s.y
    sizes = xi.abs() * (s.size + (on * location.abs()).sum(-1)) + gaussian + (growth - s.log_off).sum(-1)
    # First order in the rounding of y, and second order, which remains if ξ = 0.
    rounding = 4 * EPS * (1 + sizes) + (4 * EPS * s.size).square() / s.noise
    return Tilt(xi, log_factor, rounding, log_odds, on, off, location, slope, variance)


def tilt_to_saddle_point(s: IndependentSum) -> Tilt:
    """The tilt by ξ with K'(ξ) = y, to 0.1% of its standard deviation. Any ξ is correct; this one is accurate.

    It uses Newton's method, with bisection if a step would leave the bracket or has not halved the slope. The bracket
    follows from the terms r̃(a + vξ) of K', which are at least min(a, 0) for ξ ≥ 0 and at most max(a, 0) for ξ ≤ 0.
    """
    low = ((s.y - s.location.clamp(min=0).sum(-1)) / s.noise).clamp(max=0)
    high = ((s.y - s.location.clamp(max=0).sum(-1)) / s.noise).clamp(min=0)
    tilted, before = tilt_at(s, torch.zeros_like(s.y)), torch.full_like(s.y, torch.inf)
    for _ in range(SADDLE_STEPS):
        xi, slope = tilted.xi, tilted.slope
        done = slope.abs() <= SADDLE_TOLERANCE * tilted.variance.sqrt()
        if bool(done.all()):
            break
        low, high = torch.where(slope < 0, xi, low), torch.where(slope > 0, xi, high)
        newton = xi - slope / tilted.variance
        good = (newton > low) & (newton < high) & (slope.abs() <= 0.5 * before)
        tilted = tilt_at(s, torch.where(done, xi, torch.where(good, newton, 0.5 * (low + high))))
        before = slope.abs()
    return tilted


def grid(s: IndependentSum, tilted: Tilt, reach: PerSum | float = 0.0) -> Grid:
    """The grid whose aliases are at least as far away as where Chernoff's bound of the tilted sum is below exp(−level).

    log P_ξ(Y ≥ y + d) and log f_ξ(y + d) + ½log(2πν) are at most C(η) − ηd for η > 0, C(η) = K(ξ + η) − K(ξ) − ηy, and
    likewise on the other side. d is the minimum over five values of η, from the optimum for a Gaussian of the tilted
    variance to the optimum for the noise beyond the ends of a bounded sum.
    """
    level = NEGLIGIBLE + 0.5 * (tilted.variance / s.noise).log()
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
    step = 2 * math.pi / (torch.maximum(*distances) + reach)
    return Grid(step, whole_blocks(root / s.noise.sqrt() / step), *distances)


def whole_blocks(count: PerSum) -> Int[Tensor, " P"]:
    """`count` rounded up to 8 times 1, 2, 3 or 4 times a power of two; about 8 · MAX_NODES if it is larger."""
    blocks = (count / FINE).clamp(max=MAX_NODES).ceil()
    power = torch.exp2((blocks / 4).log2().ceil().clamp(min=0))
    return (FINE * power * (blocks / power).ceil()).long()


def invert(
    s: IndependentSum, tilted: Tilt, offsets: Float[Tensor, "P m"], wanted: Bool[Tensor, " P"] | None = None
) -> Inverted:
    """Log densities at y + offset from one tilt and one evaluation of ψ. Digits are lost as f_ξ decreases away from y.

    A row that is not wanted or not feasible (`fourier_sums`) gets the log density −∞ and the upper bound as its error.
    """
    rule = grid(s, tilted, offsets.abs().amax(-1))
    sums, rounding = fourier_sums(s, tilted, rule, offsets, wanted=wanted)
    log_factor = tilted.log_factor[:, None] - tilted.xi[:, None] * offsets
    # See `grid`: two aliases and the truncation error, each relative to a Gaussian's peak.
    discretisation = math.exp(-NEGLIGIBLE) * (2 / math.sqrt(2 * math.pi) + 4) / tilted.variance.sqrt()
    error, density = rounding + discretisation[:, None] + sums.clamp(max=0).abs(), sums.clamp(min=0)
    of_tilt = tilted.rounding[:, None] + 4 * EPS * (tilted.xi[:, None] * offsets).abs()
    known = ~sums.isnan()
    bound = tilted.log_peak(s)[:, None] - tilted.xi[:, None] * offsets
    return Inverted(
        torch.where(known, log_factor + density.log(), -torch.inf),
        torch.where(known, log_factor + error.log(), bound),
        torch.where(known, log_factor + (error + density * of_tilt).log(), bound),
        torch.where(known[:, 0], rule.nodes, 0).to(s.y.dtype) * s.location.shape[1],
    )


def fourier_sums(
    s: IndependentSum,
    tilted: Tilt,
    rule: Grid,
    offsets: Float[Tensor, "P m"],
    *,
    integrated: bool = False,
    wanted: Bool[Tensor, " P"] | None = None,
) -> tuple[Float[Tensor, "P m"], Float[Tensor, "P m"]]:
    """(h/π) Σ_j Re[κ(t_j) ψ(t_j) exp(−it_j(y + offset))], κ = 1 or (`integrated`) 1/(it), and its rounding error.

    The result is NaN for a row that is not wanted, whose grid would exceed MAX_NODES, or whose K, and hence step, is
    not accurate to one nat. Rows with equal grids are summed together, in chunks of limited memory.
    """
    total, rounding = torch.full_like(offsets, torch.nan), torch.full_like(offsets, torch.nan)
    # On overflow `nodes` is negative.
    feasible = (rule.nodes > 0) & (rule.nodes <= MAX_NODES) & (tilted.rounding < 1)
    if wanted is not None:
        feasible &= wanted
    width = max(s.location.shape[1], offsets.shape[1])
    for n in torch.unique(rule.nodes[feasible]).tolist():
        places = torch.arange(n, dtype=s.y.dtype, device=s.y.device) + 0.5
        for rows in (feasible & (rule.nodes == n)).nonzero()[:, 0].split(max(1, CHUNK // (n * width))):
            part, tilt, step = take_rows(s, rows), take_rows(tilted, rows), rule.step[rows, None]
            total[rows] = rounding[rows] = 0.0
            for some in torch.split(places, max(FINE, CHUNK // width // FINE * FINE)):
                real, error = _integrand(part, tilt, some * step, offsets[rows], integrated)
                total[rows] += real.sum(-1) * step / math.pi
                rounding[rows] += error.sum(-1) * step / math.pi
    return total, rounding


def _integrand(
    s: IndependentSum, tilted: Tilt, t: Float[Tensor, "P n"], offsets: Float[Tensor, "P m"], integrated: bool
) -> tuple[Float[Tensor, "P m n"], Float[Tensor, "P m n"]]:
    """Re κ(t) ψ(t) exp(−it(y + offset)) and its estimated rounding error."""
    product = characteristic_product(s, tilted, t) * (-0.5 * s.noise[:, None] * t * t).exp()
    if integrated:
        product = torch.complex(product.imag / t, -product.real / t)
    centre = (s.y - s.noise * tilted.xi)[:, None] + offsets
    angle = centre[:, :, None] * t[:, None]
    real = product.real[:, None] * angle.cos() + product.imag[:, None] * angle.sin()
    # Phases have relative errors of eps; the product of k factors adds random errors.
    magnitude = EPS * (product.real.abs() + product.imag.abs())
    phase = centre.abs() + (tilted.on * tilted.location.abs()).sum(-1)[:, None]
    many = 4 + 2 * math.sqrt(s.location.shape[1])
    return real, magnitude[:, None] * (many + phase[:, :, None] * t[:, None])


def characteristic_product(s: IndependentSum, tilted: Tilt, t: Float[Tensor, "P n"]) -> Complex[Tensor, "P n"]:
    """Π_i (1 − r̃_i + r̃_i exp(iã_i t − v_i t²/2)); exp(iãt) is a product of coarse and fine steps."""
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
