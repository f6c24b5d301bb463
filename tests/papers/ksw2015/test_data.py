"""Images from the bundled digits and from files of MNIST."""

import hashlib

import numpy as np
import pytest
import sklearn.datasets
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.papers.ksw2015 import data
from fsvi_bench.papers.ksw2015.data import ImageSource, load_digits, load_images
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.tasks.card import load_image_card
from fsvi_bench.tasks.images import load_raw_images
from tests.tasks.small_images import card_for, draw, idx, write

#: Of the decompressed files without their headers, in order, by Python's gzip and hashlib.
MNIST_SHA256 = "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16"


def test_digits_are_split_once_and_the_same_way():
    digits, again = load_digits(), load_digits()
    assert (digits.x_train.shape, len(digits.x_test), len(digits.y_train.unique())) == ((1438, 64), 359, 10)
    assert torch.equal(digits.x_train, again.x_train)
    # Every image once: the sums over both parts do not depend on the split.
    bundled = sklearn.datasets.load_digits()
    assert float(digits.x_train.double().sum() + digits.x_test.double().sum()) == bundled.data.sum() / 16
    assert int(digits.y_train.sum() + digits.y_test.sum()) == bundled.target.sum()
    assert (float(digits.x_train.min()), float(digits.x_train.max())) == (0.0, 1.0)


def test_mnist_is_scaled_to_rows_of_pixels_between_0_and_1(tmp_path, monkeypatch):
    arrays = draw()
    card = card_for(arrays)
    monkeypatch.setattr(data, "load_image_card", {"mnist": card}.get)
    write(tmp_path, card, [idx(array) for array in arrays])
    images = load_images("mnist", tmp_path)
    assert images.name == "mnist"
    assert torch.equal(images.x_train, torch.from_numpy(arrays[0].reshape(6, 20) / np.float32(255)))
    assert torch.equal(images.x_test, torch.from_numpy(arrays[2].reshape(3, 20) / np.float32(255)))
    assert images.y_train.tolist() == [0, 1, 2, 3, 4, 5]
    assert images.y_test.tolist() == [6, 7, 8]


@pytest.mark.data
def test_mnist_is_what_was_published():
    raw = load_raw_images(load_image_card("mnist"))
    assert hashlib.sha256(b"".join(array.tobytes() for array in raw)).hexdigest() == MNIST_SHA256
    images = load_images("mnist")
    assert (images.x_train.shape, images.x_test.shape) == ((60_000, 784), (10_000, 784))
    # The numbers of each digit, and the mean and standard deviation of the training pixels, that everyone states.
    assert images.y_train.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert images.y_test.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = images.x_train.double()
    assert (float(pixels.mean()), float(pixels.std())) == pytest.approx((0.1307, 0.3081), abs=5e-5)
    assert (float(pixels.min()), float(pixels.max())) == (0.0, 1.0)


def test_the_digits_need_no_files(tmp_path):
    assert load_images("digits", tmp_path).sha256() == load_digits().sha256()


def test_other_images_than_those_found_are_refused():
    with pytest.raises(InputError, match="the digits images changed while they were in use"):
        ImageSource(name="digits", sha256="0" * 64).load()


@pytest.mark.parametrize("name", load_image_card("mnist").reproductions)
def test_reproductions_are_of_mnist_and_their_previews_of_digits(name):
    file = REPRODUCTIONS[name].file
    assert (file.paper["images"], file.quick["images"]) == ("mnist", "digits")
