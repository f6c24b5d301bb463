"""Labelled images: MNIST from a local file if there is one, otherwise scikit-learn's bundled digits. No downloads."""

from __future__ import annotations

import gzip
import hashlib
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.papers.experiment import ExperimentContext, Plain
from fsvi_bench.seeds import derived_generator

FOLDERS = (".", "mnist", "MNIST", "MNIST/raw")
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")


class Images(NamedTuple):
    """Training and test images as rows of pixels in [0, 1], with their classes 0, 1, ..."""

    name: str
    x_train: Float[Tensor, "N D"]
    y_train: Int[Tensor, " N"]
    x_test: Float[Tensor, "N_test D"]
    y_test: Int[Tensor, " N_test"]

    def to(self, device: str | torch.device) -> Images:
        return Images(self.name, *(tensor.to(device) for tensor in self[1:]))

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for tensor in self[1:]:
            digest.update(tensor.numpy().data)
        return digest.hexdigest()


class ImageSource(Plain):
    """Images identified by name and content, and the device that uses them.

    The files' location is not part of the identity, so finished parts remain valid if files are moved.
    """

    name: str
    sha256: str
    device: str = "cpu"
    folder: Path | None = Field(default=None, exclude=True)

    @classmethod
    def find(cls, context: ExperimentContext) -> ImageSource:
        images, folder = load_images(context.data_dir), context.data_dir
        if images.name != "mnist":
            context.note("MNIST is not in the data folder: scikit-learn's bundled digits are used instead")
        return cls(name=images.name, sha256=images.sha256(), device=context.device, folder=folder)

    def load(self) -> Images:
        """The images on the device. Raises InputError if the files have changed since they were found."""
        images = load_images(self.folder)
        if images.sha256() != self.sha256:
            raise InputError(f"the {self.name} images changed while they were in use; run again")
        return images.to(self.device)


def load_images(data_dir: Path | None) -> Images:
    """MNIST if its file is present, else the bundled digits."""
    paths = find_mnist(data_dir) if data_dir else []
    return load_mnist(paths) if paths else load_digits()


def load_digits() -> Images:
    """1,797 digits of 8×8 pixels, of which a fixed fifth is for testing."""
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    order = derived_generator("digits", "split", 0).permutation(len(labels))
    cut = len(order) - round(0.2 * len(order))
    return _images("digits", pixels[order] / 16, labels[order], cut)


def find_mnist(data_dir: Path) -> list[Path]:
    """The path of `mnist.npz`, or of the four idx files (gzipped or not); empty if neither exists."""
    sets = [["mnist.npz"], *product(*[(name, f"{name}.gz") for name in IDX_FILES])]
    for folder, names in product(FOLDERS, sets):
        paths = [data_dir / folder / name for name in names]
        if all(path.is_file() for path in paths):
            return paths
    return []


def load_mnist(paths: list[Path]) -> Images:
    """70,000 digits of 28×28 pixels. Raises InputError if a file does not have the expected content."""
    x_train, y_train, x_test, y_test = (array for path in paths for array in _read(path))
    for x, y in ((x_train, y_train), (x_test, y_test)):
        if x.ndim != 3 or y.shape != x.shape[:1] or x.shape[1:] != x_train.shape[1:] or len(x) == 0:
            raise InputError(
                f"got images {x.shape} with labels {y.shape} in {paths[0]}, expected one label per image; replace it"
            )
    pixels = np.concatenate([x_train, x_test]).reshape(len(x_train) + len(x_test), -1) / np.float32(255)
    return _images("mnist", pixels, np.concatenate([y_train, y_test]), len(x_train))


def _read(path: Path) -> list[np.ndarray]:
    """The four arrays of an archive, or the single array of an idx file."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return [archive[key] for key in NPZ_KEYS]
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        # Two zero bytes, the type (8: unsigned bytes), the number of axes, their sizes, the values.
        if raw[:3] != b"\0\0\x08":
            raise ValueError("its header is not that of unsigned bytes in idx format")
        shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
        return [np.frombuffer(raw, np.uint8, offset=4 + shape.nbytes).reshape(shape)]
    except (ValueError, LookupError, OSError, EOFError, BadZipFile) as error:
        raise InputError(
            f"cannot read {path} ({error}), expected arrays {', '.join(NPZ_KEYS)} or unsigned bytes"
            " in idx format; replace it"
        ) from error


def _images(name: str, pixels: Any, labels: Any, cut: int) -> Images:
    x, y = torch.as_tensor(pixels).float(), torch.as_tensor(labels.astype(np.int64))
    return Images(name, x[:cut], y[:cut], x[cut:], y[cut:])
