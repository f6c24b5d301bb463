"""The output folder: one folder per cell, each file whole or absent, the record last; one run at a time.

`Store` writes it, `read_archive` and `read_status` say what is in it, `load_*` read what lies beside a record.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from fsvi_bench.errors import InputError, plain
from fsvi_bench.files import (
    is_directory,
    is_file,
    remove_leftovers,
    replace_together,
    require_writable_directory,
    write_atomically,
)
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.io import posterior_file, read_posterior
from fsvi_bench.running.cell import Cell, PlanFile, Record, cell_of, row_sha256
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.training.trace import Trace, read_trace

TRACE_FILE, POSTERIOR_FILE, TRACEBACK_FILE = "trace.csv", "posterior.safetensors", "traceback.txt"
RECORD_FILE = "record.json"
LOCK_FILE = ".lock"
HOLDER_FILE = ".running"  #: says which process is at work


class Store:
    """Records and posteriors beneath one folder.

    Raises:
        InputError: the folder cannot be made or written.
    """

    def __init__(self, root: Path) -> None:
        require_writable_directory(root, "output folder", "choose another with --out")
        self.root = root

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else may write here meanwhile; the system gives the lock back however this process ends.

        What a killed run had half written is cleared away first, and the folder afterwards, if it is new and still
        empty.

        Raises:
            InputError: another process is at work here.
        """
        holder = self.root / HOLDER_FILE
        lock = FileLock(self.root / LOCK_FILE)
        new = not self.root.exists()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise InputError(
                f"another run is at work in {self.root} ({_read_holder(holder)}); wait until it is done, or choose "
                "another folder with --out"
            ) from error
        except OSError as error:
            raise InputError(f"cannot lock {self.root}: {error.strerror}; choose another folder with --out") from error
        try:
            since = datetime.now(UTC).isoformat(timespec="seconds")
            write_atomically(holder, f"process {os.getpid()} on {socket.gethostname()}, since {since}".encode())
            for name in ("cells", "plans"):
                remove_leftovers(self.root / name)
            yield
        finally:
            with suppress(OSError):
                holder.unlink()
            if new:
                self._remove_if_unused()
            lock.release()

    def _remove_if_unused(self) -> None:
        """A run that was refused before it kept anything leaves no folder behind; while it holds the lock, so that who
        waits for the file finds it gone and makes another."""
        with suppress(OSError):
            if [path.name for path in self.root.iterdir()] == [LOCK_FILE]:
                (self.root / LOCK_FILE).unlink()
                self.root.rmdir()

    def save_plan(self, plan: PlanFile) -> None:
        """Writes a plan unless it is the newest here and says nothing else."""
        folder = self.root / "plans"
        path = folder / f"{plan.name}.json"
        newest = [each.model_dump(exclude={"written", "provenance"}) for each in read_plans(self.root)[-1:]]
        if not (newest == [plan.model_dump(exclude={"written", "provenance"})] and path.is_file()):
            write_atomically(path, (plan.model_dump_json(indent=1) + "\n").encode())

    def save(
        self, record: Record, posterior: Posterior | None, trace: Trace | None = None, traceback: str | None = None
    ) -> None:
        """Writes what a cell has of trace, posterior and traceback, and its record, in place of what was there.

        Raises:
            InputError: that cannot be done; an earlier record then still stands with its files.
        """
        others = {
            TRACE_FILE: None if trace is None else trace.to_csv().encode(),
            POSTERIOR_FILE: None if posterior is None else posterior_file(posterior, record.task_sha256),
            TRACEBACK_FILE: None if traceback is None else traceback.encode(),
        }
        text = (record.model_dump_json(indent=2) + "\n").encode()
        replace_together(self.root / folder_of(record), others, RECORD_FILE, text)


Model = TypeVar("Model", bound=BaseModel)


def _read(path: Path, model: type[Model], what: str = "a valid record") -> Model | None:
    """What a file says, or None if there is no such file (any more: a run may be at work in the folder).

    Raises:
        InputError: it is none of these.
    """
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not {what} ({_why(error)}); move it away and run again") from error


def read_record_of(cell: Cell, root: Path) -> Record | None:
    """A cell's finished record. It is written after the posterior, so that it marks the cell finished.

    Raises:
        InputError: a file lies there that is not this cell's record; it is never overwritten unseen.
    """
    path = root / cell.folder / RECORD_FILE
    record = _read(path, Record)
    if record is not None and (record.cell != cell.key or cell_of(record).key != cell.key):
        raise InputError(f"{path} is the record of another cell; move it away and run again")
    return record


class _Head(BaseModel):
    """The few words of a record that a count needs, not validated beyond that."""

    cell: str
    dataset: str
    method: str
    family: str
    status: str


def _why(error: Exception) -> str:
    """The first of what is wrong with a file, in a clause."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return plain("".join(f"{part}: " for part in first["loc"]) + first["msg"])
    return plain(getattr(error, "strerror", None) or str(error))


def read_plans(root: Path) -> list[PlanFile]:
    """The plans in an output folder, the oldest first.

    Raises:
        InputError: a file there is not a plan.
    """
    paths = sorted((root / "plans").glob("*.json"))
    plans = [plan for path in paths if (plan := _read(path, PlanFile, "a plan")) is not None]
    return sorted(plans, key=lambda plan: plan.written)


def _read_holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")[:200]
    except (OSError, UnicodeDecodeError):
        return "it did not leave its name"


@dataclass(frozen=True)
class Archive:
    """The records of a folder's plans; of all that lie there, if it has no plan.

    Where two plans ask for the same cell of different code or tasks, the later plan's counts.
    """

    root: Path
    plans: list[PlanFile]
    records: list[Record]  #: one per cell, in the plans' order; those of refused tasks at the end
    planned: int  #: cells that the plans ask for
    missing: int  #: of these, cells without a record yet
    stale: int  #: records of cells that no plan asks for: of other code, kernels, settings or tasks


#: Numbers of cells by data set, method, family and what became of them (`missing` for not yet).
Counts = Counter[tuple[str, str, str, str]]


def read_archive(root: Path) -> Archive:
    """Everything that a folder's records say.

    Raises:
        InputError: there is no such folder, it holds no records and no plan, or a file in it is not what it should be.
    """
    plans, paths = _contents(root)
    if not plans:
        records = [record for path in paths if (record := _read(path, Record)) is not None]
        return Archive(root, [], records, len(records), 0, 0)
    cells, refused = _wanted(plans)
    records = [record for cell in cells.values() if (record := read_record_of(cell, root)) is not None]
    missing, stale = len(cells) - len(records), _stale(paths, cells.values(), root)
    return Archive(root, plans, records + refused, len(cells) + len(refused), missing, stale)


def read_status(root: Path) -> tuple[Counts, int]:
    """How many cells there are, and how many stale records. Scores are not read: 100,000 cells take seconds.

    Raises:
        InputError: as `read_archive`.
    """
    plans, paths = _contents(root)
    if not plans:
        return _count((head, head.status) for path in paths if (head := _read(path, _Head)) is not None), 0
    cells, refused = _wanted(plans)
    return count_cells(cells.values(), refused, root), _stale(paths, cells.values(), root)


def count_cells(cells: Iterable[Cell], refused: Iterable[Record], root: Path, rerun: str = "none") -> Counts:
    """What became of cells in a folder, those without a task included.

    Args:
        rerun: `all`, or the status of those cells that would be computed again.
    """
    found = ((cell, status_of(cell, root, rerun)) for cell in cells)
    return _count(chain(found, ((record, record.status) for record in refused)))


def status_of(cell: Cell, root: Path, rerun: str = "none") -> str:
    """What became of a cell in a folder; `missing` too if it would be computed again, see `count_cells`."""
    head = None if rerun == "all" else _read(root / cell.folder / RECORD_FILE, _Head)
    return "missing" if head is None or head.status == rerun else head.status


def _count(cells: Iterable[tuple[Cell | Record | _Head, str]]) -> Counts:
    return Counter((of.dataset, of.method, of.family, status) for of, status in cells)


def _stale(paths: Iterable[Path], cells: Iterable[Cell], root: Path) -> int:
    known = {cell.folder for cell in cells}
    return sum(path.parent.relative_to(root).as_posix() not in known for path in paths)


def _contents(root: Path) -> tuple[list[PlanFile], list[Path]]:
    """A folder's plans, and the paths of its records, sorted."""
    if not is_directory(root):
        raise InputError(f"there is no folder {root}; name the one that a run was given with --out")
    plans, paths = read_plans(root), sorted((root / "cells").glob(f"*/*/*/{RECORD_FILE}"))
    if not plans and not paths and (root / HOLDER_FILE).is_file():
        raise InputError(
            f"a run began in {root} and has no record yet: it is fitting tasks, or was killed; look again later, or "
            "run its command again"
        )
    if not plans and not paths:
        raise InputError(f"{root} holds neither records nor a plan; name the folder that a run was given with --out")
    return plans, paths


def _wanted(plans: list[PlanFile]) -> tuple[dict[str, Cell], list[Record]]:
    """Cells by key, in the plans' order, and records of those without a task; each as its latest plan has it."""
    cells: dict[tuple[str, int, int], Cell] = {}
    refused: dict[tuple[str, int, int], Record] = {}
    for plan in plans:
        certified = {(task.dataset, task.split) for task in plan.tasks if task.task_sha256 is not None}
        refused = {name: r for name, r in refused.items() if (r.dataset, r.split) not in certified}
        refused |= {(row_sha256(r), r.split, r.seed): r for r in plan.refused_records()}
        cells |= {(cell.row, cell.split, cell.seed): cell for cell in plan.cells()}
    return {cell.key: cell for cell in cells.values()}, list(refused.values())


def folder_of(record: Record) -> str:
    """The folder beneath the output folder that holds a record's files."""
    # A record was validated when it was read, and knows its cell's key: neither again, ten thousand times.
    cell = cell_of(record)
    cell.__dict__["key"] = record.cell
    return cell.folder


def paths_of(records: Iterable[Record], root: Path, names: Iterable[str]) -> Iterator[Path]:
    """Files of these names in the records' folders, those that are there."""
    folders = [root.resolve() / folder_of(record) for record in records]
    return filter(is_file, (folder / name for folder in folders for name in names))


def load_posterior(record: Record, root: Path, task: FrozenTask) -> Posterior:
    """The posterior that a record's scores are of.

    Raises:
        InputError: it is missing, or not a posterior of this task.
    """
    return read_posterior(root / folder_of(record) / POSTERIOR_FILE, task.k, task.sha256)


def load_trace(record: Record, root: Path) -> Trace | None:
    """A record's trace; None if its method has none, or a run is just computing the cell again.

    Raises:
        InputError: the file is not a trace.
    """
    try:
        return read_trace(root / folder_of(record) / TRACE_FILE)
    except FileNotFoundError:
        return None


def load_traces(records: Iterable[Record], root: Path) -> dict[str, Trace]:
    """`record.cell` -> trace, for those that have one.

    Raises:
        InputError: a file lies there that is not a trace.
    """
    return {record.cell: trace for record in records if (trace := load_trace(record, root)) is not None}
