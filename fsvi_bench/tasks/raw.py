"""Loads raw data from the data folder, the user cache or a download, in this order; always verifies the SHA-256."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fsvi_bench.errors import InputError
from fsvi_bench.files import is_directory, is_file, sha256_of_file
from fsvi_bench.tasks.card import Card, FileSource, SklearnSource
from fsvi_bench.tasks.toy import draw_toy

Array = NDArray[np.float64]
DATA_VARIABLE = "FSVI_BENCH_DATA"
CACHE_VARIABLE = "FSVI_BENCH_CACHE"
MIRROR_VARIABLE = "FSVI_BENCH_MIRROR"


@dataclass(frozen=True)
class RawData:
    """Inputs X [n,D] and targets y [n] as published, with the SHA-256 that identifies them."""

    X: Array
    y: Array
    sha256: str
    test_masks: NDArray[np.bool_] | None = None  #: published splits [n, splits]: whether a row is a test row

    @staticmethod
    def of(X: Array, y: Array) -> RawData:
        """Data identified by their values: SHA-256 over little-endian float64 X, then y."""
        digest = hashlib.sha256(X.astype("<f8").tobytes() + y.astype("<f8").tobytes())
        return RawData(np.ascontiguousarray(X), np.ascontiguousarray(y), digest.hexdigest())


def cache_dir() -> Path:
    """The user cache: `$FSVI_BENCH_CACHE`, else the platform's cache folder."""
    import pooch

    return Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("fsvi-bench"))


def load_raw(card: Card, split: int, data_dir: Path | None = None) -> RawData:
    """A data set's raw data. `split` matters only for the toy problem, whose splits are different draws.

    Raises:
        InputError: the data cannot be found or downloaded, or do not match the card.
    """
    source = card.source
    if isinstance(source, SklearnSource):
        return _load_diabetes(source.sha256)
    if isinstance(source, FileSource):
        return _load_files(card, source, data_dir)
    return RawData.of(*draw_toy(split))


def _places(source: FileSource, data_dir: Path | None) -> dict[str, Path]:
    """Candidate paths of the raw file, in order: in the data folder, if one is set, and in the cache."""
    places = {"cache": cache_dir() / "data" / source.path}
    named = data_dir or os.environ.get(DATA_VARIABLE)
    if not named:
        return places
    if not is_directory(Path(named)):
        where = "--data-dir" if data_dir else f"${DATA_VARIABLE}"
        raise InputError(f"{where} is {named}, which is not a folder; set it to the folder that contains {source.path}")
    return {"data folder": Path(named) / source.path, **places}


def is_here(card: Card, data_dir: Path | None = None) -> bool:
    """Whether the raw data are available without a download."""
    return location(card, data_dir) != "to be downloaded"


def location(card: Card, data_dir: Path | None = None) -> str:
    """Where the raw data are (not verified), or how they are obtained, for display."""
    if isinstance(card.source, SklearnSource):
        return "bundled with scikit-learn"
    if not card.files:
        return "generated"
    absent = "to be downloaded"
    found = [
        next((name for name, path in _places(file, data_dir).items() if is_file(path)), absent) for file in card.files
    ]
    return absent if absent in found else found[0]


def _download(card: Card, source: FileSource, places: dict[str, Path]) -> Path:
    """Downloads the raw file to the cache and returns its path; a partial or altered download is not kept."""
    import pooch

    target = places["cache"]
    pooch.get_logger().setLevel("WARNING")
    mirror = os.environ.get(MIRROR_VARIABLE)
    urls = (f"{mirror.rstrip('/')}/{source.path}",) if mirror else source.urls
    reason = "no URL is known"
    for url in urls:
        try:
            pooch.retrieve(
                url,
                known_hash=f"sha256:{source.sha256}",
                fname=target.name,
                path=target.parent,
                downloader=pooch.HTTPDownloader(timeout=30),
            )
            return target
        except OSError as error:  # includes all errors of requests, some of which are also ValueErrors
            reason = f"{url}: {error.strerror or type(error).__name__}"
        except ValueError:
            raise InputError(
                f"the download of the {card.name} data from {url} is truncated or altered: its SHA-256 is not "
                f"{source.sha256}; try again, or put the file at {target} yourself"
            ) from None
    looked = " and ".join(map(str, places.values()))
    raise InputError(
        f"the {card.name} data are not on this machine (looked for {looked}) and cannot be downloaded ({reason}); "
        f"put the file at {target}, or point --data-dir or ${DATA_VARIABLE} at a folder that contains {source.path}"
    )


@lru_cache(maxsize=8)  # safe to cache: the file's hash is verified before each call
def _read_table(path: Path) -> Array:
    return np.loadtxt(path, delimiter="," if path.name.endswith(".csv.gz") else None, ndmin=2)


def _verified_table(card: Card, source: FileSource, data_dir: Path | None) -> tuple[Path, Array]:
    """The path of a raw file, which is downloaded if it is missing, and its table."""
    places = _places(source, data_dir)
    path = next(filter(is_file, places.values()), None) or _download(card, source, places)
    if (got := sha256_of_file(path)) != source.sha256:
        raise InputError(
            f"{path} is not the {card.name} data: its SHA-256 is {got}, expected {source.sha256}; "
            "delete the file and download it again"
        )
    return path, _read_table(path)


def _load_files(card: Card, source: FileSource, data_dir: Path | None) -> RawData:
    path, table = _verified_table(card, source, data_dir)
    columns = max(*card.feature_columns, card.target.column) + 1
    if len(table) != card.n or table.shape[1] < columns:
        raise InputError(
            f"{path} has {table.shape[0]} rows and {table.shape[1]} columns, but the card of {card.name} expects "
            f"{card.n} rows and at least {columns} columns; fix the card"
        )
    masks = _load_masks(card, card.splits.test_masks, data_dir) if card.splits.test_masks else None
    return RawData(table[:, card.feature_columns], table[:, card.target.column], source.sha256, masks)


def _load_masks(card: Card, source: FileSource, data_dir: Path | None) -> NDArray[np.bool_]:
    path, table = _verified_table(card, source, data_dir)
    if table.shape != (card.n, card.splits.count):
        raise InputError(
            f"{path} has {table.shape[0]} rows and {table.shape[1]} columns, but the card of {card.name} expects "
            f"{card.n} rows and a column for each of {card.splits.count} splits; fix the card"
        )
    shares = table.mean(0)
    if not (np.isin(table, (0, 1)).all() and (shares > 0).all() and (shares < 1).all()):
        raise InputError(
            f"{path} is not a table of test masks, expected 0 for training rows and 1 for test rows, and both in each "
            "column; fix the card"
        )
    return table == 1


@lru_cache(maxsize=1)
def _load_diabetes(expected: str) -> RawData:
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True, scaled=False)
    raw = RawData.of(X, y)
    if raw.sha256 != expected:
        raise InputError(
            f"scikit-learn's bundled diabetes data have SHA-256 {raw.sha256}, expected {expected}; "
            "install a scikit-learn version with the original data"
        )
    return raw
