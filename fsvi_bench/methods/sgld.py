"""SGLD: stochastic gradient Langevin dynamics at a constant step (Welling and Teh 2011)."""

from __future__ import annotations

from typing import Any

from fsvi_bench.maths.langevin import Dynamics, langevin
from fsvi_bench.methods.chains import ChainMethod, ChainOptions


class Sgld(ChainMethod):
    """w ← w − (ε/2)∇U + √ε ξ with U = −log p(y, w) and ε = step_size · 4/λ_max(Λ).

    With all rows its stationary distribution is N(m, Λ⁻¹(I − εΛ/4)⁻¹). The paper lets ε fall to 0; here it is constant,
    as in most uses. Chains from the prior take about λ_max/(2 step_size) steps to forget their start.
    """

    class Options(ChainOptions):
        """Parallel chains, a constant step, no correction."""

    def dynamics(self, largest: Any) -> Dynamics:
        return langevin(largest, self.options.step_size)
