"""The tasks that an edition ranks on, made from its secret; the same for every entry, so that comparisons are paired.

Each is what an official task might have been. Of the data set's rows 80 % are drawn anew for training; the inducing
points are fresh training inputs; lengthscales, outputscale and noise are those of an official task, each moved by up to
25 %. The first three tasks of a data set have its real targets. The targets of the last two are drawn from the model
that the task defines, w ~ N(0, I), y = Φw + ε, ε ~ N(0, σ²I), so that the model is exactly true of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.leaderboard.edition import Edition, Secret
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.certificate import certify
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.official import official_splits, read_official
from fsvi_bench.tasks.raw import RawData
from fsvi_bench.tasks.task import Task, bind_task, raw_data

TASKS, WITH_REAL_TARGETS = 5, 3  #: per data set
OFFICIAL_SPLITS = range(5)  #: of each data set, run too and shown, never ranked
TRAINING_SHARE, MOVED_BY = 0.8, 0.25
ATTEMPTS = 20  #: draws of a task before its data set is given up
PERTURBED = ("lengthscales", "outputscale", "noise_variance")

Kind = Literal["ranked", "official"]
Stream = Callable[[str], np.random.Generator]  #: a task's random stream for each purpose


@dataclass(frozen=True)
class Place:
    """Which task of an edition: a ranked one by its number, or an official one by its split."""

    kind: Kind
    dataset: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.dataset} {'task' if self.kind == 'ranked' else 'official split'} {self.number}"


def runs(edition: Edition) -> list[tuple[Place, int]]:
    """Every run of an entry, data set by data set: a task and the number of a seed, of which official tasks have one.

    Raises:
        InputError: a data set has no official tasks to move.
    """
    found: list[tuple[Place, int]] = []
    for dataset in edition.datasets:
        if not (splits := official_splits(dataset)):
            raise InputError(f"edition {edition.name}: '{dataset}' has no official tasks; leave it out")
        found += [(Place("ranked", dataset, number), seed) for number in range(TASKS) for seed in range(edition.seeds)]
        found += [(Place("official", dataset, split), 0) for split in OFFICIAL_SPLITS if split in splits]
    return found


def make_task(place: Place, edition: Edition, secret: Secret | None, data_dir: Path | None = None) -> tuple[Task, int]:
    """A task of an edition, bound to its data, and how many draws before it failed their certificates.

    Raises:
        InputError: the raw data cannot be had.
        TaskRefused: no draw of it can be certified.
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
    raise TaskRefused(f"none of {ATTEMPTS} draws of {place.name} could be certified; leave its data set out")


def _draw(number: int, official: FrozenTask, raw: RawData, stream: Stream) -> Task:
    """Raises TaskRefused if the certificate does not hold."""
    order = stream("rows").permutation(len(raw.y))
    train, test = np.split(order, [round(TRAINING_SHARE * len(order))])
    X, y = raw.X[train], raw.y[train]
    mean, deviation = X.mean(0), X.std(0)
    scale = np.where(deviation > 0, deviation, 1.0)
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
    """k distinct training inputs, as a fit starts from."""
    distinct = np.unique(X, axis=0)
    if len(distinct) < official.k:
        raise TaskRefused(f"{official.dataset} has {len(distinct)} distinct inputs, fewer than k = {official.k}")
    return distinct[stream.choice(len(distinct), official.k, replace=False)]


def _with_targets_of_the_model(task: Task, stream: Stream) -> Task:
    """The targets are part of a task's identity by way of its data's hash."""
    weights = torch.from_numpy(stream("weights").standard_normal(task.k))
    Phi = torch.cat([task.Phi, task.Phi_test])
    noise = torch.from_numpy(stream("noise").standard_normal(len(Phi)))
    y = (Phi @ weights[:, None])[:, 0] + task.noise_variance.sqrt() * noise
    X = torch.cat([task.X, task.X_test])
    frozen = replace(task.frozen, data_sha256=RawData.of(X.numpy(), y.numpy()).sha256)
    return Task(frozen, task.feature_map, task.X, y[: task.N], task.X_test, y[task.N :])


def training_seed(place: Place, task: Task, number: int, edition: Edition, secret: Secret | None) -> int:
    """The seed of a run: the same for every entry, so that no edit of an entry buys other luck."""
    purpose = ("seed", edition.name, task.sha256, number)
    if place.kind == "official":  # public, as these tasks are
        return derive_seed(*purpose)
    assert secret is not None
    return secret.seed(*purpose)
