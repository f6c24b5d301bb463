"""What happens to dropout's optimum as data are added, and how m*(p) compares with the MAP (Gal 2016, §6.3).

Gal's 𝓛 is twice our objective. His proof that p* → 1 takes the limit of 𝓛(m*, p)/N at each p, in which the entropy's
share vanishes, and minimises the limit: it says nothing of how p* gets there. From the objective's slope in p,
logit p* ≈ (N/2) mean_i m_i² Λ_ii for large N: 1 − p* falls exponentially, q's spread with it, whereas the exact
posterior's falls like N^(−½).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from fsvi_bench.maths.bernoulli_dropout import optimal_m
from fsvi_bench.maths.bernoulli_optimum import optimal_shared_retain, retain_profile
from fsvi_bench.maths.blr import blr_posterior, blr_posterior_cholesky, covariance_tril
from fsvi_bench.maths.spike_slab import spike_slab_moments, spike_slab_optimum
from fsvi_bench.papers.gal2016.section_6_3.data import Problems, Settings, population_covariance, redesign


class Growth(NamedTuple):
    """Per number of points n and repeat R."""

    logit: Float[Tensor, "n R"]  #: logit p*
    at_one: Float[Tensor, "n R"]  #: the objective at p = 1 less that at p*, nats
    distance: Float[Tensor, "n R"]  #: ‖m* − MAP‖/‖MAP‖ at p*
    spread: Float[Tensor, "n R"]  #: root of q's total variance over the exact posterior's
    spike_slab_spread: Float[Tensor, "n R"]  #: the same of the spike-and-slab optimum
    law: Float[Tensor, "n R"]  #: what logit p* tends to, (N/2) mean_i w_i² Λ_ii

    @property
    def log10_drop(self) -> Float[Tensor, "n R"]:
        """log₁₀(1 − p*), exact where 1 − p* underflows."""
        return logsigmoid(-self.logit) / torch.log(torch.tensor(10.0, dtype=torch.float64))


def follow_growth(settings: Settings, problems: Mapping[int, Problems]) -> Growth:
    """Everything at every N."""
    return Growth(*map(torch.stack, zip(*(_at(settings, *each) for each in problems.items()), strict=True)))


def _at(settings: Settings, N: int, problems: Problems) -> Growth:
    data = problems.X, problems.y, problems.unit
    optimum, exact = optimal_shared_retain(*data), blr_posterior(*data)
    no_dropout = torch.full_like(optimum.logit, torch.inf)
    at_one = retain_profile(*data).objective(no_dropout)[..., 0] - optimum.objective
    variance = covariance_tril(exact.precision_tril).square().sum((-2, -1))
    smooth = spike_slab_optimum(*data, settings.prior_spike)
    smooth_scale = spike_slab_moments(smooth.spike_weight, smooth.mean, smooth.scale).scale
    logit = optimum.logit[..., 0]
    # Not by `bernoulli_moments`: p would have rounded to 1 long before 1 − p, its logit known, underflows.
    scale = (0.5 * (logsigmoid(logit) + logsigmoid(-logit))).exp() * optimum.m.norm(dim=-1)
    law = 0.5 * N * (problems.w.square() * population_covariance(settings).diagonal()).mean(-1)
    return Growth(
        logit=logit,
        at_one=at_one,
        distance=relative_distance(optimum.m, exact.mean),
        spread=scale / variance.sqrt(),
        spike_slab_spread=(smooth_scale.square().sum(-1) / variance).sqrt(),
        law=law,
    )


def relative_distance(m: Float[Tensor, "*B k"], exact_mean: Float[Tensor, "*B k"]) -> Float[Tensor, "*B"]:
    """‖m − MAP‖/‖MAP‖."""
    return (m - exact_mean).norm(dim=-1) / exact_mean.norm(dim=-1)


def limit_profile(
    covariance: Float[Tensor, "k k"], w: Float[Tensor, "*B k"], p: Float[Tensor, " n"]
) -> Float[Tensor, "*B n"]:
    """lim 𝓛(m*, p)/N = a − bᵀ(Σ + (1/p − 1)Λ)⁻¹b, a = wᵀΣw + 1 and b = Σw for y = xᵀw + N(0, 1)."""
    b = w @ covariance
    a = (b * w).sum(-1, keepdim=True) + 1
    matrices = covariance + (1 / p - 1)[:, None, None] * torch.diag(covariance.diagonal())
    solved = torch.linalg.solve(matrices, b[..., None, :, None])[..., 0]
    return a - (b[..., None, :] * solved).sum(-1)


class Profiles(NamedTuple):
    """𝓛(m*, p)/N over the same p for each N, and its limit."""

    p: Float[Tensor, " P"]
    values: Float[Tensor, "n R P"]
    limit: Float[Tensor, "R P"]

    @property
    def log_error(self) -> Float[Tensor, "n R"]:
        """log of the root mean square over p of what is left to the limit."""
        return 0.5 * (self.values - self.limit).square().mean(-1).log()

    @property
    def least_rise(self) -> Float[Tensor, " R"]:
        """min over p < 1 of the limit's (value − value at 1)/(1 − p)."""
        return ((self.limit[:, :-1] - self.limit[:, -1:]) / (1 - self.p[:-1])).amin(-1)


def follow_profiles(settings: Settings, problems: Mapping[int, Problems]) -> Profiles:
    """p from 0.05 to 1; the last is 1 itself."""
    p = torch.linspace(0.05, 1, settings.profile_points, dtype=torch.float64)
    values = []
    for N, (X, y, w) in problems.items():
        profile = retain_profile(X, y, torch.ones_like(y[:, 0]))
        values.append(2 * profile.objective(torch.logit(p).expand(len(w), -1)) / N)
    weights = next(iter(problems.values())).w
    return Profiles(p, torch.stack(values), limit_profile(population_covariance(settings), weights, p))


class Distances(NamedTuple):
    """‖m*(p) − MAP‖/‖MAP‖ by design, over p."""

    p: Float[Tensor, " P"]
    by_design: dict[str, Float[Tensor, "R P"]]


def compare_with_map(settings: Settings, problems: Problems) -> Distances:
    """1 − p from 0.95 down to 1e-6, ½ among them, and last 0."""
    drop = torch.cat([torch.tensor([0.95, 0.9, 0.8, 0.65], dtype=torch.float64), 0.5 * 10 ** -torch.arange(0, 6, 0.25)])
    p = torch.cat([1 - drop, torch.ones(1, dtype=torch.float64)])
    found = {}
    for design in ("general", "Λ constant", "Σ diagonal"):
        data = redesign(problems, design)  # type: ignore[arg-type]
        # Another route than m*'s own: at p = 1 the two would otherwise be one computation.
        exact = blr_posterior_cholesky(data.X, data.y, data.unit).mean
        distances = [
            relative_distance(optimal_m(data.X, data.y, data.unit, each.expand(len(exact), 1)), exact) for each in p
        ]
        found[design] = torch.stack(distances, dim=-1)
    return Distances(p, found)


def slope(x: Float[Tensor, " n"], y: Float[Tensor, "n R"]) -> Float[Tensor, " R"]:
    """Least-squares slope of each column over x."""
    centred = x - x.mean()
    return torch.einsum("n,nr->r", centred, y) / centred.square().sum()
