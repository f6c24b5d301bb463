"""A posterior known by its samples only, such as a Markov chain's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.posteriors.base import Posterior

MINIMUM_SAMPLES = 10_000  #: what files must hold; their moments then have relative errors of 1 %


@dataclass(frozen=True, eq=False)
class SamplesPosterior(Posterior):
    """S draws of w. The moments are unbiased estimates of those of the distribution that the draws came from.

    Whether that has a density cannot be told from draws, so `singular` is None and a KL does not apply.
    """

    samples: Float[Tensor, "*B S k"]

    kind = "samples"
    parameters = {"samples": 1}
    singular: ClassVar[None] = None

    @property
    def S(self) -> int:
        """Number of samples."""
        return int(self.samples.shape[-2])

    @cached_property
    def mean(self) -> Float[Tensor, "*B k"]:
        return self.samples.mean(-2)

    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        """From the centred samples by QR, divisor S − 1; S ≤ k samples leave zeros (or rounding) on its diagonal."""
        centred = self.samples - self.mean[..., None, :]
        missing = max(0, self.k - self.S)
        padded = torch.nn.functional.pad(centred, (0, 0, 0, missing))
        return tril_of_gram(padded) / (self.S - 1) ** 0.5

    def draw(self, generator: torch.Generator, n: int) -> Float[Tensor, "*B n k"]:
        """n draws with replacement from the samples."""
        *batch, S, k = self.samples.shape
        place = torch.randint(S, (*batch, n, 1), generator=generator, device=self.samples.device)
        return self.samples.gather(-2, place.expand(*batch, n, k))

    def shapes(self, k: int) -> Mapping[str, tuple[int, ...]]:
        return {"samples": (self.S, k)}
