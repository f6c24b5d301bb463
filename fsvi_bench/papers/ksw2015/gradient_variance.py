"""How much stochastic gradients vary, by estimator (Kingma, Salimans and Welling 2015, tables 1 and 2).

The gradient is that of the minibatch estimate (N/M) Σ log p(y_i | x_i, w) of the expected log likelihood (their eq. 3);
the KL is deterministic and adds no variance. A table's entry is the variance of one parameter's gradient, averaged over
the parameters of a layer. The paper says gradients "for the weights"; its argument (appendix D) is about the variance
parameters, so both are measured: `theta`, and `log_alpha` where α is learnt. Its scale is not stated either: ratios
between estimators compare, absolute numbers need not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeInt
from torch import Tensor
from torch.nn.functional import cross_entropy

from fsvi_bench.errors import InputError
from fsvi_bench.papers.ksw2015.data import Images
from fsvi_bench.papers.ksw2015.layers import ESTIMATORS
from fsvi_bench.papers.ksw2015.network import Classifier
from fsvi_bench.papers.ksw2015.train import Averaged, TrainingRun, TrainSettings, train
from fsvi_bench.papers.parts import Plain
from fsvi_bench.papers.streams import stream

Sampling = Literal["with-replacement", "without-replacement"]
NO_NOISE = "no-noise"


class GradientVariance(Plain):
    """One entry of a table: after `epochs` epochs, for a layer ("bottom" or "top") and its "theta" or "log_alpha"."""

    epochs: int
    layer: str
    parameter: str
    estimator: str  # "no-noise": from the choice of the minibatch alone
    variance: float
    error: float  # its standard error


class VarianceSettings(Plain):
    """How to measure after so many epochs (`checkpoints`), of which the last ends the training.

    At most `coordinates` parameters of a layer, chosen at random, are looked at.
    """

    checkpoints: tuple[NonNegativeInt, ...] = Field(min_length=1)
    minibatch: int = Field(ge=1)
    repetitions: int = Field(ge=3)
    coordinates: int = Field(ge=1)


def gradient_variance(
    network: Classifier, images: Images, training: TrainSettings, settings: VarianceSettings
) -> tuple[list[GradientVariance], TrainingRun]:
    """Trains a network with its own estimator; measures all of them at each checkpoint, on the averaged weights."""
    entries: list[GradientVariance] = []

    def after_epoch(epoch: int, averaged: Averaged) -> None:
        if epoch in settings.checkpoints:
            frozen = copy.deepcopy(network)
            averaged.install(frozen)
            entries.extend(measure(frozen, images, settings, training.seed, epoch))

    training = training.model_copy(update={"epochs": max(settings.checkpoints)})
    return entries, train(network, images, training, after_epoch)


def measure(
    network: Classifier, images: Images, settings: VarianceSettings, seed: int, epochs: int
) -> Iterator[GradientVariance]:
    """Every estimator's table entries for one fixed network; estimators have random streams of their own."""
    images = images.to(next(network.parameters()).device)
    for estimator in (*ESTIMATORS, NO_NOISE):
        streams = ("gradient variance", seed, epochs, estimator)
        draws = gradient_draws(with_estimator(network, estimator), images, settings, streams)
        for (layer, parameter), gradients in draws.items():
            variance, error = mean_variance(gradients)
            yield GradientVariance(
                epochs=epochs, layer=layer, parameter=parameter, estimator=estimator, variance=variance, error=error
            )


def with_estimator(network: Classifier, estimator: str) -> Classifier:
    """A copy of the same network, to be run with another estimator, or without noise."""
    clone = copy.deepcopy(network)
    for layer in clone.noisy_layers:
        changed = {"kind": "none"} if estimator == NO_NOISE else {"estimator": estimator}
        layer.noise = layer.noise.model_copy(update=changed)
    return clone


def watched_parameters(network: Classifier) -> dict[tuple[str, str], Tensor]:
    """By (layer, parameter), of the bottom and top layers; log α where it is learnt."""
    layers = {"bottom": network.noisy_layers[0], "top": network.noisy_layers[-1]}
    return {
        (place, name): getattr(layer, name)
        for place, layer in layers.items()
        for name in (("theta", "log_alpha") if layer.noise.is_variational else ("theta",))
    }


def gradient_draws(
    network: Classifier, images: Images, settings: VarianceSettings, seed: tuple[str | int, ...]
) -> dict[tuple[str, str], Float[Tensor, "R P"]]:
    """R gradients of (N/M) Σ log p, at P coordinates of each watched parameter, in float64.

    The coordinates do not depend on `seed`: estimators are compared at the same ones.
    """
    device, N = images.x_train.device, len(images.x_train)
    noise, rows = stream(device, *seed, "noise"), stream("cpu", *seed, "rows")
    watched = watched_parameters(network)
    chosen = {group: _coordinates(p, settings.coordinates, group).to(device) for group, p in watched.items()}
    draws: dict[tuple[str, str], list[Tensor]] = {group: [] for group in watched}
    for _ in range(settings.repetitions):
        batch = draw_rows(N, settings.minibatch, "with-replacement", rows).to(device)
        loss = cross_entropy(network(images.x_train[batch], noise), images.y_train[batch], reduction="sum")
        gradients = torch.autograd.grad((-N / len(batch)) * loss, list(watched.values()))
        for group, gradient in zip(watched, gradients, strict=True):
            draws[group].append(gradient.flatten()[chosen[group]].double().cpu())
    return {group: torch.stack(each) for group, each in draws.items()}


def _coordinates(parameter: Tensor, most: int, group: tuple[str, str]) -> Tensor:
    choice = stream("cpu", "gradient variance", "coordinates", *group)
    return torch.randperm(parameter.numel(), generator=choice)[:most].sort().values


def draw_rows(N: int, M: int, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Row indices of a minibatch of M out of N."""
    if sampling == "with-replacement":
        return torch.randint(N, (M,), generator=generator)
    if M > N:
        raise InputError(f"got minibatches of {M} from {N} images without replacement, expected at most {N}")
    return torch.randperm(N, generator=generator)[:M]


def mean_variance(draws: Float[Tensor, "R P"]) -> tuple[float, float]:
    """Mean over columns of the unbiased variance over the R rows, with its jackknife standard error.

    With d_r the squared distance of row r from the mean row, leaving row r out takes d_r·R/(R − 1) off Σ d_r.
    Rows are whole gradients, so that the dependence between columns is accounted for.
    """
    R, P = draws.shape
    distances = (draws - draws.mean(0)).square().sum(-1)
    total = distances.sum()
    left_out = (total - distances * (R / (R - 1))) / (P * (R - 2))
    jackknife = (R - 1) / R * (left_out - left_out.mean()).square().sum()
    return float(total / (P * (R - 1))), float(jackknife.sqrt())
