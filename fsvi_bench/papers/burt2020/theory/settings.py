"""Settings of the numerical illustrations of the propositions."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, PositiveInt

from fsvi_bench.papers.parts import Rising
from fsvi_bench.papers.streams import stream
from fsvi_bench.strict import Plain

Pair = Annotated[tuple[PositiveInt, PositiveInt], Rising]


class Settings(Plain):
    """Sizes of the models, range of the noise, and numbers of networks."""

    seed: int
    features: int = Field(ge=2)
    extra_points: PositiveInt
    draws: PositiveInt
    folded_mean: float = Field(ge=-12, le=12)  #: its quadrature covers 12 standard deviations
    cases: list[Pair] = Field(min_length=1)  #: numbers of parameters, and of points, which is larger
    smallest_noise: float = Field(ge=1e-14, lt=1)
    steps: int = Field(ge=3)
    curve_points: int = Field(ge=2, le=60)
    curve_draws: int = Field(ge=2)
    widths: list[PositiveInt] = Field(min_length=1)
    networks: PositiveInt
    zero_probability: float = Field(gt=0, lt=1)
    pairs: list[Pair] = Field(min_length=1)  #: pairs of widths
    seen_networks: PositiveInt
    finest: int = Field(ge=2, le=12)

    def generator(self, *purpose: str | int) -> torch.Generator:
        """A random stream for one purpose."""
        return stream("cpu", "burt2020-theory", *purpose, self.seed)
