"""Atomic writing, careful reading, locking and hashing of files."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fsvi_bench.errors import InputError

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")


def write_atomically(path: Path, content: bytes) -> None:
    """Writes through a temporary file in the same folder, fsync and rename: a reader never sees a partial file.

    Raises:
        InputError: the folder cannot be created or written.
    """
    replace_together(path.parent, {}, path.name, content)


def replace_together(folder: Path, others: Mapping[str, bytes | None], mark: str, content: bytes) -> None:
    """Replaces a set of files by a new set with the same names; None stands for a file that the new set lacks.

    `mark` is the file that makes a set valid. All new files are written before an old one is touched, so that a full
    disk loses nothing. Then the old mark is removed first and the new one put in place last, so that a mark never
    accompanies files of two sets.

    Raises:
        InputError: the folder cannot be created or written.
    """
    suffix = uuid.uuid4().hex
    new = {name: text for name, text in {**others, mark: content}.items() if text is not None}
    at = folder / mark
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in new.items():
            at = folder / name
            _write_and_sync(_temporary(at, suffix), text)
        if others:
            (folder / mark).unlink(missing_ok=True)
        for name in others:
            if name in new:
                _temporary(folder / name, suffix).replace(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        _temporary(folder / mark, suffix).replace(folder / mark)
        _sync_directory(folder)
    except OSError as error:
        raise InputError(f"cannot write {at}: {error.strerror}; choose another folder or free some space") from error
    finally:
        for name in new:
            _remove(_temporary(folder / name, suffix))


def _temporary(path: Path, suffix: str) -> Path:
    return path.parent / f".{path.name}.{suffix}"


def _write_and_sync(path: Path, content: bytes) -> None:
    with path.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_directory(path: Path) -> None:
    """Makes a rename survive a power cut, on systems where folders can be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_leftovers(root: Path) -> None:
    """Removes temporary files of a killed `write_atomically` from a folder and its subfolders."""
    for folder, _, names in os.walk(root):
        for name in names:
            if _TEMPORARY.fullmatch(name):
                _remove(Path(folder) / name)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def is_file(path: Path) -> bool:
    """`Path.is_file`, but False instead of an error for names that are too long and folders that are not readable."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_directory(path: Path) -> bool:
    """`Path.is_dir`, but False instead of an error, as `is_file`."""
    try:
        return path.is_dir()
    except OSError:
        return False


def require_writable_directory(path: Path, what: str, fix: str) -> None:
    """Checks, before any work is done, that files can be created in a folder; it leaves nothing behind.

    It opens a temporary file in the folder, or in its nearest existing parent: permissions alone do not reveal
    read-only or special file systems.

    Raises:
        InputError: the folder is not writable; the message says what the folder is for and how to fix it.
    """
    existing = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))  # noqa: PTH110
    try:
        with contextlib.suppress(FileNotFoundError):
            path.stat()  # a name can be too long
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(f"{what} {path} is not writable: {existing}: {error.strerror}; {fix}") from error


def read_bounded(path: Path, limit: int, *, follow: bool = False) -> bytes:
    """The content of a regular file, without ever blocking.

    Args:
        follow: whether the path may be a symbolic link.

    Raises:
        InputError: it is not a regular file, has more than `limit` bytes, or cannot be read.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise InputError(f"{path} is not a regular file; replace it with one")
            content = stream.read(limit + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; expected a readable file") from error
    if len(content) > limit:
        raise InputError(f"{path} has more than {limit:,} bytes, the maximum; is it the right file?")
    return content


@contextlib.contextmanager
def locked_directory(folder: Path, what: str) -> Iterator[None]:
    """Creates a folder and locks it against other calls; the system releases the lock however the process ends.

    Raises:
        InputError: another process holds the lock, or the folder cannot be created.
    """
    require_writable_directory(folder, what, "choose another folder or free some space")
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"another process is using the {what} {folder}; wait until it is finished") from error
        except OSError as error:  # some network file systems have no locks
            raise InputError(f"cannot lock the {what} {folder}: {error.strerror}; choose a local folder") from error
        yield
    finally:
        os.close(held)


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


def json_in_lines(text: str, levels: int) -> str:
    """Reformats JSON: the outermost levels are indented, with one line per item below, so that diffs are readable."""

    def flat(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def lines(value: Any, level: int) -> str:
        if level == levels or not value or not isinstance(value, dict | list):
            return flat(value)
        names = [f"{flat(name)}: " for name in value] if isinstance(value, dict) else [""] * len(value)
        within = value.values() if isinstance(value, dict) else value
        start, end = "{}" if isinstance(value, dict) else "[]"
        line = "\n" + " " * (level + 1)
        entries = f",{line}".join(name + lines(each, level + 1) for name, each in zip(names, within, strict=True))
        return f"{start}{line}{entries}\n{' ' * level}{end}"

    return lines(json.loads(text), 0) + "\n"


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values have equal text and equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256_of_json(value: Any) -> str:
    """SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
