"""Hron, Matthews and Ghahramani (2018), figure 5 and section 5: quasi-KL finds the principal axis."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from fsvi_bench.maths.blr import blr_posterior, log_evidence
from fsvi_bench.maths.gaussian import LOG_2PI, normal_kl, normal_log_density
from fsvi_bench.papers.claims import Values
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.hron2018.pca import Target, convolved_distances, minimise, stationary_points, try_start
from fsvi_bench.papers.hron2018.quasi_kl import RestrictedGaussian, quasi_kl_gaussian, restrict_gaussian

Positive = Annotated[float, Field(gt=0)]
REACH = 5.3  #: of the drawn lines on both sides
EVIDENCE, BOUND = "log evidence", "largest -QKL"


class Settings(BaseModel):
    """Figure 5's target and lines; proposition 6's eigenvalues, K and starts; proposition 7's noise; a regression."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    covariance: tuple[tuple[float, float], tuple[float, float]]
    angles: list[float] = Field(min_length=1, max_length=4)  #: degrees
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
            if any(np.diff(values) >= 0):
                raise ValueError(f"got {values}, expected falling values")
        if self.dimensions >= len(self.eigenvalues) or self.noise_variances[0] >= self.eigenvalues[self.dimensions - 1]:
            raise ValueError("expected fewer dimensions than eigenvalues, and noise below the last one kept")
        return self


# --- Lines in the plane -----------------------------------------------------------------------------------------------


class Plane:
    """Figure 5's target N(0, Σ) and the lines through its mean, by their angles [radians]."""

    def __init__(self, settings: Settings) -> None:
        self.covariance = torch.tensor(settings.covariance, dtype=torch.float64)
        self.precision_tril = torch.linalg.cholesky(torch.linalg.inv(self.covariance))

    def restricted(self, angle: Tensor) -> RestrictedGaussian:
        """To the lines at these angles."""
        return restrict_gaussian(direction(angle)[..., None], self.precision_tril)

    def quasi_kl(self, angle: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
        """Of N(mean, sd²) along the lines."""
        along = direction(angle)
        return quasi_kl_gaussian(mean[..., None] * along, (sd[..., None] * along)[..., None], self.precision_tril)

    def best_angle(self, points: int) -> float:
        """Of least −log Z_S: by descent from the best of a grid."""
        grid = torch.linspace(0, math.pi, points, dtype=torch.float64)
        start = grid[self.restricted(grid).log_mass.argmax(keepdim=True)]
        return minimise(lambda angle: -self.restricted(angle).log_mass.sum(), start).item() % math.pi


def direction(angle: Tensor) -> Tensor:
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def fitted_lines(plane: Plane, settings: Settings) -> pd.DataFrame:
    """The best line and the others that are drawn: −log Z_S, the Gaussian P_S on it, and the KL term that it leaves."""
    angle = torch.tensor([plane.best_angle(settings.points), *map(math.radians, settings.angles)], dtype=torch.float64)
    precision_tril, log_mass = plane.restricted(angle)
    height, mean, sd = -log_mass, torch.zeros_like(angle), 1 / precision_tril[:, 0, 0]
    quasi_kl = plane.quasi_kl(angle, mean, sd)
    x, y = torch.linalg.eigh(plane.covariance).eigenvectors[:, -1].tolist()
    axis = math.degrees(math.atan2(y, x)) % 180
    apart = (angle.rad2deg() - axis).abs()
    columns = {
        "line": ["best"] + ["other"] * len(settings.angles),
        "degrees": angle.rad2deg(),
        "axis": axis,
        "apart": torch.minimum(apart, 180 - apart),
        "height": height,
        "excess": height - height[0],
        "mean": mean,
        "sd": sd,
        "quasi_kl": quasi_kl,
        "kl": quasi_kl - height,
    }
    return pd.DataFrame(columns)


def segments(lines: pd.DataFrame) -> pd.DataFrame:
    """Ends of the lines as drawn: of the whole, and of two standard deviations about the mean."""
    ends = {"whole": REACH, "fitted": 2 * lines["sd"]}
    drawn = pd.concat([lines.assign(part=part, t=side * end) for part, end in ends.items() for side in (-1, 1)])
    angle = np.radians(drawn["degrees"])
    return drawn.assign(w1=drawn["t"] * np.cos(angle), w2=drawn["t"] * np.sin(angle))


def ellipses(plane: Plane) -> pd.DataFrame:
    """Of 1, 2 and 3 standard deviations: their upper and lower halves."""
    turn, factor = np.linspace(0, np.pi, 200), torch.linalg.cholesky(plane.covariance).numpy()
    w1, high = factor @ [np.cos(turn), np.sin(turn)]
    _, low = factor @ [np.cos(turn), -np.sin(turn)]
    unit = pd.DataFrame({"w1": w1, "low": low, "high": high})
    return pd.concat([(deviations * unit).assign(deviations=deviations) for deviations in (1, 2, 3)])


def equation_9(plane: Plane) -> dict[str, Values]:
    """Quasi-KL = KL(Q‖P_S) − log Z_S ≥ −log Z_S for Gaussians on lines at many angles."""
    angle, mean, sd = torch.cartesian_prod(
        torch.linspace(0, math.pi, 25, dtype=torch.float64),
        torch.linspace(-3, 3, 7, dtype=torch.float64),
        torch.logspace(-2, 1, 13, dtype=torch.float64),
    ).T
    precision_tril, log_mass = plane.restricted(angle)
    kl = normal_kl(mean, sd.square(), torch.zeros_like(mean), precision_tril[:, 0, 0] ** -2)
    excess = plane.quasi_kl(angle, mean, sd) + log_mass
    return {
        "equation 9: largest difference between its sides [nats]": float((excess - kl).abs().max()),
        "section 5: least excess of the quasi-KL over -log Z_S [nats]": float(excess.min()),
    }


# --- A hyperparameter -------------------------------------------------------------------------------------------------


def regression(observations: int, noise_sd: float, seed: int) -> tuple[Tensor, Tensor]:
    """Features [N,2] and targets [N] of y = Φw + noise with w drawn from N(0, I)."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    Phi, w = draw(observations, 2), draw(2)
    return Phi, Phi @ w + noise_sd * draw(observations)


def prior_scales(Phi: Tensor, targets: Tensor, noise_sd: float, scale: Tensor) -> pd.DataFrame:
    """Log evidence of each prior sd, and the most that −QKL can be over all lines: log evidence + log Z_S.

    The best line goes through the posterior's mean, along its longer axis. As the scale s falls to 0 the evidence tends
    to that of no weights at all, but log Z_S → −½ log 2πs² → ∞: the bound has no maximum over all s > 0. The frame's
    attribute `overtakes` is log10 of the s from which on downwards it exceeds those looked at.
    """
    # In units of the prior's scale the prior is N(0, I); the quasi-KL depends on units, and is taken in those of w.
    scaled, y = scale[:, None, None] * Phi, targets.expand(len(scale), -1)
    variance = torch.full_like(scale, noise_sd**2)
    posterior = blr_posterior(scaled, y, variance)
    precision_tril = posterior.precision_tril / scale[:, None, None]
    longest = torch.linalg.eigh(precision_tril @ precision_tril.mT).eigenvectors[..., :1]
    evidence = log_evidence(scaled, y, variance, posterior)
    bound = evidence + restrict_gaussian(longest, precision_tril).log_mass
    nothing = torch.zeros_like(targets)
    without_weights = normal_log_density(targets, nothing, nothing + noise_sd**2).sum()
    found = pd.DataFrame({"scale": scale, EVIDENCE: evidence, BOUND: bound})
    found.attrs["overtakes"] = float(without_weights - bound.max() - 0.5 * LOG_2PI) / math.log(10)
    return found


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """Lines in the plane, subspaces by descent, and a hyperparameter by quasi-KL."""
    plane, generator = Plane(settings), torch.Generator().manual_seed(settings.seed)
    lines = fitted_lines(plane, settings)
    angles = torch.linspace(0, math.pi, settings.points, dtype=torch.float64)
    target, K = Target(settings.eigenvalues, generator), settings.dimensions
    shape = len(settings.eigenvalues), K
    *draws, last = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(settings.starts + 1))
    starts = pd.DataFrame([try_start(target, draw) for draw in draws])
    # The quasi-KL, and the KL at the largest noise that leaves every eigenvector a variance.
    allowed = [tau for tau in settings.noise_variances if tau < settings.eigenvalues[-1]]
    points = stationary_points(target, K, [0.0, *allowed[:1]])
    distances = convolved_distances(target, settings.noise_variances, last)
    ratios = distances["Frobenius distance"] / distances["Frobenius distance"].shift()
    low, high = map(math.log10, settings.prior_scale_range)
    scale = torch.logspace(low, high, settings.prior_scales, dtype=torch.float64)
    scales = prior_scales(
        *regression(settings.observations, settings.noise_sd, settings.seed), settings.noise_sd, scale
    )
    by = scales.melt("scale", var_name="by")
    best = by.loc[by.groupby("by", sort=False)["value"].idxmax()]
    best.attrs = scales.attrs
    return Findings(
        frames={
            "lines": lines,
            "segments": segments(lines),
            "ellipses": ellipses(plane),
            "heights": pd.DataFrame({"degrees": angles.rad2deg(), "height": -plane.restricted(angles).log_mass}),
            "starts": starts,
            "best start": starts.loc[[starts["quasi_kl"].idxmin()]],
            "choices": points,
            "distances": distances,
            "scales": by,
            "best scales": best,
        },
        statistics={
            **equation_9(plane),
            "section 5: most by which the prior scale's bound exceeds the log evidence [nats]": (
                scales[BOUND] - scales[EVIDENCE]
            ).max(skipna=False),
            "section 5: distance of the bound's best prior scale from the evidence's [log10]": np.ptp(
                np.log10(best["scale"])
            ),
            "section 5.1: largest gradient at any choice of eigenvectors": points["slope"].max(skipna=False),
            "section 5.1: least curvature at the other choices of eigenvectors": (
                points.loc[~points["leading"], "least_curvature"].min(skipna=False)
            ),
            "proposition 7: distance of the convolved optimum from PCA at the least noise": (
                distances["Frobenius distance"].iloc[-1]
            ),
            "proposition 7: largest ratio of distances at successive noises": ratios[1:].to_dict(),
        },
    )


HRON2018_FIG5 = Experiment("hron2018-fig5", Settings, investigate)
