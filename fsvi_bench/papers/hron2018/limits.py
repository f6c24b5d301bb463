"""Hron, Matthews and Ghahramani (2018), theorems 4 and 5: what the quasi-KL is the limit of, and what it is not."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fsvi_bench.maths.gaussian import LOG_2PI, gaussian_kl
from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.hron2018.panels import dress
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
from fsvi_bench.presenting.figures import BLUE, GREEN, PAGE_WIDTH, PALETTE, VERMILLION
from fsvi_bench.presenting.tables import Table

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
    smallest_noise: float = Field(gt=0, lt=1)
    smallest_cell: float = Field(gt=0, lt=1)
    steps: int = Field(ge=2)
    supports: int = Field(ge=1)
    seed: int
    degrees: int = Field(ge=2)  #: steps from 0 to 45 degrees
    line_cells: list[Positive] = Field(min_length=1, max_length=len(PALETTE))  #: falling
    line_scale: float = Field(gt=0)


class Dropout:
    """Every θ of the settings with every retain probability and every target: atoms 0 and θ_d, batched."""

    def __init__(self, settings: Settings) -> None:
        cases = [
            (theta, p, mean, sd)
            for theta in settings.theta
            for p in settings.retain_probability
            for mean, sd in zip(settings.target_mean, settings.target_sd, strict=True)
        ]
        theta, retain, self.mean, self.sd = (torch.tensor(v, dtype=torch.float64) for v in zip(*cases, strict=True))
        self.locations = torch.stack([torch.zeros_like(theta), theta], dim=-1)
        self.probabilities = torch.stack([1 - retain, retain], dim=-1)[:, None, :].expand_as(self.locations)
        self.precision_tril = torch.diag_embed(1 / self.sd)
        self.limit = atoms_quasi_kl(self.locations, self.probabilities, self.mean, self.precision_tril)

    def convolved(self, noise_variance: Tensor) -> Tensor:
        """KL − s less the limit, [steps, cases]."""
        atoms, target = (self.locations, self.probabilities), (self.mean, self.precision_tril)
        kl = [centred_convolved_kl(*atoms, tau.expand(len(self.limit)), *target) for tau in noise_variance]
        return torch.stack(kl) - self.limit

    def discretised(self, cell_width: Tensor) -> Tensor:
        """KL − s less the limit, [steps, cases]."""
        widths = cell_width[:, None].expand(-1, len(self.limit))
        kl = [centred_discretised_kl(self.locations, self.probabilities, w, self.mean, self.sd) for w in widths]
        return torch.stack(kl) - self.limit


def gradient_difference(settings: Settings) -> float:
    """Largest difference of ∂QKL/∂θ from that of Gal and Ghahramani's Σ_d ½ p θ_d² for the prior N(0, I)."""
    zero, identity = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    differences = []
    for theta in settings.theta:
        for p in settings.retain_probability:
            free = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
            weights = torch.tensor([1 - p, p], dtype=torch.float64).expand(2, 2)
            quasi_kl = atoms_quasi_kl(torch.stack([zero, free], dim=-1), weights, zero, identity)
            (gradient,) = torch.autograd.grad(quasi_kl, free)
            differences.append(float((gradient - p * free.detach()).abs().max()))
    return max(differences)


def one_weight_minimiser(noise_variance: float) -> float:
    """θ ≥ 0 of least convolved KL to N(0, 1), for atoms 0 and θ of probability ½ each.

    By a grid in θ/√τ: the atoms repel each other as long as the noise lets them overlap, and the prior draws θ to 0.
    """
    tau = torch.tensor(noise_variance, dtype=torch.float64)
    theta = torch.linspace(0, 20, 2001, dtype=torch.float64) * tau.sqrt()
    locations = torch.stack([torch.zeros_like(theta), theta], dim=-1)[:, None, :]
    target = torch.zeros(len(theta), 1, dtype=torch.float64), torch.ones(len(theta), 1, 1, dtype=torch.float64)
    kl = centred_convolved_kl(locations, torch.full_like(locations, 0.5), tau.expand(len(theta)), *target)
    return float(theta[kl.argmin()])


def equation_8_gap(limit_of_minimisers: float) -> float:
    """QKL at the limit of the minimisers, less its infimum (θ → 0 with the atoms apart), in that example.

    Raises:
        ValueError: that limit is not 0, where the atoms merge.
    """
    if abs(limit_of_minimisers) > 1e-2:
        raise ValueError(f"the minimisers tend to {limit_of_minimisers}, not to 0")
    log_density = torch.full((2,), -0.5 * LOG_2PI, dtype=torch.float64)
    apart = quasi_kl_countable(torch.tensor([0.5, 0.5], dtype=torch.float64), log_density)
    merged = quasi_kl_countable(torch.ones(1, dtype=torch.float64), log_density[:1])
    return float(merged - apart)


class Subspaces:
    """Theorem 5: Gaussians on random linear subspaces of each dimension of R³, and random Gaussian targets."""

    def __init__(self, settings: Settings) -> None:
        generator = torch.Generator().manual_seed(settings.seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(settings.supports, *shape, generator=generator, dtype=torch.float64)

        self.zero = torch.zeros(settings.supports, SPACE, dtype=torch.float64)
        self.factors = {K: draw(SPACE, K) for K in range(1, SPACE + 1)}
        self.mean, root = draw(SPACE), draw(SPACE, SPACE)
        precision = root @ root.mT + torch.eye(SPACE, dtype=torch.float64)
        self.precision_tril = torch.linalg.cholesky(precision)

    def convolved(self, K: int, noise_variance: Tensor) -> Tensor:
        """KL − s less the quasi-KL for all supports of dimension K, [steps, supports]."""
        arguments = self.zero, self.factors[K]
        target = self.mean, self.precision_tril
        kl = [centred_convolved_affine_kl(*arguments, tau.expand(len(self.zero)), *target) for tau in noise_variance]
        return torch.stack(kl) - quasi_kl_affine_gaussian(*arguments, *target)

    def full_dimension_difference(self) -> float:
        """Largest |QKL − KL| where Q has a density."""
        F = self.factors[SPACE]
        quasi = quasi_kl_affine_gaussian(self.zero, F, self.mean, self.precision_tril)
        tril_q = torch.linalg.cholesky(F @ F.mT)
        identity = torch.eye(SPACE, dtype=torch.float64).expand_as(tril_q)
        inverse = torch.linalg.solve_triangular(self.precision_tril, identity, upper=False)
        tril_p = torch.linalg.cholesky(inverse.mT @ inverse)
        return float((quasi - gaussian_kl(self.zero, tril_q, self.mean, tril_p)).abs().max())


class Lines:
    """N(0, scale²) along lines through 0 in the plane, against N(0, I): what is left beside the quasi-KL."""

    def __init__(self, settings: Settings) -> None:
        self.scale = settings.line_scale
        self.degrees = torch.linspace(0, 45, settings.degrees + 1, dtype=torch.float64)
        self.angles = [math.radians(d) for d in self.degrees.tolist()]
        direction = torch.tensor([[math.cos(a), math.sin(a)] for a in self.angles], dtype=torch.float64)
        self.factor = (settings.line_scale * direction)[..., None]
        self.target = torch.zeros_like(direction), torch.eye(2, dtype=torch.float64).expand(len(self.angles), 2, 2)
        self.limit = quasi_kl_affine_gaussian(self.target[0], self.factor, *self.target)

    def discretised(self, cell_width: float) -> Tensor:
        kl = [centred_discretised_line_kl(angle, cell_width, self.scale) for angle in self.angles]
        return torch.stack(kl) - self.limit

    def convolved(self, noise_variance: float) -> Tensor:
        tau = torch.tensor(noise_variance, dtype=torch.float64).expand(len(self.angles))
        return centred_convolved_affine_kl(self.target[0], self.factor, tau, *self.target) - self.limit

    def formula(self) -> Tensor:
        """At irrational slopes: all angles but the first and the last, since whole degrees between have one."""
        return torch.tensor([line_orientation_term(angle) for angle in self.angles], dtype=torch.float64)


class Distances(NamedTuple):
    """KL − s less the quasi-KL along the noise variances and cell widths, all falling; affine by dimension."""

    noise: Tensor
    cells: Tensor
    convolved: Tensor
    discretised: Tensor
    affine: dict[int, Tensor]


class Left(NamedTuple):
    """What is left beside the quasi-KL on lines: by cell width, and by convolution at the least noise."""

    lines: Lines
    discretised: dict[float, Tensor]
    convolved: Tensor


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """Distances from the limits, and what discretisation leaves of a line's orientation."""
    dropout, subspaces, lines = Dropout(settings), Subspaces(settings), Lines(settings)
    noise, cells = _falling(settings.smallest_noise, settings.steps), _falling(settings.smallest_cell, settings.steps)
    affine = {K: subspaces.convolved(K, noise) for K in subspaces.factors}
    distances = Distances(noise, cells, dropout.convolved(noise), dropout.discretised(cells), affine)
    by_width = {width: lines.discretised(width) for width in settings.line_cells}
    left = Left(lines, by_width, lines.convolved(settings.smallest_noise))
    values = {
        **_theorem_4_values(settings, distances),
        **_theorem_5_values(subspaces, distances),
        **_line_values(left),
    }
    return Findings(
        figure=_draw(distances, left),
        tables=_tables(distances, left),
        statistics={name: Statistic.exact(value) for name, value in values.items()},
        numbers=_numbers(distances, left),
    )


def _theorem_4_values(settings: Settings, distances: Distances) -> dict[str, float]:
    convolved, discretised = distances.convolved[-1], distances.discretised[-1]
    shifts = convolution_shift(distances.noise[-1], 2), discretisation_shift(distances.cells[-1], 2)
    gap = equation_8_gap(one_weight_minimiser(settings.smallest_noise))
    return {
        "theorem 4: convolution, largest distance from the quasi-KL at the end [nats]": _largest(convolved),
        "theorem 4: discretisation, largest distance from the quasi-KL at the end [nats]": _largest(discretised),
        "theorem 4: largest distance between the two at the end [nats]": _largest(convolved - discretised),
        "theorem 4: lesser of the two shifts at the end [nats]": min(float(shift) for shift in shifts),
        "section 4.1: largest difference of the limit's gradient from that of Gal and Ghahramani's objective": (
            gradient_difference(settings)
        ),
        "equation 8: quasi-KL at the limit of the minimisers above its infimum [nats]": gap,
    }


def _theorem_5_values(subspaces: Subspaces, distances: Distances) -> dict[str, float]:
    shifts = {K: float(convolution_shift(distances.noise[-1], SPACE - K)) for K in distances.affine}
    furthest = max(_largest(values[-1]) for values in distances.affine.values())
    return {
        "theorem 5: largest distance from the quasi-KL at the end [nats]": furthest,
        "theorem 5: least shift of a singular support at the end [nats]": min(shifts[K] for K in shifts if K < SPACE),
        "theorem 5: largest shift of a support of full dimension [nats]": abs(shifts[SPACE]),
        "section 5: full dimension, largest difference between quasi-KL and KL [nats]": (
            subspaces.full_dimension_difference()
        ),
    }


def _line_values(left: Left) -> dict[str, float]:
    finest = left.discretised[min(left.discretised)]
    # Only the first and the last angle have a rational slope.
    off_formula = _largest((finest - left.lines.formula())[1:-1])
    return {
        "lines by convolution: spread over angles of what is left at the end [nats]": _spread(left.convolved),
        "lines by discretisation: spread over angles of what is left at the end [nats]": _spread(finest),
        "lines by discretisation: largest distance from our formula at irrational slopes [nats]": off_formula,
    }


def _numbers(distances: Distances, left: Left) -> dict[str, Any]:
    return {
        "noise variance": distances.noise.tolist(),
        "cell width": distances.cells.tolist(),
        "convolved": distances.convolved.tolist(),
        "discretised": distances.discretised.tolist(),
        "affine": {str(K): v.tolist() for K, v in distances.affine.items()},
        "degrees": left.lines.degrees.tolist(),
        "left by discretisation": {f"{width:g}": v.tolist() for width, v in left.discretised.items()},
        "left by convolution": left.convolved.tolist(),
    }


def _falling(smallest: float, steps: int) -> Tensor:
    values = torch.logspace(0, math.log10(smallest), steps, dtype=torch.float64)
    values[-1] = smallest
    return values


def _largest(values: Tensor) -> float:
    return float(values.abs().max())


def _spread(values: Tensor) -> float:
    return float(values.max() - values.min())


def _tables(distances: Distances, left: Left) -> list[Table]:
    noise, cells, convolved, discretised, affine = distances
    places = (0, len(noise) // 2, -1)
    rows = [("convolution of atoms", float(noise[i]), _largest(convolved[i])) for i in places]
    rows += [("discretisation of atoms", float(cells[i]), _largest(discretised[i])) for i in places]
    rows += [(f"convolution, K = {K}", float(noise[i]), _largest(v[i])) for K, v in affine.items() for i in places]
    minimisers = [(tau, one_weight_minimiser(tau)) for tau in (1e-2, 1e-4, 1e-6)]
    by_width = (v.tolist() for v in left.discretised.values())
    angles = zip(left.lines.degrees.tolist(), left.lines.formula().tolist(), *by_width, strict=True)
    return [
        Table(
            title="Largest distance of KL - s from the quasi-KL [nats]",
            columns=("way", "noise variance or cell width", "distance"),
            rows=tuple(rows),
        ),
        Table(
            title="KL - s less quasi-KL of discretised lines [nats]; the formula is for irrational slopes",
            columns=("degrees", "formula", *(f"cell width {width:g}" for width in left.discretised)),
            rows=tuple(angles),
        ),
        Table(
            title="Equation 8: minimiser of the convolved KL of one weight on 0 and theta, prior only",
            columns=("noise variance", "theta"),
            rows=tuple(minimisers),
        ),
    ]


def _draw(distances: Distances, left: Left) -> Figure:
    figure = Figure(figsize=(PAGE_WIDTH, 5.2), layout="constrained")
    panels = figure.subplots(2, 2)
    _draw_cases(panels[0, 0], distances.noise, distances.convolved, BLUE)
    _draw_cases(panels[0, 1], distances.cells, distances.discretised, VERMILLION)
    for (K, values), colour in zip(distances.affine.items(), PALETTE, strict=False):
        largest = values.abs().amax(1)
        panels[1, 0].loglog(distances.noise, largest, color=colour, linewidth=1.5, label=f"K = {K}, largest")
    _slope(panels[1, 0], distances.noise)
    _draw_lines(panels[1, 1], left)
    away = "|KL − s − QKL| [nats]"
    dress(panels[0, 0], "Theorem 4, convolution", "noise variance τ", away)
    dress(panels[0, 1], "Theorem 4, discretisation", "cell width Δ", away)
    dress(panels[1, 0], "Theorem 5, subspaces of R³", "noise variance τ", away)
    dress(panels[1, 1], "Discretised lines in the plane", "angle to the axis [degrees]", "KL − s − QKL [nats]")
    return figure


def _draw_cases(axes: Axes, sizes: Tensor, distances: Tensor, colour: str) -> None:
    axes.loglog(sizes, distances.abs(), color=colour, linewidth=0.6, alpha=0.5)
    axes.loglog(sizes, distances.abs().amax(1), color="black", linewidth=1.5, label="largest")
    _slope(axes, sizes)


def _slope(axes: Axes, sizes: Tensor) -> None:
    axes.loglog(sizes, sizes, color="0.5", linewidth=1, linestyle=":", label="slope 1")


def _draw_lines(axes: Axes, left: Left) -> None:
    degrees, marks = left.lines.degrees, ("^", "s", "o", "v")
    for (width, values), mark, colour in zip(left.discretised.items(), marks, PALETTE, strict=False):
        look: dict[str, Any] = {"marker": mark, "markersize": 3.5, "linestyle": "", "color": colour}
        axes.plot(degrees, values, label=f"Δ = {width:g}", markerfacecolor="none", **look)
    axes.plot(degrees, left.lines.formula(), color="black", linewidth=1, label="irrational slopes")
    axes.plot(degrees, left.convolved, color=GREEN, linewidth=1, linestyle="--", label="convolution")


HRON2018_LIMITS = Experiment("hron2018-limits", Settings, investigate)
