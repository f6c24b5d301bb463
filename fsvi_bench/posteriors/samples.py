"""Posteriors given by draws of w: many samples, such as a Markov chain's. For a few, see `particles`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.posteriors.base import Posterior

MINIMUM_SAMPLES = 10_000  #: minimum number in files; moments then have relative errors of 1%


class DrawnPosterior(Posterior):
    """n equally weighted draws of w, [*B n k], in its only tensor."""

    @property
    def draws(self) -> Float[Tensor, "*B n k"]:
        """The tensor."""
        (draws,) = self.tensors().values()
        return draws

    @property
    @abstractmethod
    def divisor(self) -> int:
        """Divisor of the sums of squares in the covariance."""

    @cached_property
    def mean(self) -> Float[Tensor, "*B k"]:
        return self.draws.mean(-2)

    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        """From the centred draws by QR; n ≤ k draws leave zeros (or rounding) on its diagonal."""
        centred = self.draws - self.mean[..., None, :]
        missing = max(0, self.k - centred.shape[-2])
        padded = torch.nn.functional.pad(centred, (0, 0, 0, missing))
        return tril_of_gram(padded) / self.divisor**0.5

    def draw(self, generator: torch.Generator, n: int) -> Float[Tensor, "*B n k"]:
        """n of the draws, with replacement."""
        *batch, size, k = self.draws.shape
        place = torch.randint(size, (*batch, n, 1), generator=generator, device=self.draws.device)
        return self.draws.gather(-2, place.expand(*batch, n, k))

    def shapes(self, k: int) -> Mapping[str, tuple[int, ...]]:
        return {name: (tensor.shape[-2], k) for name, tensor in self.tensors().items()}


@dataclass(frozen=True, eq=False)
class SamplesPosterior(DrawnPosterior):
    """S draws of w. The moments are unbiased estimates of those of the distribution that the draws came from.

    Draws do not show whether that distribution has a density, so `singular` is None and a KL does not apply.
    """

    samples: Float[Tensor, "*B S k"]

    kind = "samples"
    parameters = {"samples": 1}
    singular: ClassVar[None] = None

    @property
    def S(self) -> int:
        """Number of samples."""
        return int(self.samples.shape[-2])

    @property
    def divisor(self) -> int:
        return self.S - 1

    def wrong_number(self) -> str | None:
        if self.S >= MINIMUM_SAMPLES:
            return None
        return f"it has {self.S} samples, expected at least {MINIMUM_SAMPLES}; draw more, or give them as particles"
