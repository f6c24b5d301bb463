"""Seconds per training step by estimator (KSW, section 5: 1,635 s per epoch with a sample per point, 7.4 s local)."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field, replace

import torch
from torch.nn.functional import cross_entropy

from fsvi_bench.errors import InputError
from fsvi_bench.papers.ksw2015.data import Images
from fsvi_bench.papers.ksw2015.layers import ESTIMATORS, NoiseSettings
from fsvi_bench.papers.ksw2015.network import Classifier, NetworkSettings
from fsvi_bench.papers.ksw2015.train import build
from fsvi_bench.papers.streams import stream

NO_DROPOUT = "no-dropout"


@dataclass(frozen=True)
class StepTimeSettings:
    """Rounds measure every estimator in turn, so that a busy machine slows all of them."""

    network: NetworkSettings = field(default_factory=NetworkSettings)
    minibatch: int = 100
    rounds: int = 5
    estimators: tuple[str, ...] = (NO_DROPOUT, *ESTIMATORS)
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.minibatch < 1 or self.rounds < 1:
            raise InputError(
                f"got minibatches of {self.minibatch} and {self.rounds} rounds, expected at least 1 of each"
            )

    @classmethod
    def quick(cls) -> StepTimeSettings:
        return cls(network=NetworkSettings(width=300), rounds=3)


@dataclass(frozen=True)
class StepTimes:
    """Medians over rounds, and medians of the rounds' ratios to `local`."""

    seconds: dict[str, float]
    ratio_to_local: dict[str, float]


def step_times(images: Images, settings: StepTimeSettings) -> StepTimes:
    """Forward, backward and Adam's update of one minibatch, KL included; the first step of each is not counted."""
    images = images.to(settings.device)
    steps = {name: _Step(images, settings, name) for name in settings.estimators}
    for step in steps.values():
        step()
    rounds = [{name: step() for name, step in steps.items()} for _ in range(settings.rounds)]
    seconds = {name: statistics.median(r[name] for r in rounds) for name in steps}
    compared = steps if "local" in steps else {}
    return StepTimes(seconds, {name: statistics.median(r[name] / r["local"] for r in rounds) for name in compared})


class _Step:
    """One training step of one estimator; returns its seconds."""

    def __init__(self, images: Images, settings: StepTimeSettings, estimator: str) -> None:
        noise = settings.network.noise
        noise = NoiseSettings("none") if estimator == NO_DROPOUT else replace(noise, estimator=estimator)
        self.network: Classifier = build(images, replace(settings.network, noise=noise), settings.seed, settings.device)
        self.optimizer = torch.optim.Adam(self.network.parameters())
        self.noise = stream(settings.device, "step times", settings.seed, estimator)
        self.x, self.y = images.x_train[: settings.minibatch], images.y_train[: settings.minibatch]
        self.scale = 1 / len(images.x_train)

    def __call__(self) -> float:
        _wait(self.x)
        started = time.perf_counter()
        loss = cross_entropy(self.network(self.x, self.noise), self.y) + self.scale * self.network.kl()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.network.project()
        _wait(self.x)
        return time.perf_counter() - started


def _wait(x: torch.Tensor) -> None:
    """A GPU returns before it has finished."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
