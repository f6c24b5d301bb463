"""The ranked tasks of an edition, derived from its secret; all entries get the same, so that comparisons are paired.

Each is a variation of an official task: a new random 80% of the data set's rows for training, new inducing points from
the training inputs, and the lengthscales, outputscale and noise of an official task, each changed by up to 25%. The
first three tasks of a data set have its real targets. The targets of the last two are drawn from the model of the task,
w ~ N(0, I), y = Φw + ε, ε ~ N(0, σ²I), so the model is exactly right for them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.leaderboard import network_tasks
from fsvi_bench.leaderboard.edition import Edition, Place, Secret
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.certificate import certify
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.official import official_splits, read_official
from fsvi_bench.tasks.raw import RawData
from fsvi_bench.tasks.task import Task, bind_task, raw_data

TASKS, WITH_REAL_TARGETS = 5, 3  #: per data set
OFFICIAL_SPLITS = range(5)  #: of each data set; these are run and shown, but not ranked
TRAINING_SHARE, MOVED_BY = 0.8, 0.25
ATTEMPTS = 20  #: maximum number of draws of a task
PERTURBED = ("lengthscales", "outputscale", "noise_variance")

Stream = Callable[[str], np.random.Generator]  #: purpose -> random stream of a task


def runs(edition: Edition) -> list[tuple[Place, int]]:
    """All runs of an entry, by data set: a task and the number of a seed. Official tasks have one seed.

    Raises:
        InputError: a data set has no official tasks to start from.
    """
    if edition.is_networks:
        return [*network_tasks.runs(edition)]
    found: list[tuple[Place, int]] = []
    for dataset in edition.datasets:
        if not (splits := official_splits(dataset)):
            raise InputError(f"edition {edition.name}: '{dataset}' has no official tasks; remove it from the edition")
        found += edition.ranked_runs(dataset, TASKS)
        found += [(Place("official", dataset, split), 0) for split in OFFICIAL_SPLITS if split in splits]
    return found


def make_task(place: Place, edition: Edition, secret: Secret | None, data_dir: Path | None = None) -> tuple[Task, int]:
    """A task of an edition, bound to its data, and the number of draws before it whose certificates failed.

    Raises:
        InputError: the raw data are not available.
        TaskRefused: no draw can be certified.
    """
    if place.kind == "official":
        return bind_task(read_official(place.dataset, place.number).task, data_dir), 0
    assert secret is not None
    splits = official_splits(place.dataset)
    official = read_official(place.dataset, splits[place.number % len(splits)]).task
    raw = raw_data(official, data_dir)
    for counter in range(ATTEMPTS):
        stream = partial(secret.stream, "task", edition.name, place.dataset, place.number, counter)
        with suppress(TaskRefused):
            return _draw(place.number, official, raw, stream), counter
    raise TaskRefused(
        f"none of {ATTEMPTS} draws of {place.name} could be certified; remove its data set from the edition"
    )


def _draw(number: int, official: FrozenTask, raw: RawData, stream: Stream) -> Task:
    """Draws a ranked task; raises TaskRefused if its certificate does not hold."""
    order = stream("rows").permutation(len(raw.y))
    train, test = np.split(order, [round(TRAINING_SHARE * len(order))])
    X, y = raw.X[train], raw.y[train]
    mean, deviation = X.mean(0), X.std(0)
    constant, everywhere = (each.max(0) == each.min(0) for each in (X, raw.X))
    # Rounding can give a constant column a tiny deviation, by which test inputs must not be divided. Where none of the
    # data differ it does no harm, and it is part of published tasks.
    scale = np.where((deviation > 0) & (everywhere | ~constant), deviation, 1.0)
    moved: dict[str, Any] = {}
    for name in PERTURBED:
        value = getattr(official, name)
        moved[name] = value * torch.as_tensor(stream(name).uniform(1 - MOVED_BY, 1 + MOVED_BY, value.shape))
    drawn = replace(
        official,
        split=number,
        inducing_points=torch.from_numpy(_inducing_points((X - mean) / scale, official, stream("inducing points"))),
        input_mean=torch.as_tensor(mean),
        input_std=torch.as_tensor(scale),
        target_mean=torch.as_tensor(y.mean()),
        target_std=torch.as_tensor(y.std()),
        train_index=torch.from_numpy(train),
        test_index=torch.from_numpy(test),
        **moved,
    )
    task = bind_task(drawn, raw=raw)
    if number >= WITH_REAL_TARGETS:
        task = _with_targets_of_the_model(task, stream)
    certify(task).require_limits()
    return task


def _inducing_points(X: np.ndarray, official: FrozenTask, stream: np.random.Generator) -> np.ndarray:
    """k distinct training inputs, like the starting point of a fit."""
    distinct = np.unique(X, axis=0)
    if len(distinct) < official.k:
        raise TaskRefused(
            f"{official.dataset} has {len(distinct)} distinct inputs, fewer than k = {official.k}; remove it from the "
            "edition"
        )
    return distinct[stream.choice(len(distinct), official.k, replace=False)]


def _with_targets_of_the_model(task: Task, stream: Stream) -> Task:
    """Replaces the targets by draws from the model; the hash of the data makes them part of the task's identity."""
    weights = torch.from_numpy(stream("weights").standard_normal(task.k))
    Phi = torch.cat([task.Phi, task.Phi_test])
    noise = torch.from_numpy(stream("noise").standard_normal(len(Phi)))
    y = (Phi @ weights[:, None])[:, 0] + task.noise_variance.sqrt() * noise
    X = torch.cat([task.X, task.X_test])
    frozen = replace(task.frozen, data_sha256=RawData.of(X.numpy(), y.numpy()).sha256)
    return Task(frozen, task.feature_map, task.X, y[: task.N], task.X_test, y[task.N :])


def training_seed(place: Place, task_sha256: str, number: int, edition: Edition, secret: Secret | None) -> int:
    """The seed of a run: the same for every entry, so that editing an entry does not change its random numbers."""
    purpose = ("seed", edition.name, task_sha256, number)
    if place.kind == "official":  # public, like these tasks
        return derive_seed(*purpose)
    assert secret is not None
    return secret.seed(*purpose)
