"""Posteriors with exact zeros: Bernoulli dropout, whose atoms carry all the mass, and spike-and-slab.

Both have independent weights. Neither has a density (a spike-and-slab without spikes apart), so their KL to the exact
posterior is infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.bernoulli_dropout import atom_entropy, bernoulli_moments
from fsvi_bench.maths.spike_slab import spike_slab_moments
from fsvi_bench.posteriors.base import Posterior


@dataclass(frozen=True, eq=False)
class BernoulliDropoutPosterior(Posterior):
    """w_i = m_i ε_i with ε_i ~ Bernoulli(p_i); `retain_probability` p is one number per problem or one per weight."""

    m: Float[Tensor, "*B k"]
    retain_probability: Float[Tensor, "*B"] | Float[Tensor, "*B k"]

    @property
    def kind(self) -> str:
        return "bernoulli-dropout"

    @property
    def k(self) -> int:
        return int(self.m.shape[-1])

    @property
    def singular(self) -> bool:
        return True

    @property
    def retain_probabilities(self) -> Float[Tensor, "*B k"]:
        """One per weight, whether they are shared or not."""
        p = self.retain_probability
        return p if p.ndim == self.m.ndim else p[..., None].expand_as(self.m)

    @property
    def mean(self) -> Float[Tensor, "*B k"]:
        return bernoulli_moments(self.m, self.retain_probabilities).mean

    @property
    def scale(self) -> Float[Tensor, "*B k"]:
        """Standard deviation of each weight, 0 where p_i = 1 or m_i = 0."""
        return bernoulli_moments(self.m, self.retain_probabilities).scale

    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        return torch.diag_embed(self.scale)

    def draw(self, generator: torch.Generator, n: int) -> Float[Tensor, "*B n k"]:
        kept = _uniform(generator, self.m, n) < self.retain_probabilities[..., None, :]
        return torch.where(kept, self.m[..., None, :], 0.0)

    def log_mass(self, w: Float[Tensor, "*B n k"]) -> Float[Tensor, "*B n"]:
        """log probability of each w in nats, −∞ where it is no atom; the two atoms of a weight with m_i = 0 are one."""
        m, p = self.m[..., None, :], self.retain_probabilities[..., None, :]
        dropped = torch.where(m == 0, 0.0, torch.log1p(-p))
        kept = torch.where(w == m, p.log(), -torch.inf)
        return torch.where(w == 0, dropped, kept).sum(-1)

    def entropy(self) -> Float[Tensor, "*B"]:
        """Entropy of the atoms in nats."""
        return atom_entropy(self.m, self.retain_probabilities)

    def tensors(self) -> Mapping[str, Tensor]:
        return {"m": self.m, "retain_probability": self.retain_probability}

    def shapes(self, k: int) -> Mapping[str, tuple[int, ...]]:
        shared = self.retain_probability.ndim < self.m.ndim
        return {"m": (k,), "retain_probability": () if shared else (k,)}

    def out_of_domain(self) -> str | None:
        low, high = map(float, self.retain_probability.aminmax())
        if low > 0 and high <= 1:
            return None
        return f"a retain probability of the posterior is {high if low > 0 else low:g}, outside (0, 1]"


@dataclass(frozen=True, eq=False)
class SpikeSlabPosterior(Posterior):
    """w_i = 0 with probability `spike_weight` and N(slab_mean, slab_scale²) otherwise.

    A spike weight of 1 is allowed: one within 1e-16 of it rounds to it.
    """

    spike_weight: Float[Tensor, "*B k"]
    slab_mean: Float[Tensor, "*B k"]
    slab_scale: Float[Tensor, "*B k"]

    @property
    def kind(self) -> str:
        return "spike-slab"

    @property
    def k(self) -> int:
        return int(self.spike_weight.shape[-1])

    @property
    def singular(self) -> bool:
        return bool((self.spike_weight > 0).any())

    @property
    def mean(self) -> Float[Tensor, "*B k"]:
        return spike_slab_moments(self.spike_weight, self.slab_mean, self.slab_scale).mean

    @property
    def scale(self) -> Float[Tensor, "*B k"]:
        """Standard deviation of each weight, spike and slab together."""
        return spike_slab_moments(self.spike_weight, self.slab_mean, self.slab_scale).scale

    def covariance_tril(self) -> Float[Tensor, "*B k k"]:
        return torch.diag_embed(self.scale)

    def draw(self, generator: torch.Generator, n: int) -> Float[Tensor, "*B n k"]:
        spiked = _uniform(generator, self.spike_weight, n) < self.spike_weight[..., None, :]
        noise = torch.randn(spiked.shape, generator=generator, dtype=self.slab_mean.dtype, device=self.slab_mean.device)
        return torch.where(spiked, 0.0, self.slab_mean[..., None, :] + self.slab_scale[..., None, :] * noise)

    def tensors(self) -> Mapping[str, Tensor]:
        return {"spike_weight": self.spike_weight, "mean": self.slab_mean, "scale": self.slab_scale}

    def shapes(self, k: int) -> Mapping[str, tuple[int, ...]]:
        return {"spike_weight": (k,), "mean": (k,), "scale": (k,)}

    def out_of_domain(self) -> str | None:
        low, high = map(float, self.spike_weight.aminmax())
        if not (low >= 0 and high <= 1):
            return f"a spike weight of the posterior is {high if low >= 0 else low:g}, outside [0, 1]"
        smallest = float(self.slab_scale.min())
        return None if smallest > 0 else f"a standard deviation of the posterior's slabs is {smallest:g}"


def _uniform(generator: torch.Generator, like: Float[Tensor, "*B k"], n: int) -> Float[Tensor, "*B n k"]:
    *batch, k = like.shape
    return torch.rand(*batch, n, k, generator=generator, dtype=like.dtype, device=like.device)
