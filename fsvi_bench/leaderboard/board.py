"""Reads and writes the folder of a leaderboard: its entries, each with its valid result.

    leaderboard/entries/<name>/         entries
    leaderboard/editions/<edition>/     edition.toml
    leaderboard/results/<edition>/      <name>.json, <name>.json.sig
    leaderboard/allowed_signers         whose signatures count; without this file results need no signature

A result is valid only if its signature, entry, edition, scoring version and tasks match; otherwise the entry is listed
with the command that verifies it again. No code of an entry is run here, and nothing is scored.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fsvi_bench.errors import InputError, invalid_field
from fsvi_bench.files import is_directory, is_file, read_bounded, require_writable_directory, write_atomically
from fsvi_bench.leaderboard.agreement import AGREE, facts, largest_difference
from fsvi_bench.leaderboard.edition import Edition, Place, read_edition
from fsvi_bench.leaderboard.entry import (
    ENTRIES,
    ENTRY_FILE,
    BuiltIn,
    Entry,
    Manifest,
    SourceFile,
    read_entry,
    require_name,
)
from fsvi_bench.leaderboard.identity import require_own_source, require_own_title
from fsvi_bench.leaderboard.ranked_tasks import runs
from fsvi_bench.leaderboard.result import RESULT_BYTES, SCORING_VERSION, Cell, Result, result_path
from fsvi_bench.leaderboard.signing import ALLOWED_SIGNERS, signer
from fsvi_bench.networks.task import LOGIT
from fsvi_bench.strict import checked, toml_text

MOST_ENTRIES = 5000

Facts = dict[tuple[Place, int, str], float | None]  #: by run and name


@dataclass(frozen=True, eq=False)
class Standing:
    """An entry on the board, with its valid result, or with the reason why it has none."""

    entry: Entry
    result: Result | None
    signer: str | None  #: who signed the result; None on a board without signatures
    stale: str | None  #: why there is no valid result

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def cells(self) -> Sequence[Cell]:
        """The cells of the result, if it is valid."""
        return self.result.cells if self.result else ()

    @property
    def is_untrained(self) -> bool:
        """Whether it is a built-in method that does not train: it took one step, and sent nothing before it."""
        sent = [[each.steps for each in cell.waypoints] for cell in self.cells if cell.status == "ok"]
        alone = bool(sent) and all(steps == [1] for steps in sent)
        return self.entry.source is None and alone and all(cell.steps != 0 for cell in self.cells)


@dataclass(frozen=True)
class Refused:
    """A folder that is not a valid entry, with the reason in one sentence."""

    name: str
    problem: str


@dataclass(frozen=True, eq=False)
class Board:
    """A leaderboard in one edition, with its entries in order of their names."""

    edition: Edition
    standings: list[Standing]
    refused: list[Refused]
    signed: bool  #: whether results need the signature of an allowed signer


def read_board(root: Path, edition: str | None = None) -> Board:
    """Reads a leaderboard's folder. An invalid entry does not affect the others.

    Editions of networks leave out entries of built-in methods that cannot run there.

    Args:
        edition: name of the edition; by default the latest one.

    Raises:
        InputError: the folder has no entries or editions, or the edition cannot be read.
    """
    if not is_directory(root / ENTRIES):
        raise InputError(
            f"{root} is not a leaderboard (it has no entries/); create one with `fsvi-bench leaderboard init`"
        )
    read = read_edition(root, edition)
    signed, wanted = os.path.lexists(root / ALLOWED_SIGNERS), set(runs(read))
    entries, refused = read_entries(root)
    if read.is_networks:
        entries = [entry for entry in entries if _takes_networks(entry, read)]
    standings = _with_equal_tasks([_standing(entry, root, read, signed, wanted) for entry in entries])
    # Of two entries that are too similar, the one with a result takes precedence.
    kept: list[Standing] = []
    for standing in sorted(standings, key=lambda each: (each.result is None, each.name)):
        try:
            require_identity(standing.entry, [other.entry for other in kept])
            kept.append(standing)
        except InputError as error:
            refused.append(Refused(standing.name, str(error)))
    by_name = attrgetter("name")
    return Board(read, sorted(kept, key=by_name), sorted(refused, key=by_name), signed)


def _takes_networks(entry: Entry, edition: Edition) -> bool:
    """Whether an edition of networks can have the entry: of a source file, only running it can tell."""
    from fsvi_bench.methods.registry import built_in_names, load_installed  # takes seconds; other editions need neither

    method = entry.manifest.method
    if not isinstance(method, BuiltIn) or method.name not in built_in_names():
        return True
    cls = load_installed(method.name).cls
    return bool(cls.networks) and not (cls.needs_hidden_units and any(LOGIT in name for name in edition.datasets))


def require_identity(entry: Entry, others: list[Entry]) -> None:
    """Raises InputError if an entry's title or source is too similar to that of another entry in the list."""
    others = [other for other in others if other.name != entry.name]
    require_own_title(entry, others)
    require_own_source(entry, others)


def read_entries(root: Path) -> tuple[list[Entry], list[Refused]]:
    """The entries of a leaderboard in order of their names, and invalid folders. Hidden names are skipped."""
    with os.scandir(root / ENTRIES) as found:
        names = sorted(each.name for each in islice(found, MOST_ENTRIES + 1))
    if len(names) > MOST_ENTRIES:
        raise InputError(f"{root / ENTRIES} contains more than {MOST_ENTRIES} folders, the maximum; remove some")
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
            refused.append(Refused(repr(name)[1:-1][:60], problem))
    return entries, refused


def read_placed_entry(folder: Path) -> tuple[Entry, Path]:
    """An entry, and the folder of its leaderboard.

    Raises:
        InputError: it is not a valid entry, or not in the folder of a leaderboard.
    """
    folder = folder.absolute()
    if folder.parent.name != ENTRIES:
        raise InputError(f"{folder} is not in a leaderboard, expected LEADERBOARD/{ENTRIES}/NAME; move it there")
    return read_entry(folder), folder.parents[1]


def write_entry(
    root: Path, name: str, content: Mapping[str, Any], source: bytes | None, replace: bool,
    check: Callable[[Entry], object],
) -> Entry:  # fmt: skip
    """Writes `root/entries/<name>/`. Nothing is written there before the entry has passed `check`.

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
    if os.path.lexists(folder) and not replace:
        raise InputError(f"{folder} already exists; overwrite it with --replace, or choose another --name")
    manifest = checked(Manifest, content, "the entry")
    files = {ENTRY_FILE: toml_text(manifest).encode()}
    if isinstance(manifest.method, SourceFile):
        files[manifest.method.file] = source or b""
    with tempfile.TemporaryDirectory(prefix="fsvi-bench-") as draft:
        entry = read_entry(_write_files(Path(draft, name), files))  # as a verifier would read it
        require_identity(entry, read_entries(root)[0] if is_directory(entries) else [])
        check(entry)
    entries.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=entries, ignore_cleanup_errors=True) as workspace:
        made = _write_files(Path(workspace, name), files)
        earlier = Path(workspace, "earlier")
        try:
            if os.path.lexists(folder):
                folder.rename(earlier)
            made.rename(folder)
        except BaseException:
            if os.path.lexists(earlier) and not os.path.lexists(folder):
                earlier.rename(folder)
            raise
    return entry


def _write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        write_atomically(folder / name, content)
    return folder


def _with_equal_tasks(standings: Sequence[Standing]) -> list[Standing]:
    """Results for other tasks than most results, or with other references or facts of tasks, do not count.

    Targets drawn from a model depend on the kernels that drew them, so equal secrets need not give equal tasks.
    """

    def tasks(standing: Standing) -> frozenset[tuple[Place, str, str]]:
        return frozenset(
            (cell.place, cell.task.sha256, getattr(cell.task, "reference_sha256", "")) for cell in standing.cells
        )

    (usual, _), *_ = Counter(tasks(each) for each in standings if each.result).most_common(1) or [(frozenset(), 0)]
    alike: list[tuple[Facts, set[str]]] = []  # the facts of a first result, and the names of those that agree with it
    for each in standings:
        if each.result and tasks(each) == usual:
            own = _facts(each)
            group = next((names for first, names in alike if largest_difference(first, own) <= AGREE), None)
            if group is None:
                alike.append((own, {each.name}))
            else:
                group.add(each.name)
    _, most = max(alike, key=lambda group: len(group[1]), default=({}, set()))

    def judged(standing: Standing) -> Standing:
        if standing.result is None or standing.name in most:
            return standing
        why = "its result is for other tasks or references than those of other entries"
        if tasks(standing) == usual:
            why = "the sizes or reference scores of its tasks differ from those of most entries"
        return Standing(standing.entry, None, None, why)

    return list(map(judged, standings))


def _facts(standing: Standing) -> Facts:
    return {(cell.place, cell.seed, name): fact for cell in standing.cells for name, fact in facts(cell).items()}


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
    """A result, and its signer if signatures are required; without a valid signature the content is not parsed."""
    if not os.path.lexists(path):
        raise _Stale("not verified yet")
    try:
        content = read_bounded(path, RESULT_BYTES)
    except InputError as error:
        raise _Stale(f"its result is not a readable file of at most {RESULT_BYTES >> 20} MiB") from error
    who = signer(path, content, root) if signed else None
    if signed and who is None:
        raise _Stale("its result is not signed by an allowed signer")
    try:
        result = Result.model_validate_json(content)
    except ValidationError as error:
        raise _Stale(f"its result cannot be read ({invalid_field(error)})") from error
    if result.text() != content:  # duplicate keys or numbers out of range, which parsers read differently
        raise _Stale("its result was changed after `verify` wrote it")
    return result, who


def _require_current(result: Result, entry: Entry, edition: Edition, wanted: set[tuple[Place, int]]) -> None:
    """Raises _Stale unless a result is for exactly this entry in exactly this edition."""
    if (result.entry, result.entry_sha256) != (entry.name, entry.sha256):
        raise _Stale("its result is for an earlier version of the entry")
    if (result.edition, result.edition_sha256) != (edition.name, edition.sha256):
        raise _Stale("its result is for tasks of a different edition")
    if result.scoring_version != SCORING_VERSION:
        raise _Stale(
            f"its result has scoring version {result.scoring_version}, but the current one is {SCORING_VERSION}"
        )
    if not result.isolated and not edition.allow_without_isolation:
        raise _Stale("its result was made without isolation, and this edition does not rank such results")
    lacking = wanted - {(cell.place, cell.seed) for cell in result.cells}
    others = len(result.cells) - len(wanted - lacking)  # a duplicate run counts here
    if lacking or others:
        raise _Stale(
            f"its result lacks {len(lacking)} of the edition's {len(wanted)} runs, and has {others} that do not "
            "belong to it"
        )
