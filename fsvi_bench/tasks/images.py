"""Images with classes, from idx files: the format of MNIST."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsvi_bench.errors import InputError
from fsvi_bench.tasks.card import ImageCard
from fsvi_bench.tasks.fetch import fetch, unpacked

Bytes = NDArray[np.uint8]


class RawImages(NamedTuple):
    """Grey levels x [n, height, width] and classes y [n] as published."""

    x_train: Bytes
    y_train: Bytes
    x_test: Bytes
    y_test: Bytes


def load_raw_images(card: ImageCard, data_dir: Path | None = None) -> RawImages:
    """A data set's images.

    Raises:
        InputError: a file cannot be found or downloaded, or does not match the card.
    """
    of, paths = card.images, [fetch(card.name, file, data_dir) for file in card.files]
    raw = RawImages(*map(_read_idx, paths))
    parts = ((0, raw.x_train, raw.y_train, card.n - of.n_test), (2, raw.x_test, raw.y_test, of.n_test))
    for place, x, y, n in parts:
        if x.shape != (n, of.height, of.width) or y.shape != (n,):
            raise InputError(
                f"{paths[place]} has images of shape {list(x.shape)} with labels of shape {list(y.shape)}, but the "
                f"card of {card.name} expects {n} images of {of.height} × {of.width} pixels, with one label each; "
                "fix the card"
            )
        if (largest := int(y.max())) >= of.classes:
            raise InputError(
                f"{paths[place + 1]} has the class {largest}, but the card of {card.name} expects classes 0 to "
                f"{of.classes - 1}; fix the card"
            )
    return raw


def _read_idx(path: Path) -> Bytes:
    """The array of an idx file: two zero bytes, the type (8: bytes), the number of axes, their sizes, the values."""
    with unpacked(path) as stream:
        content = stream.read()
    try:
        if content[:3] != b"\0\0\x08":
            raise ValueError("its header is not that of unsigned bytes in idx format")
        shape = np.frombuffer(content, ">u4", count=content[3], offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + shape.nbytes).reshape(shape)
    except (ValueError, LookupError) as error:
        raise InputError(
            f"cannot read {path} ({error}), expected unsigned bytes in idx format; fix the card"
        ) from error
