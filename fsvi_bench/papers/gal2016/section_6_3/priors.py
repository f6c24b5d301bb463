"""The KL of dropout's q to a continuous and to a discrete prior, and the length-scale that the bound then prefers.

Gal's §6.5 replaces the prior N(0, l⁻²) and atoms widened to N(·, σ²) by a prior ∝ exp(−½l²w²) on a grid, since the
first KL's constant grows like −log σ and the second has no term in σ. But its −log|Δw| grows like −log Δ as the grid
is refined: the two constants differ by ½ log 2πe + log(σ/Δ) per weight, so the discrete prior's is the smaller one only
for Δ > 4.13 σ, and both contain −log l, which draws l up to 1/σ or 1/Δ. Gal takes X for the numbers that a computer can
represent; his normaliser supposes that they are evenly spaced, and so do we.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.bernoulli_dropout import continuous_prior_constant, discrete_prior_kl
from fsvi_bench.maths.bernoulli_optimum import optimal_shared_retain
from fsvi_bench.maths.blr import blr_posterior, log_evidence
from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.papers.gal2016.section_6_3.data import Problems, Settings

FINENESS = tuple(2.0**-power for power in range(2, 13))  #: widths σ and steps Δ, all of which divide the atoms below
ATOMS = (0.5, 1.0, 2.0)
RETAIN = (0.5, 0.9, 0.99)
LENGTHSCALES = (0.5, 1.0, 2.0)
REACH = 12.0  #: standard deviations after which a Gaussian's tail is below 1e-31


def widened_kl(m: float, p: float, spread: float, lengthscale: float = 1.0) -> float:
    """KL of p N(m, s²) + (1−p) N(0, s²) to N(0, l⁻²), by the trapezoidal rule about each atom.

    For a Gaussian times something smooth on its scale the rule converges faster than any power of the step.
    """
    z = np.linspace(-REACH, REACH, 4001)
    mass = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    shift, total = m / spread, 0.0
    for weight, centre in ((p, shift), (1 - p, 0.0)):
        w = (centre + z) * spread
        kept = math.log(p) - 0.5 * (centre + z - shift) ** 2
        dropped = math.log1p(-p) - 0.5 * (centre + z) ** 2
        log_ratio = np.logaddexp(kept, dropped) - math.log(spread * lengthscale) + 0.5 * (lengthscale * w) ** 2
        total += weight * float(mass @ log_ratio)
    return total


def gridded_kl(m: float, p: float, step: float, lengthscale: float = 1.0) -> float:
    """KL of p δ_m + (1−p) δ_0 to the prior ∝ exp(−½l²w²) on the multiples of the step, its normaliser summed up."""
    n = np.arange(1, math.ceil(REACH / (step * lengthscale)) + 1)
    normaliser = 1 + 2 * float(np.exp(-0.5 * (lengthscale * step * n[::-1]) ** 2).sum())
    negative_entropy = p * math.log(p) + (1 - p) * math.log1p(-p)
    return negative_entropy + 0.5 * p * (lengthscale * m) ** 2 + math.log(normaliser)


class PriorKls(NamedTuple):
    """Of one weight at m = 1, p = 0.9, l = 1 over `FINENESS`, and what was found over all m, p and l."""

    continuous: list[float]
    discrete: list[float]
    error: float  #: of eq. 6.6 against the sum, the largest over m, p, l and Δ
    dependence: float  #: range over m and p of continuous less discrete, at the finest σ and Δ


def compare_prior_kls() -> PriorKls:
    """No data are involved, nothing is random."""
    finest = FINENESS[-1]
    errors = [
        abs(float(discrete_prior_kl(_one(m)[None], _one(p), step, scale)) - gridded_kl(m, p, step, scale))
        for m in ATOMS for p in RETAIN for step in FINENESS for scale in LENGTHSCALES
    ]  # fmt: skip
    differences = [widened_kl(m, p, finest) - gridded_kl(m, p, finest) for m in ATOMS for p in RETAIN]
    return PriorKls(
        [widened_kl(1.0, 0.9, spread) for spread in FINENESS],
        [gridded_kl(1.0, 0.9, step) for step in FINENESS],
        max(errors),
        max(differences) - min(differences),
    )


class Bounds(NamedTuple):
    """Log evidence and its bounds at the best m and p, over the length-scale, in nats."""

    lengthscale: Float[Tensor, " L"]
    evidence: Float[Tensor, "R L"]
    continuous: Float[Tensor, "s R L"]  #: atoms widened to σ = `spreads`
    discrete: Float[Tensor, "s R L"]  #: on grids of step `spreads`

    def log10_ratio(self, bound: Float[Tensor, "R L"]) -> Float[Tensor, " R"]:
        """log₁₀ of the length-scale at a bound's highest over that at the evidence's highest."""
        grid = self.lengthscale.log10()
        return grid[bound.argmax(-1)] - grid[self.evidence.argmax(-1)]


def scan_lengthscales(settings: Settings, problems: Problems) -> Bounds:
    """l from 0.01 to 1/σ = 1/Δ each, beyond which eq. 6.6's normaliser and the widened atoms' separation do not hold.

    KLs as Gal approximates them: where m is shorter than σ the entropy H(p) ≤ log 2 per weight counts too much.
    """
    decades = 2 - math.log10(min(settings.spreads))
    grid = torch.logspace(-2, decades - 2, round(decades * settings.lengthscales_per_decade) + 1, dtype=torch.float64)
    evidence, objective = [], []
    for scale in grid.tolist():
        evidence.append(_evidence(problems, scale))
        objective.append(optimal_shared_retain(*problems[:2], problems.unit, scale).objective)
    N, k = problems.X.shape[-2:]
    fitted = -0.5 * N * LOG_2PI - torch.stack(objective, dim=-1)
    constants = [_constants(grid, spread) for spread in settings.spreads]
    continuous, discrete = (torch.stack([fitted - k * c for c in column]) for column in zip(*constants, strict=True))
    return Bounds(grid, torch.stack(evidence, dim=-1), continuous, discrete)


def _constants(grid: Tensor, fineness: float) -> tuple[Tensor, Tensor]:
    """What a weight's KL has beside ½l²p m² − H(p), with either prior; infinite beyond l = 1/fineness."""
    values = [
        (float(continuous_prior_constant(_one(fineness), 1, scale)), 0.5 * LOG_2PI - math.log(scale * fineness))
        for scale in grid.tolist()
    ]
    valid = grid * fineness <= 1 + 1e-9
    return tuple(torch.where(valid, torch.tensor(v, dtype=torch.float64), torch.inf) for v in zip(*values, strict=True))  # type: ignore[return-value]


def _evidence(problems: Problems, lengthscale: float) -> Tensor:
    features = problems.X / lengthscale  # w = v/l with v ~ N(0, I)
    return log_evidence(features, problems.y, problems.unit, blr_posterior(features, problems.y, problems.unit))


def _one(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
