"""Spike-and-slab: a posterior of exact zeros and Gaussians under a prior of the same kind (Gal 2016, section 6.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import PositiveFloat

from fsvi_bench.maths.spike_slab import spike_slab_optimum
from fsvi_bench.methods.base import Method, MethodOptions, Probability
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.dropout import SpikeSlabPosterior


class SpikeAndSlab(Method):
    """A local maximum of the ELBO over independent spikes and slabs, by coordinate ascent to convergence."""

    class Options(MethodOptions):
        """Each weight has the method's own prior f δ₀ + (1−f) N(0, 1/l²), since the task's prior has no spikes."""

        f: Probability = 0.5
        l: PositiveFloat = 1.0  # noqa: E741 -- the literature's letter
        prior: Literal["own"] = "own"

    families = ("spike-slab",)
    deterministic = True

    def solve(self, problem: TrainingData) -> SpikeSlabPosterior:
        found = spike_slab_optimum(problem.Phi, problem.y, problem.noise_variance, self.options.f, self.options.l)
        return SpikeSlabPosterior(found.spike_weight, found.mean, found.scale)

    def details(self) -> Sequence[Mapping[str, float] | None]:
        """The mean spike weight."""
        return [{"spike_weight": share} for share in self.solved.spike_weight.mean(-1).tolist()]
