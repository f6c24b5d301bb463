"""Gal (2016), §6.3, and the statements of §§6.5 and 6.6 about the linear model."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import logsigmoid

from fsvi_bench.maths.bernoulli_dropout import continuous_prior_constant, discrete_prior_kl, optimal_m
from fsvi_bench.maths.bernoulli_optimum import coordinate_ascent_masks, optimal_shared_retain, retain_profile
from fsvi_bench.maths.blr import (
    blr_posterior,
    blr_posterior_cholesky,
    covariance_tril,
    log_evidence,
    mean_field_optimum_scale,
)
from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.maths.spike_slab import spike_slab_moments, spike_slab_optimum, spike_slab_row
from fsvi_bench.papers.experiment import ExperimentContext, Frames
from fsvi_bench.papers.gal2016.linear_model import (
    Problems,
    Settings,
    draw_problems,
    enumerate_masks,
    gridded_kl,
    limit_profile,
    population_covariance,
    profile,
    redesign,
    widened_kl,
)
from fsvi_bench.seeds import derived_generator

SHOWN = 0  #: the data set whose profiles and bounds are plotted
DROPS = (0.95, 0.9, 0.8, 0.65, *(0.5 * 10 ** -np.arange(0, 6, 0.25)), 0.0)  #: 1 − p in the comparison of m* and MAP
FINENESS = tuple(2.0**-power for power in range(2, 13))  #: widths σ and steps Δ, all of which divide the atoms below
NARROW = 2.0**-32  #: a width far below the finest step
ATOMS, RETAIN, LENGTHSCALES = np.array([(0.5, 1.0, 2.0), (0.5, 0.9, 0.99), (0.5, 1.0, 2.0)])
RARE_SPIKE = 1e-9  #: the f that represents f → 0


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """Computes everything in this process: at full scale it takes seconds."""
    few_weights = settings.model_copy(update={"inputs": settings.mask_weights})
    masked = draw_problems(few_weights, settings.mask_points)
    frames = {
        **follow_growth(settings),
        **compare_with_map(draw_problems(settings, settings.design_points)),
        **compare_prior_kls(),
        **compare_bounds(settings, draw_problems(settings, settings.lengthscale_points)),
        **compare_masks(settings, masked),
        **examine_spike_slab(settings, masked),
        **follow_eq_6_8(settings.prior_spike),
    }
    frames["mask_table"] = summarise(frames["masks"], frames["mask_sets"], frames["slabs"])
    for frame in frames.values():
        frame.attrs.update(settings.model_dump())
    return frames


# --- §6.3: dropout's optimum as the number of data grows --------------------------------------------------------------
#
# Gal's proof that p* → 1 takes the limit of 𝓛(m*, p)/N at each p, in which the entropy vanishes, and minimises the
# limit. It does not give the rate. From the objective's slope in p, logit p* ≈ (N/2) mean_i m_i² Λ_ii for large N:
# 1 − p* falls exponentially, and with it q's spread, whereas the exact posterior's spread falls like N^(−½).


def follow_growth(settings: Settings) -> Frames:
    """Optimum and profile at every N, and the profile's convergence to its limit, for p from 0.05 to 1 inclusive."""
    p = torch.linspace(0.05, 1, settings.profile_points, dtype=torch.float64)
    ends = {settings.points[0]: "first", settings.points[-1]: "last"}
    optima, profiles = [], []
    for N in settings.points:
        problems = draw_problems(settings, N, compressed=True)
        limit = limit_profile(population_covariance(settings), problems.w, p)
        values, end = profile(problems, N, p), ends.get(N, "")
        rms = (values - limit).square().mean(-1).sqrt().numpy()
        optima.append(at_optimum(settings, N, problems).assign(rms=rms, end=end))
        profiles.append(pd.DataFrame({"N": N, "p": p, "value": values[SHOWN] - limit[SHOWN, -1], "end": end}))
    growth, curves = pd.concat(optima), pd.concat(profiles, ignore_index=True)
    by_N = growth.pivot(index="repeat", columns="N")
    rises = (limit[:, :-1] - limit[:, -1:]) / (1 - p[:-1])
    repeats = {
        "least_growth": np.diff(np.log(by_N["logit"])).min(axis=1),
        "least_rise": rises.amin(-1),
        "error_slope": np.polyfit(np.log(settings.points), np.log(by_N["rms"].T), 1)[0],
    }
    return {
        "growth": growth,
        "growth_means": growth.groupby("N", as_index=False).mean(numeric_only=True),
        "growth_repeats": pd.DataFrame(repeats),
        "profiles": curves,
        "profile_minima": curves.loc[curves.groupby("N")["value"].idxmin()],
        "profile_limit": pd.DataFrame({"p": p, "value": limit[SHOWN] - limit[SHOWN, -1]}),
    }


def at_optimum(settings: Settings, N: int, problems: Problems) -> pd.DataFrame:
    """One row per repeat.

    `at_one` is the objective at p = 1 minus that at p* [nats]; `distance` the relative distance of m* from the MAP;
    `spread` and `spike_slab_spread` are square roots of q's total variance divided by the exact posterior's, the former
    with its logarithm, as it may underflow; `law` is the asymptote of logit p*.
    """
    optimum, exact = optimal_shared_retain(*problems.data), blr_posterior(*problems.data)
    no_dropout = torch.full_like(optimum.logit, torch.inf)
    variance = covariance_tril(exact.precision_tril).square().sum((-2, -1))
    smooth = spike_slab_optimum(*problems.data, settings.prior_spike)
    smooth_scale = spike_slab_moments(smooth.spike_weight, smooth.mean, smooth.scale).scale
    logit = optimum.logit[..., 0]
    # `bernoulli_moments` is not used: p rounds to 1 long before 1 − p, computed from the logit, underflows.
    log_scale = 0.5 * (logsigmoid(logit) + logsigmoid(-logit)) + optimum.m.norm(dim=-1).log()
    log_spread = log_scale - 0.5 * variance.log()
    return pd.DataFrame(
        {
            "N": N,
            "repeat": range(len(logit)),
            "logit": logit,
            "log10_drop": logsigmoid(-logit) / math.log(10),  # exact even if 1 − p* underflows
            "log10_spread": log_spread / math.log(10),
            "at_one": retain_profile(*problems.data).objective(no_dropout)[..., 0] - optimum.objective,
            "distance": relative_distance(optimum.m, exact.mean),
            "spread": log_spread.exp(),
            "spike_slab_spread": (smooth_scale.square().sum(-1) / variance).sqrt(),
            "law": 0.5 * N * (problems.w.square() * population_covariance(settings).diagonal()).mean(-1),
        }
    )


def relative_distance(m: Float[Tensor, "*B k"], exact_mean: Float[Tensor, "*B k"]) -> Float[Tensor, "*B"]:
    """‖m − MAP‖/‖MAP‖."""
    return (m - exact_mean).norm(dim=-1) / exact_mean.norm(dim=-1)


def compare_with_map(problems: Problems) -> Frames:
    """‖m*(p) − MAP‖/‖MAP‖ over p, by design."""
    found = []
    for design in ("general", "Λ constant", "Σ diagonal"):
        data = redesign(problems, design).data
        # Computed independently of m*, since at p = 1 the two would otherwise be the same computation.
        exact = blr_posterior_cholesky(*data).mean
        for drop in DROPS:
            m = optimal_m(*data, torch.full_like(exact[:, :1], 1 - drop))
            row = {"design": design, "drop": drop, "distance": relative_distance(m, exact)}
            found.append(pd.DataFrame(row).rename_axis("repeat").reset_index())
    return {"distances": pd.concat(found, ignore_index=True)}


# --- §6.5: KLs to a continuous and to a discrete prior, and the length-scale that maximises the bound -----------------
#
# Gal replaces the prior N(0, l⁻²) and atoms widened to N(·, σ²) by a prior ∝ exp(−½l²w²) on a grid, since the first
# KL's constant grows like −log σ and the second has no term in σ. But its −log|Δw| grows like −log Δ as the grid is
# refined: the two constants differ by ½ log 2πe + log(σ/Δ) per weight, so the discrete prior's constant is smaller only
# for Δ > 4.13 σ, and both contain −log l, which drives l up to 1/σ or 1/Δ. Gal's grid X is the set of numbers that a
# computer can represent; his normaliser assumes that they are evenly spaced, as is assumed here.


def compare_prior_kls() -> Frames:
    """KLs of one weight at m = 1, p = 0.9, l = 1 over `FINENESS`, and summaries over all m, p and l."""
    both = {"continuous": widened_kl, "discrete": gridded_kl}
    kls = pd.DataFrame(
        {"fineness": FINENESS, **{name: [kl(1.0, 0.9, h) for h in FINENESS] for name, kl in both.items()}}
    )
    errors = [
        float(discrete_prior_kl(torch.tensor([m]), torch.tensor(p), step, scale))
        - gridded_kl(scale * m, p, scale * step)
        for m, p, step, scale in product(ATOMS, RETAIN, FINENESS, LENGTHSCALES)
    ]
    finest = [[kl(m, p, FINENESS[-1]) for kl in both.values()] for m, p in product(ATOMS, RETAIN)]
    slopes = kls.tail(2).diff().tail(1) / math.log(FINENESS[-2] / FINENESS[-1])
    on_finest_grid = kls["discrete"].iloc[-1]
    gaps = {
        "gap": on_finest_grid - kls["continuous"].iloc[-1],
        "gap_if_narrow": on_finest_grid - widened_kl(1.0, 0.9, NARROW),
    }
    return {
        "prior_kls": kls,
        "prior_summary": slopes.assign(error=np.abs(errors).max(), range=np.ptp(np.diff(finest)), **gaps),
    }


def compare_bounds(settings: Settings, problems: Problems) -> Frames:
    """Both priors' bounds over the length-scale, and their maximisers for the smallest σ and Δ."""
    bounds = scan_lengthscales(settings, problems)
    finest = bounds[bounds["spread"] == min(settings.spreads)]
    return {"bounds": bounds[bounds["repeat"] == SHOWN], "lengthscales": best_lengthscales(finest)}


def scan_lengthscales(settings: Settings, problems: Problems) -> pd.DataFrame:
    """Log evidence and its bounds at the best m and p [nats], by spread σ or step Δ, length-scale l and repeat.

    l runs from 0.01 to 1/σ = 1/Δ, beyond which eq. 6.6's normaliser and the separation of widened atoms do not hold.
    KLs are approximated as in Gal: if |m| is below σ, the entropy H(p) ≤ log 2 per weight is overestimated.
    """
    decades = 2 - math.log10(min(settings.spreads))
    X, y, unit = problems.data
    N, k = X.shape[-2:]
    rows = []
    for scale in np.logspace(-2, decades - 2, round(decades * settings.lengthscales_per_decade) + 1):
        features = X / scale  # w = v/l with v ~ N(0, I)
        evidence = log_evidence(features, y, unit, blr_posterior(features, y, unit))
        fitted = -0.5 * N * LOG_2PI - optimal_shared_retain(X, y, unit, float(scale)).objective
        for spread in settings.spreads:
            width = torch.tensor(scale * spread)  # as if l were 1
            constants = {"continuous": continuous_prior_constant(width, 1), "discrete": 0.5 * LOG_2PI - width.log()}
            bounds = {prior: fitted - k * constant for prior, constant in constants.items()}
            if width <= 1 + 1e-9:
                rows.append(pd.DataFrame({"spread": spread, "lengthscale": scale, "evidence": evidence, **bounds}))
    return pd.concat(rows).rename_axis("repeat").reset_index()


def best_lengthscales(bounds: pd.DataFrame) -> pd.DataFrame:
    """By repeat, log₁₀ of the length-scale that maximises a bound over the one that maximises the evidence."""
    highest = bounds.groupby("repeat")[["evidence", "continuous", "discrete"]].idxmax()
    scales = highest.map(np.log10(bounds["lengthscale"]).get)
    return scales.sub(scales["evidence"], axis=0)


# --- §6.6: free-form masks (lemma 1) compared with enumeration, and spike and slab ------------------------------------


def compare_masks(settings: Settings, problems: Problems) -> Frames:
    """CAVI and enumeration on every repeat, with m the MAP."""
    found = pd.concat([_masks(settings, problems, repeat) for repeat in range(len(problems.w))], ignore_index=True)
    return {"masks": found, "mask_sets": found.drop_duplicates("repeat")}


def _masks(settings: Settings, problems: Problems, repeat: int) -> pd.DataFrame:
    """One row per weight.

    `size` is |m_i| in standard deviations of w_i given the other weights. `kl` is the KL of CAVI's q [nats], `gain` its
    reduction by L-BFGS, and `best_start` its reduction by the best of several random starts.
    """
    X, y, one = (each[repeat] for each in problems.data)
    posterior = blr_posterior(X, y, one)
    m, target = posterior.mean, enumerate_masks(X, y, posterior.mean)
    logit = coordinate_ascent_masks(X, y, one, m, torch.zeros_like(m))
    random = derived_generator("gal2016-6.3", "mask starts", repeat)
    starts = torch.from_numpy(3 * random.standard_normal((settings.mask_starts, len(m))))
    kl = float(target.kl(logit))
    nearby = logit + 0.1 * torch.from_numpy(random.standard_normal(len(m)))  # away from saddle points, if there are any
    found = pd.DataFrame(
        {
            "repeat": repeat,
            "size": m.abs() / mean_field_optimum_scale(posterior.precision_tril),
            "retain": logit.sigmoid(),
            "enumerated": target.log_mass.exp() @ target.masks,
            "kl": kl,
            "gain": kl - target.descend(nearby),
            "best_start": kl - min(float(target.kl(coordinate_ascent_masks(X, y, one, m, start))) for start in starts),
        }
    )
    far = (found["retain"] - found["enumerated"]).abs() > 0.5
    return found.assign(found=far.map({False: "CAVI", True: "CAVI's local minima"}))


def examine_spike_slab(settings: Settings, problems: Problems) -> Frames:
    """Optima on every repeat, and optima for rare spikes compared with the mean-field posterior."""
    found = spike_slab_optimum(*problems.data, settings.prior_spike)
    ranks = [spearmanr(*pair).statistic for pair in zip(found.mean.abs(), -found.log_odds, strict=True)]
    slabs = pd.DataFrame(
        {"size": (found.mean.abs() / found.scale).flatten(), "slab_weight": 1 - found.spike_weight.flatten()}
    )
    rare, posterior = spike_slab_optimum(*problems.data, RARE_SPIKE), blr_posterior(*problems.data)
    mean, scale = spike_slab_moments(rare.spike_weight, rare.mean, rare.scale)
    exact_scale = mean_field_optimum_scale(posterior.precision_tril)
    errors = torch.stack([(mean - posterior.mean).abs() / exact_scale, (scale / exact_scale - 1).abs()])
    return {
        "slabs": slabs,
        "slab_sets": pd.DataFrame({"rank_correlation": ranks, "gaussian_error": errors.amax((0, -1))}),
    }


def follow_eq_6_8(prior_spike: float) -> Frames:
    """α/(1+α) of eq. 6.8 for one weight. As σ → 0 it tends to 0 for every m ≠ 0, to 1 for m = 0.

    The exponent −m²/2σ² dominates the factor 1/σ. So Gal's "dropout probability, which tends towards 1" (§6.6.5) should
    read "retain probability".
    """
    m, sigma = torch.cartesian_prod(
        torch.from_numpy(np.array([0.0, 0.1, 0.5, 1.0])), torch.logspace(1, -3, 33, dtype=torch.float64)
    ).T
    probability = spike_slab_row(m[:, None], sigma, prior_spike).log_odds.sigmoid()
    rows = pd.DataFrame({"m": m, "sigma": sigma, "probability": probability})
    nonzero = rows[(rows["m"] > 0) & (rows["sigma"] == rows["sigma"].min())]
    return {"eq_6_8": rows, "eq_6_8_limit": nonzero.sort_values("probability").tail(1)}


def summarise(masks: pd.DataFrame, mask_sets: pd.DataFrame, slabs: pd.DataFrame) -> pd.DataFrame:
    """The table of results about masks."""
    difference = (masks["retain"] - masks["enumerated"]).abs()
    found = {
        "KL of CAVI's masks from the enumerated posterior, mean": mask_sets["kl"].mean(),
        "the same, largest": mask_sets["kl"].max(),
        "largest improvement by the best of several random starts": mask_sets["best_start"].max(),
        "share of data sets where it exceeds 1e-6 nats": (mask_sets["best_start"] > 1e-6).mean(),
        "largest difference between CAVI's and the enumerated retain probability": difference.max(),
        "spike and slab: smallest slab weight": slabs["slab_weight"].min(),
    }
    return pd.DataFrame(found.items(), columns=["what", "value"])
