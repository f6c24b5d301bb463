"""Densities of sums of independent variables where inversion cancels: enumerate what matters, invert the rest.

Where atoms lie far apart compared with the noise, the density between them is far below the tilted density's peak and
inversion loses its digits. Conditional on the variables with the largest jumps being off or on, the rest is a sum of
the same kind, tilted and inverted anew: f(y) = Σ_c P(c) f(y | c). The combinations c form a binary tree per point; a
branch is split on the variable with the largest share of the tilted variance, and only if its own inversion failed.
Chernoff's bound says from above what a branch can be worth, so branches are visited best first and left alone once they
cannot matter; what they could have been worth goes into the error.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fsvi_bench.maths.tilted_inversion import (
    IndependentSum,
    Inverted,
    Tilt,
    invert,
    log_density_bound,
    saddle_point,
    take_rows,
    tilt_at,
)

#: A branch counts as resolved at this relative precision.
TARGET = math.log(1e-9)
#: Branches that cannot be worth more than this share of the total are left alone; exp(-37) = 1e-16.
NEGLIGIBLE_SHARE = -37.0
#: Branches are visited in rounds: those whose bounds come within this many nats of the best.
WINDOW = 3.0
#: Characteristic-function factors per point after which no branch is split any more: some 50 ms on one thread.
BUDGET = 2**23
#: With so few variables enumeration comes to its end anyhow: no budget.
FEW = 12
#: What a saddle point costs per variable, in the same unit.
SADDLE_COST = 30.0
#: Rows for which k columns are computed at a time.
ROWS = 2048


class Branches(NamedTuple):
    """Q nodes of the trees of N points: what is fixed, and the sum of the rest."""

    point: Int[Tensor, " Q"]
    log_weight: Float[Tensor, " Q"]  #: log P(c)
    y: Float[Tensor, " Q"]
    noise: Float[Tensor, " Q"]
    size: Float[Tensor, " Q"]
    free: Bool[Tensor, "Q k"]
    xi: Float[Tensor, " Q"]
    bound: Float[Tensor, " Q"]  #: upper bound of log P(c) f(y | c)


class Totals:
    """Per point: logs of the density summed so far and of its error, and the cost so far."""

    def __init__(self, like: Float[Tensor, " N"]) -> None:
        self.density = torch.full_like(like, -torch.inf)
        self.error = torch.full_like(like, -torch.inf)
        self.cost = torch.zeros_like(like)

    def add(self, point: Int[Tensor, " Q"], density: Float[Tensor, " Q"], error: Float[Tensor, " Q"]) -> None:
        self.density = add_logs(self.density, log_sums(density, point, len(self.cost)))
        self.error = add_logs(self.error, log_sums(error, point, len(self.cost)))


def add_logs(a: Float[Tensor, "*B"], b: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """log(eᵃ + eᵇ); rounds alike in every place of a batch, which torch.logaddexp does not."""
    high, low = torch.maximum(a, b), torch.minimum(a, b)
    return high + torch.where(low > -torch.inf, low - high, -torch.inf).exp().log1p()


def log_sums(values: Float[Tensor, " Q"], point: Int[Tensor, " Q"], N: int) -> Float[Tensor, " N"]:
    """log Σ exp(values) of each point; −∞ where there is none."""
    highest = _highest(values, point, N)
    shift = highest.clamp(min=torch.finfo(values.dtype).min)
    return shift + torch.zeros_like(shift).index_add_(0, point, (values - shift[point]).exp()).log()


def _highest(values: Float[Tensor, " Q"], point: Int[Tensor, " Q"], N: int) -> Float[Tensor, " N"]:
    return values.new_full((N,), -torch.inf).scatter_reduce_(0, point, values, "amax")


def enumerate_and_invert(s: IndependentSum) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Log densities of N sums at their y, the logs of estimated absolute errors, and each one's cost (see `BUDGET`)."""
    totals, pending = Totals(s.y), _root(s)
    while len(pending.point):
        negligible = pending.bound <= totals.density[pending.point] + NEGLIGIBLE_SHARE
        lost = take_rows(pending, negligible)
        totals.add(lost.point, torch.full_like(lost.bound, -torch.inf), lost.bound)
        pending = take_rows(pending, ~negligible)
        chosen = pending.bound >= _highest(pending.bound, pending.point, len(s.y))[pending.point] - WINDOW
        waiting, now = take_rows(pending, ~chosen), take_rows(pending, chosen)
        children = [_visit(s, part, totals) for part in _parts(now)]
        pending = _join([waiting, *children])
    return totals.density, totals.error, totals.cost


def _parts(branches: Branches) -> list[Branches]:
    """Blocks of ROWS rows; one empty block if there are none."""
    starts = range(0, max(1, len(branches.point)), ROWS)
    return [take_rows(branches, slice(start, start + ROWS)) for start in starts]


def _join(parts: list[Branches]) -> Branches:
    return Branches(*(torch.cat(fields) for fields in zip(*parts, strict=True)))


def _root(s: IndependentSum) -> Branches:
    zero, point = torch.zeros_like(s.y), torch.arange(len(s.y), device=s.y.device)
    return _bounded(s, Branches(point, zero, s.y, s.noise, s.size, s.log_odds > -torch.inf, zero, zero))


def _rest(s: IndependentSum, branches: Branches) -> IndependentSum:
    """The sum over a branch's free variables."""
    point, free = branches.point, branches.free
    log_odds = torch.where(free, s.log_odds[point], -torch.inf)
    return IndependentSum(
        branches.y,
        branches.noise,
        branches.size,
        log_odds,
        *(torch.where(free, field[point], 0.0) for field in (s.log_off, s.location, s.spread)),
    )


def _bounded(s: IndependentSum, branches: Branches) -> Branches:
    """The branches with their saddle points and upper bounds."""
    rest = _rest(s, branches)
    xi = saddle_point(rest)
    return branches._replace(xi=xi, bound=branches.log_weight + log_density_bound(rest, tilt_at(rest, xi)))


def _visit(s: IndependentSum, branches: Branches, totals: Totals) -> Branches:
    """Adds to the totals what can be resolved, or cannot be split; returns the others' children."""
    rest, point = _rest(s, branches), branches.point
    tilted = tilt_at(rest, branches.xi)
    # With fewer atoms than noise standard deviations to be filled, inversion would be dear and fail.
    room = 0.5 * (tilted.variance / rest.noise).log()
    result = invert(rest, tilted, branches.free.sum(-1) * math.log(2) > room - 1)
    totals.cost.index_add_(0, point, result.cost + SADDLE_COST * s.location.shape[1])
    shares = tilted.on * tilted.off * (tilted.location.square() + rest.spread)
    share, variable = shares.max(-1)
    density, inversion_error, error = _weighted(branches, tilted, result)
    spent = (totals.cost[point] > BUDGET) & ((s.log_odds > -torch.inf).sum(-1)[point] > FEW)
    final = (inversion_error - density <= TARGET) | (share <= 0) | spent
    totals.add(point[final], density[final], error[final])
    # What is still unresolved may be so far below the total that it need not be resolved.
    small = ~final & (inversion_error <= TARGET + totals.density[point])
    totals.add(point[small], density[small], error[small])
    split = ~(final | small)
    return _split(s, take_rows(branches, split), variable[split])


def _weighted(
    branches: Branches, tilted: Tilt, result: Inverted
) -> tuple[Float[Tensor, " Q"], Float[Tensor, " Q"], Float[Tensor, " Q"]]:
    """Logs of P(c) f(y | c), of its error from the inversion, and of its whole error."""
    density, inversion_error = branches.log_weight + result.log_density, branches.log_weight + result.log_error
    return density, inversion_error, add_logs(inversion_error, density + tilted.rounding.log())


def _split(s: IndependentSum, branches: Branches, variable: Int[Tensor, " Q"]) -> Branches:
    """Each branch with the given variable off, and with it on."""
    point, free = branches.point, branches.free.scatter(1, variable[:, None], False)
    log_off, location = s.log_off[point, variable], s.location[point, variable]
    off = branches._replace(free=free, log_weight=branches.log_weight + log_off)
    on = branches._replace(
        free=free,
        log_weight=branches.log_weight + s.log_odds[point, variable] + log_off,
        y=branches.y - location,
        noise=branches.noise + s.spread[point, variable],
        size=branches.size + location.abs(),
    )
    children = _join([off, on])
    return _join([_bounded(s, part) for part in _parts(children)])
