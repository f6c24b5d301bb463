"""A plain deep ensemble: minimisers of the squared error from independent starts (Lakshminarayanan et al. 2017)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from fsvi_bench.methods.base import AdamOptions
from fsvi_bench.methods.data import Batch, sampled_nll
from fsvi_bench.methods.points import Count, ParticleMethod, Points


class Ensemble(ParticleMethod):
    """Adam on −log N(y; Φw, σ²I) for each member, from draws of the prior.

    If the data have full rank, all members end at the same least-squares solution. They differ only in directions that
    the data, or the number of steps, leave free.
    """

    class Options(AdamOptions):
        """Five members, as in the paper."""

        particles: Count = 5

    def energies(self, q: Points, batch: Batch) -> Float[Tensor, "B n"]:
        return sampled_nll(q.w, batch.rows)
