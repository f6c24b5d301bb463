"""Tasks on the user's own arrays, with features fitted here or taken from a GP fitted elsewhere."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, Field, ValidationError

from fsvi_bench.errors import InputError, invalid_field, quoted
from fsvi_bench.seeds import derived_generator
from fsvi_bench.tasks.build import fit_task, new_task
from fsvi_bench.tasks.card import FitSettings
from fsvi_bench.tasks.frozen import name_fault
from fsvi_bench.tasks.raw import RawData
from fsvi_bench.tasks.splits import standard_splits
from fsvi_bench.tasks.task import Task
from fsvi_bench.threads import one_thread

NOISE_ALONE = -0.5 * math.log(2 * math.pi * math.e) + 0.01  #: nats per standardised target; 0.01 is a margin
STARTS = ("initial_lengthscale", "initial_noise_variance", "initial_rows")


class _Options(BaseModel):
    k: int = Field(100, ge=1)
    initial_lengthscale: float = Field(1.0, gt=0, allow_inf_nan=False)
    initial_noise_variance: float = Field(1e-4, gt=0, allow_inf_nan=False)
    initial_rows: int | None = Field(None, ge=1)
    test_fraction: float = Field(0.1, gt=0, lt=1)
    seed: int = Field(1, ge=0, lt=2**32)
    split: int = Field(0, ge=0, lt=1000)
    jitter: float = Field(1e-6, ge=0, allow_inf_nan=False)
    name: str


def _options(**given: Any) -> _Options:
    try:
        options = _Options(**given)
    except ValidationError as error:
        raise InputError(invalid_field(error)) from error
    if fault := name_fault(options.name):
        raise InputError(f"name is {fault}")
    return options


@one_thread()
def make_task(
    X: ArrayLike,
    y: ArrayLike,
    *,
    k: int = 100,
    test_fraction: float = 0.1,
    seed: int = 1,
    split: int = 0,
    name: str = "own",
    initial_lengthscale: float = 1.0,
    initial_noise_variance: float = 1e-4,
    initial_rows: int | None = None,
) -> Task:
    """Fits a sparse GP to the user's own data, as for the official tasks, and certifies the resulting task.

    Uses one thread: two are slower for problems of this size.

    Args:
        X, y: inputs [n,D] and targets [n], not standardised; NumPy, torch or pandas.
        k: number of inducing points, and hence of features and weights.
        test_fraction: fraction of the rows that is held out.
        seed: for the train/test splits and the initial inducing points.
        split: which of the seed's splits; tasks of one data set with different splits can be run together.
        name: name of the data set; letters, digits, - and _.
        initial_lengthscale: where the fit starts, in standard deviations of the inputs. With many inputs, try √D.
        initial_noise_variance: the noise that the fit starts with, relative to the variance of the targets.
        initial_rows: number of training rows, drawn at random. If given, the fit starts at the kernel and noise of
            their exact GP, which takes O(initial_rows³) for each of at most 200 iterations.

    Warns:
        UserWarning: the fit explains the targets no better than noise alone.

    Raises:
        InputError: the data or settings are not valid.
        TaskRefused: the exact posterior cannot be computed to the required accuracy.
    """
    options = _options(k=k, test_fraction=test_fraction, seed=seed, split=split, name=name,
                       initial_lengthscale=initial_lengthscale, initial_noise_variance=initial_noise_variance,
                       initial_rows=initial_rows)  # fmt: skip
    raw = _raw_data(X, y)
    *_, rows = standard_splits(
        len(raw.y), options.split + 1, seed=options.seed, train_fraction=1 - options.test_fraction
    )
    if not min(map(len, rows)):
        raise InputError(
            f"test_fraction is {test_fraction}, which leaves no training rows or no test rows out of "
            f"{len(raw.y)}; change it"
        )
    if np.ptp(raw.y[rows[0]]) == 0:
        raise InputError(
            f"all {len(rows[0])} training targets are {raw.y[rows[0]][0]:g}, expected at least two values; choose "
            "another seed, a smaller test_fraction, or another target"
        )
    further = [options.split] if options.split else []
    rng = derived_generator("sgpr", "own data", options.seed, "inducing points", *further)
    try:
        settings = FitSettings(**options.model_dump(include={"k", *STARTS}))
    except ValidationError as error:
        raise InputError(invalid_field(error)) from error
    task = fit_task(name, options.split, raw, rows, settings, rng).certified()
    assert task.certificate is not None
    assert task.certificate.fit is not None
    if task.certificate.fit.bound_per_point < NOISE_ALONE:
        warnings.warn(
            f"the fit of '{name}' explains its targets no better than noise alone, so the task says little about "
            f"methods; if there is signal in the data, start the fit elsewhere: change {', '.join(STARTS)}",
            stacklevel=3,
        )
    return task


@one_thread()
def task_of_model(
    kernel: str, tensors: dict[str, Any], X: Any, y: Any, X_test: Any, y_test: Any, name: str, jitter: float
) -> Task:
    """The task of a model's kernel and tensors on the data as given; see `Task.from_gpytorch`, also for errors."""
    options, D = _options(jitter=jitter, name=name), tensors["inducing_points"].shape[1]
    raw = _raw_data(X, y, columns=D)
    train = test = np.arange(len(raw.y))
    if X_test is not None or y_test is not None:
        more = _raw_data(X_test, y_test, "_test", D)
        test = len(raw.y) + np.arange(len(more.y))
        raw = RawData.of(np.concatenate([raw.X, more.X]), np.concatenate([raw.y, more.y]))
    tensors |= {"input_mean": np.zeros(D), "input_std": np.ones(D), "target_std": 1, "jitter": options.jitter}
    return new_task(name, 0, raw, (train, test), f"sgpr-{kernel}-ard", tensors).certified()


def _raw_data(X: Any, y: Any, suffix: str = "", columns: int | None = None) -> RawData:
    inputs, targets = _numbers(X, f"X{suffix}"), _numbers(y, f"y{suffix}")
    inputs = inputs[:, None] if inputs.ndim == 1 else inputs
    targets = targets[:, 0] if targets.shape[1:] == (1,) else targets
    D = columns or inputs.shape[-1]
    if inputs.shape != (len(targets), D) or targets.ndim != 1 or not inputs.size:
        got = f"X{suffix} has shape {list(np.shape(X))} and y{suffix} {list(np.shape(y))}"
        fix = "give one row and one target per data point" + (", with the model's input columns" if columns else "")
        raise InputError(f"{got}, expected [n, {columns or 'D'}] and [n]; {fix}")
    if not suffix and targets.min() == targets.max():
        raise InputError(
            f"all {len(targets)} targets are {targets[0]:g}, expected at least two values; choose another target"
        )
    return RawData.of(inputs, targets)


def _numbers(values: Any, what: str) -> NDArray[np.float64]:
    if isinstance(values, str | Path):
        raise InputError(
            f"{what} is {quoted(str(values))}, expected numbers; read a file first, with pandas.read_csv, and give its "
            "columns"
        )
    columns = list(getattr(values, "columns", ()))
    for column in columns:
        if columns.count(column) > 1:
            raise InputError(
                f"{what} has {columns.count(column)} columns named {quoted(str(column))}, expected unique names; "
                "rename or drop one"
            )
        _numbers(values[column], f"column {str(column)!r} of {what}")
    if np.ma.is_masked(values):
        raise InputError(f"{what} has masked entries, expected only numbers; fill them or drop their rows")
    try:
        if isinstance(values, torch.Tensor):
            if values.is_complex():
                raise TypeError
            values = values.detach().cpu().double()  # NumPy has no bfloat16
        array = np.asarray(values)
        texts = array.dtype == object and any(isinstance(value, str) for value in array.flat)
        if texts or array.dtype.kind not in "biufO" or not array.ndim:
            raise TypeError
        numbers = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} is not numeric, expected numbers only; encode it as numbers or drop it") from error
    if not np.isfinite(numbers).all():
        row = np.argwhere(~np.isfinite(numbers))[0][0]
        raise InputError(
            f"{what} contains NaN or infinity in row {row}, expected finite numbers; drop or fill such rows"
        )
    return numbers
