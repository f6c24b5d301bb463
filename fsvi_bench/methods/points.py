"""Shared by methods that move points in weight space along gradients of the energy −log p(y, w)."""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from fsvi_bench.errors import InputError
from fsvi_bench.maths.batching import SIDE, filled
from fsvi_bench.maths.blr import precision_eigenvalues
from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.methods.base import Method, MethodOptions, Networks
from fsvi_bench.methods.data import Batch, sampled_nll
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.posteriors.samples import MINIMUM_SAMPLES
from fsvi_bench.posteriors.trainable import TrainablePosterior

FEWEST_ON_NETWORKS = 3  #: as many functions as network scores need
Count = Annotated[int, Field(ge=2, lt=MINIMUM_SAMPLES, description="number of particles")]


class Points(NamedTuple):
    """n points in weight space for each of B problems."""

    w: Float[Tensor, "B n k"]


def energies(q: Points, batch: Batch) -> Float[Tensor, "B n"]:
    """−log p(y, w) = −log N(y; Φw, σ²I) − log N(w; 0, I) of each point, in nats; rows are scaled to the whole data."""
    prior = 0.5 * (q.w * q.w).sum(-1) + 0.5 * q.w.shape[-1] * LOG_2PI
    return sampled_nll(q.w, batch.rows) + prior


@torch.no_grad()
def largest_curvature(data: TrainingData | NetworkData, w: Float[Tensor, "B n k"]) -> Float[Tensor, " B"]:
    """λ_max of Λ = ΦᵀΦ/σ² + I, the largest curvature of the energy, for each problem by itself.

    A network's curvature changes with its weights: the largest at any of the n points counts, with the Jacobian as Φ,
    and with the largest curvature that the likelihood has in f.
    """
    largest = []
    for place in range(len(data)):
        one = data.only(place)
        if isinstance(one, NetworkData):
            at, variance = [one.jacobian(each[None], one.X) for each in w[place]], one.least_variance
        else:
            at, variance = [one.Phi], one.noise_variance
        largest.append(max(precision_eigenvalues(Phi, variance)[..., 0] for Phi in at))
    return torch.cat(largest)


class Cloud(TrainablePosterior):
    """n particles for each problem, filled up to whole cache lines with more particles and dummy weights."""

    def __init__(
        self,
        start: Float[Tensor, "B n_filled k_filled"],
        n: int,
        k: int,
        basis: Float[Tensor, "B k_filled k_filled"] | None = None,
    ) -> None:
        super().__init__(basis)
        self.n, self.k = n, k
        self.w = nn.Parameter(start if basis is None else start @ basis)

    def start(self, mean: Float[Tensor, "B k"], scale: float) -> None:
        """Nothing: the particles are draws from the prior already."""

    def forward(self) -> Points:
        w = self.w if self.basis is None else self.w @ self.basis.mT
        return Points(w[:, : self.n, : self.k])

    @torch.no_grad()
    def posterior(self) -> ParticlesPosterior:
        return ParticlesPosterior(self().w.clone())


class ParticleMethod(Method):
    """A method whose q is n particles, moved together from independent draws of the prior.

    The `loss` is the mean energy of the particles, which traces show. Its gradient with respect to one particle is
    the gradient of that particle's energy, divided by n.
    """

    Options: ClassVar[type[MethodOptions]]  #: with `particles`
    families = ("particles",)
    networks: ClassVar[Networks] = "weights"

    @classmethod
    def check(cls, options: MethodOptions, problem: TrainingData | NetworkData) -> None:
        super().check(options, problem)
        count: int = options.particles  # type: ignore[attr-defined]
        if isinstance(problem, NetworkData) and count < FEWEST_ON_NETWORKS:
            raise InputError(
                f"particles={count} is too few for a network, whose scores need {FEWEST_ON_NETWORKS}; choose more"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Particles and weights, each filled up."""
        return filled(self.options.particles, SIDE), filled(self.problems.k, SIDE)

    def initial(self) -> Cloud:
        start = self.streams.normal("initial particles", *self.shape)
        return Cloud(start, self.options.particles, self.problems.k, self.basis)

    def loss(self, q: Points, batch: Batch) -> Float[Tensor, " B"]:
        return self.energies(q, batch).mean(-1)

    def energies(self, q: Points, batch: Batch) -> Float[Tensor, "B n"]:
        """The energy that each particle minimises, in nats."""
        return energies(q, batch)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        each = self.energies(self.q(), batch)
        self.note(each.detach().mean(-1))
        return each.sum()

    def cost(self) -> dict[str, int]:
        return {**super().cost(), "particles": self.options.particles}
