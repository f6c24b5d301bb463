"""Posteriors with exact zeros: Bernoulli dropout, which consists of atoms, and spike-and-slab.

Both have independent weights. Neither has a density (except a spike-and-slab without spikes), so their KL to the exact
posterior is infinite.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.bernoulli_dropout import FactorisedMoments, atom_entropy, bernoulli_moments
from fsvi_bench.maths.mixtures import SwitchedWeights, bernoulli_dropout_weights, spike_and_slab_weights
from fsvi_bench.maths.spike_slab import spike_slab_moments
from fsvi_bench.posteriors.base import Posterior, first_outside, noise


class SwitchedPosterior(Posterior):
    """Independent weights, each of which may be exactly zero."""

    @abstractmethod
    def switches(self) -> SwitchedWeights:
        """The weights of one problem as independent variables that are on or off."""

    @abstractmethod
    def moments(self) -> FactorisedMoments:
        """Mean and standard deviation of each weight; a standard deviation may be 0."""

    @property
    def mean(self) -> Float[Tensor, "*B k"]:
        return self.moments().mean

    @property
    def scale(self) -> Float[Tensor, "*B k"]:
        """Standard deviation of each weight."""
        return self.moments().scale

    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        return torch.diag_embed(self.scale)


@dataclass(frozen=True, eq=False)
class BernoulliDropoutPosterior(SwitchedPosterior):
    """w_i = m_i ε_i with ε_i ~ Bernoulli(p_i); `retain_probability` p is one number per problem or one per weight."""

    m: Float[Tensor, "*B k"]
    retain_probability: Float[Tensor, "*B"] | Float[Tensor, "*B k"]

    kind = "bernoulli-dropout"
    parameters = {"m": 1, "retain_probability": 1}
    singular: ClassVar[bool] = True

    @property
    def retain_probabilities(self) -> Float[Tensor, "*B k"]:
        """One probability per weight, whether shared or not."""
        p = self.retain_probability
        return p if p.ndim == self.m.ndim else p[..., None].expand_as(self.m)

    def switches(self) -> SwitchedWeights:
        return bernoulli_dropout_weights(self.m, self.retain_probabilities)

    def moments(self) -> FactorisedMoments:
        return bernoulli_moments(self.m, self.retain_probabilities)

    def draw(self, generator: torch.Generator, n: int) -> Float[Tensor, "*B n k"]:
        kept = noise(torch.rand, generator, n, like=self.m) < self.retain_probabilities[..., None, :]
        return torch.where(kept, self.m[..., None, :], 0.0)

    def log_mass(self, w: Float[Tensor, "*B n k"]) -> Float[Tensor, "*B n"]:
        """Log probability of each w in nats, −∞ if it is not an atom; a weight with m_i = 0 has one atom."""
        m, p = self.m[..., None, :], self.retain_probabilities[..., None, :]
        dropped = torch.where(m == 0, 0.0, torch.log1p(-p))
        kept = torch.where(w == m, p.log(), -torch.inf)
        return torch.where(w == 0, dropped, kept).sum(-1)

    def entropy(self) -> Float[Tensor, "*B"]:
        """Entropy of the atoms in nats."""
        return atom_entropy(self.m, self.retain_probabilities)

    def shapes(self, k: int) -> Mapping[str, tuple[int, ...]]:
        shared = self.retain_probability.ndim < self.m.ndim
        return {"m": (k,), "retain_probability": () if shared else (k,)}

    def out_of_domain(self) -> str | None:
        p = self.retain_probability
        return first_outside(
            "retain_probability", p, (p > 0) & (p <= 1), "numbers in (0, 1], the probability to KEEP a weight"
        )


@dataclass(frozen=True, eq=False)
class SpikeSlabPosterior(SwitchedPosterior):
    """w_i = 0 with probability `spike_weight` and N(slab_mean, slab_scale²) otherwise.

    A spike weight of 1 is allowed, because values within 1e-16 of 1 round to it.
    """

    spike_weight: Float[Tensor, "*B k"]
    slab_mean: Float[Tensor, "*B k"]
    slab_scale: Float[Tensor, "*B k"]

    kind = "spike-slab"
    parameters = {"spike_weight": 1, "mean": 1, "scale": 1}

    @property
    def singular(self) -> bool:
        return bool((self.spike_weight > 0).any())

    def switches(self) -> SwitchedWeights:
        return spike_and_slab_weights(self.spike_weight, self.slab_mean, self.slab_scale)

    def moments(self) -> FactorisedMoments:
        return spike_slab_moments(self.spike_weight, self.slab_mean, self.slab_scale)

    def draw(self, generator: torch.Generator, n: int) -> Float[Tensor, "*B n k"]:
        mean, scale = self.slab_mean[..., None, :], self.slab_scale[..., None, :]
        spiked = noise(torch.rand, generator, n, like=self.spike_weight) < self.spike_weight[..., None, :]
        slab = mean + scale * noise(torch.randn, generator, n, like=self.slab_mean)
        return torch.where(spiked, 0.0, slab)

    def out_of_domain(self) -> str | None:
        weight, scale = self.spike_weight, self.slab_scale
        probability = "numbers in [0, 1], the probability of an exact zero"
        return first_outside("spike_weight", weight, (weight >= 0) & (weight <= 1), probability) or first_outside(
            "scale", scale, scale > 0, "positive numbers (standard deviations)"
        )
