"""Small images in the format of MNIST, with a card that fits them."""

from __future__ import annotations

import gzip
import hashlib
import struct

import numpy as np

from fsvi_bench.tasks.card import load_image_card

FIELDS = ("x_train", "y_train", "x_test", "y_test")


def draw(seed=0, n=6, n_test=3, shape=(4, 5)):
    """Images and classes for training and testing."""
    rng, total = np.random.default_rng(seed), n + n_test
    x, y = rng.integers(0, 256, (total, *shape), dtype=np.uint8), np.arange(total, dtype=np.uint8) % 10
    return [x[:n], y[:n], x[n:], y[n:]]


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def card_for(arrays, contents=None):
    """MNIST's card for these arrays, whose files have the given contents, by default the right ones."""
    base, (x, _, x_test, _) = load_image_card("mnist"), arrays
    hashes = [hashlib.sha256(content).hexdigest() for content in contents or map(idx, arrays)]
    files = {
        name: file.model_copy(update={"sha256": sha256})
        for name, file, sha256 in zip(FIELDS, base.files, hashes, strict=True)
    }
    sizes = {"n_test": len(x_test), "height": x.shape[1], "width": x.shape[2]}
    images = base.images.model_copy(update={**sizes, **files})
    return base.model_copy(update={"n": len(x) + len(x_test), "D": x[0].size, "images": images})


def write(folder, card, contents, packed=True):
    """Writes the files below a folder, compressed or not, and returns their paths."""
    paths = [folder / (file.path if packed else file.path.removesuffix(".gz")) for file in card.files]
    for path, content in zip(paths, contents, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if packed else content)
    return paths
