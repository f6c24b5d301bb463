"""Hron, Matthews and Ghahramani (2018), theorems 4 and 5: limits that give the quasi-KL, and one that does not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Annotated

import numpy as np
import pandas as pd
import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from fsvi_bench.maths.gaussian import gaussian_kl_to_precision, normal_log_density
from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.papers.experiment import ExperimentContext, Frames
from fsvi_bench.papers.hron2018.quasi_kl import (
    IndependentAtoms,
    centred_discretised_line_kl,
    direction,
    line_orientation_term,
    quasi_kl_gaussian,
)
from fsvi_bench.strict import Plain

Probability = Annotated[float, Field(gt=0, lt=1)]
SPACE = 3  #: dimension of the space of theorem 5's subspaces


class Settings(Plain):
    """Theorem 4's dropout distributions and targets, theorem 5's random supports, lines in the plane, and the smallest
    noise and cells."""

    theta: list[tuple[float, float]]
    retain_probability: list[Probability]
    target_mean: list[tuple[float, float]]
    target_sd: list[tuple[PositiveFloat, PositiveFloat]]
    smallest_noise: Probability
    smallest_cell: Probability
    steps: int = Field(ge=2)
    supports: PositiveInt
    seed: int
    degrees: int = Field(ge=2)  #: steps from 0 to 45 degrees
    line_cells: list[PositiveFloat] = Field(min_length=1, max_length=4)  #: descending
    line_scale: PositiveFloat


# --- Theorem 4 --------------------------------------------------------------------------------------------------------


def dropout(theta: Tensor, retain: Tensor, mean_p: Tensor, sd_p: Tensor) -> IndependentAtoms:
    """Atoms at 0 and θ_d with probabilities 1 − p and p."""
    locations, probabilities = torch.stack([torch.zeros_like(theta), theta], -1), torch.stack([1 - retain, retain], -1)
    return IndependentAtoms(locations, probabilities, mean_p, sd_p)


def dropout_cases(settings: Settings) -> tuple[Tensor, ...]:
    """All combinations of θ, retain probability and target, [cases, 2] each."""
    targets = zip(settings.target_mean, settings.target_sd, strict=True)
    product = itertools.product(settings.theta, settings.retain_probability, targets)
    cases = [(theta, (retain, retain), *target) for theta, retain, target in product]
    return torch.tensor(cases, dtype=torch.float64).unbind(1)


def gradient_difference(theta: Tensor, retain: Tensor) -> Tensor:
    """∂QKL/∂θ minus that of Gal and Ghahramani's Σ_d ½ p θ_d² for the prior N(0, I)."""
    prior = torch.zeros_like(theta), torch.ones_like(theta)
    gradient = torch.func.grad(lambda theta: dropout(theta, retain, *prior).quasi_kl().sum())(theta)
    return gradient - retain * theta


def one_weight_minimiser(noise_variance: float) -> float:
    """The θ ≥ 0 that minimises the convolved KL to N(0, 1), for atoms 0 and θ with probability ½ each.

    It is found on two grids, one in θ/√τ, where the entropy separates atoms that overlap under the noise, and one in θ:
    the prior pulls θ to 0, but the minimiser need not shrink with τ.
    """
    fine = torch.linspace(0, 20, 2001, dtype=torch.float64)[:, None] * math.sqrt(noise_variance)
    theta = torch.cat([fine, torch.linspace(0, 4, 4001, dtype=torch.float64)[:, None]])
    law = dropout(theta, torch.full_like(theta, 0.5), torch.zeros_like(theta), torch.ones_like(theta))
    return float(theta[law.centred_convolved_kl(noise_variance).argmin()])


def equation_8_gap(limit_of_minimisers: float) -> float:
    """QKL at the limit of that example's minimisers, minus its infimum (θ → 0 with distinct atoms).

    QKL is minus the expected log density of the target, minus the atoms' entropy, of which log 2 is lost if they merge.
    """
    merged = limit_of_minimisers < 1e-2
    theta = torch.tensor([[0.0 if merged else limit_of_minimisers], [0.0]], dtype=torch.float64)
    law = dropout(theta, torch.full_like(theta, 0.5), torch.zeros_like(theta), torch.ones_like(theta))
    at_limit, infimum = law.quasi_kl().tolist()
    return at_limit - infimum + math.log(2) * merged


def convolved_kl(law: IndependentAtoms, noise_variance: float) -> Tensor:
    """KL(Q * N(0, τI) ‖ P) of each case, with its shift, by the trapezoidal rule for each atom's Gaussian."""
    sd, z = math.sqrt(noise_variance), torch.linspace(-12, 12, 2401, dtype=torch.float64)
    w = law.locations[..., None] + sd * z
    variance = torch.tensor(noise_variance, dtype=torch.float64)
    components = normal_log_density(w[..., None, :], law.locations[..., None, :, None], variance)
    log_q = (law.probabilities.log()[..., None, :, None] + components).logsumexp(-2)
    log_p = normal_log_density(w, law.mean_p[..., None, None], law.scale_p[..., None, None].square())
    expected = torch.trapezoid((-0.5 * z.square()).exp() * (log_q - log_p), z) / math.sqrt(2 * math.pi)
    return (law.probabilities * expected).sum((-2, -1))


# --- Theorem 5 --------------------------------------------------------------------------------------------------------


def random_subspaces(settings: Settings) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
    """Arguments of `quasi_kl_gaussian` for supports of each dimension in R³, with the same random targets."""
    generator = torch.Generator().manual_seed(settings.seed)
    draw = partial(torch.randn, settings.supports, generator=generator, dtype=torch.float64)
    factors = {K: draw(SPACE, K) for K in range(1, SPACE + 1)}
    mean_p, root = draw(SPACE), draw(SPACE, SPACE)
    precision_tril = torch.linalg.cholesky(root @ root.mT + torch.eye(SPACE, dtype=torch.float64))
    return {K: (-mean_p, factor, precision_tril) for K, factor in factors.items()}


def noisy_kl(mean: Tensor, factor: Tensor, precision_tril: Tensor, noise_variance: float) -> Tensor:
    """KL(N(mean, FFᵀ + τI) ‖ N(0, Λ⁻¹)) of dense Gaussians, with its shift."""
    rows = math.sqrt(noise_variance) * torch.eye(SPACE, dtype=torch.float64)
    tril = tril_of_gram(torch.cat([factor.mT, rows.expand(len(factor), -1, -1)], -2))
    return gaussian_kl_to_precision(mean, tril, torch.zeros_like(mean), precision_tril).total


def full_dimension_difference(mean: Tensor, factor: Tensor, precision_tril: Tensor) -> Tensor:
    """QKL − KL for a Q with a density."""
    kl = gaussian_kl_to_precision(mean, tril_of_gram(factor.mT), torch.zeros_like(mean), precision_tril).total
    return quasi_kl_gaussian(mean, factor, precision_tril) - kl


def lines(settings: Settings) -> pd.DataFrame:
    """KL − s minus the quasi-KL, for N(0, scale²) along lines through 0 in the plane and N(0, I), by cell width.

    The formula is for irrational slopes: all angles except the first and the last, whole degrees between 0 and 45.
    """
    degrees = torch.linspace(0, 45, settings.degrees + 1, dtype=torch.float64)
    angle = degrees.deg2rad()
    factor = settings.line_scale * direction(angle)[..., None]
    law = (torch.zeros_like(factor[..., 0]), factor, torch.eye(2, dtype=torch.float64))
    quasi_kl = quasi_kl_gaussian(*law)
    convolved = quasi_kl_gaussian(*law, settings.smallest_noise) - quasi_kl
    found = pd.DataFrame({"degrees": degrees, "formula": line_orientation_term(angle), "convolved": convolved})

    def left(width: float) -> np.ndarray:
        kl = [centred_discretised_line_kl(each, width, settings.line_scale) for each in angle]
        return (torch.stack(kl) - quasi_kl).numpy()

    return pd.concat(found.assign(width=width, left=left(width)) for width in settings.line_cells)


# --- Results ----------------------------------------------------------------------------------------------------------


def approach(
    way: str, sizes: np.ndarray, shifts: np.ndarray, kl: Callable[[float], Tensor], quasi_kl: Tensor
) -> pd.DataFrame:
    """|KL − s − QKL| of every case for descending sizes (noise variances or cell widths) with their shifts s."""
    cases = pd.DataFrame(torch.stack([kl(size) - quasi_kl for size in sizes.tolist()]).abs())
    cases = cases.assign(way=way, step=cases.index, size=sizes, shift=shifts)
    return cases.melt(["way", "step", "size", "shift"], var_name="case", value_name="distance")


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """Frames of distances from the limits, and of the effect of a line's orientation under discretisation."""
    theta, retain, *targets = dropout_cases(settings)
    atoms, subspaces, along = dropout(theta, retain, *targets), random_subspaces(settings), lines(settings)
    noise = np.geomspace(1, settings.smallest_noise, settings.steps)
    cells = np.geomspace(1, settings.smallest_cell, settings.steps)
    shift = -0.5 * np.log(2 * math.pi * math.e * noise)  # per dimension that Q lacks
    ways = [
        approach("convolution of atoms", noise, 2 * shift, atoms.centred_convolved_kl, atoms.quasi_kl()),
        approach("discretisation of atoms", cells, -2 * np.log(cells), atoms.centred_discretised_kl, atoms.quasi_kl()),
    ]
    for K, law in subspaces.items():
        convolved = partial(quasi_kl_gaussian, *law)
        ways.append(approach(f"convolution, K = {K}", noise, (SPACE - K) * shift, convolved, convolved(0.0)))
    distances = pd.concat(ways)
    largest = distances.groupby(["way", "step"], sort=False, as_index=False).max(skipna=False)
    places = [0, settings.steps // 2, settings.steps - 1]
    finest = along[along["width"] == min(settings.line_cells)]
    minimisers = pd.DataFrame({"noise variance": [1e-2, 1e-4, 1e-6]})
    minimisers["theta"] = minimisers["noise variance"].map(one_weight_minimiser)
    by_width = along.pivot(index=["degrees", "formula"], columns="width", values="left")[settings.line_cells]
    apart = atoms.centred_convolved_kl(settings.smallest_noise) - atoms.centred_discretised_kl(settings.smallest_cell)
    kls = []
    for K, law in subspaces.items():
        kl, without = noisy_kl(*law, settings.smallest_noise), noisy_kl(*law, 0.0)
        kls.append({"K": K, "smallest": float(kl.min()), "moved": float((kl - without).abs().max())})
    whole = {
        "ways_apart": float(apart.abs().max()),
        "kl_of_atoms": float(convolved_kl(atoms, settings.smallest_noise).min()),
        "gradient": float(gradient_difference(theta, retain).abs().max()),
        "gap": equation_8_gap(one_weight_minimiser(settings.smallest_noise)),
        "full_dimension": float(full_dimension_difference(*subspaces[SPACE]).abs().max()),
        "spread_convolved": np.ptp(finest["convolved"]),
        "spread_discretised": np.ptp(finest["left"]),
        "from_formula": (finest["left"] - finest["formula"])[1:-1].abs().max(skipna=False),
    }
    return {
        "distances": distances,
        "largest": largest[largest["step"].isin(places)],
        "ends": largest[largest["step"] == places[-1]],
        "kls": pd.DataFrame(kls),
        "lines": along,
        "lines by width": by_width.add_prefix("cell width ").reset_index(),
        "minimisers": minimisers,
        "whole": pd.DataFrame([whole]),
    }
