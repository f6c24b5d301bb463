"""The entries of a leaderboard's folder: every submission there, with the verification of exactly these files.

Nothing is scored and nothing is run here. Posterior files are hashed, not read: a verification of other files than
those that lie there counts for nothing. That a verification is the verifier's own, a hash cannot tell: a leaderboard
takes no file of `verified` from anybody else.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fsvi_bench.errors import InputError, quoted
from fsvi_bench.files import is_directory
from fsvi_bench.leaderboard.reading import submission_sha256
from fsvi_bench.leaderboard.strict import SOURCE_BYTES, read_at_most, read_manifest, too_large
from fsvi_bench.leaderboard.submission import MANIFEST_FILE, Manifest
from fsvi_bench.leaderboard.verification import Verification, verification_path

SUBMISSIONS = "submissions"
FILE_BYTES = 16 * 2**20  #: of any file of a submission: a full covariance of k = 2,000 packed
MOST_FILES = 10_010  #: as many cells as a submission may have, and what lies beside them
DEEPEST = 3  #: posteriors/<dataset>/split-NN.safetensors
VERIFICATION_BYTES = 64 * 2**20  #: 160 cells take half a MiB

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


@dataclass(frozen=True, eq=False)
class Entry:
    """A submission that can be read."""

    manifest: Manifest
    verification: Verification | None  #: of exactly these files
    note: str | None  #: why there is no verification, in plain words
    source: str | None  #: text of the method's file

    @property
    def name(self) -> str:
        """Its folder's name, which no other entry has."""
        return self.manifest.name


@dataclass(frozen=True)
class Unreadable:
    """A folder beneath `submissions` that is not a submission; it has no numbers and is shown by name and sentence."""

    name: str  #: the folder's, in quotes and escaped if it is no plain name; a stranger chose it
    problem: str  #: one sentence


@dataclass(frozen=True, eq=False)
class Board:
    """Everything beneath `submissions`, both sorted by name."""

    entries: list[Entry]
    unreadable: list[Unreadable]


def read_entries(root: Path) -> Board:
    """The submissions of a leaderboard's folder; one that is broken never stops the others.

    Plain files beside the submissions, and folders whose name starts with a dot, are passed over.

    Raises:
        InputError: there is no folder `submissions` in it, or it cannot be read.
    """
    board = Board([], [])
    for folder in _folders(root):
        try:
            board.entries.append(_read_entry(root, folder))
        except (InputError, OSError, ValueError, RecursionError) as error:
            board.unreadable.append(Unreadable(_shown(folder.name), _sentence(error, folder)))
    return board


def _folders(root: Path) -> list[Path]:
    submissions = root / SUBMISSIONS
    if not is_directory(submissions):
        raise InputError(f"{root} has no folder '{SUBMISSIONS}'; name the folder of a leaderboard, or make that one")
    try:
        with os.scandir(submissions) as found:
            names = [each.name for each in found if each.is_symlink() or each.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise InputError(f"cannot read {submissions}: {error.strerror}") from error
    return [submissions / name for name in sorted(names) if not name.startswith(".")]


def _shown(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quoted(name)


def _sentence(error: Exception, folder: Path) -> str:
    """Without the place of the leaderboard's folder, which is nobody's business and not the same twice."""
    said = str(error) if isinstance(error, InputError) else f"it cannot be read ({type(error).__name__})"
    said = said.replace(f"{folder}{os.sep}", "").replace(str(folder), "the folder")
    return said.encode(errors="backslashreplace").decode()


def _read_entry(root: Path, folder: Path) -> Entry:
    """Raises InputError if it is no submission, whatever its posteriors hold."""
    if folder.is_symlink():
        raise InputError("it is a symbolic link, expected a folder; copy the files themselves")
    manifest = read_manifest(folder / MANIFEST_FILE)
    if manifest.name != folder.name:
        got = f"{MANIFEST_FILE}: name: got {quoted(manifest.name)}, expected the folder's name"
        raise InputError(f"{got}, {quoted(folder.name)}; rename one of them")
    source = None if manifest.source is None else _read_source(folder / manifest.source.file)
    verification, note = _read_verification(root, folder)
    return Entry(manifest, verification, note, source)


def _read_source(path: Path) -> str:
    content = read_at_most(path, SOURCE_BYTES + 1)
    if len(content) > SOURCE_BYTES:
        raise too_large(path, SOURCE_BYTES)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}); save it as such") from error


def _read_verification(root: Path, folder: Path) -> tuple[Verification | None, str | None]:
    """The verification of exactly these files; or None, and why there is none."""
    path = verification_path(root, folder.name)
    if not os.path.lexists(path):
        return None, "it has not been verified yet"
    try:
        # Python sets aside as many bytes as it is asked to read: no more than there are.
        size = min(path.lstat().st_size, VERIFICATION_BYTES)
        verification = Verification.model_validate_json(read_at_most(path, size))
    except (InputError, ValidationError):
        return None, "its verification cannot be read; verify it again"
    if (verification.submission, verification.submission_sha256) != (folder.name, folder_sha256(folder)):
        return None, "its files are not those that were verified; verify it again"
    return verification, None


def folder_sha256(folder: Path) -> str:
    """The hash of a submission by which its verification names it: over names and contents of all its files.

    Raises:
        InputError: it holds links, too many files or too large ones, or cannot be read.
    """
    sha256s: dict[str, bytes | str] = {}
    for name, size in _files(folder, "", DEEPEST):
        if size > FILE_BYTES:
            raise too_large(folder / name, FILE_BYTES)
        sha256s[name] = hashlib.sha256(read_at_most(folder / name, size)).hexdigest()
        if len(sha256s) > MOST_FILES:
            raise InputError(
                f"{folder} holds more than {MOST_FILES} files, which no submission does; remove the others"
            )
    return submission_sha256(sha256s)


def _files(folder: Path, inside: str, depth: int) -> Iterator[tuple[str, int]]:
    """Names of plain files beneath a folder, and their sizes; nothing is opened that could block or lead elsewhere."""
    with os.scandir(folder / inside) as found:
        for each in found:
            name = inside + each.name
            if each.is_dir(follow_symlinks=False) and depth > 1:
                yield from _files(folder, f"{name}/", depth - 1)
            elif each.is_file(follow_symlinks=False):
                yield name, each.stat(follow_symlinks=False).st_size
            else:
                raise InputError(f"{folder / name} is neither a plain file nor a folder of them; remove it")
