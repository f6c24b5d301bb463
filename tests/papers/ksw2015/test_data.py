"""Images from the bundled digits and from local MNIST files."""

import gzip
import struct

import numpy as np
import pytest
import sklearn.datasets
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.papers.ksw2015.data import IDX_FILES, find_mnist, load_digits, load_images


def arrays(rng, shape=(28, 28)):
    return [
        rng.integers(0, 256, (6, *shape), dtype=np.uint8),
        np.arange(6, dtype=np.uint8),
        rng.integers(0, 256, (3, *shape), dtype=np.uint8),
        np.array([5, 4, 0], dtype=np.uint8),
    ]


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_npz(folder, values):
    np.savez(folder / "mnist.npz", **dict(zip(("x_train", "y_train", "x_test", "y_test"), values, strict=True)))


def test_digits_are_split_once_and_the_same_way():
    digits, again = load_digits(), load_digits()
    assert (digits.x_train.shape, len(digits.x_test), len(digits.y_train.unique())) == ((1438, 64), 359, 10)
    assert torch.equal(digits.x_train, again.x_train)
    # Every image once: the sums over both parts do not depend on the split.
    bundled = sklearn.datasets.load_digits()
    assert float(digits.x_train.double().sum() + digits.x_test.double().sum()) == bundled.data.sum() / 16
    assert int(digits.y_train.sum() + digits.y_test.sum()) == bundled.target.sum()
    assert (float(digits.x_train.min()), float(digits.x_train.max())) == (0.0, 1.0)


def test_mnist_reads_alike_from_both_formats(tmp_path):
    values = arrays(np.random.default_rng(0))
    (tmp_path / "npz").mkdir()
    write_npz(tmp_path / "npz", values)
    (tmp_path / "idx" / "MNIST" / "raw").mkdir(parents=True)
    for i, (name, array) in enumerate(zip(IDX_FILES, values, strict=True)):
        packed = i % 2 == 0
        path = tmp_path / "idx" / "MNIST" / "raw" / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    one, two = load_images(tmp_path / "npz"), load_images(tmp_path / "idx")
    for part in ("x_train", "y_train", "x_test", "y_test"):
        assert torch.equal(getattr(one, part), getattr(two, part))
    assert (one.x_train.shape[1], one.name) == (784, "mnist")
    assert torch.equal(one.x_test, torch.from_numpy(values[2].reshape(3, -1) / np.float32(255)))
    assert one.y_test.tolist() == [5, 4, 0]


def test_mnist_is_used_where_it_is_and_never_fetched(tmp_path):
    assert find_mnist(tmp_path) == []
    assert load_images(tmp_path).name == load_images(None).name == "digits"
    write_npz(tmp_path, arrays(np.random.default_rng(0)))
    assert load_images(tmp_path).name == "mnist"


@pytest.mark.parametrize("damage", ["missing array", "labels too short", "not an archive"])
def test_a_damaged_archive_is_refused(tmp_path, damage):
    values = arrays(np.random.default_rng(0))
    if damage == "missing array":
        np.savez(tmp_path / "mnist.npz", x_train=values[0])
    elif damage == "labels too short":
        write_npz(tmp_path, [values[0], values[1][:3], *values[2:]])
    else:
        (tmp_path / "mnist.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(InputError, match=r"mnist\.npz"):
        load_images(tmp_path)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: b"\x00\x00\x0d" + raw[3:], lambda raw: raw[:3]])
def test_a_damaged_idx_file_is_refused(tmp_path, damage):
    for name, array in zip(IDX_FILES, arrays(np.random.default_rng(0)), strict=True):
        (tmp_path / name).write_bytes(idx(array))
    path = tmp_path / IDX_FILES[2]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=IDX_FILES[2]):
        load_images(tmp_path)
