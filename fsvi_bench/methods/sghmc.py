"""SGHMC: stochastic gradient Hamiltonian Monte Carlo at a constant step (Chen, Fox and Guestrin 2014)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from fsvi_bench.maths.langevin import Dynamics, underdamped
from fsvi_bench.methods.chains import ChainMethod, ChainOptions


class Sghmc(ChainMethod):
    """v ← (1 − α)v − η∇U + √(2αη) ξ, w ← w + v with η = step_size · 2(2 − α)/λ_max(Λ) (eq. 15, noise estimate 0).

    With all rows it has SGLD's stationary distribution at the same fraction of the stable step, and reaches it faster.
    """

    class Options(ChainOptions):
        """`friction` is α, one minus SGD's momentum."""

        friction: Annotated[float, Field(gt=0, le=1)] = 0.1

    def dynamics(self, largest: Any) -> Dynamics:
        return underdamped(largest, self.options.step_size, self.options.friction)
