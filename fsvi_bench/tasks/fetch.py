"""Raw files of the cards, from the data folder, the user cache or a download, in this order.

The SHA-256 is verified every time.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

from fsvi_bench.errors import InputError
from fsvi_bench.files import is_directory, is_file, sha256_of_file
from fsvi_bench.tasks.card import RawFile

DATA_VARIABLE = "FSVI_BENCH_DATA"
CACHE_VARIABLE = "FSVI_BENCH_CACHE"
MIRROR_VARIABLE = "FSVI_BENCH_MIRROR"
ABSENT = "to be downloaded"


class _Altered(Exception):
    """A download does not have the card's SHA-256."""


def cache_dir() -> Path:
    """The user cache: `$FSVI_BENCH_CACHE`, else the platform's cache folder."""
    import pooch

    return Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("fsvi-bench"))


def fetch(name: str, file: RawFile, data_dir: Path | None = None) -> Path:
    """The path of a data set's raw file, which is downloaded if it is missing; its SHA-256 is verified.

    Raises:
        InputError: the file cannot be found or downloaded, or is not the card's.
    """
    places = _places(file, data_dir)
    found = _find(file, places)
    path = found[1] if found else _download(name, file, places)
    if fault := _fault(file, path):
        raise InputError(f"{path} is not the {name} data: {fault}; delete the file and download it again")
    return path


def place_of(files: Sequence[RawFile], data_dir: Path | None = None) -> str:
    """Where raw files are (not verified), for display: the place of the first; `ABSENT` if one of them is absent."""
    found = [_find(file, _places(file, data_dir)) for file in files]
    return ABSENT if None in found else next(where for where, _ in filter(None, found))


def unpacked(path: Path) -> IO[bytes]:
    """Opens a file for reading, and decompresses it if its content is gzip's.

    The name does not decide: some servers decompress `*.gz` files as they send them.
    """
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path)) if packed else path.open("rb")


def _places(file: RawFile, data_dir: Path | None) -> dict[str, Path]:
    """Candidate paths of the raw file, in order: in the data folder, if one is set, and in the cache."""
    places = {"cache": cache_dir() / "data" / file.path}
    named = data_dir or os.environ.get(DATA_VARIABLE)
    if not named:
        return places
    if not is_directory(Path(named)):
        where = "--data-dir" if data_dir else f"${DATA_VARIABLE}"
        raise InputError(f"{where} is {named}, which is not a folder; set it to the folder that contains {file.path}")
    return {"data folder": Path(named) / file.path, **places}


def _find(file: RawFile, places: dict[str, Path]) -> tuple[str, Path] | None:
    """The first place that has the file, and its path; a packed file may lie there decompressed."""
    for where, path in places.items():
        for candidate in (path, path.with_suffix("")) if file.packed else (path,):
            if is_file(candidate):
                return where, candidate
    return None


def _fault(file: RawFile, path: Path) -> str | None:
    """How a file differs from the card's, or None."""
    if not file.packed:
        got, whose = sha256_of_file(path), "its SHA-256"
    else:
        whose = "the SHA-256 of its decompressed content"
        try:
            with unpacked(path) as stream:
                got = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            return f"it is a truncated or damaged gzip file ({error})"
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
    return None if got == file.sha256 else f"{whose} is {got}, expected {file.sha256}"


def _download(name: str, file: RawFile, places: dict[str, Path]) -> Path:
    """Downloads the raw file to the cache and returns its path; a partial or altered download is not kept."""
    import pooch

    def get(url: str, output: str, _: object) -> None:
        pooch.HTTPDownloader(timeout=30)(url, output, None)
        if fault := _fault(file, Path(output)):  # before pooch moves the file to its place
            raise _Altered(fault)

    target = places["cache"]
    pooch.get_logger().setLevel("WARNING")
    mirror = os.environ.get(MIRROR_VARIABLE)
    urls = (f"{mirror.rstrip('/')}/{file.path}",) if mirror else file.urls
    reason, altered = "no URL is known", ""
    for url in urls:
        try:
            pooch.retrieve(url, known_hash=None, fname=target.name, path=target.parent, downloader=get)
            return target
        except OSError as error:  # includes all errors of requests
            reason = f"{url}: {error.strerror or type(error).__name__}"
        except _Altered as error:
            altered = f"from {url} is truncated or altered: {error}"
    if altered:
        raise InputError(f"the download of the {name} data {altered}; try again, or put the file at {target} yourself")
    looked = " and ".join(map(str, places.values()))
    raise InputError(
        f"the {name} data are not on this machine (looked for {looked}) and cannot be downloaded ({reason}); "
        f"put the file at {target}, or point --data-dir or ${DATA_VARIABLE} at a folder that contains {file.path}"
    )
