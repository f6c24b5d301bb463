"""Files of images that lie somewhere, are downloaded, missing, altered or damaged; the only traffic is over loopback."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from pydantic import ValidationError

from fsvi_bench.errors import InputError
from fsvi_bench.tasks.card import ImageCard, load_image_card
from fsvi_bench.tasks.images import load_raw_images
from fsvi_bench.tasks.raw import location
from tests.tasks.small_images import card_for, draw, idx, write

pytestmark = pytest.mark.usefixtures("empty_places")
ARRAYS = draw()
CONTENTS = [idx(array) for array in ARRAYS]
CARD = card_for(ARRAYS)


def require_arrays(found):
    for got, expected in zip(found, ARRAYS, strict=True):
        assert got.dtype == np.uint8
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("packed", [True, False], ids=["compressed", "decompressed"])
@pytest.mark.parametrize("place", ["option", "variable", "cache"])
def test_files_are_found_in_each_place(tmp_path, monkeypatch, place, packed):
    folder = tmp_path / "cache" / "data" if place == "cache" else tmp_path / "mirror"
    write(folder, CARD, CONTENTS, packed)
    if place == "variable":
        monkeypatch.setenv("FSVI_BENCH_DATA", str(folder))
    data_dir = folder if place == "option" else None
    require_arrays(load_raw_images(CARD, data_dir))
    assert location(CARD, data_dir) == ("cache" if place == "cache" else "data folder")


def test_the_level_of_compression_does_not_matter(tmp_path):
    for path, content in zip(write(tmp_path, CARD, CONTENTS), CONTENTS, strict=True):
        path.write_bytes(gzip.compress(content, compresslevel=1, mtime=1))
    require_arrays(load_raw_images(CARD, tmp_path))


@pytest.mark.parametrize("packed", [True, False], ids=["compressed", "decompressed by the server"])
def test_missing_files_are_downloaded_and_kept(tmp_path, serve, monkeypatch, packed):
    assert location(CARD) == "to be downloaded"
    bodies = [gzip.compress(content) if packed else content for content in CONTENTS]
    serve({file.path: body for file, body in zip(CARD.files, bodies, strict=True)})
    require_arrays(load_raw_images(CARD))
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert sorted(kept) == sorted(tmp_path / "cache" / "data" / file.path for file in CARD.files)
    assert location(CARD) == "cache"
    monkeypatch.setenv("FSVI_BENCH_MIRROR", "http://127.0.0.1:9")
    require_arrays(load_raw_images(CARD))


def test_the_next_address_is_tried_after_one_that_fails_or_sends_something_else(serve, monkeypatch):
    files = CARD.files
    wrong, right = serve(gzip.compress(b"wrong")), serve(dict(zip((f.path for f in files), CONTENTS, strict=True)))
    monkeypatch.delenv("FSVI_BENCH_MIRROR")
    urls = [f"{address}/{{}}" for address in ("http://127.0.0.1:9", wrong, right)]

    def at(urls):
        moved = {
            name: getattr(CARD.images, name).model_copy(
                update={"urls": tuple(url.format(getattr(CARD.images, name).path) for url in urls)}
            )
            for name in ("x_train", "y_train", "x_test", "y_test")
        }
        return CARD.model_copy(update={"images": CARD.images.model_copy(update=moved)})

    with pytest.raises(InputError, match=rf"{wrong}/.* is truncated or altered"):
        load_raw_images(at(urls[:2]))
    require_arrays(load_raw_images(at(urls)))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (gzip.compress(CONTENTS[0][:-1]), r"the SHA-256 of its decompressed content is \w{64}, expected \w{64}"),
        (gzip.compress(CONTENTS[0])[:-9], "it is a truncated or damaged gzip file"),
        (gzip.compress(CONTENTS[0]) + b"more", "it is a truncated or damaged gzip file"),
        (b"<html>", r"the SHA-256 of its decompressed content is \w{64}"),
    ],
    ids=["other content", "truncated", "rubbish at the end", "a web page"],
)
def test_a_wrong_file_is_refused_where_it_lies_and_when_it_is_downloaded(tmp_path, serve, body, words):
    paths = write(tmp_path / "mirror", CARD, CONTENTS)
    paths[0].write_bytes(body)
    with pytest.raises(InputError, match=rf"{paths[0]} is not the mnist data: {words}.*; delete the file and download"):
        load_raw_images(CARD, tmp_path / "mirror")
    assert paths[0].read_bytes() == body
    serve(body)
    with pytest.raises(InputError, match=rf"truncated or altered: {words}.*put the file at .*-ubyte\.gz yourself"):
        load_raw_images(CARD)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_gzip_whose_middle_is_damaged_is_refused(tmp_path):
    paths = write(tmp_path, CARD, CONTENTS)
    damaged = bytearray(paths[2].read_bytes())
    damaged[10] = 0xFF  # the first byte after the header; no block has this type
    paths[2].write_bytes(damaged)
    with pytest.raises(InputError, match=rf"{paths[2]} is not the mnist data: it is a truncated or damaged gzip file"):
        load_raw_images(CARD, tmp_path)


def test_without_network_it_says_what_to_put_where(tmp_path):
    with pytest.raises(InputError) as caught:
        load_raw_images(load_image_card("mnist"))
    assert str(caught.value) == (
        f"the mnist data are not on this machine (looked for {tmp_path}/cache/data/mnist/train-images-idx3-ubyte.gz) "
        "and cannot be downloaded (http://127.0.0.1:9/mnist/train-images-idx3-ubyte.gz: ConnectionError); put the file "
        f"at {tmp_path}/cache/data/mnist/train-images-idx3-ubyte.gz, or point --data-dir or $FSVI_BENCH_DATA at a "
        "folder that contains mnist/train-images-idx3-ubyte.gz"
    )


@pytest.mark.parametrize(
    ("place", "content", "words"),
    [
        (0, b"\0\0\x0d" + CONTENTS[0][3:], "its header is not that of unsigned bytes"),
        (0, CONTENTS[0][:-1], "cannot reshape"),
        (2, CONTENTS[2][:3], "expected unsigned bytes in idx format"),
        (2, CONTENTS[2][:9], "expected unsigned bytes in idx format"),
        (0, idx(ARRAYS[0][:-1]), r"images of shape \[5, 4, 5\] with labels of shape \[6\].*expects 6 images of 4 × 5"),
        (1, idx(ARRAYS[1][:-1]), r"images of shape \[6, 4, 5\] with labels of shape \[5\]"),
        (2, idx(ARRAYS[2].reshape(3, 5, 4)), r"images of shape \[3, 5, 4\]"),
        (3, idx(ARRAYS[3].reshape(3, 1)), r"labels of shape \[3, 1\]"),
        (3, idx(ARRAYS[3] + np.uint8(5)), "has the class 13, but the card of mnist expects classes 0 to 9; fix the"),
    ],
)
def test_files_that_are_no_such_images_are_refused_even_if_the_hash_is_theirs(tmp_path, place, content, words):
    contents = [content if each == place else right for each, right in enumerate(CONTENTS)]
    card = card_for(ARRAYS, contents)
    write(tmp_path, card, contents)
    with pytest.raises(InputError, match=rf"-ubyte\.gz .*{words}"):
        load_raw_images(card, tmp_path)


@pytest.mark.parametrize("update", [{"D": 783}, {"n": 10000}, {"splits": 20}, {"reproductions": ()}])
def test_cards_of_images_are_strict(update):
    values = load_image_card("mnist").model_dump()
    assert ImageCard.model_validate(values) == load_image_card("mnist")
    with pytest.raises(ValidationError):
        ImageCard.model_validate({**values, **update})
