"""The problems that methods are checked on: the toy task, without a download, and shapes that suit no cache line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from fsvi_bench.maths.features import inducing_tril
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import FeatureMap, Task, bind_task

TOYS = 7
ALL_TOYS = 20  #: as many as the data set has splits, each with data of its own
ODD_N = 67  #: prime, and more than a minibatch of 64


@cache
def _toy_problem(split: int) -> Task:
    return bind_task(build_task(load_card("toy"), split).task)


def toy_problems(count: int = TOYS) -> tuple[Task, ...]:
    """Problems with k = 20 and N = 40, whose weights differ as well as their data."""
    return tuple(map(_toy_problem, range(count)))


@cache
def odd_problems(B: int = 8, N: int = ODD_N, k: int = 7, D: int = 3) -> TrainingData:
    """No side is a multiple of a cache line; the features are whitened."""
    g, f64 = torch.Generator().manual_seed(0), torch.float64
    X = torch.rand(B, N, D, generator=g, dtype=f64) * 4 - 2
    centres = torch.rand(B, k, D, generator=g, dtype=f64) * 4 - 2
    lengthscales, outputscale = torch.full((B, D), 1.5, dtype=f64), torch.ones(B, dtype=f64)
    tril = torch.stack([inducing_tril(Z, lengthscales[0], outputscale[0], torch.tensor(1e-6)) for Z in centres])
    feature_map = FeatureMap(centres, lengthscales, outputscale, tril)
    Phi = torch.stack([feature_map[problem](X[problem]) for problem in range(B)])
    noise_variance = torch.full((B,), 0.01, dtype=f64)
    y = (Phi @ torch.randn(B, k, 1, generator=g, dtype=f64))[..., 0] + 0.1 * torch.randn(B, N, generator=g, dtype=f64)
    return TrainingData(X, y, Phi, noise_variance, X.amin(1), X.amax(1), feature_map)


def take(data: TrainingData, places: Sequence[int]) -> TrainingData:
    """Some problems of a batch, copied."""
    index = list(places)
    return TrainingData(
        **{name: getattr(data, name)[index].clone() for name in ("X", "y", "Phi", "noise_variance", "low", "high")},
        feature_map=FeatureMap.stack([data.feature_map[place] for place in index]),
    )


def nudged(data: TrainingData, seed: int) -> TrainingData:
    """A copy with every feature and every inducing input one unit in the last place up or down, at random."""
    generator = torch.Generator().manual_seed(seed)

    def nudge(values: Tensor) -> Tensor:
        up = torch.rand(values.shape, generator=generator) < 0.5
        return values.nextafter(torch.where(up, math.inf, -math.inf).to(values))

    feature_map = replace(data.feature_map, inducing_points=nudge(data.feature_map.inducing_points))
    return replace(take(data, range(len(data))), Phi=nudge(data.Phi), feature_map=feature_map)


def toy_batch(count: int = TOYS) -> TrainingData:
    """A fresh copy of the first toy problems side by side."""
    return TrainingData.of(toy_problems(count))
