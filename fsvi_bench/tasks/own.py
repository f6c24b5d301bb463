"""Tasks on data of the user's own, from arrays: fitted here, or with the features of a GP that was fitted elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from fsvi_bench.errors import InputError
from fsvi_bench.tasks.build import fit_task, frozen_task
from fsvi_bench.tasks.card import FitSettings
from fsvi_bench.tasks.frozen import Features, fault_of_name
from fsvi_bench.tasks.raw import RawData
from fsvi_bench.tasks.splits import standard_splits
from fsvi_bench.tasks.task import Task, bind

Array = NDArray[np.float64]


def make_task(
    X: ArrayLike, y: ArrayLike, *, k: int = 100, test_fraction: float = 0.1, seed: int = 1, name: str = "own"
) -> Task:
    """Fits a sparse GP to data of the user's own, as the official tasks' are, and certifies the task that comes of it.

    Args:
        X, y: inputs [n,D] and targets [n], not standardised: NumPy, torch or pandas.
        k: inducing points, and so features and weights.
        test_fraction: how many of the rows are held out, drawn with `seed`.
        name: of the data; letters, digits, - and _.

    Raises:
        InputError: data or settings are not as above.
        TaskRefused: the exact posterior cannot be computed to its limits.
    """
    raw = _raw_data(X, y, name)
    n = len(raw.y)
    try:
        settings = FitSettings(k=k)
    except ValidationError as error:
        raise InputError(f"k is {k!r}, expected a whole number of 1 or more") from error
    if not 0 < test_fraction < 1 or not 0 < round((1 - test_fraction) * n) < n:
        raise InputError(
            f"test_fraction is {test_fraction!r}, expected a share of the {n} rows that leaves some to train on "
            "and some to test on, such as 0.1"
        )
    rows = next(standard_splits(n, 1, seed=seed, train_fraction=1 - test_fraction))
    _require_spread(raw.y[rows[0]])
    return _certified(fit_task(name, 0, raw, rows, settings, own=True))


def task_of_model(
    features: Features,
    parameters: Mapping[str, Any],
    data: tuple[ArrayLike, ArrayLike],
    held_out: tuple[ArrayLike | None, ArrayLike | None] | None,
    name: str,
) -> Task:
    """The task of features that are given, on data as they are: the training rows, and those held out if there are any.

    Raises:
        InputError, TaskRefused: as `Task.from_gpytorch`.
    """
    raw = _raw_data(*data, name)
    train = test = np.arange(len(raw.y))
    _require_spread(raw.y)
    if raw.X.shape[1] != (D := parameters["inducing_points"].shape[1]):
        raise InputError(f"X has {raw.X.shape[1]} columns, but the model's inducing points have {D}; give its own data")
    if held_out is not None:
        more = _raw_data(*held_out, name, "_test")
        if more.X.shape[1] != D:
            raise InputError(f"X_test has {more.X.shape[1]} columns, but X has {D}; give the same columns")
        test = np.arange(len(train), len(train) + len(more.y))
        raw = RawData.of(np.concatenate([raw.X, more.X]), np.concatenate([raw.y, more.y]))
    unscaled = {"input_mean": np.zeros(D), "input_std": np.ones(D), "target_std": 1}
    frozen = frozen_task(name, 0, raw, (train, test), features, {**parameters, **unscaled}, own=True)
    return _certified(bind(frozen, raw))


def _certified(task: Task) -> Task:
    task.certificate.require_limits()
    return task


def _raw_data(X: Any, y: Any, name: str, suffix: str = "") -> RawData:
    if fault := fault_of_name(name):
        raise InputError(f"name is {fault}")
    inputs, targets = _numbers(X, f"X{suffix}"), _numbers(y, f"y{suffix}")
    inputs = inputs[:, None] if inputs.ndim == 1 else inputs
    targets = targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets
    if inputs.ndim != 2 or targets.shape != inputs.shape[:1] or 0 in inputs.shape:
        raise InputError(
            f"X{suffix} has shape {list(np.shape(X))} and y{suffix} {list(np.shape(y))}, expected [n, D] and [n] with "
            "as many targets as rows; give one row and one target per data point"
        )
    return RawData.of(inputs, targets)


def _numbers(values: Any, what: str) -> Array:
    for column in getattr(values, "columns", ()):
        _numbers(values[column], f"column {str(column)!r} of {what}")
    try:
        array = np.asarray(values.detach().cpu().double() if isinstance(values, torch.Tensor) else values)
        if array.dtype.kind not in "biufO" or (array.dtype == object and any(isinstance(v, str) for v in array.flat)):
            raise TypeError
        numbers = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} does not hold numbers alone; encode it as numbers or leave it out") from error
    if not np.isfinite(numbers).all():
        row = np.argwhere(~np.isfinite(numbers))[0][0]
        raise InputError(f"{what} holds NaN or infinity in row {row}, expected finite numbers; drop or fill such rows")
    return numbers


def _require_spread(y: Array) -> None:
    if y.min() == y.max():
        raise InputError(f"all {len(y)} training targets are {y[0]:g}, expected different ones; give another target")
