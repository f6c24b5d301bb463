"""Sample-then-optimise: exact draws as minimisers of a randomised loss (Matthews et al. 2017; Lin et al. 2023)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor

from fsvi_bench.methods.base import AdamOptions
from fsvi_bench.methods.data import Batch, sampled_nll
from fsvi_bench.methods.points import Count, ParticleMethod, Points


class SampleThenOptimise(ParticleMethod):
    """Adam on ½‖y + e_i − Φw‖²/σ² + ½‖w − a_i‖² for each particle, with e_i ~ N(0, σ²I) and a_i ~ N(0, I) drawn once.

    The minimiser Λ⁻¹(Φᵀ(y + e)/σ² + a) has the mean m and, since Cov(Φᵀe/σ² + a) = Λ, the covariance Λ⁻¹: at
    convergence the particles are exact draws. The particles start at their a_i. For a network, Φ is the Jacobian at a
    mode (linearised): its draws are then those of Laplace's approximation.
    """

    class Options(AdamOptions):
        """All rows by default, since the noise of minibatches would not vanish."""

        minibatch: PositiveInt | Literal["full"] = "full"
        particles: Count = 100

    networks = "tangent"
    anchor: Float[Tensor, "B n k"]
    moment: Float[Tensor, "B n k"]  #: Φᵀe/σ²

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        data = self.problems
        noise = self.streams.normal("target noise", self.options.particles, data.N)
        # Problem by problem on copies: BLAS's rounding must not depend on the batch.
        moments = [
            noise[b].clone() @ data.Phi[b].cpu().clone() / data.noise_variance[b].cpu().sqrt() for b in range(len(data))
        ]
        self.register_buffer("anchor", self.q().w.detach().clone())
        self.register_buffer("moment", torch.stack(moments))

    def energies(self, q: Points, batch: Batch) -> Float[Tensor, "B n"]:
        """Energies up to a constant: ½‖y + e − Φw‖²/σ² is ½‖y − Φw‖²/σ² − wᵀΦᵀe/σ² and a constant."""
        if not self.training:  # one problem's, of which the draws are not known: the energy without noise
            return super().energies(q, batch)
        anchored = 0.5 * (q.w - self.anchor).square().sum(-1)
        return sampled_nll(q.w, batch.rows) - (self.moment * q.w).sum(-1) + anchored
