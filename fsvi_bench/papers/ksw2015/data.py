"""Labelled images: scikit-learn's bundled digits, and MNIST where a local file has it. Nothing is ever downloaded."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.seeds import derived_generator

FOLDERS = (".", "mnist", "MNIST", "MNIST/raw")
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Images:
    """Training and test images as rows of pixels in [0, 1], with their classes 0, 1, ..."""

    name: str
    x_train: Float[Tensor, "N D"]
    y_train: Int[Tensor, " N"]
    x_test: Float[Tensor, "N_test D"]
    y_test: Int[Tensor, " N_test"]

    @property
    def inputs(self) -> int:
        return self.x_train.shape[1]

    @property
    def classes(self) -> int:
        return int(self.y_train.max()) + 1

    def to(self, device: str | torch.device) -> Images:
        return Images(self.name, *(t.to(device) for t in (self.x_train, self.y_train, self.x_test, self.y_test)))


def load_digits(test_share: float = 0.2, seed: int = 0, dtype: torch.dtype = torch.float32) -> Images:
    """1,797 digits of 8×8 pixels; the same seed gives the same split."""
    from sklearn.datasets import load_digits as bundled

    if not 0 < test_share < 1:
        raise InputError(f"got a test share of {test_share}, expected one between 0 and 1, such as 0.2")
    digits = bundled()
    order = derived_generator("digits", "split", seed).permutation(len(digits.target))
    cut = len(order) - round(test_share * len(order))
    return _images("digits", digits.data[order] / 16, digits.target[order], cut, dtype)


def find_mnist(data_dir: Path) -> Path | None:
    """`mnist.npz`, or the folder that holds the four idx files (gzipped or not); None where neither is there."""
    for folder in (data_dir / name for name in FOLDERS):
        if (folder / "mnist.npz").is_file():
            return folder / "mnist.npz"
        if all(_idx_path(folder, name) is not None for name in IDX_FILES):
            return folder
    return None


def load_mnist(data_dir: Path, dtype: torch.dtype = torch.float32) -> Images:
    """70,000 digits of 28×28 pixels. Raises InputError where no file is found, or a file is not what its name says."""
    found = find_mnist(data_dir)
    if found is None:
        raise InputError(
            f"got no MNIST in {data_dir}, expected mnist.npz or the four idx files there or in its folder mnist;"
            " put them there, or use the bundled digits"
        )
    x_train, y_train, x_test, y_test = _read_npz(found) if found.is_file() else _read_idx_folder(found)
    pixels = np.concatenate([x_train.reshape(len(x_train), -1), x_test.reshape(len(x_test), -1)]) / np.float32(255)
    return _images("mnist", pixels, np.concatenate([y_train, y_test]), len(x_train), dtype)


def load_images(data_dir: Path | None) -> Images:
    """MNIST when its file is present, else the bundled digits."""
    return load_mnist(data_dir) if data_dir is not None and find_mnist(data_dir) else load_digits()


def _images(name: str, pixels: Any, labels: Any, cut: int, dtype: torch.dtype) -> Images:
    x, y = torch.as_tensor(pixels).to(dtype), torch.as_tensor(labels.astype(np.int64))
    return Images(name, x[:cut], y[:cut], x[cut:], y[cut:])


def _read_npz(path: Path) -> list[np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = [archive[key] for key in NPZ_KEYS]
    except (ValueError, KeyError, OSError, EOFError, BadZipFile) as error:
        raise InputError(
            f"got a file {path} that cannot be read, expected arrays {', '.join(NPZ_KEYS)}; replace it"
        ) from error
    return _checked(arrays, path)


def _read_idx_folder(folder: Path) -> list[np.ndarray]:
    return _checked([_read_idx(_idx_path(folder, name)) for name in IDX_FILES], folder)


def _read_idx(path: Path | None) -> np.ndarray:
    """The idx format: two zero bytes, the type (8: unsigned bytes), the number of axes, their sizes, the values."""
    assert path is not None
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zeros, kind, axes = struct.unpack_from(">HBB", raw)
        shape = struct.unpack_from(f">{axes}I", raw, 4)
        values = np.frombuffer(raw, np.uint8, offset=4 + 4 * axes)
        if (zeros, kind) != (0, 8) or values.size != np.prod(shape):
            raise ValueError("header and content disagree")
        return values.reshape(shape)
    except (ValueError, struct.error, OSError, EOFError) as error:
        raise InputError(
            f"got a file {path} that cannot be read, expected unsigned bytes in idx format; replace it"
        ) from error


def _checked(arrays: list[np.ndarray], path: Path) -> list[np.ndarray]:
    x_train, y_train, x_test, y_test = arrays
    for x, y in ((x_train, y_train), (x_test, y_test)):
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y) or x.shape[1:] != x_train.shape[1:] or len(x) == 0:
            raise InputError(
                f"got images {x.shape} with labels {y.shape} in {path}, expected one label per image; replace it"
            )
    return arrays


def _idx_path(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
