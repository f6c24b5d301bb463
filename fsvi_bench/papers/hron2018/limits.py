"""Hron, Matthews and Ghahramani (2018), theorems 4 and 5: what the quasi-KL is the limit of, and what it is not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fsvi_bench.maths.gaussian import LOG_2PI, gaussian_kl
from fsvi_bench.maths.linalg import inverse_tril, tril_of_gram
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.hron2018.quasi_kl import quasi_kl_affine_gaussian, quasi_kl_countable
from fsvi_bench.papers.hron2018.quasi_kl_limits import (
    atoms_quasi_kl,
    centred_convolved_affine_kl,
    centred_convolved_kl,
    centred_discretised_kl,
    centred_discretised_line_kl,
    convolution_shift,
    discretisation_shift,
    line_orientation_term,
)

Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(gt=0, lt=1)]
SPACE = 3  #: dimensions that theorem 5's subspaces lie in


class Settings(BaseModel):
    """Theorem 4's dropout laws and targets, theorem 5's random supports, lines in the plane, and how far limits go."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    theta: list[tuple[float, float]]
    retain_probability: list[Probability]
    target_mean: list[tuple[float, float]]
    target_sd: list[tuple[Positive, Positive]]
    smallest_noise: Probability
    smallest_cell: Probability
    steps: int = Field(ge=2)
    supports: int = Field(ge=1)
    seed: int
    degrees: int = Field(ge=2)  #: steps from 0 to 45 degrees
    line_cells: list[Positive] = Field(min_length=1, max_length=4)  #: falling
    line_scale: float = Field(gt=0)


def two_atoms(theta: Tensor) -> Tensor:
    """At 0 and θ_d."""
    return torch.stack([torch.zeros_like(theta), theta], dim=-1)


class Dropout:
    """Every θ of the settings with every retain probability and every target, batched."""

    def __init__(self, settings: Settings) -> None:
        targets = zip(settings.target_mean, settings.target_sd, strict=True)
        cases = itertools.product(settings.theta, settings.retain_probability, targets)
        flat = zip(*((theta, retain, *target) for theta, retain, target in cases), strict=True)
        self.theta, retain, self.mean, self.sd = (torch.tensor(each, dtype=torch.float64) for each in flat)
        self.locations = two_atoms(self.theta)
        self.probabilities = torch.stack([1 - retain, retain], dim=-1)[:, None, :].expand_as(self.locations)
        self.precision_tril = torch.diag_embed(1 / self.sd)
        self.limit = atoms_quasi_kl(self.locations, self.probabilities, self.mean, self.precision_tril)

    def convolved(self, noise_variance: Tensor) -> Tensor:
        """KL − s less the limit, [cases]."""
        atoms, tau = (self.locations, self.probabilities), noise_variance.expand_as(self.limit)
        return centred_convolved_kl(*atoms, tau, self.mean, self.precision_tril) - self.limit

    def discretised(self, cell_width: Tensor) -> Tensor:
        """KL − s less the limit, [cases]."""
        atoms, width = (self.locations, self.probabilities), cell_width.expand_as(self.limit)
        return centred_discretised_kl(*atoms, width, self.mean, self.sd) - self.limit

    def gradient_difference(self) -> Tensor:
        """∂QKL/∂θ less that of Gal and Ghahramani's Σ_d ½ p θ_d² for the prior N(0, I), [cases, weights]."""
        theta = self.theta.clone().requires_grad_()
        prior = torch.zeros_like(theta), torch.diag_embed(torch.ones_like(theta))
        (gradient,) = torch.autograd.grad(atoms_quasi_kl(two_atoms(theta), self.probabilities, *prior).sum(), theta)
        return gradient - self.probabilities[..., 1] * self.theta


def one_weight_minimiser(noise_variance: float) -> float:
    """θ ≥ 0 of least convolved KL to N(0, 1), for atoms 0 and θ of probability ½ each.

    By a grid in θ/√τ: the atoms repel each other as long as the noise lets them overlap, and the prior draws θ to 0.
    """
    theta = torch.linspace(0, 20, 2001, dtype=torch.float64) * math.sqrt(noise_variance)
    locations, tau = two_atoms(theta[:, None]), torch.full_like(theta, noise_variance)
    prior = torch.zeros_like(theta)[:, None], torch.ones_like(theta)[:, None, None]
    return float(theta[centred_convolved_kl(locations, torch.full_like(locations, 0.5), tau, *prior).argmin()])


def equation_8_gap(limit_of_minimisers: float) -> float:
    """QKL at the limit of the minimisers, less its infimum (θ → 0 with the atoms apart), in that example.

    Raises:
        ValueError: that limit is not 0, where the atoms merge.
    """
    if abs(limit_of_minimisers) > 1e-2:
        raise ValueError(f"the minimisers tend to {limit_of_minimisers}, not to 0")
    merged_and_apart = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    merged, apart = quasi_kl_countable(merged_and_apart, torch.full_like(merged_and_apart, -0.5 * LOG_2PI)).tolist()
    return merged - apart


class Subspaces(NamedTuple):
    """The laws of F z, Gaussians on linear subspaces, each with its Gaussian target."""

    factor: Tensor
    mean: Tensor
    precision_tril: Tensor

    def quasi_kl(self) -> Tensor:
        return quasi_kl_affine_gaussian(torch.zeros_like(self.mean), *self)

    def convolved(self, noise_variance: Tensor) -> Tensor:
        """KL − s less the quasi-KL, [supports]."""
        target, tau = (self.mean, self.precision_tril), noise_variance.expand(len(self.mean))
        return centred_convolved_affine_kl(torch.zeros_like(self.mean), self.factor, tau, *target) - self.quasi_kl()

    def full_dimension_difference(self) -> Tensor:
        """QKL − KL where Q has a density, [supports]."""
        tril_q, tril_p = tril_of_gram(self.factor.mT), tril_of_gram(inverse_tril(self.precision_tril))
        return self.quasi_kl() - gaussian_kl(torch.zeros_like(self.mean), tril_q, self.mean, tril_p)


def random_subspaces(settings: Settings) -> dict[int, Subspaces]:
    """Theorem 5: supports of each dimension of R³, with the same random targets."""
    generator = torch.Generator().manual_seed(settings.seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(settings.supports, *shape, generator=generator, dtype=torch.float64)

    factors = {K: draw(SPACE, K) for K in range(1, SPACE + 1)}
    mean, root = draw(SPACE), draw(SPACE, SPACE)
    precision_tril = torch.linalg.cholesky(root @ root.mT + torch.eye(SPACE, dtype=torch.float64))
    return {K: Subspaces(factor, mean, precision_tril) for K, factor in factors.items()}


def lines(settings: Settings) -> pd.DataFrame:
    """KL − s less the quasi-KL for N(0, scale²) along lines through 0 in the plane, against N(0, I), by cell width.

    The formula is that of irrational slopes: all angles but the first and the last, whole degrees between 0 and 45.
    """
    degrees = torch.linspace(0, 45, settings.degrees + 1, dtype=torch.float64)
    angles = [math.radians(degree) for degree in degrees.tolist()]
    mean = torch.zeros(len(angles), 2, dtype=torch.float64)
    directions = torch.tensor([[math.cos(angle), math.sin(angle)] for angle in angles], dtype=torch.float64)
    law = Subspaces(settings.line_scale * directions[..., None], mean, torch.diag_embed(torch.ones_like(mean)))

    def discretised(width: float) -> Tensor:
        kl = [centred_discretised_line_kl(angle, width, settings.line_scale) for angle in angles]
        return torch.stack(kl) - law.quasi_kl()

    convolved = law.convolved(torch.tensor(settings.smallest_noise, dtype=torch.float64))
    common = {"degrees": degrees, "formula": [line_orientation_term(angle) for angle in angles], "convolved": convolved}
    return pd.concat([pd.DataFrame({**common, "width": w, "left": discretised(w)}) for w in settings.line_cells])


def approach(way: str, sizes: Tensor, shifts: Tensor, left: Callable[[Tensor], Tensor]) -> pd.DataFrame:
    """|KL − s − QKL| of every case along the falling noise variances or cell widths."""
    cases = pd.DataFrame(torch.stack([left(size) for size in sizes]).abs().numpy())
    cases = cases.assign(way=way, step=cases.index, size=sizes.numpy(), shift=shifts.numpy())
    return cases.melt(["way", "step", "size", "shift"], var_name="case", value_name="distance")


def falling(smallest: float, steps: int) -> Tensor:
    sizes = torch.logspace(0, math.log10(smallest), steps, dtype=torch.float64)
    sizes[-1] = smallest
    return sizes


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """Distances from the limits, and what discretisation leaves of a line's orientation."""
    dropout, subspaces, along = Dropout(settings), random_subspaces(settings), lines(settings)
    noise, cells = falling(settings.smallest_noise, settings.steps), falling(settings.smallest_cell, settings.steps)
    ways = [
        approach("convolution of atoms", noise, convolution_shift(noise, 2), dropout.convolved),
        approach("discretisation of atoms", cells, discretisation_shift(cells, 2), dropout.discretised),
    ]
    for K, laws in subspaces.items():
        ways.append(approach(f"convolution, K = {K}", noise, convolution_shift(noise, SPACE - K), laws.convolved))
    distances = pd.concat(ways)
    largest = distances.groupby(["way", "step"], sort=False, as_index=False).max(skipna=False)
    places = [0, settings.steps // 2, settings.steps - 1]
    finest = along[along["width"] == min(settings.line_cells)]
    minimisers = [(tau, one_weight_minimiser(tau)) for tau in (1e-2, 1e-4, 1e-6)]
    apart = dropout.convolved(noise[-1]) - dropout.discretised(cells[-1])
    by_width = along.pivot(index=["degrees", "formula"], columns="width", values="left")[settings.line_cells]
    return Findings(
        frames={
            "distances": distances,
            "largest": largest[largest["step"].isin(places)],
            "ends": largest[largest["step"] == places[-1]],
            "lines": along,
            "lines by width": by_width.add_prefix("cell width ").reset_index(),
            "minimisers": pd.DataFrame(minimisers, columns=["noise variance", "theta"]),
        },
        statistics={
            "theorem 4: largest distance between the two at the end [nats]": float(apart.abs().max()),
            "section 4.1: largest difference of the limit's gradient from that of Gal and Ghahramani's objective": (
                float(dropout.gradient_difference().abs().max())
            ),
            "equation 8: quasi-KL at the limit of the minimisers above its infimum [nats]": equation_8_gap(
                one_weight_minimiser(settings.smallest_noise)
            ),
            "section 5: full dimension, largest difference between quasi-KL and KL [nats]": float(
                subspaces[SPACE].full_dimension_difference().abs().max()
            ),
            "lines by convolution: spread over angles of what is left at the end [nats]": np.ptp(finest["convolved"]),
            "lines by discretisation: spread over angles of what is left at the end [nats]": np.ptp(finest["left"]),
            "lines by discretisation: largest distance from our formula at irrational slopes [nats]": (
                (finest["left"] - finest["formula"])[1:-1].abs().max(skipna=False)
            ),
        },
    )


HRON2018_LIMITS = Experiment("hron2018-limits", Settings, investigate)
