"""A posterior of a few equally weighted points, such as an ensemble, SVGD's particles or a short Markov chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from fsvi_bench.posteriors.samples import MINIMUM_SAMPLES, DrawnPosterior


@dataclass(frozen=True, eq=False)
class ParticlesPosterior(DrawnPosterior):
    """q(w) = (1/n) Σ_i δ(w − w_i) with the n rows w_i of `particles`, 2 ≤ n < 10,000. Rows may be equal.

    q consists of atoms, so it has no density, and its covariance has the divisor n.
    """

    particles: Float[Tensor, "*B n k"]

    kind = "particles"
    parameters = {"particles": 1}
    singular: ClassVar[bool] = True

    @property
    def n(self) -> int:
        """Number of particles."""
        return int(self.particles.shape[-2])

    @property
    def divisor(self) -> int:
        return self.n

    def wrong_number(self) -> str | None:
        if self.n < 2:
            return f"it has {self.n} particle, expected 2 or more; draw more"
        if self.n >= MINIMUM_SAMPLES:
            return f"it has {self.n} particles, expected fewer than {MINIMUM_SAMPLES}; give them as samples"
        return None
