"""How much stochastic gradients vary, by estimator (Kingma, Salimans and Welling 2015, tables 1 and 2).

The gradient is that of the minibatch estimate (N/M) Σ log p(y_i | x_i, w) of the expected log likelihood (their eq. 3);
the KL is deterministic and adds no variance. A table's entry is the variance of one parameter's gradient, averaged over
the parameters of a layer. The paper says gradients "for the weights"; its argument (appendix D) is about the variance
parameters, so both are measured: `theta`, and `log_alpha` where α is learnt. Its scale is not stated either: ratios
between estimators compare, absolute numbers need not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn.functional import cross_entropy

from fsvi_bench.errors import InputError
from fsvi_bench.papers.ksw2015.data import Images
from fsvi_bench.papers.ksw2015.layers import ESTIMATORS, Classifier, Estimator
from fsvi_bench.papers.parts import Plain
from fsvi_bench.papers.streams import stream

Sampling = Literal["with-replacement", "without-replacement"]


class VarianceSettings(Plain):
    """How to measure after so many epochs (`checkpoints`), of which the last ends the training.

    At most `coordinates` parameters of a layer, chosen at random, are looked at.
    """

    checkpoints: tuple[NonNegativeInt, ...] = Field(min_length=1)
    minibatch: PositiveInt
    repetitions: int = Field(ge=3)
    coordinates: PositiveInt


def gradient_variances(
    network: Classifier, images: Images, settings: VarianceSettings, seed: int, epochs: int
) -> Iterator[dict[str, Any]]:
    """A fixed network's entries of a table, with standard errors; estimators have random streams of their own.

    "no-noise" is what the choice of the minibatch alone adds.
    """
    for estimator in (*ESTIMATORS, "no-noise"):
        draws = gradient_draws(network, images, settings, estimator, ("gradient variance", seed, epochs, estimator))
        for (layer, parameter), gradients in draws.items():
            variance, error = mean_variance(gradients)
            place = {"epochs": epochs, "layer": layer, "parameter": parameter, "estimator": estimator}
            yield {**place, "variance": variance, "error": error}


def gradient_draws(
    network: Classifier, images: Images, settings: VarianceSettings, estimator: Estimator, seed: tuple[str | int, ...]
) -> dict[tuple[str, str], Float[Tensor, "R P"]]:
    """R gradients of (N/M) Σ log p, at P coordinates of each watched parameter, in float64.

    The coordinates do not depend on `seed`: estimators are compared at the same ones.
    """
    device, N = images.x_train.device, len(images.x_train)
    noise, rows = stream(device, *seed, "noise"), stream("cpu", *seed, "rows")
    watched = watched_parameters(network, estimator)
    chosen = {group: _coordinates(p, settings.coordinates, group).to(device) for group, p in watched.items()}
    draws: dict[tuple[str, str], list[Tensor]] = {group: [] for group in watched}
    for _ in range(settings.repetitions):
        batch = draw_rows(N, settings.minibatch, "with-replacement", rows).to(device)
        logits = network(images.x_train[batch], noise, estimator)
        estimate = (-N / len(batch)) * cross_entropy(logits, images.y_train[batch], reduction="sum")
        for group, gradient in zip(watched, torch.autograd.grad(estimate, list(watched.values())), strict=True):
            draws[group].append(gradient.flatten()[chosen[group]].double().cpu())
    return {group: torch.stack(each) for group, each in draws.items()}


def watched_parameters(network: Classifier, estimator: Estimator) -> dict[tuple[str, str], Tensor]:
    """By (layer, parameter), of the bottom and top layers; log α where it is learnt and there is noise."""
    bottom, *_, top = network.layers
    learnt = bottom.noise.is_variational and estimator != "no-noise"
    names = ("theta", "log_alpha") if learnt else ("theta",)
    layers = {"bottom": bottom, "top": top}
    return {(place, name): getattr(layer, name) for place, layer in layers.items() for name in names}


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

    With d_r the squared distance of row r from the mean row, leaving row r out takes d_r·R/(R − 1) off Σ d_r: the
    jackknife is linear in d. Rows are whole gradients, so that the dependence between columns is accounted for.
    """
    R, P = draws.shape
    distances = (draws - draws.mean(0)).square().sum(-1)
    return float(distances.sum() / (P * (R - 1))), float(R**0.5 * distances.std() / (P * (R - 2)))
