"""A leaderboard's folder as it counts: every entry with the result that the verifier made of exactly this entry.

    leaderboard/entries/<name>/         entries
    leaderboard/editions/<edition>/     edition.toml
    leaderboard/results/<edition>/      <name>.json, <name>.json.sig
    leaderboard/allowed_signers         whose results count; without it the board is one's own, and results need none

A result whose signature, entry, edition, scoring version or tasks do not fit counts for nothing, and is listed with the
command that renews it. Nothing is run and nothing is scored here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fsvi_bench.errors import InputError, invalid_field, quoted
from fsvi_bench.files import is_directory, is_file, read_bounded, require_writable_directory, write_atomically
from fsvi_bench.leaderboard.edition import Edition, read_edition
from fsvi_bench.leaderboard.entry import (
    ENTRIES,
    ENTRY_FILE,
    Entry,
    Manifest,
    SourceFile,
    Track,
    read_entry,
    require_name,
)
from fsvi_bench.leaderboard.identity import require_own_source, require_own_title
from fsvi_bench.leaderboard.ranked_tasks import Place, runs
from fsvi_bench.leaderboard.result import RESULT_BYTES, SCORING_VERSION, Cell, Result, result_path
from fsvi_bench.leaderboard.signing import ALLOWED_SIGNERS, signer
from fsvi_bench.strict import checked, toml_text

MOST_ENTRIES = 5000


@dataclass(frozen=True, eq=False)
class Standing:
    """An entry on the board: with a result that counts, or with the reason why it has none."""

    entry: Entry
    result: Result | None
    signer: str | None  #: who signed the result; None on a board of one's own
    stale: str | None  #: why there is no result that counts

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def track(self) -> Track:
        return self.entry.manifest.track

    @property
    def cells(self) -> Sequence[Cell]:
        """Those of the result, if it counts."""
        return self.result.cells if self.result else ()


@dataclass(frozen=True)
class Refused:
    """A folder that is no entry, or may not be one; shown by its name and one sentence."""

    name: str
    problem: str


@dataclass(frozen=True, eq=False)
class Board:
    """A leaderboard in one edition, entries by name."""

    edition: Edition
    standings: list[Standing]
    refused: list[Refused]
    signed: bool  #: whether only what an allowed signer has signed counts


def read_board(root: Path, edition: str | None = None) -> Board:
    """A leaderboard's folder; an entry that is broken never stops the others.

    Args:
        edition: its name; by default the latest one.

    Raises:
        InputError: there are no entries or editions in the folder, or the edition cannot be read.
    """
    if not is_directory(root / ENTRIES):
        raise InputError(f"{root} holds no leaderboard (entries/ and editions/); make one: fsvi-bench leaderboard init")
    read = read_edition(root, edition)
    signed, wanted = os.path.lexists(root / ALLOWED_SIGNERS), set(runs(read))
    entries, refused = read_entries(root)
    standings = [_standing(entry, root, read, signed, wanted) for entry in entries]
    # Of two entries that may not stand side by side, the one that has a result was there first.
    kept: list[Standing] = []
    for standing in sorted(standings, key=lambda each: (each.result is None, each.name)):
        try:
            require_identity(standing.entry, [other.entry for other in kept])
            kept.append(standing)
        except InputError as error:
            refused.append(Refused(standing.name, str(error)))
    by_name = attrgetter("name")
    return Board(read, sorted(kept, key=by_name), sorted(refused, key=by_name), signed)


def require_identity(entry: Entry, others: list[Entry]) -> None:
    """Raises InputError if an entry's title or source may not stand beside these others; itself is passed over."""
    others = [other for other in others if other.name != entry.name]
    require_own_title(entry, others)
    require_own_source(entry, others)


def read_entries(root: Path) -> tuple[list[Entry], list[Refused]]:
    """The entries of a leaderboard's folder by name, and what lies there and is none. Hidden names are passed over."""
    with os.scandir(root / ENTRIES) as found:
        names = sorted(each.name for each in islice(found, MOST_ENTRIES + 1))
    if len(names) > MOST_ENTRIES:
        raise InputError(
            f"{root / ENTRIES} holds more than {MOST_ENTRIES} folders, more than a board can have; remove some"
        )
    entries: list[Entry] = []
    refused: list[Refused] = []
    for name in names:
        folder = root / ENTRIES / name
        if name.startswith(".") or (is_file(folder) and not folder.is_symlink()):
            continue
        try:
            entries.append(read_entry(folder))
        except InputError as error:
            problem = str(error).replace(f"{folder}{os.sep}", "").replace(str(folder), "the folder")
            refused.append(Refused(quoted(name)[1:-1], problem))
    return entries, refused


def read_placed_entry(folder: Path) -> tuple[Entry, Path]:
    """An entry, and the leaderboard's folder that it stands in.

    Raises:
        InputError: it is no entry, or stands in no leaderboard's folder.
    """
    folder = folder.absolute()
    if folder.parent.name != ENTRIES:
        raise InputError(f"{folder} is in no leaderboard, expected LEADERBOARD/{ENTRIES}/NAME; move it there")
    return read_entry(folder), folder.parents[1]


def write_entry(
    root: Path, name: str, content: Mapping[str, Any], source: bytes | None, replace: bool,
    check: Callable[[Entry], object],
) -> Entry:  # fmt: skip
    """Writes `root/entries/<name>/` atomically. Nothing is written there before the entry has passed `check`.

    Args:
        content: fields of `entry.toml`, not yet validated.
        source: text of the method's file, unless the method is built in.
        check: further check of the entry.

    Raises:
        InputError: a field is not valid, the entry is too similar to another one, the folder exists and `replace` is
            false, or `check` raises it.
    """
    require_name(name)
    entries = root / ENTRIES
    folder = entries / name
    require_writable_directory(entries, "folder of entries", "choose another leaderboard with --root")
    if folder.exists() and not replace:
        raise InputError(f"{folder} already exists; overwrite it with --replace, or choose another --name")
    manifest = checked(Manifest, content, folder / ENTRY_FILE)
    files = {ENTRY_FILE: toml_text(manifest).encode()}
    if isinstance(manifest.method, SourceFile):
        files[manifest.method.file] = source or b""
    with tempfile.TemporaryDirectory(prefix="fsvi-bench-") as draft:
        entry = read_entry(_write_files(Path(draft, name), files))  # as a verifier would read it
        require_identity(entry, read_entries(root)[0] if is_directory(entries) else [])
        check(entry)
    entries.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=entries, ignore_cleanup_errors=True) as workshop:
        made = _write_files(Path(workshop, name), files)
        if folder.exists():
            folder.rename(Path(workshop, "earlier"))
        made.rename(folder)
    return entry


def _write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        write_atomically(folder / name, content)
    return folder


class _Stale(Exception):
    """Why a result does not count, in a clause."""


def _standing(entry: Entry, root: Path, edition: Edition, signed: bool, wanted: set[tuple[Place, int]]) -> Standing:
    try:
        result, who = _signed_result(result_path(root, edition.name, entry.name), root, signed)
        _require_current(result, entry, edition, wanted)
    except _Stale as error:
        return Standing(entry, None, None, str(error))
    return Standing(entry, result, who, None)


def _signed_result(path: Path, root: Path, signed: bool) -> tuple[Result, str | None]:
    """A result, and who signed it where signatures are asked for; bytes that nobody signed are not looked into."""
    if not os.path.lexists(path):
        raise _Stale("not verified yet")
    try:
        content = read_bounded(path, RESULT_BYTES)
    except InputError as error:
        raise _Stale(f"its result is no file of {RESULT_BYTES >> 20} MiB at most") from error
    who = signer(path, content, root) if signed else None
    if signed and who is None:
        raise _Stale("no allowed signer signed its result")
    try:
        result = Result.model_validate_json(content)
    except ValidationError as error:
        raise _Stale(f"its result cannot be read ({invalid_field(error)})") from error
    if result.text() != content:  # doubled keys, numbers out of range: what another reader would read otherwise
        raise _Stale("its result is not as `verify` wrote it")
    return result, who


def _require_current(result: Result, entry: Entry, edition: Edition, wanted: set[tuple[Place, int]]) -> None:
    """Raises _Stale unless a result is one of exactly this entry in exactly this edition."""
    if (result.entry, result.entry_sha256) != (entry.name, entry.sha256):
        raise _Stale("its result is of an earlier version of the entry")
    if (result.edition, result.edition_sha256) != (edition.name, edition.sha256):
        raise _Stale("its result is of other tasks than this edition's")
    if result.scoring_version != SCORING_VERSION:
        raise _Stale(f"its result is of scoring version {result.scoring_version}, and this is {SCORING_VERSION}")
    if not result.isolated and not edition.allow_without_isolation:
        raise _Stale("it was run without a jail, which this edition does not rank")
    lacking = wanted - {(cell.place, cell.seed) for cell in result.cells}
    others = len(result.cells) - len(wanted - lacking)  # a run that stands twice is one
    if lacking or others:
        raise _Stale(f"its result lacks {len(lacking)} of {len(wanted)} runs, and has {others} others")
