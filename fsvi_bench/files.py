"""Files that appear whole or not at all, and hashes of what they hold."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from fsvi_bench.errors import InputError


def write_atomically(path: Path, content: bytes) -> None:
    """Writes through a temporary file in the same folder, fsync and rename: a reader never sees half a file.

    Raises:
        InputError: the folder cannot be made or written.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror}; choose another folder or free space") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def require_writable_directory(path: Path) -> None:
    """Makes the folder and proves that a file can be made in it.

    Raises:
        InputError: it cannot; said before any work is done rather than after.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(
            f"output folder {path} is not writable: {error.strerror}; choose another with --out"
        ) from error


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
