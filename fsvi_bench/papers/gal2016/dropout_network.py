"""Regression networks with Gal's dropout posterior, fixed or learnt probabilities, and its KL (Gal 2016, chapter 6).

q(w_k) = p δ_0 + (1 − p) δ_{m_k} for each row w_k of a weight matrix: what an input of a layer multiplies is dropped as
a whole, with drop probability p. Networks hold θ = (1 − p) m and multiply by z/(1 − p), so that a layer's mean does
not depend on p; then (1 − p)‖m‖² = ‖θ‖²/(1 − p). Biases are never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fsvi_bench.errors import InputError


def concrete_keep(
    log_odds: Float[Tensor, "*B"], uniform: Float[Tensor, "*B"], temperature: float
) -> Float[Tensor, "*B"]:
    """1 − z̃ of section 6.7, the relaxed indicator that an input is kept, given the log odds of dropping it.

    z̃ = sigmoid((log p − log(1 − p) + log u − log(1 − u))/t). As t → 0 it becomes Bernoulli: z̃ > ½ iff u > 1 − p.
    """
    check_temperature(temperature)
    return torch.sigmoid(-(log_odds + uniform.logit()) / temperature)


def check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise InputError(f"got temperature {temperature}, expected a positive one, such as Gal's 0.1")


def binary_entropy(p: Tensor) -> Tensor:
    """−p log p − (1 − p) log(1 − p), 0 at both ends."""
    return torch.special.entr(p) + torch.special.entr(1 - p)


class PriorKL(NamedTuple):
    """KL(q ‖ p) to N(0, l⁻²I) in nats without its constant: weights − entropy (Gal 2016, eq. 6.6)."""

    weights: Tensor
    entropy: Tensor

    @property
    def total(self) -> Tensor:
        return self.weights - self.entropy


def discrete_constant(weights: int, length_scale: float, interval: float) -> float:
    """What eq. 6.6 adds: log Z of the prior on a grid, ½ log 2π − log l − log Δ for each weight.

    Gal's |Δw| is the volume of a cell, Δ^K in K dimensions.
    """
    return weights * (0.5 * math.log(2 * math.pi) - math.log(length_scale) - math.log(interval))


def mixture_constant(weights: int, length_scale: float, sigma: float) -> float:
    """What the continuous prior adds where points are widened to N(·, σ²): ½(l²σ² − 1 − log l²σ²) for each weight.

    From the entropy of well separated components; it diverges as σ → 0 (Gal 2016, section 6.5).
    """
    scaled = (length_scale * sigma) ** 2
    return 0.5 * weights * (scaled - 1 - math.log(scaled))


@dataclass(frozen=True)
class Relaxation:
    """Masks of a Concrete distribution instead of Bernoulli ones, through which probabilities can be learnt."""

    temperature: float = 0.1

    def __post_init__(self) -> None:
        check_temperature(self.temperature)


class DropoutNetwork(nn.Module):
    """ReLU layers of any widths; `sizes` runs from the inputs to the outputs, with one drop rate per weight matrix.

    Learnt rates live as log odds; fixed ones may be 0. Raises InputError unless rates are in [0, 1), learnt ones not 0.
    """

    log_odds: Tensor

    def __init__(
        self,
        sizes: Sequence[int],
        drop_rates: Sequence[float],
        learn_rates: bool,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        _check_rates(sizes, drop_rates, learn_rates)
        thetas = []
        for K, L, p in zip(sizes[:-1], sizes[1:], drop_rates, strict=True):
            # He's scale for the second moment of θ z/(1 − p), which is θ²/(1 − p).
            scale = math.sqrt(2 * (1 - p) / K)
            thetas.append(nn.Parameter(scale * torch.randn(K, L, generator=generator, dtype=dtype)))
        self.thetas = nn.ParameterList(thetas)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(L, dtype=dtype)) for L in sizes[1:])
        log_odds = torch.tensor([math.log(p) - math.log1p(-p) if p else -math.inf for p in drop_rates], dtype=dtype)
        if learn_rates:
            self.log_odds = nn.Parameter(log_odds)
        else:
            self.register_buffer("log_odds", log_odds)

    @property
    def drop_rates(self) -> Float[Tensor, " layers"]:
        return self.log_odds.sigmoid()

    @property
    def weights(self) -> int:
        return sum(theta.numel() for theta in self.thetas) + sum(bias.numel() for bias in self.biases)

    def forward(
        self,
        x: Float[Tensor, "M D"],
        generator: torch.Generator,
        relaxation: Relaxation | None = None,
        one_function: bool = False,
    ) -> Float[Tensor, "M outputs"]:
        """A mask for every row, or one mask for all, which makes the rows values of one function."""
        last = len(self.thetas) - 1
        for i, (theta, bias) in enumerate(zip(self.thetas, self.biases, strict=True)):
            rows = x[:1] if one_function else x
            x = torch.addmm(bias, x * self._mask(i, rows, generator, relaxation), theta)
            x = x if i == last else x.relu()
        return x

    def _mask(self, layer: int, like: Tensor, generator: torch.Generator, relaxation: Relaxation | None) -> Tensor:
        uniform = torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        p = self.log_odds[layer].sigmoid()
        if relaxation is None:
            return (uniform < 1 - p).to(like.dtype) / (1 - p)
        keep = concrete_keep(self.log_odds[layer].expand_as(uniform), uniform, relaxation.temperature)
        return keep / (1 - p)

    def kl(self, length_scale: float) -> PriorKL:
        """Over all weight rows and biases, the latter as point masses."""
        p = self.drop_rates
        squares = torch.stack([theta.square().sum() for theta in self.thetas])
        biases = torch.stack([bias.square().sum() for bias in self.biases]).sum()
        rows = torch.tensor([len(theta) for theta in self.thetas], dtype=p.dtype, device=p.device)
        weights = 0.5 * length_scale**2 * ((squares / (1 - p)).sum() + biases)
        return PriorKL(weights, (rows * binary_entropy(p)).sum())


def _check_rates(sizes: Sequence[int], drop_rates: Sequence[float], learn_rates: bool) -> None:
    if len(drop_rates) != len(sizes) - 1 or min(sizes) < 1:
        raise InputError(
            f"got {len(drop_rates)} drop rates for layer sizes {tuple(sizes)}, expected one per weight matrix and"
            " positive sizes"
        )
    for p in drop_rates:
        if not 0 <= p < 1 or (learn_rates and p == 0):
            raise InputError(f"got a drop rate of {p}, expected one in [0, 1), and above 0 where it is learnt")
