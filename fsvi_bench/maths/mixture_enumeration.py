"""Densities of sums of independent variables for which inversion cancels: partial enumeration, then inversion.

If atoms are far apart compared with the noise, the density between them is far below the tilted density's peak, and
inversion loses its digits. Conditional on whether the variables with the largest jumps are off or on, the rest is a sum
of the same kind, which is tilted and inverted again: f(y) = Σ_c P(c) f(y | c). The combinations c form a binary tree
per point. A branch is split on the variable with the largest share of the tilted variance, and only if its own
inversion failed. Chernoff's bound limits a branch's contribution from above, so branches are visited best first and
skipped once they are negligible; their bounds are then added to the error.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fsvi_bench.maths.tilted_inversion import (
    IndependentSum,
    invert,
    take_rows,
    tilt_at,
    tilt_to_saddle_point,
)

#: Relative precision at which a branch counts as resolved.
TARGET = math.log(1e-9)
#: Branches that cannot contribute more than this log share of the total are skipped; exp(-37) = 1e-16.
NEGLIGIBLE_SHARE = -37.0
#: Each round visits the branches whose bounds are within this many nats of the best.
WINDOW = 3.0
#: Characteristic-function factors per point after which branches are no longer split: about 50 ms on one thread.
BUDGET = 2**23
#: With at most this many variables there is no budget, since full enumeration is affordable.
FEW = 12
#: Cost of a saddle point per variable, in the same unit.
SADDLE_COST = 30.0
#: Number of branches visited at a time.
ROWS = 2048


class Branches(NamedTuple):
    """Q nodes of the trees of N points: which variables are fixed to on and which are free; the others are off."""

    point: Int[Tensor, " Q"]
    on: Bool[Tensor, "Q k"]
    free: Bool[Tensor, "Q k"]
    xi: Float[Tensor, " Q"]
    bound: Float[Tensor, " Q"]  #: upper bound on log P(c) f(y | c)


class Totals:
    """Per point: logs of the density summed so far and of its error, and the cost in addition to plain inversion."""

    def __init__(self, like: Float[Tensor, " N"]) -> None:
        self.density = torch.full_like(like, -torch.inf)
        self.error = torch.full_like(like, -torch.inf)
        self.cost = torch.zeros_like(like)


def add_logs(total: Float[Tensor, " N"], values: Float[Tensor, " Q"], point: Int[Tensor, " Q"]) -> Float[Tensor, " N"]:
    """log(exp(total) + Σ exp(values)) of each point; unlike torch.logaddexp, rounding does not depend on the batch."""
    highest = total.scatter_reduce(0, point, values, "amax").clamp(min=torch.finfo(total.dtype).min)
    return highest + (total - highest).exp().index_add(0, point, (values - highest[point]).exp()).log()


def enumerate_and_invert(s: IndependentSum) -> Totals:
    """Log densities of N sums at their y, the logs of estimated absolute errors, and their costs (see `BUDGET`).

    The root of a tree is the plain inversion, which is usually sufficient; the cost is then 0.
    """
    totals, free = Totals(s.y), s.log_odds > -torch.inf
    places = torch.arange(len(s.y), device=s.y.device)
    pending = _bounded(s, Branches(places, torch.zeros_like(free), free, s.y, s.y))
    while len(pending.point):
        negligible = pending.bound <= totals.density[pending.point] + NEGLIGIBLE_SHARE
        totals.error = add_logs(totals.error, pending.bound[negligible], pending.point[negligible])
        pending = take_rows(pending, ~negligible)
        best = torch.full_like(s.y, -torch.inf).scatter_reduce(0, pending.point, pending.bound, "amax")
        chosen = pending.bound >= best[pending.point] - WINDOW
        now = take_rows(pending, chosen)
        starts = range(0, len(now.point), ROWS)
        children = [_visit(s, take_rows(now, slice(start, start + ROWS)), totals) for start in starts]
        pending = _join([take_rows(pending, ~chosen), *children])
    return totals


def _join(parts: list[Branches]) -> Branches:
    return Branches(*(torch.cat(fields) for fields in zip(*parts, strict=True)))


def _rest(s: IndependentSum, branches: Branches) -> tuple[Float[Tensor, " Q"], IndependentSum]:
    """log P(c) and the sum over a branch's free variables."""
    at, on, free = take_rows(s, branches.point), branches.on, branches.free
    log_weight = torch.where(on, at.log_odds + at.log_off, torch.where(free, 0.0, at.log_off)).sum(-1)
    fixed = torch.where(on, at.location, 0.0)
    return log_weight, IndependentSum(
        at.y - fixed.sum(-1),
        at.noise + torch.where(on, at.spread, 0.0).sum(-1),
        at.size + fixed.abs().sum(-1),
        torch.where(free, at.log_odds, -torch.inf),
        *(torch.where(free, field, 0.0) for field in (at.log_off, at.location, at.spread)),
    )


def _bounded(s: IndependentSum, branches: Branches) -> Branches:
    """The branches with their saddle points and upper bounds."""
    log_weight, rest = _rest(s, branches)
    tilted = tilt_to_saddle_point(rest)
    return branches._replace(xi=tilted.xi, bound=log_weight + tilted.log_peak(rest))


def _visit(s: IndependentSum, branches: Branches, totals: Totals) -> Branches:
    """Adds branches that are resolved, or cannot be split, to the totals; returns the children of the others."""
    point, (log_weight, rest) = branches.point, _rest(s, branches)
    tilted = tilt_at(rest, branches.xi)
    # With fewer atoms than noise standard deviations in their range, inversion would be expensive and fail.
    room = 0.5 * (tilted.variance / rest.noise).log()
    here = torch.zeros_like(rest.y)[:, None]
    found = invert(rest, tilted, here, wanted=branches.free.sum(-1) * math.log(2) > room - 1)
    density, inversion_error, error = (log_weight + field[:, 0] for field in found[:3])
    shares = tilted.on * tilted.off * (tilted.location.square() + rest.spread)
    share, variable = shares.max(-1)
    spent = (totals.cost[point] > BUDGET) & ((s.log_odds > -torch.inf).sum(-1)[point] > FEW)
    final = (inversion_error - density <= TARGET) | (share <= 0) | spent
    work = found.cost + SADDLE_COST * rest.location.shape[1]
    cost = torch.where(final & (log_weight == 0), 0.0, work)
    totals.cost.index_add_(0, point, cost)
    totals.density = add_logs(totals.density, density[final], point[final])
    # Branches that are still unresolved may be negligible compared with the total.
    small = ~final & (inversion_error <= TARGET + totals.density[point])
    totals.density = add_logs(totals.density, density[small], point[small])
    totals.error = add_logs(totals.error, error[final | small], point[final | small])
    split = ~(final | small)
    return _split(s, take_rows(branches, split), variable[split])


def _split(s: IndependentSum, branches: Branches, variable: Int[Tensor, " Q"]) -> Branches:
    """Each branch with the given variable off, and with it on."""
    place = variable[:, None]
    off = branches._replace(free=branches.free.scatter(1, place, False))
    return _bounded(s, _join([off, off._replace(on=branches.on.scatter(1, place, True))]))
