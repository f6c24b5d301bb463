"""Propositions 4 and 8: a model with k parameters against a Gaussian process that has a density at M > k points.

The models are subsets of regressors with k inducing points of the process itself, like the benchmark's features. They
are good approximations of it, for which every f-divergence nevertheless has its largest value (remark 3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import MultivariateNormal

from fsvi_bench.maths.linalg import solve_tril
from fsvi_bench.papers.burt2020.feature_roots import random_rotation
from fsvi_bench.papers.burt2020.theory.curves import (
    hilbert_cells,
    rounded_kl,
    smoothed_curve_kl_constant,
    smoothed_curve_log_ratio,
)
from fsvi_bench.papers.burt2020.theory.f_divergence import GENERATORS, Flat, kl, log_chernoff, log_overlap, reverse_kl
from fsvi_bench.papers.burt2020.theory.settings import Settings
from fsvi_bench.papers.claims import intervals
from fsvi_bench.presenting.frames import Frames, formula

ALPHAS = {f"alpha = {alpha:g}": alpha for alpha in (0.25, 0.5, 0.75, 2.0)}
CURVE_NOISE = (1e-6, 1e-12)
#: The leading terms for ε → 0, and the distances of the divergences from their largest values.
DERIVED = """
log_noise = -log(noise) / log(10)
asymptote = slope * -log(noise) + constant
reverse_asymptote = reverse / noise
log_reverse_kl = log(reverse_kl)
scaled = noise * reverse_kl
kl_share = kl / (M - k)
asymptote_share = asymptote / (M - k)
total_variation = 1 - overlap
hellinger = 1 - exp(`alpha = 0.5`)
below_hellinger = exp(`alpha = 0.5`)
below_event = 1 - event
"""


def rbf(a: Float[Tensor, " n"], b: Float[Tensor, " m"]) -> Float[Tensor, "n m"]:
    """A unit RBF of lengthscale 1."""
    return torch.exp(-0.5 * (a[:, None] - b).square())


def draw_problem(settings: Settings, k: int, M: int) -> Flat:
    """Points 0, 1, …, M − 1, a unit RBF of lengthscale 1, evenly spaced inducing points, and random weights of q."""
    generator, x = settings.generator("gaussian process", k, M), torch.arange(M, dtype=torch.float64)
    Z = (M - 1) * (torch.arange(k, dtype=torch.float64) + 0.5) / k
    features = solve_tril(torch.linalg.cholesky(rbf(Z, Z)), rbf(Z, x)).mT
    mean = torch.randn(k, generator=generator, dtype=torch.float64)
    scales = torch.rand(k, generator=generator, dtype=torch.float64)
    rotation = random_rotation(k, generator)
    # Standard deviations of 0.1 to 0.9 times the prior's: Q is narrower than P everywhere, like a posterior.
    return Flat(features @ mean, features @ rotation * (0.1 + 0.8 * scales), torch.linalg.cholesky(rbf(x, x)))


def follow(settings: Settings, k: int, M: int) -> pd.DataFrame:
    """Divergences of one problem for decreasing noise variances from 1, one row each. `redundant` is KL(Q_ε‖P) with
    every feature duplicated: 2k parameters equivalent to k."""
    problem = draw_problem(settings, k, M)
    twice = problem._replace(factor=problem.factor.repeat(1, 2))
    rows = []
    for noise in np.geomspace(1, settings.smallest_noise, settings.steps).tolist():
        seen, event = problem.seen(noise), problem.revealing_event(noise)
        affinities = {name: float(log_chernoff(seen, alpha)) for name, alpha in ALPHAS.items()}
        rows.append({
            "noise": noise, "kl": float(kl(seen)), "reverse_kl": float(reverse_kl(seen)),
            "redundant": float(kl(twice.seen(noise))), **affinities,
            "overlap": float(log_overlap(seen).exp()), "event": event.under_q - event.under_p,
        })  # fmt: skip
    along = pd.DataFrame(rows).assign(case=f"k = {k}, M = {M}", k=k, M=M, **problem.asymptotics()._asdict())
    return formula(along, DERIVED)


def rates(along: pd.DataFrame) -> pd.DataFrame:
    """Slopes in log(1/ε²) over the last step, by case and divergence, and their limits."""
    half = along.groupby("case", sort=False)["slope"].first()
    affinities = {name: (alpha - 1) * half for name, alpha in ALPHAS.items()}
    expected = pd.DataFrame({"kl": half, "redundant": half, "log_reverse_kl": 1.0, **affinities})
    values = along.set_index("case").groupby("case", sort=False)[["log_noise", *expected]]
    last = values.diff().groupby("case", sort=False).tail(1)
    rate = last[expected.columns].div(last["log_noise"] * math.log(10), axis=0)
    found = pd.DataFrame({"rate": rate.stack(), "expected": expected.stack()})
    return found.reset_index(names=["case", "divergence"])


def without_noise(settings: Settings, cases: Iterable[tuple[int, int]]) -> pd.DataFrame:
    """Cases without noise: each divergence, its largest value, and the difference."""
    rows = [
        (f"k = {k}, M = {M}", f.name, f.f(0.0), f.slope_at_infinity, f.between_singular, float(f.divergence(seen)))
        for k, M in cases
        for seen in [draw_problem(settings, k, M).seen(0.0)]
        for f in GENERATORS
    ]
    columns = ["case", "divergence", "at_zero", "slope_at_infinity", "largest", "found"]
    return distance_from_largest(pd.DataFrame(rows, columns=columns))


def distance_from_largest(bare: pd.DataFrame) -> pd.DataFrame:
    """The distance of each value from the largest one; 0 if both are infinite."""
    distance = (bare["found"] - bare["largest"]).abs()
    return bare.assign(from_largest=distance.where(bare["found"] != bare["largest"], 0.0))


def follow_curve(settings: Settings) -> Frames:
    """The nonlinear model at inputs 0, ½, 1, …, with the same draws for every noise variance: the KL minus
    ½(M − 1) log(1/ε²), and for each draw the relative difference of its slope from ½(M − 1)."""
    M, generator = settings.curve_points, settings.generator("curve")
    x = torch.arange(M, dtype=torch.float64) / 2
    p = MultivariateNormal(torch.zeros_like(x), rbf(2 * x, 2 * x))  # an RBF of lengthscale ½
    theta = torch.randn(settings.curve_draws, generator=generator, dtype=torch.float64)
    noise = torch.randn(settings.curve_draws, M, generator=generator, dtype=torch.float64)
    half = 0.5 * (M - 1)
    large, small = CURVE_NOISE
    left = pd.DataFrame({e: smoothed_curve_log_ratio(theta, noise, e, x, p) + half * math.log(e) for e in CURVE_NOISE})
    curve = intervals(left.melt(var_name="noise").groupby("noise", sort=False)["value"]).reset_index()
    error = (left[small] - left[large]) / (half * math.log(large / small))
    return {
        "curve": curve.assign(limit=smoothed_curve_kl_constant(x, p), M=M),
        "curve slopes": pd.DataFrame({"error": error}),
    }


def follow_rounded(settings: Settings) -> pd.DataFrame:
    """KLs to N(0, I₂) of Hilbert's curve, which is not Lipschitz, and of the diagonal of the unit square, rounded to
    cells of width 2^−n."""
    rows = [
        (n, rounded_kl(hilbert_cells(n), n), rounded_kl(np.arange(2**n)[:, None].repeat(2, axis=1), n))
        for n in range(1, settings.finest + 1)
    ]
    return pd.DataFrame(rows, columns=["n", "hilbert", "diagonal"])


def of_singular(settings: Settings) -> Frames:
    """Frames for propositions 4 and 8."""
    along = pd.concat([follow(settings, k, M) for k, M in settings.cases], ignore_index=True)
    bare, rounded = without_noise(settings, settings.cases), follow_rounded(settings)
    return {
        **judged_by_case(along, bare),
        "singular": bare.groupby(["divergence", "at_zero", "slope_at_infinity", "largest"], sort=False)["found"]
        .agg(["min", "max"])
        .reset_index(),
        "square": without_noise(settings, sorted({(k, k) for k, _ in settings.cases})),
        **follow_curve(settings),
        "rounded": rounded,
        "last halving": rounded.diff().tail(1).assign(log_2=math.log(2)),
    }


def judged_by_case(along: pd.DataFrame, bare: pd.DataFrame) -> Frames:
    """By case, the values at the smallest noise and the rates there."""
    rate = rates(along)
    ends = along.groupby("case", sort=False).tail(1).set_index("case")
    infinite = bare.pivot(index="case", columns="divergence", values="found")[["KL(Q, P)", "KL(P, Q)"]]
    rise = rate[rate["divergence"] == "kl"].set_index("case")["rate"].rename("rise")
    return {"along": along, "rates": rate, "cases": ends.join([infinite, rise]).reset_index(), "bare": bare}
