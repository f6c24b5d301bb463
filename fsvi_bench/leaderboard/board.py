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
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from fsvi_bench.errors import InputError, invalid_field, quoted
from fsvi_bench.files import is_directory, is_file, read_bounded
from fsvi_bench.leaderboard.edition import Edition, read_edition
from fsvi_bench.leaderboard.entry import ENTRIES, Entry, Track, read_entry
from fsvi_bench.leaderboard.identity import require_own_source, require_own_title
from fsvi_bench.leaderboard.ranked_tasks import Place, runs
from fsvi_bench.leaderboard.result import RESULT_BYTES, SCORING_VERSION, Cell, Result, result_path
from fsvi_bench.leaderboard.signing import ALLOWED_SIGNERS, signer

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

    def cells(self, kind: str) -> list[Cell]:
        """Those of the result, if it counts, on `ranked` or on `official` tasks."""
        return [cell for cell in (self.result.cells if self.result else ()) if cell.kind == kind]


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

    def track(self, track: Track) -> list[Standing]:
        """The entries of a track that have a result."""
        return [each for each in self.standings if each.result is not None and each.track == track]


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
    wanted = set(runs(read))
    entries, refused = read_entries(root)
    standings = [_standing(entry, root, read, wanted) for entry in entries]
    # Of two entries that may not stand side by side, the one that has a result was there first.
    kept: list[Standing] = []
    for standing in sorted(standings, key=lambda each: (each.result is None, each.name)):
        try:
            require_identity(standing.entry, [other.entry for other in kept])
            kept.append(standing)
        except InputError as error:
            refused.append(Refused(standing.name, str(error)))
    return Board(read, sorted(kept, key=lambda each: each.name), sorted(refused, key=lambda each: each.name))


def require_identity(entry: Entry, others: list[Entry]) -> None:
    """Raises InputError if an entry's title or source may not stand beside these others; itself is passed over."""
    others = [other for other in others if other.name != entry.name]
    require_own_title(entry, others)
    require_own_source(entry, others)


def read_entries(root: Path) -> tuple[list[Entry], list[Refused]]:
    """The entries of a leaderboard's folder by name, and what lies there and is none. Hidden names are passed over."""
    entries: list[Entry] = []
    refused: list[Refused] = []
    for folder in _folders(root / ENTRIES):
        try:
            entries.append(read_entry(folder))
        except InputError as error:
            problem = str(error).replace(f"{folder}{os.sep}", "").replace(str(folder), "the folder")
            refused.append(Refused(quoted(folder.name)[1:-1], problem))
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


def _folders(entries: Path) -> Iterator[Path]:
    with os.scandir(entries) as found:
        names = [each.name for each in islice(found, MOST_ENTRIES + 1)]
    if len(names) > MOST_ENTRIES:
        raise InputError(f"{entries} holds more than {MOST_ENTRIES} folders, more than a board can have; remove some")
    shown = (entries / name for name in sorted(names) if not name.startswith("."))
    return (path for path in shown if path.is_symlink() or not is_file(path))


class _Stale(Exception):
    """Why a result does not count, in a clause."""


def _standing(entry: Entry, root: Path, edition: Edition, wanted: set[tuple[Place, int]]) -> Standing:
    try:
        result, who = _signed_result(result_path(root, edition.name, entry.name), root)
        if why := _why_stale(result, entry, edition, wanted):
            raise _Stale(why)
    except _Stale as error:
        return Standing(entry, None, None, str(error))
    return Standing(entry, result, who, None)


def _signed_result(path: Path, root: Path) -> tuple[Result, str | None]:
    """A result, and who signed it where signatures are asked for; bytes that nobody signed are not looked into."""
    if not os.path.lexists(path):
        raise _Stale("not verified yet")
    try:
        content = read_bounded(path, RESULT_BYTES)
    except InputError as error:
        raise _Stale(f"its result is no file of {RESULT_BYTES >> 20} MiB at most") from error
    who = None
    if os.path.lexists(root / ALLOWED_SIGNERS) and (who := signer(path, content, root)) is None:
        raise _Stale("no allowed signer signed its result")
    try:
        result = Result.model_validate_json(content)
    except ValidationError as error:
        raise _Stale(f"its result cannot be read ({invalid_field(error)})") from error
    if result.text() != content:  # doubled keys, numbers out of range: what another reader would read otherwise
        raise _Stale("its result is not as `verify` wrote it")
    return result, who


def _why_stale(result: Result, entry: Entry, edition: Edition, wanted: set[tuple[Place, int]]) -> str | None:
    """Why a result is not one of exactly this entry in exactly this edition; None if it is."""
    if (result.entry, result.entry_sha256) != (entry.name, entry.sha256):
        return "its result is of an earlier version of the entry"
    if (result.edition, result.edition_sha256) != (edition.name, edition.sha256):
        return "its result is of other tasks than this edition's"
    if result.scoring_version != SCORING_VERSION:
        return f"its result is of scoring version {result.scoring_version}, and this is {SCORING_VERSION}"
    if not result.isolated and not edition.allow_without_isolation:
        return "it was run without a jail, which this edition does not rank"
    found = {(cell.place, cell.seed) for cell in result.cells}
    if found != wanted:
        return f"its result lacks {len(wanted - found)} of {len(wanted)} runs, and has {len(found - wanted)} others"
    return None
