"""Raw data of regression: tables from files, scikit-learn's diabetes data, and draws of the toy problem."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fsvi_bench.errors import InputError
from fsvi_bench.tasks.card import AnyCard, Card, FileSource, ImageCard, SklearnSource
from fsvi_bench.tasks.fetch import ABSENT, fetch, place_of
from fsvi_bench.tasks.toy import draw_toy

Array = NDArray[np.float64]


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


def is_here(card: AnyCard, data_dir: Path | None = None) -> bool:
    """Whether the raw data are available without a download."""
    return location(card, data_dir) != ABSENT


def location(card: AnyCard, data_dir: Path | None = None) -> str:
    """Where the raw data are (not verified), or how they are obtained, for display."""
    if isinstance(card, ImageCard) or card.files:
        return place_of(card.files, data_dir)
    return "bundled with scikit-learn" if isinstance(card.source, SklearnSource) else "generated"


@lru_cache(maxsize=8)  # safe to cache: the file's hash is verified before each call
def _read_table(path: Path) -> Array:
    return np.loadtxt(path, delimiter="," if path.name.endswith(".csv.gz") else None, ndmin=2)


def _verified_table(card: Card, source: FileSource, data_dir: Path | None) -> tuple[Path, Array]:
    """The path of a raw file, which is downloaded if it is missing, and its table."""
    path = fetch(card.name, source, data_dir)
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
