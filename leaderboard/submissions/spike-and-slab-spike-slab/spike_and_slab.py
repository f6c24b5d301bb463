"""Spike-and-slab: a posterior of exact zeros and Gaussians under a prior of the same kind (Gal 2016, section 6.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat
from torch import Tensor

from fsvi_bench.maths.spike_slab import spike_slab_optimum
from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.descending import DescentMethod
from fsvi_bench.posteriors.base import Family
from fsvi_bench.posteriors.dropout import SpikeSlabPosterior
from fsvi_bench.tasks.training_problems import TrainingProblems
from fsvi_bench.variational.closed_form import ClosedForm


class SpikeAndSlabOptions(MethodOptions):
    """The prior f δ₀ + (1−f) N(0, 1/l²) of each weight, the method's own: under the task's there would be no spikes."""

    f: Annotated[float, Field(gt=0, lt=1)] = 0.5
    l: PositiveFloat = 1.0  # noqa: E741 -- the literature's letter
    prior: Literal["own"] = "own"


class SpikeAndSlab(DescentMethod):
    """A maximum of the ELBO over independent spikes and slabs, by coordinate ascent to its end; nothing is sampled."""

    Options: ClassVar[type[MethodOptions]] = SpikeAndSlabOptions
    options: SpikeAndSlabOptions
    families: ClassVar[tuple[Family, ...]] = ("spike-slab",)
    deterministic: ClassVar[bool] = True

    @property
    def num_steps(self) -> int:
        return 1

    def make_descent(self) -> ClosedForm:
        return ClosedForm(self.problems, self._solve, SpikeSlabPosterior)

    def _solve(self, data: TrainingProblems) -> dict[str, Tensor]:
        found = spike_slab_optimum(data.Phi, data.y, data.noise_variance, self.options.f, self.options.l)
        return {"spike_weight": found.spike_weight, "slab_mean": found.mean, "slab_scale": found.scale}

    def details(self) -> Sequence[Mapping[str, float]]:
        """The mean spike weight."""
        q = self.posterior()
        assert isinstance(q, SpikeSlabPosterior)
        return [{"spike_weight": share} for share in q.spike_weight.mean(-1).tolist()]
