"""Files that appear whole or not at all, and hashes of what they hold."""

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
    """Writes through a temporary file in the same folder, fsync and rename: a reader never sees half a file.

    Raises:
        InputError: the folder cannot be made or written.
    """
    replace_together(path.parent, {}, path.name, content)


def replace_together(folder: Path, others: Mapping[str, bytes | None], mark: str, content: bytes) -> None:
    """Puts a set of files in place of an earlier set of the same names, None for one that the new set does not have.

    `mark` names the file without which the others count for nothing. All that is new is written before anything old is
    touched, so that a full disk costs nothing; then the old mark goes first and the new one comes last, so that files
    of two sets never lie beside a mark.

    Raises:
        InputError: the folder cannot be made or written.
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
        raise InputError(f"cannot write {at}: {error.strerror}; choose another folder or free space") from error
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


def read_bounded(path: Path, limit: int, *, follow: bool = False) -> bytes:
    """A plain file's content; nothing that could block is waited for.

    Args:
        follow: whether the path may be a link to it.

    Raises:
        InputError: it is no plain file, has more than `limit` bytes, or cannot be read.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise InputError(f"{path} is no plain file; put one in its place")
            content = stream.read(limit + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; expected a plain file that may be read") from error
    if len(content) > limit:
        raise InputError(f"{path} has more than {limit:,} bytes, expected at most that; is it the right file?")
    return content


@contextlib.contextmanager
def locked_directory(folder: Path, what: str) -> Iterator[None]:
    """Makes a folder and keeps other processes out that ask in this way; the system lets go of it however one ends.

    Raises:
        InputError: another is in it; the folder cannot be made.
    """
    require_writable_directory(folder, what, "choose another or free space")
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"another process is at work in the {what} {folder}; wait until it is done") from error
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
    """JSON again, its outermost levels indented and a line for each thing within: small, and changes show by line."""

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
    """JSON with sorted keys and no spaces: equal values give equal text, and so equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256_of_json(value: Any) -> str:
    """SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
