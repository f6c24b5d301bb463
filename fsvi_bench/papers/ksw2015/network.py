"""The fully connected ReLU classifier of Kingma, Salimans and Welling (2015), with any width and any such noise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fsvi_bench.errors import InputError, unknown_name
from fsvi_bench.papers.ksw2015.layers import NoiseSettings, NoisyLinear

# The curves of KSW's figure 1a: (kind of noise, scale of the KL). A2 is type A with a third of the KL.
VARIANTS: dict[str, tuple[str, float]] = {
    "no-dropout": ("none", 1.0),
    "binary": ("bernoulli", 1.0),
    "gaussian-a": ("gaussian-a", 1.0),
    "gaussian-b": ("gaussian-b", 1.0),
    "variational-a": ("variational-a", 1.0),
    "variational-a2": ("variational-a", 1 / 3),
    "variational-b": ("variational-b", 1.0),
}


@dataclass(frozen=True)
class NetworkSettings:
    """KSW's network: three hidden layers, dropout rates of 0.2 on the inputs and 0.5 on the hidden layers."""

    width: int = 1200
    hidden_layers: int = 3
    noise: NoiseSettings = field(default_factory=NoiseSettings)
    input_drop_rate: float = 0.2
    hidden_drop_rate: float = 0.5

    def __post_init__(self) -> None:
        if self.width < 1 or self.hidden_layers < 1:
            raise InputError(
                f"got width {self.width} and {self.hidden_layers} hidden layers, expected at least 1 of each"
            )


class Classifier(nn.Module):
    """Logits from inputs; noise is drawn only where a generator is given.

    The noise of a layer sits before or within its linear map, so that the first layer carries the inputs' dropout and
    the last one that of the uppermost hidden layer.
    """

    def __init__(
        self,
        inputs: int,
        classes: int,
        settings: NetworkSettings,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        sizes = [inputs, *[settings.width] * settings.hidden_layers, classes]
        rates = [settings.input_drop_rate, *[settings.hidden_drop_rate] * settings.hidden_layers]
        self.settings = settings
        self.layers = nn.ModuleList(
            NoisyLinear(K, L, settings.noise, rate, generator, dtype)
            for K, L, rate in zip(sizes[:-1], sizes[1:], rates, strict=True)
        )

    @property
    def noisy_layers(self) -> list[NoisyLinear]:
        return cast(list[NoisyLinear], list(self.layers))

    def forward(self, x: Float[Tensor, "M D"], generator: torch.Generator | None = None) -> Float[Tensor, "M classes"]:
        *hidden, last = self.noisy_layers
        for layer in hidden:
            x = layer(x, generator).relu()
        return last(x, generator)

    def kl(self) -> Tensor:
        """Sum of the layers' KL divergences, in nats."""
        return torch.stack([layer.kl() for layer in self.noisy_layers]).sum()

    def project(self) -> None:
        for layer in self.noisy_layers:
            layer.project()

    def drop_rates(self) -> tuple[float, ...]:
        """Mean dropout rate of each layer's inputs, from the bottom up."""
        return tuple(layer.mean_drop_rate() for layer in self.noisy_layers)

    def bottom_and_top(self) -> dict[str, NoisyLinear]:
        return {"bottom": self.noisy_layers[0], "top": self.noisy_layers[-1]}


def variant(name: str) -> tuple[str, float]:
    """(kind of noise, scale of the KL) of a curve in KSW's figure 1."""
    if name not in VARIANTS:
        raise unknown_name("variant", name, VARIANTS)
    return VARIANTS[name]
