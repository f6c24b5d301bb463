"""From raw data to a frozen, certified task; fitted tasks are cached by everything that decides them."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fsvi_bench.errors import InputError
from fsvi_bench.files import is_file, sha256_of_json
from fsvi_bench.seeds import derived_generator
from fsvi_bench.sources import meaning_sha256
from fsvi_bench.tasks import toy
from fsvi_bench.tasks.card import Card, ToySource, load_card
from fsvi_bench.tasks.certificate import (
    Certificate,
    Fit,
    certificate_path,
    certify,
    read_certificate,
    write_certificate,
)
from fsvi_bench.tasks.frozen import FrozenTask, read_task, write_task
from fsvi_bench.tasks.raw import RawData, cache_dir, load_raw
from fsvi_bench.tasks.splits import Index, index_sha256, standard_splits
from fsvi_bench.tasks.task import bind

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CertifiedTask:
    """A task with the certificate that vouches for it."""

    task: FrozenTask
    certificate: Certificate


def split_indices(card: Card, split: int) -> tuple[Index, Index]:
    """Training and test rows of a split.

    Raises:
        InputError: the data set has no such split.
    """
    if not 0 <= split < card.splits.count:
        raise InputError(
            f"{card.name} has no split {split}; its splits run from 0 to {card.splits.count - 1}, choose among them"
        )
    if isinstance(card.source, ToySource):
        return np.arange(toy.N_TRAIN, dtype=np.int64), np.arange(toy.N_TRAIN, card.n, dtype=np.int64)
    return list(standard_splits(card.n, split + 1))[split]


def build_task(card: Card, split: int, data_dir: Path | None = None) -> CertifiedTask:
    """Fits the sparse GP of one split (seconds to minutes) and certifies the result.

    Raises:
        InputError: no such split, or no data.
        TaskRefused: the certificate fails its own limits.
    """
    split_indices(card, split)
    return build_from(card, split, load_raw(card, split, data_dir))


def build_from(card: Card, split: int, raw: RawData) -> CertifiedTask:
    """`build_task` on raw data that are at hand.

    Raises:
        InputError: no such split.
        TaskRefused: the certificate fails its own limits.
    """
    train, test = split_indices(card, split)
    if isinstance(card.source, ToySource):
        task, fit = _toy_task(card, split, raw, train, test), None
    else:
        task, fit = _sgpr_task(card, split, raw, train, test)
    certificate = certify(bind(task, raw), fit)
    certificate.require_limits()
    return CertifiedTask(task, certificate)


def standardisation(values: Array) -> tuple[Array, Array]:
    """Mean and population standard deviation over rows; a constant column gets its value and 1, free of rounding."""
    constant = values.max(0) == values.min(0)
    mean = np.where(constant, values[0], values.mean(0))
    return mean, np.where(constant, 1.0, values.std(0))


def _sgpr_task(card: Card, split: int, raw: RawData, train: Index, test: Index) -> tuple[FrozenTask, Fit]:
    # Imported here: GPyTorch costs over a second, and a cached task needs none of it.
    from fsvi_bench.tasks.fit import fit_sgpr

    input_mean, input_std = standardisation(raw.X[train])
    target_mean, target_std = standardisation(raw.y[train])
    X = (raw.X[train] - input_mean) / input_std
    y = (raw.y[train] - target_mean) / target_std
    started = time.perf_counter()
    result = fit_sgpr(X, y, card.fit, derived_generator("sgpr", card.name, split, "inducing points"))
    fit = Fit(
        bound=result.bound,
        bound_per_point=result.bound / len(y),
        iterations=result.iterations,
        evaluations=result.evaluations,
        converged=result.converged,
        message=result.message,
        gradient_norm=result.gradient_norm,
        seconds=time.perf_counter() - started,
        settings=card.fit,
        versions=_versions(),
    )
    task = FrozenTask(
        dataset=card.name,
        split=split,
        data_sha256=raw.sha256,
        features="sgpr-rbf-ard",
        inducing_points=torch.from_numpy(result.inducing_points),
        lengthscales=torch.from_numpy(result.lengthscales),
        outputscale=_scalar(result.outputscale),
        noise_variance=_scalar(result.noise_variance),
        jitter=_scalar(card.fit.jitter),
        input_mean=torch.from_numpy(input_mean),
        input_std=torch.from_numpy(input_std),
        target_mean=_scalar(target_mean),
        target_std=_scalar(target_std),
        train_index=torch.from_numpy(train),
        test_index=torch.from_numpy(test),
    )
    return task, fit


def _toy_task(card: Card, split: int, raw: RawData, train: Index, test: Index) -> FrozenTask:
    return FrozenTask(
        dataset=card.name,
        split=split,
        data_sha256=raw.sha256,
        features="rbf-grid",
        inducing_points=torch.from_numpy(toy.CENTRES[:, None].copy()),
        lengthscales=torch.full((1,), toy.LENGTHSCALE, dtype=torch.float64),
        outputscale=_scalar(1.0),
        noise_variance=_scalar(toy.NOISE_VARIANCE),
        jitter=_scalar(0.0),
        input_mean=torch.zeros(1, dtype=torch.float64),
        input_std=torch.ones(1, dtype=torch.float64),
        target_mean=_scalar(0.0),
        target_std=_scalar(1.0),
        train_index=torch.from_numpy(train),
        test_index=torch.from_numpy(test),
    )


def _scalar(value: float | Array) -> torch.Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


def _versions() -> dict[str, str]:
    names = ("fsvi-bench", "torch", "gpytorch", "scipy", "numpy")
    return {name: importlib.metadata.version(name) for name in names} | {"python": platform.python_version()}


def cached_task_path(card: Card, split: int) -> Path:
    """Where a fitted task is cached: its name holds a hash of data, split, settings and the code that fits.

    Raises:
        InputError: the data set has no such split.
    """
    train, test = split_indices(card, split)
    decided_by = {
        "card": card.model_dump(mode="json", include={"name", "source", "fit", "feature_columns", "target"}),
        "split": split,
        "train": index_sha256(train),
        "test": index_sha256(test),
        "code": meaning_sha256(__name__),  # what certifies too, since the certificate lies beside the task
    }
    key = sha256_of_json(decided_by)[:16]
    return cache_dir() / "tasks" / card.name / f"split-{split:02d}-{key}.safetensors"


def load_cached(card: Card, split: int) -> CertifiedTask | None:
    """The cached task of a split, or None if it is not there or not readable (then it is fitted again).

    Raises:
        TaskRefused: its certificate fails its own limits.
    """
    path = cached_task_path(card, split)
    if not is_file(path):
        return None
    try:
        found = CertifiedTask(read_task(path), read_certificate(certificate_path(path)))
    except InputError:
        return None
    if found.certificate.task_sha256 != found.task.sha256:
        return None
    found.certificate.require_limits()
    return found


def save(built: CertifiedTask, path: Path) -> None:
    """Writes a task and the certificate beside it.

    Raises:
        InputError: the place is not writable.
    """
    write_certificate(certificate_path(path), built.certificate)
    write_task(path, built.task)


def departures(task: FrozenTask, data_dir: Path | None = None) -> list[str]:
    """In what a task is not the standard split that it claims to be, or not standardised by its training rows.

    Raises:
        InputError: the raw data cannot be had.
    """
    card = load_card(task.dataset)
    found = []
    for name, index in zip(("train_index", "test_index"), split_indices(card, task.split), strict=True):
        if not np.array_equal(getattr(task, name).numpy(), index):
            found.append(f"its {name} is not that of {card.name}'s standard split {task.split}")
    if task.features == "rbf-grid":
        return found
    raw, rows = load_raw(card, task.split, data_dir), task.train_index.numpy()
    stated = ((task.input_mean, task.input_std), (task.target_mean, task.target_std))
    for what, values, (mean, std) in zip(("inputs", "targets"), (raw.X[rows], raw.y[rows]), stated, strict=True):
        expected_mean, expected_std = standardisation(values)
        # Means are compared in standard deviations: one of them may be 0.
        apart = np.abs((mean.numpy() - expected_mean) / expected_std).max()
        if not (apart < 1e-9 and np.allclose(std.numpy(), expected_std, rtol=1e-9, atol=0)):
            found.append(f"its {what} are not standardised by its training rows")
    return found
