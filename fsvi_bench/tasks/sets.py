"""All splits of a data set in one file, `fsvi-task-set/1`.

The tensors are those of `fsvi-task/1` with a leading axis of splits. If splits differ in size, the shorter ones' row
numbers end with -1. The metadata key `certificate.<split>` holds each split's certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fsvi_bench.errors import InputError
from fsvi_bench.tasks import frozen
from fsvi_bench.tasks.certificate import CertifiedTask, certificate_json, certificate_of
from fsvi_bench.tasks.frozen import TENSOR_NAMES, task_of
from fsvi_bench.tensorfile import TensorFile, read_tensor_file, write_tensor_file

FORMAT = "fsvi-task-set/1"
PADDING = -1  #: fills the row numbers of shorter splits
_SHARED = ("dataset", "data_sha256", "features")


def write_set(path: Path, members: Sequence[CertifiedTask]) -> None:
    """Writes the tasks of splits 0, 1, ... of one data set.

    Raises:
        InputError: the members are not splits 0, 1, ... of one data set, or the path is not writable.
    """
    tasks = [member.task for member in members]
    shared = [{key: task.metadata[key] for key in _SHARED} for task in tasks]
    if [task.split for task in tasks] != list(range(len(tasks))) or any(each != shared[0] for each in shared):
        raise InputError(f"{path}: got other tasks, expected splits 0, 1, ... of one data set, in order; pass these")
    tensors = {name: _stack(name, [task.tensors[name] for task in tasks]) for name in TENSOR_NAMES}
    certificates = {
        f"certificate.{split}": certificate_json(member.certificate) for split, member in enumerate(members)
    }
    write_tensor_file(path, tensors, {"format": FORMAT, **shared[0], **certificates})


def _stack(name: str, members: list[Tensor]) -> Tensor:
    return pad_sequence(members, True, PADDING) if name.endswith("_index") else torch.stack(members)


def is_set(path: Path) -> bool:
    """Whether a file declares this format; its content is validated when it is read."""
    try:
        read_tensor_file(path, FORMAT, ())
    except InputError:
        return False
    return True


def splits_of(path: Path) -> list[int]:
    """The splits in a task-set file, ascending.

    Raises:
        InputError: it is not a task-set file.
    """
    return list(range(_count(read_tensor_file(path, FORMAT, _SHARED))))


def _count(content: TensorFile) -> int:
    shapes = {name: list(tensor.shape) for name, tensor in content.tensors.items()}
    counts = {shape[0] if shape else 0 for shape in shapes.values()}
    if len(counts) != 1:
        raise content.error(f"its tensors have shapes {shapes}, expected the same leading axis of splits in all")
    return counts.pop()


def read_member(path: Path, split: int) -> CertifiedTask:
    """One task of a set, with its certificate; the other tasks are not validated.

    Raises:
        InputError: the task is missing or not valid; the message names the field, what was got and expected.
    """
    content = read_tensor_file(path, FORMAT, _SHARED)
    if split not in range(count := _count(content)):
        raise InputError(f"{path} has no split {split}; its splits run from 0 to {count - 1}")
    # Copies, for the reason given in `read_tensor_file`.
    tensors = {name: tensor[split].clone() for name, tensor in content.tensors.items()}
    tensors |= {name: index[index != PADDING] for name, index in tensors.items() if name.endswith("_index")}
    name, metadata = Path(f"{path}:{split}"), content.metadata
    if (certificate := metadata.get(f"certificate.{split}")) is None:
        raise InputError(f"{name} has no certificate; install the package again")
    own = {"format": frozen.FORMAT, "split": str(split)} | {key: metadata[key] for key in _SHARED}
    task = task_of(TensorFile(name, tensors, own))
    return CertifiedTask(task, certificate_of(task, certificate, name))
