"""Raw data: looked up in the data folder, then the user cache, then downloaded; the SHA-256 is checked every time."""

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

    @staticmethod
    def of(X: Array, y: Array) -> RawData:
        """Data that are identified by their values: SHA-256 over little-endian float64 X, then y."""
        digest = hashlib.sha256(X.astype("<f8").tobytes() + y.astype("<f8").tobytes())
        return RawData(np.ascontiguousarray(X), np.ascontiguousarray(y), digest.hexdigest())


def cache_dir() -> Path:
    """The user cache: `$FSVI_BENCH_CACHE`, else the platform's own place."""
    import pooch

    return Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("fsvi-bench"))


def load_raw(card: Card, split: int, data_dir: Path | None = None) -> RawData:
    """A data set's raw data. `split` matters for the toy problem alone, whose splits are different draws.

    Raises:
        InputError: the data cannot be found or fetched, or are not the ones that the card describes.
    """
    source = card.source
    if isinstance(source, SklearnSource):
        return _load_diabetes(source.sha256)
    if isinstance(source, FileSource):
        return _load_file(card, source, _locate(card, source, data_dir))
    return RawData.of(*draw_toy(split))


def _locate(card: Card, source: FileSource, data_dir: Path | None) -> Path:
    """Path of a data set's raw file, downloaded into the cache if it is nowhere else; its SHA-256 is checked."""
    candidates = _candidates(source, data_dir)
    for path in filter(is_file, candidates):
        if (got := sha256_of_file(path)) != source.sha256:
            raise InputError(
                f"{path} is not the {card.name} data: its SHA-256 is {got}, expected {source.sha256}; "
                "delete the file and fetch it again"
            )
        return path
    return _download(card, source, candidates)


def _candidates(source: FileSource, data_dir: Path | None) -> list[Path]:
    """Where the raw file may lie: beneath the data folder, if one is named, and in the cache (always last)."""
    named = data_dir or os.environ.get(DATA_VARIABLE)
    roots = [Path(named)] if named else []
    if roots and not is_directory(roots[0]):
        where = "--data-dir" if data_dir else f"${DATA_VARIABLE}"
        raise InputError(f"{where} names {roots[0]}, which is not a folder; name the folder that holds {source.path}")
    return [root / source.path for root in (*roots, cache_dir() / "data")]


def is_here(card: Card, data_dir: Path | None = None) -> bool:
    """Whether the raw data can be had without a download."""
    return whereabouts(card, data_dir) != "to be downloaded"


def whereabouts(card: Card, data_dir: Path | None = None) -> str:
    """A few words on where the raw data are (not verified), or how they come about."""
    if isinstance(card.source, SklearnSource):
        return "bundled with scikit-learn"
    if not isinstance(card.source, FileSource):
        return "generated"
    *named, cached = _candidates(card.source, data_dir)
    if any(map(is_file, named)):
        return "data folder"
    return "cache" if is_file(cached) else "to be downloaded"


def _download(card: Card, source: FileSource, candidates: list[Path]) -> Path:
    """Fetches the raw file into the cache; a partial or altered download leaves nothing behind."""
    target = candidates[-1]
    import pooch
    import requests

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
        except ValueError:
            raise InputError(
                f"the download of the {card.name} data from {url} is truncated or altered: its SHA-256 is not "
                f"{source.sha256}; try again, or put the file at {target} yourself"
            ) from None
        except requests.RequestException as error:
            reason = f"{url}: {type(error).__name__}"
        except OSError as error:
            reason = f"{url}: {error.strerror or error}"
    looked = " and ".join(str(path) for path in candidates)
    raise InputError(
        f"the {card.name} data are not on this machine (looked for {looked}) and cannot be downloaded ({reason}); "
        f"put the file at {target}, or point --data-dir or ${DATA_VARIABLE} at a folder that holds {source.path}"
    )


@lru_cache(maxsize=4)
def _read_table(path: Path, modified_ns: int) -> Array:
    """The table of a verified file; `modified_ns` keeps the memory of an earlier version from being used."""
    return np.loadtxt(path)


def _load_file(card: Card, source: FileSource, path: Path) -> RawData:
    table = _read_table(path, path.stat().st_mtime_ns)
    columns = max(*card.feature_columns, card.target.column) + 1
    if len(table) != card.n or table.shape[1] < columns:
        raise InputError(
            f"{path} holds {table.shape[0]} rows of {table.shape[1]} columns, but the card of {card.name} says "
            f"{card.n} rows of at least {columns}; mend the card"
        )
    return RawData(table[:, card.feature_columns], table[:, card.target.column], source.sha256)


@lru_cache(maxsize=1)
def _load_diabetes(expected: str) -> RawData:
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True, scaled=False)
    raw = RawData.of(X, y)
    if raw.sha256 != expected:
        raise InputError(
            f"scikit-learn's bundled diabetes data have SHA-256 {raw.sha256}, expected {expected}; "
            "install a scikit-learn version that ships the original data"
        )
    return raw
