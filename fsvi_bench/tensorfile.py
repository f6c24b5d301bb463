"""Strict reading and atomic writing of safetensors files with a `format` string.

Files are untrusted: nothing is unpickled or executed, and unexpected content is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
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
    """Tensors and metadata of a file, with checks that raise InputError."""

    path: Path
    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    def error(self, message: str) -> InputError:
        return InputError(f"{self.path}: {message}")

    def require_names(self, expected: set[str]) -> None:
        """Raises InputError unless the file has exactly these tensors, without NaN or infinity."""
        unknown, missing = sorted(set(self.tensors) - expected), sorted(expected - set(self.tensors))
        names = f"expected {', '.join(sorted(expected))}"
        if unknown and missing:
            raise self.error(f"unknown tensor {quoted(unknown[0])}, and '{missing[0]}' is missing; {names}; rename it")
        if unknown:
            raise self.error(f"unknown tensor {quoted(unknown[0])}; {names}; remove it")
        if missing:
            raise self.error(f"tensor '{missing[0]}' is missing; {names}; add it")
        for name, tensor in self.tensors.items():  # other types are refused by `require_dtype`
            if tensor.dtype in (torch.float32, torch.float64) and len(wrong := (~tensor.isfinite()).nonzero()):
                where = f" at {wrong[0].tolist()}" if tensor.ndim else ""
                raise self.error(f"'{name}' contains NaN or infinity{where}, expected finite numbers; export it again")

    def require_dtype(self, name: str, dtype: torch.dtype) -> None:
        got = self.tensors[name].dtype
        if got != dtype:
            raise self.error(f"'{name}' has type {_short(got)}, expected {_short(dtype)}; convert it and save again")

    def require_axes(self, axes: Mapping[str, Sequence[str]]) -> None:
        """Raises InputError unless the file has exactly these tensors, and axes of equal names have equal lengths.

        Indices (`*_index`) are int64, all others float64. An axis named by a number has this length.
        """
        self.require_names(set(axes))
        sizes = {letter: int(letter) for letters in axes.values() for letter in letters if letter.isdecimal()}
        for name, letters in axes.items():
            self.require_dtype(name, torch.int64 if name.endswith("_index") else torch.float64)
            got = list(self.tensors[name].shape)
            if len(got) == len(letters) and 0 not in got:
                sizes = dict(zip(letters, got, strict=True)) | sizes
            expected = [sizes.get(letter, letter) for letter in letters]
            if got != expected:
                shape = ", ".join(map(str, expected))
                raise self.error(f"'{name}' has shape {got}, expected [{shape}]; export the task again")

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

    The tensors are copies, so that later changes of the file do not matter. Their memory is allocated by torch,
    whose alignment is always the same: linear algebra rounds differently for other alignments, and a score would depend
    on whether a worker got its numbers from a file or from another process.

    Args:
        content: bytes of the file, if they have been read already; `path` is then used only as its name.

    Raises:
        InputError: the file does not exist, is too large, is not safetensors (but a pickle, say), has another format,
            or lacks metadata.
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
        f"{path} is not a safetensors file ({plain(str(error))}), expected format {expected_format}; save it with "
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
            raise InputError(f"{path}: metadata '{key}' is missing; expected {', '.join(required)}; add it")


def identity(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over metadata, in their order, and tensors' names, types, shapes and bytes, whatever the file layout."""
    digest = hashlib.sha256()
    for key, value in metadata.items():
        digest.update(f"{key}={value}\n".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_tensor_file(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file atomically.

    Raises:
        ValueError: a tensor contains NaN or infinity; nothing is written.
        InputError: the folder is not writable.
    """
    write_atomically(path, tensor_file(tensors, metadata))


def tensor_file(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a safetensors file; equal tensors and metadata give equal bytes.

    Raises:
        ValueError: a tensor contains NaN or infinity.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel() and not all(map(math.isfinite, tensor.aminmax())):
            raise ValueError(f"tensor '{name}' contains NaN or infinity")
    contiguous = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return _in_order(save(contiguous, metadata=dict(metadata)))


def _in_order(content: bytes) -> bytes:
    """Sorts the keys of the header, whose order in the library is random, so that equal files have equal hashes."""
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors start at a multiple of 8 bytes
    return len(header).to_bytes(8, "little") + header + content[8 + length :]
