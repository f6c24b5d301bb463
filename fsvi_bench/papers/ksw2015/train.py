"""Training a classifier with noise: Adam, temporal averaging, test error after every epoch, the same from a seed.

As in Kingma, Salimans and Welling (2015), section 5: Adam with its default rates and momenta, temporal averaging
(Kingma and Ba 2015, section 7.2), dropout rates as in `NetworkSettings`, the number of epochs chosen on a validation
set. The paper gives no minibatch size for training, and no size of the validation set: those here are declared choices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fsvi_bench.errors import InputError
from fsvi_bench.papers.ksw2015.data import Images
from fsvi_bench.papers.ksw2015.layers import NoiseSettings
from fsvi_bench.papers.ksw2015.network import Classifier, NetworkSettings, variant
from fsvi_bench.papers.streams import stream
from fsvi_bench.seeds import derive_seed


@dataclass(frozen=True)
class TrainSettings:
    """`kl_scale` multiplies the KL (KSW's A2 has 1/3); `averaging` is the decay of the weights' moving average."""

    epochs: int = 100
    minibatch: int = 100
    lr: float = 1e-3
    kl_scale: float = 1.0
    averaging: float = 0.999
    validation_share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.minibatch < 1 or not self.lr > 0:
            raise InputError(
                f"got {self.epochs} epochs of minibatches of {self.minibatch} at rate {self.lr}, expected at least 0"
                " epochs, minibatches of at least 1 and a positive rate"
            )
        if not 0 <= self.averaging < 1 or not 0 <= self.validation_share < 1 or not self.kl_scale >= 0:
            raise InputError(
                f"got averaging {self.averaging}, validation share {self.validation_share}, KL scale {self.kl_scale},"
                " expected the first two in [0, 1) and the last not negative"
            )


@dataclass(frozen=True)
class TrainingRun:
    """Errors are shares of wrongly classified images, of the averaged weights without noise, after each epoch."""

    objective: tuple[
        float, ...
    ]  # nats per training image: mean cross entropy plus scaled KL / N, over the epoch's steps
    validation_error: tuple[float, ...]  # empty without a validation set
    test_error: tuple[float, ...]
    drop_rates: tuple[float, ...]  # by layer, at the end
    best_epoch: int  # counted from 1; by validation error, the last one without a validation set
    steps: int
    seconds: float = field(compare=False)  # of the steps alone

    @property
    def best_test_error(self) -> float:
        """Test error after the epoch that the validation set chose; NaN if nothing was trained."""
        return self.test_error[self.best_epoch - 1] if self.test_error else float("nan")


class Averaged:
    """Exponential moving average of a network's parameters, corrected for its start at zero."""

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
            return {name: value.detach().clone() for name, value in self.network.named_parameters()}
        return {name: value / self.weight for name, value in self.sums.items()}

    @torch.no_grad()
    def install(self, network: nn.Module) -> None:
        """Puts the average into a network of the same kind."""
        averaged = self.parameters()
        for name, value in network.named_parameters():
            value.copy_(averaged[name])


def build(images: Images, settings: NetworkSettings, seed: int, device: str = "cpu") -> Classifier:
    """A fresh network for these images, in their precision; drawn on the CPU, so that every device starts alike."""
    generator = stream("cpu", "networks", "start", seed)
    return Classifier(images.inputs, images.classes, settings, generator, images.x_train.dtype).to(device)


def train(
    network: Classifier,
    images: Images,
    settings: TrainSettings,
    after_epoch: Callable[[int, Averaged], None] | None = None,
) -> TrainingRun:
    """Minimises mean cross entropy + kl_scale · KL / N; the network ends with its averaged weights.

    `after_epoch` is called with 0 before the first epoch and then after each one. On one device the same seed gives the
    same run.
    """
    images, validation = _split(images.to(next(network.parameters()).device), settings)
    descent = _Descent(network, images, settings)
    averaged, tell = descent.averaged, after_epoch or (lambda epoch, averaged: None)
    objectives, validation_errors, test_errors = [], [], []
    tell(0, averaged)
    for epoch in range(1, settings.epochs + 1):
        objectives.append(descent.epoch())
        test_errors.append(error(averaged, images.x_test, images.y_test))
        if validation is not None:
            validation_errors.append(error(averaged, *validation))
        tell(epoch, averaged)
    averaged.install(network)
    best = validation_errors.index(min(validation_errors)) + 1 if validation_errors else len(test_errors)
    errors = tuple(validation_errors), tuple(test_errors)
    return TrainingRun(tuple(objectives), *errors, network.drop_rates(), best, descent.steps, descent.seconds)


class _Descent:
    """Adam on one network, epoch by epoch, with streams of its own for noise and order."""

    def __init__(self, network: Classifier, images: Images, settings: TrainSettings) -> None:
        self.network, self.images, self.settings = network, images, settings
        self.noise = stream(images.x_train.device, "networks", "noise", settings.seed)
        self.order = stream("cpu", "networks", "order", settings.seed)
        self.optimizer = torch.optim.Adam(network.parameters(), lr=settings.lr)
        self.averaged = Averaged(network, settings.averaging)
        self.steps, self.seconds = 0, 0.0

    def epoch(self) -> float:
        """Each image once; the mean objective over the epoch's steps, in nats per image."""
        started, x = time.perf_counter(), self.images.x_train
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        shuffled = torch.randperm(len(x), generator=self.order).to(x.device)
        for rows in shuffled.split(self.settings.minibatch):  # type: ignore[no-untyped-call]
            total += self.step(rows) * len(rows)
        mean = float(total) / len(x)  # waits for a GPU
        self.seconds += time.perf_counter() - started
        return mean

    def step(self, rows: Tensor) -> Tensor:
        logits = self.network(self.images.x_train[rows], self.noise)
        penalty = self.settings.kl_scale / len(self.images.x_train) * self.network.kl()
        objective = cross_entropy(logits, self.images.y_train[rows]) + penalty
        self.optimizer.zero_grad()
        objective.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.network.project()
        self.averaged.update()
        self.steps += 1
        return objective.detach()


def _split(images: Images, settings: TrainSettings) -> tuple[Images, tuple[Tensor, Tensor] | None]:
    """Training images without the validation set, and the validation set."""
    N = len(images.x_train)
    held_out = round(settings.validation_share * N)
    if not held_out:
        return images, None
    order = torch.randperm(N, generator=stream("cpu", "networks", "validation", settings.seed)).to(
        images.x_train.device
    )
    kept, out = order[held_out:], order[:held_out]
    validation = images.x_train[out], images.y_train[out]
    return replace(images, x_train=images.x_train[kept], y_train=images.y_train[kept]), validation


@torch.no_grad()
def error(averaged: Averaged, x: Tensor, y: Tensor) -> float:
    """Share of images that the mean of the averaged weights classifies wrongly."""
    logits = functional_call(averaged.network, averaged.parameters(), (x,))
    return float((logits.argmax(-1) != y).double().mean())


# --- KSW's figure 1: test error over width ----------------------------------------------------------------------------


@dataclass(frozen=True)
class WidthSweepSettings:
    """KSW's figure 1a averages five runs of each variant and width."""

    variants: tuple[str, ...] = (
        "no-dropout",
        "binary",
        "gaussian-a",
        "gaussian-b",
        "variational-a",
        "variational-b",
        "variational-a2",
    )
    widths: tuple[int, ...] = (150, 300, 450, 600, 750, 900, 1050, 1200)
    repeats: int = 5
    granularity: str = "layer"
    kl: str = "cubic"
    training: TrainSettings = field(default_factory=TrainSettings)
    device: str = "cpu"

    @classmethod
    def quick(cls) -> WidthSweepSettings:
        """Minutes on two cores, for the bundled digits."""
        training = TrainSettings(epochs=60, averaging=0.98)
        return cls(widths=(25, 100, 300), repeats=2, training=training)


@dataclass(frozen=True)
class WidthSweepPoint:
    variant: str
    width: int
    run: TrainingRun


def width_sweep_point(
    images: Images, settings: WidthSweepSettings, name: str, width: int, repeat: int
) -> WidthSweepPoint:
    """One trained network; a sweep is a loop over these, in any order."""
    kind, kl_scale = variant(name)
    noise = NoiseSettings(kind, "local", settings.granularity, settings.kl)
    seed = derive_seed("width sweep", settings.training.seed, repeat) % 2**31  # the same start for every variant
    network = build(images, NetworkSettings(width, noise=noise), seed, settings.device)
    training = replace(settings.training, kl_scale=kl_scale, seed=seed)
    return WidthSweepPoint(name, width, train(network, images, training))


def width_sweep(images: Images, settings: WidthSweepSettings) -> tuple[WidthSweepPoint, ...]:
    return tuple(
        width_sweep_point(images, settings, name, width, repeat)
        for name in settings.variants
        for width in settings.widths
        for repeat in range(settings.repeats)
    )
