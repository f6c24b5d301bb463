"""Settings, and the linear models that Gal's §6.3 analyses: unit noise, prior N(0, I), one output.

Gal gives neither a number of inputs nor their distribution. Ours are Gaussian with one correlation between any two and
geometrically rising standard deviations, so that neither Σ = E xxᵀ nor Λ = diag Σ is special; the weights are drawn
from the prior, anew in each repeat.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from fsvi_bench.maths.bernoulli_dropout import compress_rows
from fsvi_bench.seeds import derived_generator

Design = Literal["general", "Λ constant", "Σ diagonal"]


class Settings(BaseModel):
    """The YAML's `paper` and `quick`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    inputs: int = Field(ge=2)
    correlation: float = Field(ge=0, lt=1)
    smallest_scale: float = Field(gt=0)
    largest_scale: float = Field(gt=0)
    points: tuple[int, ...] = Field(min_length=3)
    repeats: int = Field(ge=2)
    profile_points: int = Field(ge=3)
    design_points: int = Field(ge=1)
    lengthscale_points: int = Field(ge=1)
    spreads: tuple[float, ...] = Field(min_length=1)
    lengthscales_per_decade: int = Field(ge=1)
    mask_weights: int = Field(ge=1, le=12)
    mask_points: int = Field(ge=1)
    mask_starts: int = Field(ge=1)
    prior_spike: float = Field(gt=0, lt=1)

    @model_validator(mode="after")
    def _ordered(self) -> Settings:
        if list(self.points) != sorted(set(self.points)) or self.points[0] < 1:
            raise ValueError(f"points are {self.points}, expected positive numbers in rising order")
        if not all(0 < spread < 1 for spread in self.spreads):
            raise ValueError(f"spreads are {self.spreads}, expected numbers in (0, 1)")
        if self.design_points < self.inputs:
            raise ValueError("design_points are fewer than inputs: their columns cannot be orthogonal")
        return self

    def scales(self, k: int) -> Float[Tensor, " k"]:
        """The inputs' standard deviations."""
        return torch.from_numpy(np.geomspace(self.smallest_scale, self.largest_scale, k))


class Problems(NamedTuple):
    """R linear models side by side."""

    X: Float[Tensor, "R N k"]
    y: Float[Tensor, "R N"]
    w: Float[Tensor, "R k"]

    @property
    def unit(self) -> Float[Tensor, " R"]:
        """σ² of each."""
        return torch.ones_like(self.y[:, 0])


def draw_problem(settings: Settings, repeat: int, N: int, k: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(X [N, k], y [N], w [k]) of one repeat. The rows of a smaller N are the first of a larger one's."""
    k = settings.inputs if k is None else k
    w = torch.from_numpy(derived_generator("gal2016-6.3", "weights", k, repeat).standard_normal(k))
    z = torch.from_numpy(derived_generator("gal2016-6.3", "rows", k, repeat).standard_normal((N, k + 2)))
    own, common, noise = z[:, :k], z[:, k : k + 1], z[:, k + 1]
    X = ((1 - settings.correlation) ** 0.5 * own + settings.correlation**0.5 * common) * settings.scales(k)
    return X, X @ w + noise, w


def draw_problems(settings: Settings, N: int, k: int | None = None) -> Problems:
    """Every repeat's."""
    drawn = [draw_problem(settings, repeat, N, k) for repeat in range(settings.repeats)]
    return Problems(*(torch.stack(column) for column in zip(*drawn, strict=True)))


def population_covariance(settings: Settings) -> Float[Tensor, "k k"]:
    """Σ = E xxᵀ."""
    k, scales = settings.inputs, settings.scales(settings.inputs)
    correlation = torch.full((k, k), settings.correlation, dtype=torch.float64).fill_diagonal_(1.0)
    return scales[:, None] * correlation * scales


def growing_problems(settings: Settings) -> dict[int, Problems]:
    """For each N the repeats' first N rows, each data set compressed to at most k+1 rows of the same inner products."""
    rows: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {N: [] for N in settings.points}
    for repeat in range(settings.repeats):
        X, y, w = draw_problem(settings, repeat, settings.points[-1])
        for N, found in rows.items():
            found.append((*compress_rows(X[:N], y[:N]), w))
    return {N: Problems(*map(torch.stack, zip(*found, strict=True))) for N, found in rows.items()}


def redesign(problems: Problems, design: Design) -> Problems:
    """The same weights and noise with other inputs, made from the given ones.

    "Λ constant": every column scaled to φᵀφ = N, so that correlation is all that is left. "Σ diagonal": the columns
    made orthogonal (QR), of their old lengths, so that Λ = Σ is diagonal and not constant.
    """
    X, length = problems.X, problems.X.norm(dim=-2, keepdim=True)
    if design == "Λ constant":
        X = X / length * X.shape[-2] ** 0.5
    elif design == "Σ diagonal":
        X = torch.linalg.qr(X).Q * length
    noise = problems.y - _times(problems.X, problems.w)
    return Problems(X, _times(X, problems.w) + noise, problems.w)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[..., None])[..., 0]
