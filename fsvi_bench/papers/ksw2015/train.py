"""Training a classifier with noise: Adam, temporal averaging, test error after every epoch, the same from a seed.

As in Kingma, Salimans and Welling (2015), section 5: Adam with its default rates and momenta, temporal averaging
(Kingma and Ba 2015, section 7.2), the number of epochs chosen on a validation set. The paper gives no minibatch size
for training, and no size of the validation set: those here are declared choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fsvi_bench.papers.ksw2015.data import Images
from fsvi_bench.papers.ksw2015.network import Classifier
from fsvi_bench.papers.parts import Plain
from fsvi_bench.papers.streams import stream


class TrainSettings(Plain):
    """`kl_scale` multiplies the KL (KSW's A2 has 1/3); `averaging` is the decay of the weights' moving average."""

    epochs: int = Field(default=100, ge=0)
    minibatch: int = Field(default=100, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    kl_scale: float = Field(default=1.0, ge=0)
    averaging: float = Field(default=0.999, ge=0, lt=1)
    validation_share: float = Field(default=0.1, ge=0, lt=1)
    seed: int = 0


class TrainingRun(NamedTuple):
    """After each epoch; errors are shares of wrongly classified images, of the averaged weights without noise."""

    objective: list[float]  # nats per training image: mean cross entropy plus scaled KL / N, over the epoch's steps
    validation_error: list[float]  # empty without a validation set
    test_error: list[float]

    @property
    def best_epoch(self) -> int:
        """Counted from 1; by validation error, the last one without a validation set."""
        return int(np.argmin(self.validation_error)) + 1 if self.validation_error else len(self.test_error)


class Averaged:
    """Exponential moving average of a network's parameters, corrected for its start at zero.

    That of `torch.optim.swa_utils` starts at the first step's parameters instead.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network, self.decay, self.weight = network, decay, 0.0
        self.sums = {name: torch.zeros_like(value) for name, value in network.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        self.weight = self.decay * self.weight + 1 - self.decay
        for name, value in self.network.named_parameters():
            self.sums[name].lerp_(value, 1 - self.decay)

    def parameters(self) -> dict[str, Tensor]:
        """The network's own before the first step."""
        if self.weight == 0:
            return {name: value.detach() for name, value in self.network.named_parameters()}
        return {name: value / self.weight for name, value in self.sums.items()}

    def install(self, network: nn.Module) -> None:
        """Puts the average into a network of the same kind."""
        network.load_state_dict(self.parameters(), strict=False)  # a fixed α is no parameter, and stays

    @torch.no_grad()
    def error(self, x: Tensor, y: Tensor) -> float:
        """Share of images that the mean of the averaged weights classifies wrongly."""
        logits = functional_call(self.network, self.parameters(), (x,))
        return float((logits.argmax(-1) != y).double().mean())


def train(
    network: Classifier,
    images: Images,
    settings: TrainSettings,
    after_epoch: Callable[[int, Averaged], None] = lambda epoch, averaged: None,
) -> TrainingRun:
    """Minimises mean cross entropy + kl_scale · KL / N; the network ends with its averaged weights.

    `after_epoch` is called with 0 before the first epoch and then after each one. On one device the same seed gives the
    same run.
    """
    images, validation = split(images.to(next(network.parameters()).device), settings)
    averaged, run = Averaged(network, settings.averaging), TrainingRun([], [], [])
    after_epoch(0, averaged)
    for epoch, objective in enumerate(islice(_epochs(averaged, network, images, settings), settings.epochs), start=1):
        run.objective.append(objective)
        run.test_error.append(averaged.error(images.x_test, images.y_test))
        if len(validation[1]):
            run.validation_error.append(averaged.error(*validation))
        after_epoch(epoch, averaged)
    averaged.install(network)
    return run


def split(images: Images, settings: TrainSettings) -> tuple[Images, tuple[Tensor, Tensor]]:
    """Training images without the validation set, and the validation set."""
    x, y = images.x_train, images.y_train
    order = torch.randperm(len(x), generator=stream("cpu", "networks", "validation", settings.seed)).to(x.device)
    out, kept = order.tensor_split([round(settings.validation_share * len(x))])
    return images._replace(x_train=x[kept], y_train=y[kept]), (x[out], y[out])


def _epochs(averaged: Averaged, network: Classifier, images: Images, settings: TrainSettings) -> Iterator[float]:
    """Each image once; yields the mean objective over the epoch's steps, in nats per image. Never ends."""
    x, y = images.x_train, images.y_train
    noise = stream(x.device, "networks", "noise", settings.seed)
    order = stream("cpu", "networks", "order", settings.seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.lr)
    while True:
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        shuffled = torch.randperm(len(x), generator=order).to(x.device)
        for rows in shuffled.split(settings.minibatch):  # type: ignore[no-untyped-call]
            total += step(network, optimizer, x[rows], y[rows], noise, settings.kl_scale / len(x)) * len(rows)
            averaged.update()
        yield float(total) / len(x)


def step(
    network: Classifier, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, noise: torch.Generator, kl_scale: float
) -> Tensor:
    """One step down the objective, which is returned: mean cross entropy plus scaled KL."""
    objective = cross_entropy(network(x, noise), y) + kl_scale * network.kl()
    optimizer.zero_grad()
    objective.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    for layer in network.noisy_layers:
        layer.project()
    return objective.detach()
