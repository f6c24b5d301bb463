"""Files that appear whole or not at all, and hashes of what they hold."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import uuid
from pathlib import Path
from typing import Any

from fsvi_bench.errors import InputError

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")


def write_atomically(path: Path, content: bytes) -> None:
    """Writes through a temporary file in the same folder, fsync and rename: a reader never sees half a file.

    Raises:
        InputError: the folder cannot be made or written.
    """
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        _remove(temporary)
        raise InputError(f"cannot write {path}: {error.strerror}; choose another folder or free space") from error
    except BaseException:
        _remove(temporary)
        raise


def _sync_directory(path: Path) -> None:
    """Makes a rename survive a power cut; where folders cannot be opened the rename alone has to do."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_leftovers(root: Path) -> None:
    """Removes the temporary files that a killed `write_atomically` left beneath a folder."""
    for folder, _, names in os.walk(root):
        for name in names:
            if _TEMPORARY.fullmatch(name):
                _remove(Path(folder) / name)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def is_file(path: Path) -> bool:
    """`Path.is_file` that says False, not an error, of names too long and folders that may not be searched."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_directory(path: Path) -> bool:
    """`Path.is_dir`, likewise."""
    try:
        return path.is_dir()
    except OSError:
        return False


def require_writable_directory(path: Path, what: str, mend: str) -> None:
    """Makes sure, before any work is done, that files can be made in a folder; nothing stays behind from asking.

    A file without a name is opened in the folder, or in the nearest one above it that exists: permissions alone do not
    tell of read-only or special file systems.

    Raises:
        InputError: that cannot be done; says what the folder is for and how to mend it.
    """
    existing = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))  # noqa: PTH110
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(f"{what} {path} is not writable: {existing}: {error.strerror}; {mend}") from error


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text, and so equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256_of_json(value: Any) -> str:
    """SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
