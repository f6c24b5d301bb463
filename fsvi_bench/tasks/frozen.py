"""The frozen task, `fsvi-task/1`: features, noise, standardisation and split, in one small safetensors file.

A task holds no data: scoring needs the raw inputs too, since features depend on them (`fsvi_bench.tasks.task`).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fsvi_bench.errors import InputError, quoted, unknown_name
from fsvi_bench.tasks.card import card_names, load_card
from fsvi_bench.tensorfile import TensorFile, read_tensor_file, write_tensor_file

FORMAT = "fsvi-task/1"
Features = Literal["sgpr-rbf-ard", "rbf-grid"]
DEFINING_METADATA = ("format", "dataset", "split", "data_sha256", "features")


@dataclass(frozen=True, eq=False)
class FrozenTask:
    """One frozen task; tensors are float64 on the CPU, index arrays int64. Standard deviations are population ones."""

    dataset: str
    split: int
    data_sha256: str
    features: Features
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

    @property
    def k(self) -> int:
        return int(self.inducing_points.shape[0])

    @property
    def metadata(self) -> dict[str, str]:
        """The defining metadata, as strings."""
        return {
            "format": FORMAT,
            "dataset": self.dataset,
            "split": str(self.split),
            "data_sha256": self.data_sha256,
            "features": self.features,
        }

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by their names in the file."""
        return {name: getattr(self, name) for name in TENSOR_NAMES}

    @cached_property
    def sha256(self) -> str:
        """The task's identity: SHA-256 over its defining metadata and its tensors' names, types, shapes and bytes.

        It does not depend on how the file is laid out, nor on further metadata.
        """
        digest = hashlib.sha256()
        for key in DEFINING_METADATA:
            digest.update(f"{key}={self.metadata[key]}\n".encode())
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()


TENSOR_NAMES = tuple(field.name for field in fields(FrozenTask))[4:]
_INDEX_NAMES = ("train_index", "test_index")


def write_task(path: Path, task: FrozenTask, further_metadata: dict[str, str] | None = None) -> None:
    """Writes a task file atomically.

    Raises:
        InputError: the place is not writable.
    """
    write_tensor_file(path, task.tensors, {**(further_metadata or {}), **task.metadata})


def read_task(path: Path) -> FrozenTask:
    """Reads and checks a task file.

    Raises:
        InputError: it is not a valid `fsvi-task/1` file; says which field is wrong, what was got and expected.
    """
    content = read_tensor_file(path, FORMAT, DEFINING_METADATA)
    _check_names_and_types(content)
    k, D = _matrix_shape(content)
    N, N_test = (_vector_length(content, name) for name in _INDEX_NAMES)
    shapes = {
        "inducing_points": (k, D), "lengthscales": (D,), "outputscale": (), "noise_variance": (), "jitter": (),
        "input_mean": (D,), "input_std": (D,), "target_mean": (), "target_std": (),
        "train_index": (N,), "test_index": (N_test,),
    }  # fmt: skip
    for name, shape in shapes.items():
        content.require_shape(name, shape)
    task = _assemble(content)
    _check_values(content, task)
    return task


def _check_names_and_types(content: TensorFile) -> None:
    content.require_names(set(TENSOR_NAMES))
    for name in TENSOR_NAMES:
        content.require_dtype(name, torch.int64 if name in _INDEX_NAMES else torch.float64)


def _matrix_shape(content: TensorFile) -> tuple[int, int]:
    shape = tuple(content.tensors["inducing_points"].shape)
    if len(shape) != 2 or 0 in shape:
        raise content.error(f"'inducing_points' has shape {list(shape)}, expected [k, D]; export the task again")
    return shape


def _vector_length(content: TensorFile, name: str) -> int:
    shape = tuple(content.tensors[name].shape)
    if len(shape) != 1 or 0 in shape:
        raise content.error(f"'{name}' has shape {list(shape)}, expected a non-empty vector; export the task again")
    return shape[0]


def _assemble(content: TensorFile) -> FrozenTask:
    metadata = content.metadata
    if metadata["features"] not in get_args(Features):
        known = ", ".join(get_args(Features))
        raise content.error(f"metadata 'features' is {quoted(metadata['features'])}, expected one of: {known}")
    if not re.fullmatch("[0-9]{1,6}", metadata["split"]):
        raise content.error(f"metadata 'split' is {quoted(metadata['split'])}, expected a whole number such as 0")
    return FrozenTask(
        dataset=metadata["dataset"],
        split=int(metadata["split"]),
        data_sha256=metadata["data_sha256"],
        features=metadata["features"],  # type: ignore[arg-type]
        **content.tensors,
    )


def _check_values(content: TensorFile, task: FrozenTask) -> None:
    """Everything that shapes do not say: positive scales, a known data set, indices that fit it."""
    if task.dataset not in card_names():
        raise InputError(f"{content.path}: {unknown_name('data set', task.dataset, card_names())}")
    positive = ("lengthscales", "outputscale", "noise_variance", "input_std", "target_std")
    for name in positive:
        smallest = float(task.tensors[name].min())
        if smallest <= 0:
            raise content.error(f"'{name}' holds {smallest:g}, expected positive numbers; export the task again")
    if float(task.jitter) < 0:
        raise content.error(f"'jitter' is {float(task.jitter):g}, expected 0 or more; export the task again")
    if task.features == "rbf-grid":
        _check_grid_is_unscaled(content)
    card = load_card(task.dataset)
    if task.split >= card.splits.count:
        raise content.error(f"'split' is {task.split}, but {card.name} has splits 0 to {card.splits.count - 1}")
    if task.inducing_points.shape[1] != card.D:
        D = task.inducing_points.shape[1]
        raise content.error(f"'inducing_points' has D={D} columns, but {task.dataset} has {card.D} inputs")
    both = torch.cat([task.train_index, task.test_index])
    if int(both.min()) < 0 or int(both.max()) >= card.n:
        raise content.error(f"row numbers run from {int(both.min())} to {int(both.max())}, expected 0 to {card.n - 1}")
    if int(both.bincount().max()) > 1:
        raise content.error("a row stands twice in 'train_index' and 'test_index', expected each row once")


def _check_grid_is_unscaled(content: TensorFile) -> None:
    """The RBF grid is defined on raw inputs and targets; numbers that say otherwise would be silently ignored."""
    ones, zeros = ("outputscale", "input_std", "target_std"), ("jitter", "input_mean", "target_mean")
    for name in ones + zeros:
        value = float(name in ones)
        if bool((content.tensors[name] != value).any()):
            raise content.error(f"'{name}' of an rbf-grid task is not {value:g}, as the format has it; export it again")
