"""Withheld tasks: what an official task might have been, drawn from a seed that nobody had when a method was tuned.

The inputs, the kernel's hyperparameters and the noise are an official task's. The inducing points are drawn anew, and
the targets come from the model that they define: w ~ N(0, I), y = Φw + ε, ε ~ N(0, σ²I). So Bayesian linear regression
is exactly true of them, and the exact posterior is calibrated over draws. An RBF grid has no inducing points to draw
(its centres are part of what the task is): there the targets alone are new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import TaskRefused
from fsvi_bench.maths.blr import mean_field_optimum_kl
from fsvi_bench.seeds import derived_generator
from fsvi_bench.tasks.certificate import certify
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.task import FeatureMap, Task

ATTEMPTS = 20  #: draws before a task is given up; of the official tasks' kernels none has been refused so far


class Withheld(NamedTuple):
    """A withheld problem, and the weights that made its targets."""

    draw: int
    problem: Task
    weights: Float[Tensor, " k"]


def first_certified(
    official: Task, seed: int, draws: Iterable[int], refused: Callable[[int, str], None] = lambda draw, reason: None
) -> Withheld:
    """The first draw that meets the limits which official tasks are held to.

    Args:
        draws: the numbers to try, at most `ATTEMPTS` of them.
        refused: told of each draw that is passed over, and why.

    Raises:
        TaskRefused: none of them meets the limits, or there are too few distinct training inputs to draw from.
    """
    for _, draw in zip(range(ATTEMPTS), draws, strict=False):
        try:
            withheld = draw_withheld(official, seed, draw)
            certify(withheld.problem).require_limits()
            return withheld
        except TaskRefused as error:
            refused(draw, str(error))
    task = official.frozen
    raise TaskRefused(f"no withheld task like {task.dataset} split {task.split} could be certified")


def draw_withheld(official: Task, seed: int, draw: int) -> Withheld:
    """The withheld problem of an official one, a verifier's seed and the number of a draw; not certified.

    Raises:
        TaskRefused: k(Z,Z) + jitter·I is not positive definite, or there are fewer distinct training inputs than k.
    """
    task = official.frozen
    streams = {
        role: derived_generator("withheld", seed, task.sha256, draw, role)
        for role in ("inducing points", "weights", "noise")
    }
    fresh = replace(task, inducing_points=_inducing_points(official, streams["inducing points"]))
    feature_map = FeatureMap.of(fresh)
    weights = torch.from_numpy(streams["weights"].standard_normal(task.k))
    X = torch.cat([official.X, official.X_test])
    noise = torch.from_numpy(streams["noise"].standard_normal(len(X)))
    y = (feature_map(X) @ weights[:, None])[:, 0] + task.noise_variance.sqrt() * noise
    # The targets are part of the task's identity by way of its data: two draws on one grid differ in nothing else.
    fresh = replace(fresh, data_sha256=_sha256(X, y))
    N = len(official.X)
    return Withheld(draw, Task(fresh, feature_map, official.X, y[:N], official.X_test, y[N:]), weights)


def ffg_floor(problem: Task) -> float:
    """KL (nats) to the exact posterior of its nearest factorised Gaussian: what the family ffg cannot go below."""
    return float(mean_field_optimum_kl(problem.truth.posterior.precision_tril))


def _inducing_points(official: Task, stream: np.random.Generator) -> Float[Tensor, "k D"]:
    """k distinct training inputs, as an official task's fit starts from; a grid's own centres."""
    task: FrozenTask = official.frozen
    if task.features == "rbf-grid":
        return task.inducing_points
    distinct = np.unique(official.X.numpy(), axis=0)
    if len(distinct) < task.k:
        raise TaskRefused(
            f"{task.dataset} split {task.split} has {len(distinct)} distinct training inputs, of which no "
            f"{task.k} inducing points can be drawn"
        )
    return torch.from_numpy(distinct[stream.choice(len(distinct), task.k, replace=False)])


def _sha256(X: Float[Tensor, "n D"], y: Float[Tensor, " n"]) -> str:
    digest = hashlib.sha256(X.contiguous().numpy().tobytes())
    digest.update(y.contiguous().numpy().tobytes())
    return digest.hexdigest()
