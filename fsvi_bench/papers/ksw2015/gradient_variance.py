"""How much stochastic gradients vary, by estimator (Kingma, Salimans and Welling 2015, tables 1 and 2).

The gradient is that of the minibatch estimate (N/M) Σ log p(y_i | x_i, w) of the expected log likelihood (their eq. 3);
the KL is deterministic and adds no variance. A table's entry is the variance of one parameter's gradient, averaged over
the parameters of a layer. The paper says gradients "for the weights"; its argument (appendix D) is about the variance
parameters, so both are measured: `theta`, and `log_alpha` where α is learnt. Its scale is not stated either: ratios
between estimators compare, absolute numbers need not.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from fsvi_bench.errors import InputError, unknown_name
from fsvi_bench.papers.ksw2015.data import Images
from fsvi_bench.papers.ksw2015.layers import ESTIMATORS, NoiseSettings
from fsvi_bench.papers.ksw2015.network import Classifier, NetworkSettings
from fsvi_bench.papers.ksw2015.train import Averaged, TrainingRun, TrainSettings, build, train
from fsvi_bench.papers.streams import stream

SAMPLINGS = ("with-replacement", "without-replacement", "fixed")
NO_NOISE = "no-noise"


@dataclass(frozen=True)
class Estimate:
    """A measured number and its standard error."""

    value: float
    standard_error: float

    def ratio(self, other: Estimate) -> Estimate:
        """Of two independent estimates, by the delta method."""
        if self.value == 0 or other.value == 0:
            return Estimate(math.nan, math.nan)
        ratio = self.value / other.value
        relative = math.hypot(self.standard_error / self.value, other.standard_error / other.value)
        return Estimate(ratio, abs(ratio) * relative)


@dataclass(frozen=True)
class GradientVariance:
    """One entry of a table: after `epochs` epochs, for a layer ("bottom" or "top") and its "theta" or "log_alpha"."""

    epochs: int
    layer: str
    parameter: str
    estimator: str  # "no-noise": from the choice of the minibatch alone
    variance: Estimate


@dataclass(frozen=True)
class GradientVarianceSettings:
    """Table 1 with `variational-b`, table 2 with `variational-a`.

    `sampling` says where minibatches come from: drawn anew with or without replacement, or `fixed`, which leaves the
    noise of the weights alone. At most `coordinates` parameters of a layer, chosen at random, are looked at.
    """

    network: NetworkSettings = field(default_factory=lambda: NetworkSettings(noise=NoiseSettings(granularity="weight")))
    training: TrainSettings = field(default_factory=TrainSettings)
    checkpoints: tuple[int, ...] = (0, 10, 100)
    minibatch: int = 1000
    repetitions: int = 200
    estimators: tuple[str, ...] = (*ESTIMATORS, NO_NOISE)
    sampling: str = "with-replacement"
    coordinates: int = 20_000
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.repetitions < 3 or self.minibatch < 1 or self.coordinates < 1:
            raise InputError(
                f"got {self.repetitions} repetitions of minibatches of {self.minibatch} and {self.coordinates}"
                " coordinates, expected at least 3, 1 and 1"
            )
        check_sampling(self.sampling)
        if self.checkpoints and max(self.checkpoints) > self.training.epochs:
            raise InputError(
                f"got a checkpoint after {max(self.checkpoints)} epochs, expected at most the {self.training.epochs}"
                " epochs of training; raise those"
            )

    @classmethod
    def paper(cls, kind: str = "variational-b") -> GradientVarianceSettings:
        """KSW's scale: width 1,200 and minibatches of 1,000."""
        return cls(network=NetworkSettings(noise=NoiseSettings(kind, granularity=_finest(kind))))

    @classmethod
    def quick(cls, kind: str = "variational-b") -> GradientVarianceSettings:
        """Under a minute on one core, for the bundled digits."""
        network = NetworkSettings(width=100, noise=NoiseSettings(kind, granularity=_finest(kind)))
        training = TrainSettings(epochs=100, averaging=0.98)
        return cls(network, training, minibatch=100, repetitions=200, coordinates=2000)


@dataclass(frozen=True)
class GradientVarianceResult:
    entries: tuple[GradientVariance, ...]
    run: TrainingRun
    network: Classifier = field(compare=False, repr=False)  # trained, with its averaged weights

    def variance(self, epochs: int, layer: str, parameter: str, estimator: str) -> Estimate:
        """Raises KeyError if it was not measured."""
        key = (epochs, layer, parameter, estimator)
        for entry in self.entries:
            if (entry.epochs, entry.layer, entry.parameter, entry.estimator) == key:
                return entry.variance
        raise KeyError(key)


def gradient_variance(images: Images, settings: GradientVarianceSettings) -> GradientVarianceResult:
    """Trains with local reparameterisation; measures every estimator at each checkpoint, on the averaged weights."""
    noise = replace(settings.network.noise, estimator="local")
    network = build(images, replace(settings.network, noise=noise), settings.training.seed, settings.device)
    entries: list[GradientVariance] = []

    def after_epoch(epoch: int, averaged: Averaged) -> None:
        if epoch in settings.checkpoints:
            frozen = copy.deepcopy(network)
            averaged.install(frozen)
            entries.extend(measure(frozen, images, settings, epoch))

    run = train(network, images, settings.training, after_epoch)
    return GradientVarianceResult(tuple(entries), run, network)


def measure(
    network: Classifier, images: Images, settings: GradientVarianceSettings, epochs: int
) -> list[GradientVariance]:
    """Every estimator's table entries for one fixed network; estimators have random streams of their own."""
    images, entries = images.to(next(network.parameters()).device), []
    for estimator in settings.estimators:
        groups = watched_parameters(network, with_alpha=estimator != NO_NOISE)
        seed = ("gradient variance", settings.training.seed, epochs)
        draws = gradient_draws(with_estimator(network, estimator), images, groups, settings, (*seed, estimator))
        for (layer, parameter), gradients in draws.items():
            entries.append(GradientVariance(epochs, layer, parameter, estimator, mean_variance(gradients)))
    return entries


def watched_parameters(network: Classifier, with_alpha: bool = True) -> list[tuple[str, str]]:
    """(layer, parameter) pairs of the bottom and top layers; log α where it is learnt."""
    learnt = with_alpha and network.settings.noise.is_variational
    names = ("theta", "log_alpha") if learnt else ("theta",)
    return [(layer, name) for layer in network.bottom_and_top() for name in names]


def with_estimator(network: Classifier, estimator: str) -> Classifier:
    """A copy of the same network, to be run with another estimator, or without noise."""
    clone = copy.deepcopy(network)
    old = network.settings.noise
    noise = NoiseSettings("none") if estimator == NO_NOISE else replace(old, estimator=estimator)
    for layer in clone.noisy_layers:
        layer.noise = noise
    clone.settings = replace(network.settings, noise=noise)
    return clone


def gradient_draws(
    network: Classifier,
    images: Images,
    groups: Sequence[tuple[str, str]],
    settings: GradientVarianceSettings,
    seed: tuple[str | int, ...],
) -> dict[tuple[str, str], Float[Tensor, "R P"]]:
    """R gradients of (N/M) Σ log p, at P coordinates of each group, in float64.

    Fixed data and the coordinates do not depend on `seed`: estimators are compared at the same ones.
    """
    device, N = images.x_train.device, len(images.x_train)
    rows = ("fixed rows", settings.training.seed) if settings.sampling == "fixed" else (*seed, "rows")
    noise, batches = (
        stream(device, *seed, "noise"),
        Minibatches(N, settings.minibatch, settings.sampling, stream("cpu", *rows)),
    )
    parameters = [getattr(network.bottom_and_top()[layer], name) for layer, name in groups]
    chosen = [
        _coordinates(p, settings.coordinates, group).to(device) for p, group in zip(parameters, groups, strict=True)
    ]
    draws = [torch.empty(settings.repetitions, len(c), dtype=torch.float64) for c in chosen]
    for r in range(settings.repetitions):
        batch = next(batches).to(device)
        loss = cross_entropy(network(images.x_train[batch], noise), images.y_train[batch], reduction="sum")
        gradients = torch.autograd.grad((-N / len(batch)) * loss, parameters)
        for g, (gradient, coordinates) in enumerate(zip(gradients, chosen, strict=True)):
            draws[g][r] = gradient.flatten()[coordinates].double().cpu()
    return dict(zip(groups, draws, strict=True))


class Minibatches:
    """Endless row indices of minibatches of M out of N."""

    def __init__(self, N: int, M: int, sampling: str, generator: torch.Generator) -> None:
        check_sampling(sampling)
        if M > N and sampling != "with-replacement":
            raise InputError(f"got minibatches of {M} from {N} images without replacement, expected at most {N}")
        self.N, self.M, self.sampling, self.generator = N, M, sampling, generator
        self.kept = torch.randperm(N, generator=generator)[:M] if sampling == "fixed" else None

    def __next__(self) -> Tensor:
        if self.kept is not None:
            return self.kept
        if self.sampling == "with-replacement":
            return torch.randint(self.N, (self.M,), generator=self.generator)
        return torch.randperm(self.N, generator=self.generator)[: self.M]


def mean_variance(draws: Float[Tensor, "R P"]) -> Estimate:
    """Mean over columns of the unbiased variance over the R rows, with its jackknife standard error.

    With d_r the squared distance of row r from the mean row, leaving row r out takes d_r·R/(R − 1) off Σ d_r.
    Rows are whole gradients, so that the dependence between columns is accounted for.
    """
    R, P = draws.shape
    distances = (draws - draws.mean(0)).square().sum(-1)
    total = distances.sum()
    left_out = (total - distances * (R / (R - 1))) / (P * (R - 2))
    jackknife = (R - 1) / R * (left_out - left_out.mean()).square().sum()
    return Estimate(float(total / (P * (R - 1))), float(jackknife.sqrt()))


def check_sampling(sampling: str) -> None:
    if sampling not in SAMPLINGS:
        raise unknown_name("sampling", sampling, SAMPLINGS)


def _coordinates(parameter: Tensor, most: int, group: tuple[str, str]) -> Tensor:
    choice = stream("cpu", "gradient variance", "coordinates", *group)
    return torch.randperm(parameter.numel(), generator=choice)[:most].sort().values


def _finest(kind: str) -> str:
    return "weight" if kind == "variational-b" else "unit"
