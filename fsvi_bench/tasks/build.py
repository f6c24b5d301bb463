"""Builds frozen, certified tasks from raw data. The cache key of a fitted task covers everything that determines it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.files import sha256_of_json
from fsvi_bench.seeds import derived_generator
from fsvi_bench.sources import meaning_sha256
from fsvi_bench.tasks import toy
from fsvi_bench.tasks.card import Card, FitSettings, ToySource, card_names, load_card
from fsvi_bench.tasks.certificate import Certificate, CertifiedTask, certify, differences, read_certified
from fsvi_bench.tasks.fetch import cache_dir
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.raw import Array, RawData, load_raw
from fsvi_bench.tasks.splits import Rows, standard_splits
from fsvi_bench.tasks.task import Task, bind_task


def require_split(card: Card, split: int) -> None:
    """Raises InputError if the data set has no such split."""
    if not 0 <= split < card.splits.count:
        raise InputError(
            f"{card.name} has no split {split}; its splits run from 0 to {card.splits.count - 1}: choose one of them"
        )


def split_indices(card: Card, split: int, raw: RawData) -> Rows:
    """Training and test rows of a split: as drawn, or ascending if the test masks are published.

    Raises:
        InputError: the data set has no such split.
    """
    require_split(card, split)
    if isinstance(card.source, ToySource):
        return np.split(np.arange(card.n, dtype=np.int64), [toy.N_TRAIN])
    if raw.test_masks is not None:
        mask = raw.test_masks[:, split]
        return [np.flatnonzero(~mask).astype(np.int64), np.flatnonzero(mask).astype(np.int64)]
    return list(standard_splits(card.n, split + 1))[split]


def build_task(card: Card, split: int, data_dir: Path | None = None, raw: RawData | None = None) -> CertifiedTask:
    """Fits the sparse GP of one split (seconds to minutes) and certifies the result.

    Args:
        raw: the raw data, if already loaded.

    Raises:
        InputError: the split does not exist, or its data cannot be loaded.
        TaskRefused: the certificate exceeds its limits.
    """
    require_split(card, split)
    raw = raw or load_raw(card, split, data_dir)
    rows = split_indices(card, split, raw)
    if isinstance(card.source, ToySource):
        task = new_task(card.name, split, raw, rows, "rbf-grid", toy.TENSORS)
    else:
        rng = derived_generator("sgpr", card.name, split, "inducing points")
        task = fit_task(card.name, split, raw, rows, card.fit, rng)
    return CertifiedTask(task.certified().frozen, task.certificate)


SMALLEST_STD = float(np.sqrt(np.finfo(np.float64).tiny))  #: below it, squares lose digits


def standardisation(values: Array) -> tuple[Array, Array]:
    """Mean and population standard deviation over rows; for a constant column, exactly its value and 1.

    Raises:
        InputError: a column varies by too much or too little for squares in float64.
    """
    constant = values.max(0) == values.min(0)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = values.mean(0), values.std(0)
    std = np.where(constant, 1.0, std)
    if (wrong := ~(np.isfinite(std) & (std >= SMALLEST_STD))).any():
        column = f"input column {np.argmax(wrong)}" if wrong.ndim else "the target"
        largest = np.abs(values).max(0)[wrong].flat[0]
        raise InputError(
            f"the values of {column} reach {largest:.3g} and vary by too much or too little for float64, expected ones "
            "whose squares are normal numbers; rescale them"
        )
    return np.where(constant, values[0], mean), std


def fit_task(
    dataset: str, split: int, raw: RawData, rows: Rows, settings: FitSettings, rng: np.random.Generator
) -> Task:
    """Fits the sparse GP to standardised training rows; `rng` draws the initial inducing points. Does not certify.

    Raises:
        InputError: there are fewer distinct training inputs than inducing points.
    """
    # Imported here because GPyTorch takes over a second to import and a cached task does not need it.
    from fsvi_bench.tasks.fit import fit_sgpr

    X, y = raw.X[rows[0]], raw.y[rows[0]]
    (input_mean, input_std), (target_mean, target_std) = standardisation(X), standardisation(y)
    model, fit = fit_sgpr((X - input_mean) / input_std, (y - target_mean) / target_std, settings, rng)
    kernel = model.covar_module.base_kernel
    tensors = {
        "inducing_points": model.covar_module.inducing_points.detach(),
        "lengthscales": kernel.base_kernel.lengthscale[0].detach(),
        "outputscale": kernel.outputscale.item(),
        "noise_variance": model.likelihood.noise.item(),
        "jitter": settings.jitter,
        "input_mean": input_mean,
        "input_std": input_std,
        "target_mean": target_mean,
        "target_std": target_std,
    }
    return replace(new_task(dataset, split, raw, rows, "sgpr-rbf-ard", tensors), fit=fit)


def new_task(dataset: str, split: int, raw: RawData, rows: Rows, features: str, tensors: Mapping[str, Any]) -> Task:
    """A task from the tensors of its file, given by name as numbers or arrays. It stores data that are the user's own.

    Raises:
        TaskRefused: its features cannot be computed.
    """
    doubles = {name: torch.as_tensor(value, dtype=torch.float64).clone() for name, value in tensors.items()}
    train, test = map(torch.from_numpy, rows)
    own = None if dataset in card_names() else raw
    frozen = FrozenTask(
        dataset, split, raw.sha256, features, **doubles, train_index=train, test_index=test, own_data=own
    )
    return bind_task(frozen, raw=raw)


def cached_task_path(card: Card, split: int) -> Path:
    """Where a fitted task is cached; the file name contains a hash of data, split, settings and fitting code.

    Raises:
        InputError: the data set has no such split.
    """
    require_split(card, split)
    fields = {"name", "source", "n", "fit", "feature_columns", "target", "splits"}
    decided_by = {
        "card": card.model_dump(mode="json", include=fields),
        "split": split,
        "code": meaning_sha256(__name__),  # includes the certification code: the certificate is cached with the task
    }
    key = sha256_of_json(decided_by)[:16]
    return cache_dir() / "tasks" / card.name / f"split-{split:02d}-{key}.safetensors"


def load_cached(card: Card, split: int) -> CertifiedTask | None:
    """The cached task of a split, or None if it is missing or unreadable (the caller then fits it again).

    Raises:
        TaskRefused: the certificate exceeds its limits.
    """
    try:
        task, certificate = read_certified(cached_task_path(card, split))
    except InputError:
        return None
    if certificate is None:
        return None
    certificate.require_limits()
    return CertifiedTask(task, certificate)


def verification(task: FrozenTask, stored: Certificate | None, data_dir: Path | None = None) -> tuple[float, list[str]]:
    """The relative difference between two computations of a task's exact posterior, and a list of failed checks.

    Raises:
        InputError: the raw data cannot be loaded.
    """
    try:
        fresh = certify(bind_task(task, data_dir), stored.fit if stored else None)
        fresh.require_limits()
    except TaskRefused as error:
        return math.nan, [str(error)]
    wrong = departures(task, data_dir) + (differences(stored, fresh) if stored else [])
    return fresh.largest_difference(), wrong


def departures(task: FrozenTask, data_dir: Path | None = None) -> list[str]:
    """How a task differs from the standard split it claims to be, and from standardisation by its training rows.

    Raises:
        InputError: the raw data cannot be loaded.
    """
    if task.own_data is not None:
        return []
    card, found = load_card(task.dataset), []
    raw, rows = load_raw(card, task.split, data_dir), task.train_index.numpy()
    for name, index in zip(("train_index", "test_index"), split_indices(card, task.split, raw), strict=True):
        if not np.array_equal(task.tensors[name], index):
            found.append(f"its {name} differs from that of {card.name}'s standard split {task.split}")
    if task.features == "rbf-grid":
        return found
    for what, values in (("input", raw.X), ("target", raw.y)):
        mean, std = standardisation(values[rows])
        # The difference of means is measured in standard deviations, since a mean may be 0.
        difference = np.abs(task.tensors[f"{what}_mean"].numpy() - mean) / std
        if not (difference.max() < 1e-9 and np.allclose(task.tensors[f"{what}_std"], std, rtol=1e-9, atol=0)):
            found.append(f"its {what}s are not standardised by its training rows")
    return found
