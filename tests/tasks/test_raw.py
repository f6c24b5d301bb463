"""Raw data that are missing, altered, truncated or out of reach; the only traffic is over loopback."""

from __future__ import annotations

import gzip
import hashlib

import numpy as np
import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.tasks import raw
from fsvi_bench.tasks.build import split_indices
from fsvi_bench.tasks.card import load_card

pytestmark = pytest.mark.usefixtures("empty_places")
TABLE = b"1.0 2.0 3.0\n4.0 5.5 6.0\n7.0 8.0 9.0\n"


@pytest.fixture
def card():
    """The yacht card with a three-row table in place of the data."""
    base = load_card("yacht")
    source = base.source.model_copy(update={"sha256": hashlib.sha256(TABLE).hexdigest()})
    target = base.target.model_copy(update={"column": 2})
    return base.model_copy(update={"source": source, "n": 3, "D": 2, "feature_columns": (0, 1), "target": target})


def put(folder, card, content, which=0):
    path = folder / card.files[which].path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def cached_files(tmp_path):
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_the_data_folder_comes_first(card, tmp_path):
    put(tmp_path / "mirror", card, TABLE)
    found = raw.load_raw(card, 0, tmp_path / "mirror")
    assert np.array_equal(found.X, [[1, 2], [4, 5.5], [7, 8]])
    assert np.array_equal(found.y, [3, 6, 9])
    assert raw.location(card, tmp_path / "mirror") == "data folder"


def test_the_environment_names_the_data_folder(card, tmp_path, monkeypatch):
    put(tmp_path / "mirror", card, TABLE)
    monkeypatch.setenv("FSVI_BENCH_DATA", str(tmp_path / "mirror"))
    assert raw.load_raw(card, 0).y[0] == 3


def test_a_flipped_byte_is_refused_and_the_file_left_alone(card, tmp_path):
    flipped = bytearray(TABLE)
    flipped[0] ^= 1
    path = put(tmp_path / "mirror", card, bytes(flipped))
    with pytest.raises(InputError, match=r"is not the yacht data: its SHA-256 is \w{64}, expected \w{64}; delete"):
        raw.load_raw(card, 0, tmp_path / "mirror")
    assert path.read_bytes() == bytes(flipped)


def test_a_download_is_checked_and_kept(card, tmp_path, serve):
    serve(TABLE)
    assert not raw.is_here(card)
    assert raw.load_raw(card, 0).y.tolist() == [3, 6, 9]
    (kept,) = cached_files(tmp_path)
    assert kept == tmp_path / "cache" / "data" / card.source.path
    assert raw.location(card) == "cache"


@pytest.mark.parametrize("declared", [None, len(TABLE)], ids=["short body", "connection cut"])
def test_a_truncated_download_leaves_nothing_behind(card, tmp_path, serve, declared):
    serve(TABLE[:20], declared)
    with pytest.raises(InputError, match=r"yacht data"):
        raw.load_raw(card, 0)
    assert cached_files(tmp_path) == []


def test_an_altered_download_says_so(card, tmp_path, serve):
    serve(TABLE.replace(b"9", b"8"))
    with pytest.raises(InputError, match=r"truncated or altered.*put the file at .*data\.txt yourself"):
        raw.load_raw(card, 0)
    assert cached_files(tmp_path) == []


def test_without_network_and_mirror_it_says_what_to_put_where(card, tmp_path):
    with pytest.raises(InputError) as caught:
        raw.load_raw(card, 0)
    message = str(caught.value)
    assert str(tmp_path / "cache" / "data" / card.source.path) in message
    assert "$FSVI_BENCH_DATA" in message
    assert cached_files(tmp_path) == []


@pytest.mark.parametrize("mirror", ["nonsense", "ftp://127.0.0.1", "http://[bad"])
def test_a_mirror_that_is_no_address_is_not_called_an_altered_download(card, monkeypatch, mirror):
    monkeypatch.setenv("FSVI_BENCH_MIRROR", mirror)
    with pytest.raises(
        InputError, match=r"cannot be downloaded \(.*(MissingSchema|InvalidSchema|InvalidURL)\); put the"
    ):
        raw.load_raw(card, 0)


def test_a_card_that_does_not_fit_its_table_is_refused(card, tmp_path):
    put(tmp_path / "mirror", card, TABLE)
    with pytest.raises(InputError, match=r"has 3 rows and 3 columns, but the card of yacht expects 4 rows"):
        raw.load_raw(card.model_copy(update={"n": 4}), 0, tmp_path / "mirror")


def masked(masks, table="1.0,2.0,3.0\n4.0,5.5,6.0\n7.0,8.0,9.0\n"):
    """The airfoil card with a three-row table, two splits and these test masks; and the content of both files."""
    files = [gzip.compress(text.encode(), mtime=0) for text in (table, masks)]
    base = load_card("airfoil")
    data, test_masks = (
        file.model_copy(update={"sha256": hashlib.sha256(content).hexdigest()})
        for file, content in zip(base.files, files, strict=True)
    )
    splits = base.splits.model_copy(update={"count": 2, "sha256": None, "test_masks": test_masks})
    target = base.target.model_copy(update={"column": 2})
    small = {"source": data, "splits": splits, "n": 3, "D": 2, "feature_columns": (0, 1), "target": target}
    return base.model_copy(update=small), files


def put_both(folder, card, files):
    return [put(folder, card, content, which) for which, content in enumerate(files)]


def test_compressed_commas_and_test_masks_are_read(tmp_path):
    card, files = masked("0,1\n1,0\n0,0\n")
    put_both(tmp_path / "mirror", card, files)
    found = raw.load_raw(card, 0, tmp_path / "mirror")
    assert np.array_equal(found.X, [[1, 2], [4, 5.5], [7, 8]])
    assert np.array_equal(found.y, [3, 6, 9])
    assert found.sha256 == card.source.sha256
    for split, (train, test) in enumerate([([0, 2], [1]), ([1, 2], [0])]):
        rows = split_indices(card, split, found)
        assert [index.tolist() for index in rows] == [train, test]
        assert all(index.dtype == np.int64 for index in rows)


def test_data_without_their_test_masks_are_not_here(tmp_path, serve):
    card, files = masked("0,1\n1,0\n0,0\n")
    put(tmp_path / "mirror", card, files[0])
    assert raw.location(card, tmp_path / "mirror") == "to be downloaded"
    serve(files[1])
    raw.load_raw(card, 0, tmp_path / "mirror")
    assert raw.location(card, tmp_path / "mirror") == "data folder"
    assert cached_files(tmp_path) == [tmp_path / "cache" / "data" / card.files[1].path]


@pytest.mark.parametrize("which", [0, 1])
def test_each_altered_file_is_refused(tmp_path, which):
    card, files = masked("0,1\n1,0\n0,0\n")
    paths = put_both(tmp_path / "mirror", card, files)
    paths[which].write_bytes(files[which] + b"0")
    with pytest.raises(InputError, match=rf"{paths[which]} is not the airfoil data: its SHA-256 is \w{{64}}, expected"):
        raw.load_raw(card, 0, tmp_path / "mirror")


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        ("0,1\n1,0\n", "has 2 rows and 2 columns, but the card of airfoil expects 3 rows and a column for each of 2"),
        ("0\n1\n0\n", "has 3 rows and 1 columns"),
        ("0,1\n2,0\n0,0\n", "is not a table of test masks, expected 0 for training rows and 1 for test rows"),
        ("0,1\n0,0\n0,0\n", "and both in each column"),
        ("1,1\n1,0\n1,0\n", "and both in each column"),
    ],
)
def test_masks_that_are_none_are_refused(tmp_path, masks, words):
    card, files = masked(masks)
    put_both(tmp_path / "mirror", card, files)
    with pytest.raises(InputError, match=words):
        raw.load_raw(card, 0, tmp_path / "mirror")
