"""Propositions 4 and 8: a model with k parameters against a Gaussian process that has a density at M > k points.

The models are subsets of regressors with k inducing points of the process itself, where the benchmark's features come
from: approximations of it that serve well, and that every f-divergence takes for the worst there is (remark 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.features import ard_kernel as rbf_kernel
from fsvi_bench.maths.features import inducing_tril, nystrom_features
from fsvi_bench.papers.burt2020.theory.degenerate import (
    Asymptotics,
    Event,
    asymptotics,
    revealing_event,
    smoothed_factor,
    smoothed_kl,
    smoothed_reverse_kl,
)
from fsvi_bench.papers.burt2020.theory.f_divergence import generators, log_chernoff, log_overlap, relative
from fsvi_bench.papers.burt2020.theory.settings import Settings
from fsvi_bench.papers.burt2020.theory.smoothed_curve import smoothed_curve_kl_constant, smoothed_curve_log_ratio
from fsvi_bench.papers.burt2020.theory.space_filling import hilbert_cells, rounded_kl
from fsvi_bench.papers.claims import Statistic, Worst
from fsvi_bench.papers.intervals import largest_named, magnitude, smallest_named

AFFINITIES = (0.25, 0.5, 0.75)
CURVE_NOISE = (1e-6, 1e-12)


class Task(NamedTuple):
    """Q = N(mean, FFᵀ) with k columns and P = N(0, LLᵀ) at M points."""

    mean: Float[Tensor, " M"]
    factor: Float[Tensor, "M k"]
    zero: Float[Tensor, " M"]
    tril: Float[Tensor, "M M"]


class Case(NamedTuple):
    """Divergences of one problem along the falling noise variances."""

    parameters: int
    points: int
    noise: Float[Tensor, " steps"]
    kl: Float[Tensor, " steps"]
    reverse_kl: Float[Tensor, " steps"]
    log_overlap: Float[Tensor, " steps"]
    log_affinities: dict[float, Float[Tensor, " steps"]]
    log_alpha_2: Float[Tensor, " steps"]
    events: list[Event]
    leading: Asymptotics
    without_noise: dict[str, float]  #: by name of the divergence

    @property
    def missing(self) -> int:
        """M − k."""
        return self.points - self.parameters

    @property
    def name(self) -> str:
        """As claims on the worst of several call it."""
        return f"k = {self.parameters}, M = {self.points}"

    def slope(self, values: Float[Tensor, " steps"]) -> float:
        """Of values in log(1/ε²), over the last step."""
        return float((values[-1] - values[-2]) / (self.noise[-2] / self.noise[-1]).log())


class Curve(NamedTuple):
    """A nonlinear model with one parameter: what is left of the KL beside ½(M − 1) log(1/ε²), and its slope."""

    points: int
    limit: float
    left: dict[float, Statistic]
    slope: Statistic


class Rounded(NamedTuple):
    """KLs of a law at two points, rounded to cells of width 2^−n, for models with one parameter that are continuous."""

    orders: list[int]
    hilbert: list[float]  #: not Lipschitz
    diagonal: list[float]  #: Lipschitz


def draw_problem(settings: Settings, k: int, M: int, *, twice: bool = False) -> Task:
    """Points 0, 1, …, M − 1 and a unit RBF of lengthscale 1; inducing points evenly among them; q's weights random.

    Args:
        twice: every feature is there twice, with a parameter each: 2k parameters that do no more than k.
    """
    generator = settings.generator("gaussian process", k, M)
    x, one = torch.arange(M, dtype=torch.float64)[:, None], torch.ones((), dtype=torch.float64)
    Z = (M - 1) * (torch.arange(k, dtype=torch.float64)[:, None] + 0.5) / k
    features = nystrom_features(x, Z, one[None], one, inducing_tril(Z, one[None], one, 0 * one))
    mean, scales = (
        torch.randn(k, generator=generator, dtype=torch.float64),
        torch.rand(k, generator=generator, dtype=torch.float64),
    )
    rotation = torch.linalg.qr(torch.randn(k, k, generator=generator, dtype=torch.float64)).Q
    # Standard deviations between 0.1 and 0.9 of the prior's: Q is narrower than P everywhere, as a posterior is.
    factor = features @ rotation * (0.1 + 0.8 * scales)
    zero = torch.zeros(M, dtype=torch.float64)
    doubled = torch.cat([factor, factor], dim=1) if twice else factor
    return Task(features @ mean, doubled, zero, torch.linalg.cholesky(rbf_kernel(x, x, one[None], one)))


def follow(settings: Settings, k: int, M: int) -> Case:
    """One problem, noise from 1 down, and none."""
    problem = draw_problem(settings, k, M)
    mean, factor, zero, tril = problem
    noise = torch.logspace(0, math.log10(settings.smallest_noise), settings.steps, dtype=torch.float64)
    seen = [relative(mean, smoothed_factor(factor, e), zero, tril) for e in noise.tolist()]
    bare = relative(*problem)
    return Case(
        parameters=k,
        points=M,
        noise=noise,
        kl=torch.stack([smoothed_kl(mean, factor, e, zero, tril) for e in noise.tolist()]),
        reverse_kl=torch.stack([smoothed_reverse_kl(mean, factor, e, zero, tril) for e in noise.tolist()]),
        log_overlap=torch.stack([log_overlap(each) for each in seen]),
        log_affinities={a: torch.stack([log_chernoff(each, a) for each in seen]) for a in AFFINITIES},
        log_alpha_2=torch.stack([log_chernoff(each, 2.0) for each in seen]),
        events=[revealing_event(mean, factor, e, tril) for e in noise.tolist()],
        leading=asymptotics(*problem),
        without_noise={f.name: float(f.divergence(bare)) for f in generators()},
    )


def follow_curve(settings: Settings) -> Curve:
    """The nonlinear model at inputs 0, ½, 1, …, on the same draws at every noise variance."""
    M, generator = settings.curve_points, settings.generator("curve")
    x, one = torch.arange(M, dtype=torch.float64) / 2, torch.ones((), dtype=torch.float64)
    tril = torch.linalg.cholesky(rbf_kernel(x[:, None], x[:, None], 0.5 * one[None], one))
    theta = torch.randn(settings.curve_draws, generator=generator, dtype=torch.float64)
    noise = torch.randn(settings.curve_draws, M, generator=generator, dtype=torch.float64)
    ratios = {e: smoothed_curve_log_ratio(theta, noise, e, x, tril) for e in CURVE_NOISE}
    left = {e: (r - 0.5 * (M - 1) * math.log(1 / e)).tolist() for e, r in ratios.items()}
    rise = (ratios[CURVE_NOISE[1]] - ratios[CURVE_NOISE[0]]) / math.log(CURVE_NOISE[0] / CURVE_NOISE[1])
    return Curve(
        points=M,
        limit=smoothed_curve_kl_constant(x, tril),
        left={e: Statistic.of_mean(values) for e, values in left.items()},
        slope=Statistic.of_mean(rise.tolist()),
    )


def follow_rounded(settings: Settings) -> Rounded:
    """Hilbert's curve and the diagonal of the unit square against N(0, I₂)."""
    orders = list(range(1, settings.finest + 1))
    diagonals = [torch.arange(2**n)[:, None].expand(-1, 2) for n in orders]
    return Rounded(
        orders,
        [float(rounded_kl(hilbert_cells(n), n)) for n in orders],
        [float(rounded_kl(cells, n)) for n, cells in zip(orders, diagonals, strict=True)],
    )


def rounded_values(rounded: Rounded) -> dict[str, float]:
    """One number for each claim on what proposition 4 asks of g."""
    start = "proposition 4, rounded to cells: "
    return {
        start + "rise of KL over the last halving, Hilbert's curve, not Lipschitz [nats]": (
            rounded.hilbert[-1] - rounded.hilbert[-2]
        ),
        start + "rise of KL over the last halving, a Lipschitz curve, distance from log 2, share": _off(
            rounded.diagonal[-1] - rounded.diagonal[-2], math.log(2)
        ),
    }


def _off(found: float, expected: float) -> float:
    """Distance as a share; 0 where both are the same infinity."""
    return 0.0 if found == expected else abs(found / expected - 1)


def singular_values(settings: Settings, cases: list[Case], curve: Curve) -> dict[str, Statistic]:
    """One statistic for each claim on propositions 4 and 8."""
    nonlinear = Statistic(*(value / (0.5 * (curve.points - 1)) - 1 for value in curve.slope))
    return {
        **_proposition_4(settings, cases),
        **_proposition_8(cases),
        "proposition 4: a nonlinear model with one parameter, distance of its slope from (M - 1)/2, share": magnitude(
            nonlinear
        ),
    }


def _proposition_4(settings: Settings, cases: list[Case]) -> dict[str, Statistic]:
    enough = [(case.parameters, draw_problem(settings, case.parameters, case.parameters)) for case in cases]

    def worst(value: Callable[[Case], float]) -> Worst:
        return largest_named((case.name, value(case)) for case in cases)

    start = "proposition 4: "
    return {
        start + "least KL without noise, either way [nats]": smallest_named(
            (f"{name}, {c.name}", c.without_noise[name]) for c in cases for name in _KLS
        ),
        start + "largest KL without noise where points are as many as parameters [nats]": largest_named(
            (f"{name}, k = M = {k}", float(kl(q.mean, q.factor, 0.0, q.zero, q.tril)))
            for name, kl in _KLS.items()
            for k, q in enough
        ),
        start + "KL(Q_e, P), largest distance of its slope from (M - k)/2, share": worst(
            lambda case: _off(case.slope(case.kl), 0.5 * case.missing)
        ),
        start + "KL(Q_e, P), largest distance from its asymptote at the end [nats]": worst(
            lambda case: abs(float(case.kl[-1]) - _asymptote(case))
        ),
        start + "KL(Q_e, P), largest distance of its slope from (M - rank)/2, redundant parameters, share": worst(
            lambda case: _off(_redundant_slope(settings, case), 0.5 * case.missing)
        ),
        start + "KL(P, Q_e), largest distance of its slope in log-log from 1, share": worst(
            lambda case: _off(case.slope(case.reverse_kl.log()), 1.0)
        ),
        start + "e^2 KL(P, Q_e), largest distance from its limit at the end, share": worst(
            lambda case: _off(float(case.noise[-1] * case.reverse_kl[-1]), case.leading.reverse)
        ),
    }


def _asymptote(case: Case) -> float:
    """Of KL(Q_e, P), at the end."""
    return case.leading.slope * math.log(1 / float(case.noise[-1])) + case.leading.constant


_KLS = {"KL(Q, P)": smoothed_kl, "KL(P, Q)": smoothed_reverse_kl}


def _redundant_slope(settings: Settings, case: Case) -> float:
    q = draw_problem(settings, case.parameters, case.points, twice=True)
    values = [smoothed_kl(q.mean, q.factor, float(e), q.zero, q.tril) for e in case.noise]
    return case.slope(torch.stack(values))


def _proposition_8(cases: list[Case]) -> dict[str, Statistic]:
    limits = {f.name: f.between_singular for f in generators()}
    total_variation = next(f for f in generators() if f.name == "total variation")
    off = [
        (f"{name}, {c.name}", 0.0 if v == limits[name] else abs(v - limits[name]))
        for c in cases
        for name, v in c.without_noise.items()
    ]
    excess = [
        (f"{c.name}, e^2 = {noise:g}", e.total_variation + math.expm1(float(t)))
        for c in cases
        for noise, e, t in zip(c.noise.tolist(), c.events, c.log_overlap, strict=True)
    ]
    start = "proposition 8: "
    return {
        start + "least total variation at the end": smallest_named(
            (c.name, -math.expm1(float(c.log_overlap[-1]))) for c in cases
        ),
        start + "total variation that one explicit event shows at the end, least": smallest_named(
            (c.name, c.events[-1].total_variation) for c in cases
        ),
        start + "explicit event, largest excess over the total variation": largest_named(excess),
        start + "least squared Hellinger distance at the end": smallest_named(
            (c.name, -math.expm1(float(c.log_affinities[0.5][-1]))) for c in cases
        ),
        start
        + "affinities, largest distance of their slope in log-log from (1 - alpha)(M - k)/2, share": largest_named(
            (f"alpha = {a:g}, {c.name}", _off(-c.slope(c.log_affinities[a]), 0.5 * (1 - a) * c.missing))
            for c in cases
            for a in AFFINITIES
        ),
        start + "alpha = 2, largest distance of its slope in log-log from (M - k)/2, share": largest_named(
            (c.name, _off(c.slope(c.log_alpha_2), 0.5 * c.missing)) for c in cases
        ),
        start + "without noise, largest distance from f(0) + f'(infinity)": largest_named(off),
        "proposition 8 as written: distance of total variation without noise from its f'(infinity)": Statistic.exact(
            abs(cases[0].without_noise[total_variation.name] - total_variation.slope_at_infinity)
        ),
    }
