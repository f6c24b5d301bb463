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
from pathlib import Path

from pydantic import ValidationError

from fsvi_bench.errors import InputError, invalid_field, quoted
from fsvi_bench.files import is_directory, is_file
from fsvi_bench.leaderboard.edition import Edition, edition_names, read_edition
from fsvi_bench.leaderboard.entry import ENTRIES, Entry, Track, read_bounded, read_entry
from fsvi_bench.leaderboard.identity import require_own_source, require_own_title
from fsvi_bench.leaderboard.ranked_tasks import Place, places
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
    names = edition_names(root)
    if not names or not is_directory(root / ENTRIES):
        raise InputError(f"{root} holds no leaderboard (entries/ and editions/); make one: fsvi-bench leaderboard init")
    read = read_edition(root, edition or names[-1])
    expected, signed = places(read), os.path.lexists(root / ALLOWED_SIGNERS)
    entries, refused = read_entries(root)
    standings = [_standing(entry, root, read, expected, signed) for entry in entries]
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
    """Raises InputError if an entry's title or source may not stand beside these others."""
    require_own_title(entry, others)
    require_own_source(entry, others)


def read_entries(root: Path) -> tuple[list[Entry], list[Refused]]:
    """The entries of a leaderboard's folder by name, and what lies there and is none. Hidden names are passed over."""
    found: tuple[list[Entry], list[Refused]] = [], []
    for folder in _folders(root / ENTRIES):
        try:
            found[0].append(read_entry(folder))
        except InputError as error:
            problem = str(error).replace(f"{folder}{os.sep}", "").replace(str(folder), "the folder")
            found[1].append(Refused(quoted(folder.name)[1:-1], problem))
    return found


def _folders(entries: Path) -> Iterator[Path]:
    with os.scandir(entries) as found:
        names = [each.name for each, _ in zip(found, range(MOST_ENTRIES + 1), strict=False)]
    if len(names) > MOST_ENTRIES:
        raise InputError(f"{entries} holds more than {MOST_ENTRIES} folders, more than a board can have; remove some")
    plain_files = {name for name in names if is_file(entries / name) and not (entries / name).is_symlink()}
    return (entries / name for name in sorted(names) if not name.startswith(".") and name not in plain_files)


def _standing(entry: Entry, root: Path, edition: Edition, expected: list[Place], signed: bool) -> Standing:
    path = result_path(root, edition.name, entry.name)
    try:
        content = read_bounded(path, RESULT_BYTES)
    except InputError:
        return Standing(entry, None, None, "not verified yet" if not os.path.lexists(path) else "its result is no file")
    who = signer(path, content, root) if signed else None
    try:
        result = Result.model_validate_json(content)
    except ValidationError as error:
        return Standing(entry, None, None, f"its result cannot be read ({invalid_field(error)})")
    stale = _why_stale(result, entry, edition, expected)
    if result.text() != content:  # doubled keys, numbers out of range: what another reader would read otherwise
        stale = "its result is not as `verify` wrote it"
    if signed and who is None:
        stale = "no allowed signer signed its result"
    return Standing(entry, None if stale else result, who, stale)


def _why_stale(result: Result, entry: Entry, edition: Edition, expected: list[Place]) -> str | None:
    """Why a result is not one of exactly this entry in exactly this edition; None if it is."""
    if (result.entry, result.entry_sha256) != (entry.name, entry.sha256):
        return "its result is of an earlier version of the entry"
    if (result.edition, result.edition_sha256) != (edition.name, edition.sha256):
        return "its result is of other tasks than this edition's"
    if result.scoring_version != SCORING_VERSION:
        return f"its result is of scoring version {result.scoring_version}, and this is {SCORING_VERSION}"
    if not result.isolated and not edition.allow_without_isolation:
        return "it was run without a jail, which this edition does not rank"
    wanted = {(place, seed) for place in expected for seed in range(edition.seeds if place.kind == "ranked" else 1)}
    if lacking := len(wanted - {(cell.place, cell.seed) for cell in result.cells}):
        return f"its result lacks {lacking} of {len(wanted)} runs"
    return None
