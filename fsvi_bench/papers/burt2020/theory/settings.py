"""What the propositions are shown on."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import AfterValidator, Field, PositiveInt

from fsvi_bench.papers.parts import Plain
from fsvi_bench.papers.streams import stream


def _rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if any(not 1 <= fewer < more for fewer, more in pairs):
        raise ValueError("expected pairs of positive numbers, the second larger: points than parameters, or widths")
    return pairs


Rising = Annotated[list[tuple[int, int]], Field(min_length=1), AfterValidator(_rising)]


class Settings(Plain):
    """Sizes of the models, how far noise falls, how many networks."""

    seed: int
    features: int = Field(ge=2)
    extra_points: PositiveInt
    draws: PositiveInt
    folded_mean: float = Field(ge=-12, le=12)  #: its quadrature reaches 12 deviations
    cases: Rising
    smallest_noise: float = Field(ge=1e-14, lt=1)
    steps: int = Field(ge=3)
    curve_points: int = Field(ge=2, le=60)
    curve_draws: int = Field(ge=2)
    widths: list[PositiveInt] = Field(min_length=1)
    networks: PositiveInt
    zero_probability: float = Field(gt=0, lt=1)
    pairs: Rising
    seen_networks: PositiveInt
    finest: int = Field(ge=2, le=12)

    def generator(self, *purpose: str | int) -> torch.Generator:
        """A stream for one purpose."""
        return stream("cpu", "burt2020-theory", *purpose, self.seed)
