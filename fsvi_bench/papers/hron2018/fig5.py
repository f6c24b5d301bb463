"""Hron, Matthews and Ghahramani (2018), figure 5 and section 5: quasi-KL finds the principal axis."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy import stats
from scipy.optimize import minimize_scalar
from torch import Tensor

from fsvi_bench.maths.gaussian import gaussian_kl
from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.hron2018.hyperparameter import (
    Hyperparameter,
    draw_scales,
    prior_scales,
    regression,
    scale_table,
    scale_values,
)
from fsvi_bench.papers.hron2018.panels import dress
from fsvi_bench.papers.hron2018.pca import Stationary, Target, at_choice, descend, largest_angle, minimise, outer
from fsvi_bench.papers.hron2018.quasi_kl import quasi_kl_affine_gaussian, restrict_gaussian
from fsvi_bench.papers.hron2018.quasi_kl_pca import pca_optimum
from fsvi_bench.presenting.figures import BLUE, GREEN, PAGE_WIDTH, PURPLE, SMALL, VERMILLION
from fsvi_bench.presenting.tables import Table

Positive = Annotated[float, Field(gt=0)]
MISSED = 1e-3  #: radians from the principal subspace, beyond which a start counts as ended elsewhere
REACH = 5.3  #: of the drawn lines on both sides
LINE_COLOURS = (GREEN, PURPLE, "#56B4E9", "#E69F00")  #: of the lines that are not the principal axis


class Settings(BaseModel):
    """Figure 5's target and lines; proposition 6's eigenvalues, K and starts; proposition 7's noise; a regression."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    covariance: tuple[tuple[float, float], tuple[float, float]]
    angles: list[float] = Field(min_length=1, max_length=len(LINE_COLOURS))  #: degrees
    points: int = Field(ge=5)  #: angles from 0 to 180 degrees
    eigenvalues: list[Positive]  #: falling
    dimensions: int = Field(ge=1)
    starts: int = Field(ge=1)
    seed: int
    noise_variances: list[Positive] = Field(min_length=2)  #: falling
    observations: int = Field(ge=2)
    noise_sd: float = Field(gt=0)
    prior_scales: int = Field(ge=3)
    prior_scale_range: tuple[Positive, Positive]  #: standard deviations, rising

    @model_validator(mode="after")
    def _falling(self) -> Settings:
        for values in (self.eigenvalues, self.noise_variances):
            if sorted(set(values), reverse=True) != values:
                raise ValueError(f"got {values}, expected falling values")
        if self.dimensions >= len(self.eigenvalues) or self.noise_variances[0] >= self.eigenvalues[self.dimensions - 1]:
            raise ValueError("expected fewer dimensions than eigenvalues, and noise below the last one kept")
        return self


class Plane:
    """Figure 5's target N(0, Σ) and the lines through its mean."""

    def __init__(self, settings: Settings) -> None:
        self.covariance = torch.tensor(settings.covariance, dtype=torch.float64)
        self.precision_tril = torch.linalg.cholesky(torch.linalg.inv(self.covariance))
        self.principal = pca_optimum(self.covariance, 1)
        x, y = self.principal.basis[:, 0].tolist()
        self.axis = math.atan2(y, x) % math.pi  #: of the principal axis [radians]

    def target(self, shape: torch.Size) -> tuple[Tensor, Tensor]:
        return torch.zeros(*shape, 2, dtype=torch.float64), self.precision_tril.expand(*shape, 2, 2)

    def negative_log_mass(self, angle: Tensor) -> Tensor:
        """−log Z_S of the lines at these angles."""
        zero, precision_tril = self.target(angle.shape)
        return -restrict_gaussian(zero, direction(angle)[..., None], zero, precision_tril).log_mass

    def quasi_kl(self, angle: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
        """Of N(mean, sd²) along the line at that angle."""
        along = direction(angle)
        return quasi_kl_affine_gaussian(
            mean[..., None] * along, (sd[..., None] * along)[..., None], *self.target(sd.shape)
        )

    def identity_sides(self, angle: Tensor, mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor]:
        """KL(Q‖P_S) and −log Z_S, which add up to the quasi-KL (eq. 9)."""
        zero, precision_tril = self.target(angle.shape)
        restricted = restrict_gaussian(zero, direction(angle)[..., None], zero, precision_tril)
        kl = gaussian_kl(mean[..., None], sd[..., None, None], restricted.mean, 1 / restricted.precision_tril)
        return kl, -restricted.log_mass

    def fit(self, angle: float) -> tuple[float, float]:
        """Mean and sd of the best Gaussian on a line, by descent from N(1, 1)."""
        at, start = torch.tensor(angle, dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
        mean, log_sd = minimise(lambda free: self.quasi_kl(at, free[0], free[1].exp()), start).tolist()
        return mean, math.exp(log_sd)

    def best_angle(self, points: int) -> float:
        """Of least −log Z_S: by a grid, then Brent's method around its best point [radians]."""
        grid = torch.linspace(0, math.pi, points, dtype=torch.float64)
        middle, step = float(grid[self.negative_log_mass(grid).argmin()]), math.pi / (points - 1)
        bounds = (middle - step, middle + step)

        def height(angle: float) -> float:
            return float(self.negative_log_mass(torch.tensor(angle, dtype=torch.float64)))

        return float(minimize_scalar(height, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x) % math.pi


class Line(NamedTuple):
    """A drawn line: its angle [radians], −log Z_S, the Gaussian fitted on it, and the KL term that it leaves."""

    angle: float
    negative_log_mass: float
    mean: float
    sd: float
    kl: float


def direction(angle: Tensor) -> Tensor:
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def draw_lines(plane: Plane, angles: list[float]) -> list[Line]:
    """The lines with what descent finds on each of them."""
    lines = []
    for angle in angles:
        mean, sd = plane.fit(angle)
        fitted = [torch.tensor(v, dtype=torch.float64) for v in (angle, mean, sd)]
        height = float(plane.negative_log_mass(fitted[0]))
        lines.append(Line(angle, height, mean, sd, float(plane.quasi_kl(*fitted)) - height))
    return lines


class Starts(NamedTuple):
    """Proposition 6 by descent: where each start ended, as angle to the principal subspace, and the best end."""

    angles: list[float]
    best_angle: float
    variance_error: float


def try_starts(target: Target, settings: Settings, generator: torch.Generator) -> Starts:
    """Descent on the quasi-KL from random starts."""
    D, K = len(settings.eigenvalues), settings.dimensions
    principal = target.eigenvectors[:, :K]
    ends = [
        descend(target.quasi_kl, torch.randn(D, K, generator=generator, dtype=torch.float64))
        for _ in range(settings.starts)
    ]
    best = min(ends, key=lambda end: float(target.quasi_kl(*end)))
    error = (best.variances.sort(descending=True).values / target.eigenvalues[:K] - 1).abs().max()
    return Starts(
        [largest_angle(end.basis, principal) for end in ends], largest_angle(best.basis, principal), float(error)
    )


def convolved_distances(target: Target, settings: Settings, generator: torch.Generator) -> list[float]:
    """‖A diag(v) Aᵀ − PCA's‖_F at each noise variance, A and v found by descent from one random start."""
    D, K = len(settings.eigenvalues), settings.dimensions
    start = torch.randn(D, K, generator=generator, dtype=torch.float64)
    principal = outer(pca_optimum(target.covariance, K))
    ends = [descend(target.convolved(tau), start) for tau in settings.noise_variances]
    return [float(torch.linalg.matrix_norm(outer(end) - principal)) for end in ends]


def stationary_points(target: Target, settings: Settings) -> dict[float, list[Stationary]]:
    """All choices of eigenvectors, of the quasi-KL (noise 0) and of the KL at the largest noise that all allow."""
    allowed = [tau for tau in settings.noise_variances if tau < settings.eigenvalues[-1]]
    choices = list(itertools.combinations(range(len(settings.eigenvalues)), settings.dimensions))
    return {tau: [at_choice(target, choice, tau) for choice in choices] for tau in (0.0, *allowed[:1])}


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """Lines in the plane, subspaces by descent, and a hyperparameter by quasi-KL."""
    plane, generator = Plane(settings), torch.Generator().manual_seed(settings.seed)
    best = draw_lines(plane, [plane.best_angle(settings.points)])[0]
    others = draw_lines(plane, [math.radians(angle) for angle in settings.angles])
    target = Target(settings.eigenvalues, generator)
    starts, distances = try_starts(target, settings, generator), convolved_distances(target, settings, generator)
    points, scales = stationary_points(target, settings), _scales(settings)
    return Findings(
        figure=_draw(settings, plane, (best, others), (distances, scales)),
        tables=[*_tables(settings, (best, others), points, distances), scale_table(scales)],
        statistics={
            **_exact(_plane_values(plane, best, others) | scale_values(scales)),
            **_subspace_statistics(starts, points, distances),
        },
        numbers={
            "lines": [line._asdict() for line in (best, *others)],
            "angles of the starts' ends": starts.angles,
            "distances": distances,
            "prior scale": {name: getattr(scales, name).tolist() for name in ("scale", "evidence", "bound")},
        },
    )


def _exact(values: dict[str, float]) -> dict[str, Statistic]:
    return {name: Statistic.exact(value) for name, value in values.items()}


def _scales(settings: Settings) -> Hyperparameter:
    lowest, highest = (math.log10(end) for end in settings.prior_scale_range)
    scale = torch.logspace(lowest, highest, settings.prior_scales, dtype=torch.float64)
    data = regression(settings.observations, settings.noise_sd, settings.seed)
    return prior_scales(*data, settings.noise_sd, scale)


def _subspace_statistics(
    starts: Starts, points: dict[float, list[Stationary]], distances: list[float]
) -> dict[str, Statistic]:
    missed = stats.binomtest(sum(angle > MISSED for angle in starts.angles), len(starts.angles))
    interval = missed.proportion_ci(0.95, method="exact")
    share = Statistic(missed.statistic, float(interval.low), float(interval.high))
    others = [point for chosen in points.values() for point in chosen[1:]]
    ratios = [later / earlier for earlier, later in itertools.pairwise(distances)]
    values = {
        "proposition 6: largest angle between the best subspace and the principal one [radians]": starts.best_angle,
        "proposition 6: largest relative distance of the best variances from the eigenvalues": starts.variance_error,
        "section 5.1: largest gradient at any choice of eigenvectors": max(p.slope for v in points.values() for p in v),
        "section 5.1: least curvature at the other choices of eigenvectors": min(p.least_curvature for p in others),
        "proposition 7: distance of the convolved optimum from PCA at the least noise": distances[-1],
        "proposition 7: largest ratio of distances at successive noises": max(ratios),
    }
    return _exact(values) | {"section 5.1: share of starts that do not end at the principal subspace": share}


def _plane_values(plane: Plane, best: Line, others: list[Line]) -> dict[str, float]:
    angle, mean, sd = (
        v.flatten()
        for v in torch.meshgrid(
            torch.linspace(0, math.pi, 25, dtype=torch.float64),
            torch.linspace(-3, 3, 7, dtype=torch.float64),
            torch.logspace(-2, 1, 13, dtype=torch.float64),
            indexing="ij",
        )
    )
    quasi_kl, (kl, floor) = plane.quasi_kl(angle, mean, sd), plane.identity_sides(angle, mean, sd)
    apart = abs(best.angle - plane.axis)
    return {
        "figure 5: largest KL term left on a drawn line [nats]": max(abs(line.kl) for line in (best, *others)),
        "figure 5: best line's angle to the principal axis [degrees]": math.degrees(min(apart, math.pi - apart)),
        "figure 5: least excess of the other drawn lines over the best [nats]": min(
            line.negative_log_mass - best.negative_log_mass for line in others
        ),
        "equation 9: largest difference between its sides [nats]": float((quasi_kl - kl - floor).abs().max()),
        "section 5: least excess of the quasi-KL over -log Z_S [nats]": float((quasi_kl - floor).min()),
        "section 5: quasi-KL of the best line [nats]": best.negative_log_mass + best.kl,
    }


def _tables(
    settings: Settings, lines: tuple[Line, list[Line]], points: dict[float, list[Stationary]], distances: list[float]
) -> list[Table]:
    best, others = lines
    drawn = [
        (name, math.degrees(line.angle), line.negative_log_mass, line.mean, line.sd, line.kl)
        for name, line in (("best", best), *(("other", line) for line in others))
    ]
    choices = [
        (f"{{{', '.join(str(i + 1) for i in p.choice)}}}", tau, p.slope, p.least_curvature, p.largest_curvature)
        for tau, chosen in points.items()
        for p in chosen
    ]
    return [
        Table(
            title="Figure 5: lines, and the Gaussian fitted on each",
            columns=("line", "degrees", "-log Z_S [nats]", "mean", "sd", "KL term [nats]"),
            rows=tuple(drawn),
        ),
        Table(
            title="Section 5.1: choices of eigenvectors (1 the leading one), slope and curvatures there",
            columns=("choice", "noise variance", "slope", "least curvature", "largest curvature"),
            rows=tuple(choices),
        ),
        Table(
            title="Proposition 7: distance of the optimum from PCA",
            columns=("noise variance", "Frobenius distance"),
            rows=tuple(zip(settings.noise_variances, distances, strict=True)),
        ),
    ]


def _draw(
    settings: Settings, plane: Plane, lines: tuple[Line, list[Line]], rest: tuple[list[float], Hyperparameter]
) -> Figure:
    figure = Figure(figsize=(PAGE_WIDTH, 5.6), layout="constrained")
    panels = figure.subplots(2, 2)
    coloured = [(line, colour) for line, colour in zip(lines[1], LINE_COLOURS, strict=False)]
    coloured.append((lines[0], VERMILLION))
    _draw_plane(panels[0, 0], plane, coloured)
    angles = torch.linspace(0, math.pi, settings.points, dtype=torch.float64)
    panels[0, 1].plot(
        angles.rad2deg(), plane.negative_log_mass(angles), color="black", linewidth=1.2, label="all lines"
    )
    for line, colour in coloured:
        panels[0, 1].plot(math.degrees(line.angle), line.negative_log_mass, "o", color=colour, markersize=6)
    panels[0, 1].axvline(math.degrees(plane.axis), color=BLUE, linewidth=1, linestyle="--", label="principal axis")
    panels[0, 1].set_xticks(range(0, 181, 45))
    _draw_convergence(panels[1, 0], settings, rest[0])
    draw_scales(panels[1, 1], rest[1])
    dress(panels[0, 1], "What decides between them", "angle of the line [degrees]", r"$-\log Z_S$ [nats]")
    dress(panels[1, 0], "Proposition 7", "noise variance τ", "distance of optimum from PCA")
    dress(panels[1, 1], "Section 5: a hyperparameter", "prior sd of the weights", "[nats]")
    return figure


def _draw_plane(axes: Axes, plane: Plane, lines: list[tuple[Line, str]]) -> None:
    turn = torch.linspace(0, 2 * math.pi, 200, dtype=torch.float64)
    circle = torch.stack([turn.cos(), turn.sin()])
    for deviations in (1, 2, 3):
        x, y = deviations * (torch.linalg.cholesky(plane.covariance) @ circle)
        axes.fill(x, y, color=BLUE, alpha=0.16, linewidth=0)
    for line, colour in lines:
        x, y = math.cos(line.angle), math.sin(line.angle)
        axes.plot([-REACH * x, REACH * x], [-REACH * y, REACH * y], color=colour, linewidth=0.8)
        ends = [line.mean - 2 * line.sd, line.mean + 2 * line.sd]
        label = f"{math.degrees(line.angle):.0f}°"
        axes.plot([t * x for t in ends], [t * y for t in ends], color=colour, linewidth=3, label=label)
    axes.set_xlim(-7, 7)
    axes.set_ylim(-7, 4.4)
    axes.set_aspect("equal")
    dress(axes, "Figure 5: lines through a Gaussian", "w₁", "w₂", legend=False)
    axes.legend(loc="lower center", ncols=5, frameon=False, fontsize=SMALL, handlelength=0.7, columnspacing=0.7)


def _draw_convergence(axes: Axes, settings: Settings, distances: list[float]) -> None:
    axes.loglog(settings.noise_variances, distances, "o-", color=BLUE, markersize=4, linewidth=1.2, label="by descent")
    expected = [tau * math.sqrt(settings.dimensions) for tau in settings.noise_variances]
    axes.loglog(settings.noise_variances, expected, color="black", linewidth=1, linestyle=":", label="τ√K")


HRON2018_FIG5 = Experiment("hron2018-fig5", Settings, investigate)
