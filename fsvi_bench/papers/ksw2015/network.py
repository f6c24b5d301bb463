"""The fully connected ReLU classifier of Kingma, Salimans and Welling (2015), with any width and any such noise."""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from fsvi_bench.papers.ksw2015.data import Images
from fsvi_bench.papers.ksw2015.layers import NoiseSettings, NoisyLinear
from fsvi_bench.papers.parts import Plain
from fsvi_bench.papers.streams import stream

INPUT_DROP_RATE, HIDDEN_DROP_RATE = 0.2, 0.5


class NetworkSettings(Plain):
    """KSW's network, which has three hidden layers of the same width."""

    noise: NoiseSettings
    width: int = Field(ge=1)
    hidden_layers: int = Field(default=3, ge=1)


class Classifier(nn.Module):
    """Logits from inputs; noise is drawn only where a generator is given.

    The noise of a layer sits before or within its linear map, so that the first layer carries the inputs' dropout and
    the last one that of the uppermost hidden layer.
    """

    def __init__(self, inputs: int, classes: int, settings: NetworkSettings, generator: torch.Generator) -> None:
        super().__init__()
        hidden = settings.hidden_layers
        sizes = [inputs, *[settings.width] * hidden, classes]
        rates = [INPUT_DROP_RATE, *[HIDDEN_DROP_RATE] * hidden]
        self.layers = nn.ModuleList(
            NoisyLinear(K, L, settings.noise, rate, generator)
            for K, L, rate in zip(sizes[:-1], sizes[1:], rates, strict=True)
        )

    @property
    def noisy_layers(self) -> list[NoisyLinear]:
        return cast(list[NoisyLinear], list(self.layers))

    def forward(self, x: Float[Tensor, "M D"], generator: torch.Generator | None = None) -> Float[Tensor, "M classes"]:
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(x, generator).relu()
        return cast(Tensor, last(x, generator))

    def kl(self) -> Tensor:
        """Sum of the layers' KL divergences, in nats."""
        return torch.stack([layer.kl() for layer in self.noisy_layers]).sum()

    def drop_rates(self) -> tuple[float, ...]:
        """Mean dropout rate of each layer's inputs, from the bottom up."""
        return tuple(layer.mean_drop_rate() for layer in self.noisy_layers)


def build(images: Images, settings: NetworkSettings, seed: int, device: str = "cpu") -> Classifier:
    """A fresh network for these images; drawn on the CPU, so that every device starts alike."""
    start, classes = stream("cpu", "networks", "start", seed), int(images.y_train.max()) + 1
    return Classifier(images.x_train.shape[1], classes, settings, start).to(device)
