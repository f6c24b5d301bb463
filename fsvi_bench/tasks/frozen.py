"""The frozen task, `fsvi-task/1`: features, noise, standardisation and split, in one small safetensors file.

Scoring also needs the raw inputs, since the features depend on them (`fsvi_bench.tasks.task`). They are not stored for
a published data set. For the user's own data they are stored as additional tensors `X` and `y`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_type_hints

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fsvi_bench.errors import InputError, quoted, unknown_name
from fsvi_bench.files import write_atomically
from fsvi_bench.tasks.card import all_names, card_names, load_card
from fsvi_bench.tasks.raw import RawData
from fsvi_bench.tensorfile import TensorFile, identity, read_tensor_file, tensor_file

FORMAT = "fsvi-task/1"
FEATURES = ("sgpr-rbf-ard", "rbf-grid", "sgpr-matern12-ard", "sgpr-matern32-ard", "sgpr-matern52-ard")
DEFINING_METADATA = ("format", "dataset", "split", "data_sha256", "features")


@dataclass(frozen=True, eq=False)
class FrozenTask:
    """One frozen task: tensors are float64 on the CPU, index arrays int64, standard deviations population ones."""

    dataset: str
    split: int
    data_sha256: str
    features: str  #: one of `FEATURES`
    inducing_points: Float[Tensor, "k D"]
    lengthscales: Float[Tensor, " D"]
    outputscale: Float[Tensor, ""]
    noise_variance: Float[Tensor, ""]
    jitter: Float[Tensor, ""]
    input_mean: Float[Tensor, " D"]
    input_std: Float[Tensor, " D"]
    target_mean: Float[Tensor, ""]
    target_std: Float[Tensor, ""]
    train_index: Int[Tensor, " N"]
    test_index: Int[Tensor, " N_test"]
    own_data: RawData | None = None  #: the raw data, if they are the user's own

    @property
    def place(self) -> tuple[str, int]:
        """Data set and split."""
        return self.dataset, self.split

    @property
    def k(self) -> int:
        return len(self.inducing_points)

    @property
    def metadata(self) -> dict[str, str]:
        """The defining metadata, as strings."""
        return {"format": FORMAT} | {key: str(getattr(self, key)) for key in DEFINING_METADATA[1:]}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The defining tensors by their names in the file."""
        return {name: getattr(self, name) for name in TENSOR_NAMES}

    @cached_property
    def sha256(self) -> str:
        """The task's identity: SHA-256 over its defining metadata and its tensors' names, types, shapes and bytes.

        It does not depend on the file layout or on other metadata.
        """
        return identity(self.metadata, self.tensors)


#: The axes of each tensor. The annotations above define the file format.
_AXES = {name: hint.dim_str.split() for name, hint in get_type_hints(FrozenTask).items() if hasattr(hint, "dim_str")}
_OWN_AXES = {"X": ["n", "D"], "y": ["n"]}
TENSOR_NAMES = tuple(_AXES)


def write_task(path: Path, task: FrozenTask) -> None:
    """Writes a task file atomically.

    Raises:
        InputError: the path is not writable.
    """
    write_atomically(path, task_file(task))


def task_file(task: FrozenTask) -> bytes:
    """The bytes of a task file."""
    own = task.own_data
    data = {} if own is None else {"X": torch.from_numpy(own.X), "y": torch.from_numpy(own.y)}
    return tensor_file({**task.tensors, **data}, task.metadata)


def read_task(path: Path) -> FrozenTask:
    """Reads and validates a task file.

    Raises:
        InputError: it is not a valid `fsvi-task/1` file; the message names the field, what was got and expected.
    """
    return task_of(read_tensor_file(path, FORMAT, DEFINING_METADATA))


def task_of(content: TensorFile) -> FrozenTask:
    """The task defined by a file's tensors and metadata.

    Raises:
        InputError: as `read_task`.
    """
    axes = _AXES | _OWN_AXES if content.tensors.keys() & _OWN_AXES else _AXES
    content.require_axes(axes)
    task = _assemble(content)
    _check_values(content, task)
    return task


def _assemble(content: TensorFile) -> FrozenTask:
    metadata, tensors = content.metadata, content.tensors
    if (features := metadata["features"]) not in FEATURES:
        raise content.error(f"metadata 'features' is {quoted(features)}, expected one of: {', '.join(FEATURES)}")
    if not re.fullmatch("[0-9]{1,6}", metadata["split"]):
        raise content.error(f"metadata 'split' is {quoted(metadata['split'])}, expected a whole number such as 0")
    own = RawData.of(tensors.pop("X").numpy(), tensors.pop("y").numpy()) if "X" in tensors else None
    return FrozenTask(
        dataset=metadata["dataset"],
        split=int(metadata["split"]),
        data_sha256=metadata["data_sha256"],
        features=features,
        own_data=own,
        **tensors,
    )


def _check_values(content: TensorFile, task: FrozenTask) -> None:
    """Checks values beyond shapes: positive scales, matching data, each row at most once."""
    n = _check_source(content, task)
    for name in ("lengthscales", "outputscale", "noise_variance", "input_std", "target_std"):
        smallest = float(task.tensors[name].min())
        if smallest <= 0:
            raise content.error(f"'{name}' contains {smallest:g}, expected positive numbers; export the task again")
    if float(task.jitter) < 0:
        raise content.error(f"'jitter' is {float(task.jitter):g}, expected 0 or more; export the task again")
    # The RBF grid is defined on raw inputs and targets; other values would be silently ignored.
    unscaled = {"outputscale": 1, "input_std": 1, "target_std": 1, "jitter": 0, "input_mean": 0, "target_mean": 0}
    for name, value in unscaled.items():
        if task.features == "rbf-grid" and bool((task.tensors[name] != value).any()):
            raise content.error(
                f"'{name}' of an rbf-grid task is not {value}, which the format requires; export it again"
            )
    both = torch.cat([task.train_index, task.test_index])
    if int(both.min()) < 0 or int(both.max()) >= n:
        raise content.error(f"row numbers run from {int(both.min())} to {int(both.max())}, expected 0 to {n - 1}")
    # Own data without test rows are scored at their training rows.
    once = (task.train_index, task.test_index) if task.own_data else (both,)
    if max(int(index.bincount().max()) for index in once) > 1:
        raise content.error("'train_index' and 'test_index' contain a row twice, expected each row at most once")


def _check_source(content: TensorFile, task: FrozenTask) -> int:
    """Checks the hash of the user's own data, or the task against its data set's card; returns the number of rows."""
    if task.own_data is not None:
        if fault := name_fault(task.dataset):
            raise content.error(f"metadata 'dataset' is {fault}")
        if (got := task.own_data.sha256) != task.data_sha256:
            raise content.error(f"'X' and 'y' have SHA-256 {got}, expected {task.data_sha256}; save the task again")
        return len(task.own_data.y)
    if task.dataset not in card_names():
        raise InputError(f"{content.path}: {unknown_name('data set', task.dataset, card_names())}")
    card, D = load_card(task.dataset), task.inducing_points.shape[1]
    if task.split >= card.splits.count:
        raise content.error(f"'split' is {task.split}, but {card.name} has splits 0 to {card.splits.count - 1}")
    if card.D != D:
        raise content.error(f"'inducing_points' has D={D} columns, but {task.dataset} has {card.D} inputs")
    return card.n


#: What result tables call network tasks: data set, model, and whether targets are simulated.
NETWORK_ROW = re.compile(r"([^-]+)-(collapsed-[1-9]\d{0,3}|logit-100)(-simulated)?")


def name_fault(name: str) -> str | None:
    """Why a name is not allowed for the user's own data, or None."""
    if NETWORK_ROW.fullmatch(name):
        return f"'{name}', a name of network tasks, but the task is linear; choose another name"
    if name in all_names():
        return f"'{name}', the name of a published data set, but the data are your own; choose another name"
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name):
        return f"{quoted(name)}, expected up to 60 letters, digits, - and _; choose another name"
    return None
