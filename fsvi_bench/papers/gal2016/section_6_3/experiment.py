"""Gal (2016), §6.3, with what §§6.5 and 6.6 say of the linear model: statistics, tables, numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.gal2016.section_6_3.data import Settings, draw_problems, growing_problems
from fsvi_bench.papers.gal2016.section_6_3.figure import SHOWN, draw
from fsvi_bench.papers.gal2016.section_6_3.growth import (
    Distances,
    Growth,
    Profiles,
    compare_with_map,
    follow_growth,
    follow_profiles,
    slope,
)
from fsvi_bench.papers.gal2016.section_6_3.masks import (
    ATOMS,
    WIDTHS,
    Masks,
    SpikeSlabFindings,
    compare_masks,
    examine_spike_slab,
)
from fsvi_bench.papers.gal2016.section_6_3.priors import (
    FINENESS,
    Bounds,
    PriorKls,
    compare_prior_kls,
    scan_lengthscales,
)
from fsvi_bench.presenting.tables import Table


class All(NamedTuple):
    """Everything that was found out."""

    growth: Growth
    profiles: Profiles
    distances: Distances
    kls: PriorKls
    bounds: Bounds
    masks: Masks
    spike_slab: SpikeSlabFindings


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """All in this process: at the paper's scale it is a matter of seconds."""
    growing = growing_problems(settings)
    masked = draw_problems(settings, settings.mask_points, settings.mask_weights)
    found = All(
        growth=follow_growth(settings, growing),
        profiles=follow_profiles(settings, growing),
        distances=compare_with_map(settings, draw_problems(settings, settings.design_points)),
        kls=compare_prior_kls(),
        bounds=scan_lengthscales(settings, draw_problems(settings, settings.lengthscale_points)),
        masks=compare_masks(settings, masked),
        spike_slab=examine_spike_slab(settings, masked),
    )
    return Findings(
        figure=draw(settings, found),
        tables=_tables(settings, found),
        statistics={**_growth_statistics(settings, found), **_prior_statistics(found), **_mask_statistics(found)},
        numbers=_numbers(settings, found),
    )


def _growth_statistics(settings: Settings, found: All) -> dict[str, Statistic]:
    growth, profiles, distances = found.growth, found.profiles, found.distances.by_design
    log_N = torch.tensor(settings.points, dtype=torch.float64).log()
    half = int((found.distances.p - 0.5).abs().argmin())
    return {
        "log10(1 - p*) at the largest N": _mean(growth.log10_drop[-1]),
        "least growth of log logit p* from one N to the next": _mean(growth.logit.log().diff(dim=0).amin(0)),
        "objective at p = 1 above that at p*, smallest N [nats]": _mean(growth.at_one[0]),
        "limit of L/N: least rise above its value at p = 1, per unit of 1 - p": _mean(profiles.least_rise),
        "slope of log error of L/N over log N": _mean(slope(log_N, profiles.log_error)),
        "m* at p = 1: distance from the MAP": _mean(distances["general"][:, -1]),
        "m* at p = 1/2, Λ constant: distance from the MAP": _mean(distances["Λ constant"][:, half]),
        "m* at p = 1/2, Σ diagonal, Λ not constant: distance from the MAP": _mean(distances["Σ diagonal"][:, half]),
        "m* at p*, largest N: distance from the MAP": _mean(growth.distance[-1]),
        "sd of q relative to the exact posterior's, largest N": _mean(growth.spread[-1]),
    }


def _prior_statistics(found: All) -> dict[str, Statistic]:
    kls, bounds = found.kls, found.bounds
    last_octave = math.log(FINENESS[-2] / FINENESS[-1])
    of_sigma, of_step = ((each[-1] - each[-2]) / last_octave for each in (kls.continuous, kls.discrete))
    return {
        "KL to the continuous prior: slope over -log σ, per weight": Statistic.exact(of_sigma),
        "KL to the discrete prior: largest error of eq. 6.6 [nats]": Statistic.exact(kls.error),
        "KL, continuous less discrete: range over m and p [nats]": Statistic.exact(kls.dependence),
        "KL to the discrete prior: slope over -log step, per weight": Statistic.exact(of_step),
        "KL, discrete less continuous, at step = σ [nats per weight]": Statistic.exact(
            kls.discrete[-1] - kls.continuous[-1]
        ),
        "length-scale, continuous prior: log10 of the bound's over the evidence's": _mean(
            bounds.log10_ratio(bounds.continuous[-1])
        ),
        "length-scale, discrete prior: log10 of the bound's over the evidence's": _mean(
            bounds.log10_ratio(bounds.discrete[-1])
        ),
    }


def _mask_statistics(found: All) -> dict[str, Statistic]:
    smooth = found.spike_slab
    return {
        "masks: what direct minimisation gains on CAVI [nats]": _mean(found.masks.gain),
        "spike and slab: rank correlation of a weight's size and its slab weight": _mean(smooth.rank_correlation),
        "spike and slab, f to 0: largest error of the Gaussian's moments": _mean(smooth.gaussian_error),
        "spike and slab, σ to 0: dropout probability of a weight that is not 0": Statistic.exact(
            float(smooth.dropout_probability[1:, -1].max())
        ),
    }


def _mean(values: Tensor) -> Statistic:
    return Statistic.of_mean(values.tolist())


def _tables(settings: Settings, found: All) -> list[Table]:
    growth, masks, smooth = found.growth, found.masks, found.spike_slab
    by_points = zip(
        settings.points,
        *(values.mean(-1).tolist() for values in (growth.logit, growth.log10_drop, growth.at_one, growth.distance)),
        *(values.mean(-1).tolist() for values in (growth.spread, growth.spike_slab_spread)),
        found.profiles.log_error.exp().mean(-1).tolist(),
        strict=True,
    )
    widths = zip(FINENESS, found.kls.continuous, found.kls.discrete, strict=True)
    mask_rows = {
        "KL of CAVI's masks from the enumerated posterior, mean": masks.kl.mean(),
        "the same, largest": masks.kl.max(),
        "what the best of several random starts takes off it, largest": masks.best_start.max(),
        "share of data sets where that is more than 1e-6 nats": (masks.best_start > 1e-6).double().mean(),
        "CAVI's retain probability less the enumerated, largest": (masks.retain - masks.enumerated).abs().max(),
        "spike and slab: smallest slab weight": smooth.slab_weight.min(),
    }
    return [
        Table(
            title=f"Bernoulli dropout at its optimum, means over {settings.repeats} data sets of k = {settings.inputs}",
            columns=(
                "N", "logit p*", "log10(1 - p*)", "objective at p = 1 above it [nats]", "m*: distance from the MAP",
                "sd / exact sd", "spike and slab: sd / exact sd", "rms of L/N - its limit",
            ),
            rows=tuple(by_points),
        ),
        Table(
            title="KL of one weight to the prior N(0, 1), m = 1, p = 0.9 [nats]",
            columns=("σ or step", "continuous prior, atoms of width σ", "discrete prior on a grid"),
            rows=tuple(widths),
        ),
        Table(
            title=f"Masks of k = {settings.mask_weights} weights, N = {settings.mask_points}",
            columns=("what", "value [nats or probability]"),
            rows=tuple((name, float(value)) for name, value in mask_rows.items()),
        ),
    ]  # fmt: skip


def _numbers(settings: Settings, found: All) -> dict[str, object]:
    """Whatever is drawn; profiles and bounds are drawn of one data set."""
    bounds, profiles = found.bounds, found.profiles
    return {
        "growth": {"N": list(settings.points), **_lists(found.growth._asdict())},
        "profiles": {"p": profiles.p.tolist(), "L_over_N": profiles.values[:, SHOWN].tolist(),
            "limit": profiles.limit[SHOWN].tolist()},
        "distance_from_map": {"p": found.distances.p.tolist(), **_lists(found.distances.by_design)},
        "prior_kls": {"fineness": list(FINENESS), "continuous": found.kls.continuous, "discrete": found.kls.discrete},
        "bounds": {"lengthscale": bounds.lengthscale.tolist(), "spreads": list(settings.spreads), "evidence":
            bounds.evidence[SHOWN].tolist(), "continuous": _finite(bounds.continuous[:, SHOWN]),
            "discrete": _finite(bounds.discrete[:, SHOWN])},
        "masks": _lists(found.masks._asdict()),
        "spike_slab": {"m": list(ATOMS), "sigma": list(WIDTHS), **_lists(found.spike_slab._asdict())},
    }  # fmt: skip


def _lists(tensors: dict[str, Tensor]) -> dict[str, object]:
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def _finite(bound: Tensor) -> object:
    """Nested lists with None where a length-scale is beyond what the bound's constant holds for."""
    if bound.ndim > 1:
        return [_finite(row) for row in bound]
    return [value if math.isfinite(value) else None for value in bound.tolist()]


GAL2016_63 = Experiment("gal2016-6.3", Settings, investigate)
