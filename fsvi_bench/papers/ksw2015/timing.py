"""Seconds per training step by estimator (KSW, section 5: 1,635 s per epoch with a sample per point, 7.4 s local)."""

from __future__ import annotations

import time

import torch
from pydantic import Field

from fsvi_bench.papers.ksw2015.data import Images, ImageSource
from fsvi_bench.papers.ksw2015.layers import ESTIMATORS, NoiseSettings
from fsvi_bench.papers.ksw2015.network import NetworkSettings, build
from fsvi_bench.papers.ksw2015.train import step
from fsvi_bench.papers.parts import Plain
from fsvi_bench.papers.streams import stream
from fsvi_bench.running.executors import use_one_thread

NOISES: dict[str, NoiseSettings] = {
    "no-dropout": NoiseSettings(kind="none"),
    **{name: NoiseSettings(kind="variational-b", estimator=name) for name in ESTIMATORS},
}


class TimingSettings(Plain):
    """Every repeat is a ratio; it is the median of some rounds, each of which takes every estimator in turn, so that a
    busy machine slows all of them."""

    width: int = Field(ge=1)
    minibatch: int = Field(ge=1)
    rounds: int = Field(ge=1)
    repeats: int = Field(ge=1)


class Timing(Plain):
    settings: TimingSettings
    images: ImageSource
    hidden_layers: int
    device: str


class Timed(Plain):
    """Seconds by estimator, for each round of each repeat."""

    repeats: tuple[tuple[dict[str, float], ...], ...]


def time_steps(timing: Timing) -> Timed:
    """Forward, backward and Adam's update of one minibatch, KL included; the first step of each is not counted."""
    use_one_thread()
    images, repeats = timing.images.load().to(timing.device), []
    for _ in range(timing.settings.repeats):
        steps = {name: _Step(images, timing, name) for name in NOISES}
        rounds = [{name: steps[name]() for name in steps} for _ in range(1 + timing.settings.rounds)]
        repeats.append(tuple(rounds[1:]))
    return Timed(repeats=tuple(repeats))


class _Step:
    """One training step of one estimator; returns its seconds."""

    def __init__(self, images: Images, timing: Timing, name: str) -> None:
        settings = NetworkSettings(noise=NOISES[name], width=timing.settings.width, hidden_layers=timing.hidden_layers)
        self.network = build(images, settings, 0, timing.device)
        self.optimizer = torch.optim.Adam(self.network.parameters())
        self.noise = stream(timing.device, "step times", 0, name)
        self.x, self.y = (each[: timing.settings.minibatch] for each in (images.x_train, images.y_train))
        self.scale = 1 / len(images.x_train)

    def __call__(self) -> float:
        _wait(self.x)
        started = time.perf_counter()
        step(self.network, self.optimizer, self.x, self.y, self.noise, self.scale)
        _wait(self.x)
        return time.perf_counter() - started


def _wait(x: torch.Tensor) -> None:
    """A GPU returns before it has finished."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
