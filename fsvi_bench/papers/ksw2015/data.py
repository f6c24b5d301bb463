"""Labelled images: MNIST, or scikit-learn's bundled digits."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.papers.experiment import ExperimentContext
from fsvi_bench.seeds import derived_generator
from fsvi_bench.strict import Plain
from fsvi_bench.tasks.card import load_image_card
from fsvi_bench.tasks.images import load_raw_images

ImageName = Literal["digits", "mnist"]


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

    name: ImageName
    sha256: str
    device: str = "cpu"
    folder: Path | None = Field(default=None, exclude=True)

    @classmethod
    def find(cls, context: ExperimentContext, name: ImageName) -> ImageSource:
        """The images of this name. Raises InputError as `load_images`."""
        folder = context.data_dir
        return cls(name=name, sha256=load_images(name, folder).sha256(), device=context.device, folder=folder)

    def load(self) -> Images:
        """The images on the device. Raises InputError if they are not those that were found."""
        images = load_images(self.name, self.folder)
        if images.sha256() != self.sha256:
            raise InputError(f"the {self.name} images changed while they were in use; run again")
        return images.to(self.device)


class OfImages(Plain):
    """Base of settings, which say which images an experiment uses."""

    images: ImageName

    def require_data(self, data_dir: Path | None) -> None:
        """Raises InputError if the images are not on this machine and cannot be downloaded."""
        load_images(self.images, data_dir)


def load_images(name: ImageName, data_dir: Path | None = None) -> Images:
    """Images by name.

    Raises:
        InputError: a file of MNIST cannot be found or downloaded, or is not the card's.
    """
    return load_digits() if name == "digits" else load_mnist(data_dir)


def load_digits() -> Images:
    """1,797 digits of 8×8 pixels, of which a fixed fifth is for testing."""
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    order = derived_generator("digits", "split", 0).permutation(len(labels))
    cut = len(order) - round(0.2 * len(order))
    return _images("digits", pixels[order] / 16, labels[order], cut)


def load_mnist(data_dir: Path | None) -> Images:
    """70,000 digits of 28×28 pixels, of which 10,000 are for testing. Raises InputError as `load_images`."""
    raw = load_raw_images(load_image_card("mnist"), data_dir)
    pixels = np.concatenate([raw.x_train, raw.x_test])
    scaled = pixels.reshape(len(pixels), -1) / np.float32(255)
    return _images("mnist", scaled, np.concatenate([raw.y_train, raw.y_test]), len(raw.x_train))


def _images(name: str, pixels: Any, labels: Any, cut: int) -> Images:
    x, y = torch.as_tensor(pixels).float(), torch.as_tensor(labels.astype(np.int64))
    return Images(name, x[:cut], y[:cut], x[cut:], y[cut:])
