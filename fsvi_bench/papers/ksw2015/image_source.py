"""Which images an experiment runs on: MNIST where its file is present, scikit-learn's bundled digits otherwise."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import Field

from fsvi_bench.errors import InputError
from fsvi_bench.papers.experiment import Laboratory
from fsvi_bench.papers.ksw2015.data import Images, load_digits, load_images, load_mnist
from fsvi_bench.papers.parts import Plain


class ImageSource(Plain):
    """Images by name and content; where they lie does not count, so that a moved file costs no finished part."""

    name: str
    sha256: str
    folder: Path | None = Field(default=None, exclude=True)

    @classmethod
    def find(cls, laboratory: Laboratory) -> ImageSource:
        images = load_images(laboratory.data_dir)
        if images.name != "mnist":
            laboratory.note("no MNIST in the data folder: scikit-learn's bundled digits stand in for it")
        return cls(name=images.name, sha256=_sha256(images), folder=laboratory.data_dir)

    def load(self) -> Images:
        """Raises InputError if the files have changed since they were found."""
        images = load_digits() if self.name == "digits" or self.folder is None else load_mnist(self.folder)
        if _sha256(images) != self.sha256:
            raise InputError(f"the {self.name} images changed while they were in use; run again")
        return images


def _sha256(images: Images) -> str:
    digest = hashlib.sha256(images.name.encode())
    for tensor in (images.x_train, images.y_train, images.x_test, images.y_test):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
