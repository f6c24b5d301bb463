"""Strict reading and atomic writing of safetensors files with a `format` string.

Files come from anybody: nothing is unpickled or executed, and whatever is not expected is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fsvi_bench.errors import InputError, plain, quoted
from fsvi_bench.files import read_bounded, write_atomically

MAX_BYTES = 256 * 2**20


@dataclass(frozen=True)
class TensorFile:
    """Tensors and metadata of a file, with checks that say got, expected and how to mend it."""

    path: Path
    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    def error(self, message: str) -> InputError:
        return InputError(f"{self.path}: {message}")

    def require_names(self, expected: set[str]) -> None:
        """Raises InputError unless exactly these tensors are there and none holds NaN or infinity."""
        unknown, missing = sorted(set(self.tensors) - expected), sorted(expected - set(self.tensors))
        names = f"expected {', '.join(sorted(expected))}"
        if unknown and missing:
            raise self.error(f"unknown tensor {quoted(unknown[0])} and no '{missing[0]}'; {names}; rename it")
        if unknown:
            raise self.error(f"unknown tensor {quoted(unknown[0])}; {names}; remove it")
        if missing:
            raise self.error(f"tensor '{missing[0]}' is missing; {names}")
        for name, tensor in self.tensors.items():  # other types are refused by `require_dtype`
            if tensor.dtype == torch.float64 and not bool(torch.isfinite(tensor).all()):
                raise self.error(f"'{name}' holds NaN or infinity, expected finite numbers; export it again")

    def require_dtype(self, name: str, dtype: torch.dtype) -> None:
        got = self.tensors[name].dtype
        if got != dtype:
            raise self.error(f"'{name}' has type {_short(got)}, expected {_short(dtype)}; convert it and save again")

    def require_shape(self, name: str, shape: tuple[int, ...]) -> None:
        got = tuple(self.tensors[name].shape)
        if got != shape:
            raise self.error(f"'{name}' has shape {list(got)}, expected {list(shape)}; export it again")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def read_tensor_file(
    path: Path, expected_format: str, required_metadata: Iterable[str], content: bytes | None = None
) -> TensorFile:
    """Reads a safetensors file of at most 256 MiB whose metadata hold `format` = `expected_format`.

    The tensors are copies: the file may be rewritten or cut short afterwards. They lie in memory of torch's own, whose
    alignment is always the same: linear algebra rounds differently for numbers that lie elsewhere, so that a score
    would depend on whether a worker had it from a file or from another process.

    Args:
        content: the file's bytes, where they have been read already; `path` then is but its name.

    Raises:
        InputError: no such file, too large, not safetensors (a pickle, say), another format, or metadata missing.
    """
    content = read_bounded(path, MAX_BYTES, follow=True) if content is None else content
    try:
        tensors = {name: tensor.clone() for name, tensor in load(content).items()}
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    except (SafetensorError, ValueError, KeyError, RuntimeError, AssertionError, MemoryError) as error:
        raise _not_safetensors(path, expected_format, error) from error
    _check_metadata(path, metadata, expected_format, required_metadata)
    return TensorFile(path, tensors, metadata)


def _not_safetensors(path: Path, expected_format: str, error: Exception) -> InputError:
    return InputError(
        f"{path} is not a safetensors file ({plain(str(error))}); expected format {expected_format}, save it with "
        "safetensors"
    )


def _check_metadata(path: Path, metadata: Mapping[str, str], expected_format: str, required: Iterable[str]) -> None:
    got = metadata.get("format")
    if got != expected_format:
        said = "no format" if got is None else f"format {quoted(got)}"
        raise InputError(
            f"{path} has {said} in its metadata, expected '{expected_format}'; is it the right kind of file?"
        )
    for key in required:
        if key not in metadata:
            raise InputError(f"{path}: metadata '{key}' is missing; expected {', '.join(required)}")


def write_tensor_file(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file atomically; no tensor may hold NaN or infinity.

    Raises:
        ValueError: one does: nothing is written.
        InputError: the place is not writable.
    """
    write_atomically(path, tensor_file(tensors, metadata))


def tensor_file(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a safetensors file; equal tensors and metadata give equal bytes.

    Raises:
        ValueError: a tensor holds NaN or infinity.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel() and not all(map(math.isfinite, tensor.aminmax())):
            raise ValueError(f"tensor '{name}' holds NaN or infinity")
    contiguous = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return _in_order(save(contiguous, metadata=dict(metadata)))


def _in_order(content: bytes) -> bytes:
    """A safetensors file with its header's keys sorted: the library shuffles them, and equal files hash alike."""
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors begin at a multiple of eight
    return len(header).to_bytes(8, "little") + header + content[8 + length :]
