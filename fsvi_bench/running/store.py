"""The output folder: one folder per cell, each file whole or absent, the record last; one run at a time.

`Store` writes it and says what is in it; `load_*` read what lies beside a record.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from fsvi_bench.errors import InputError, invalid_field
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
from fsvi_bench.running.cell import Cell, Plan, Record
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.training.trace import Trace, read_trace

TRACE_FILE, POSTERIOR_FILE, TRACEBACK_FILE = "trace.csv", "posterior.safetensors", "traceback.txt"
RECORD_FILE = "record.json"
LOCK_FILE = ".lock"
HOLDER_FILE = ".running"  #: says which process is at work

Model = TypeVar("Model", bound=BaseModel)
#: Numbers of cells by data set, method, family and what became of them (`missing` for not yet).
Counts = Counter[tuple[str, str, str, str]]


class _Head(BaseModel):
    """The few words of a record that a count needs, not validated beyond that."""

    cell: str
    dataset: str
    method: str
    family: str
    status: str


class Store:
    """Plans, records and posteriors beneath one folder.

    `plans`, `wanted`, `records` and the counts are read when they are first asked for, and kept.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else may write here meanwhile; the system gives the lock back however this process ends.

        What a killed run had half written is cleared away first. If the folder is new and still empty, it is removed
        afterwards, while the lock is held: whoever waits for the file finds it gone and makes another.

        Raises:
            InputError: the folder cannot be made or written, or another process is at work here.
        """
        require_writable_directory(self.root, "output folder", "choose another with --out")
        holder, lock = self.root / HOLDER_FILE, FileLock(self.root / LOCK_FILE)
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
                holder.unlink(missing_ok=True)
                if new and [path.name for path in self.root.iterdir()] == [LOCK_FILE]:
                    (self.root / LOCK_FILE).unlink()
                    self.root.rmdir()
            lock.release()

    def save_plan(self, plan: Plan) -> None:
        """Writes a plan unless it is the newest here and says nothing else."""
        path = self.root / "plans" / f"{plan.name}.json"
        now, *before = (each.model_dump(exclude={"written", "provenance"}) for each in [plan, *read_plans(self.root)])
        if before[-1:] != [now] or not path.is_file():
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
        replace_together(self.root / record.folder, others, RECORD_FILE, text)

    def read(self, cell: Cell) -> Record | None:
        """A cell's finished record. It is written after the posterior, so that it marks the cell finished.

        Raises:
            InputError: a file lies there that is not this cell's record; it is never overwritten unseen.
        """
        path = self.root / cell.folder / RECORD_FILE
        record = _read(path, Record)
        if record and (record.cell != cell.key or any(getattr(record, name) != value for name, value in cell)):
            raise InputError(f"{path} is the record of another cell; move it away and run again")
        return record

    def status(self, cell: Cell | Record | _Head, rerun: str = "none") -> str:
        """What became of a cell; `missing` for not yet.

        Args:
            rerun: `all`, or the status of those cells that would be computed again, and count as missing.
        """
        if not isinstance(cell, Cell):
            return cell.status
        # Scores are not read: 100,000 cells take seconds.
        head = None if rerun == "all" else _read(self.root / cell.folder / RECORD_FILE, _Head)
        return "missing" if head is None or head.status == rerun else head.status

    def count(self, cells: Iterable[Cell | Record | _Head], rerun: str = "none") -> Counts:
        """What became of cells, those without a task included; `rerun` as `status` has it."""
        return Counter((cell.dataset, cell.method, cell.family, self.status(cell, rerun)) for cell in cells)

    @cached_property
    def plans(self) -> list[Plan]:
        """The oldest first."""
        return read_plans(self.root)

    @cached_property
    def paths(self) -> list[Path]:
        """Those of all records, sorted.

        Raises:
            InputError: there is no such folder, or it holds no records and no plan.
        """
        if not is_directory(self.root):
            raise InputError(f"there is no folder {self.root}; name the one that a run was given with --out")
        paths = sorted((self.root / "cells").glob(f"*/*/*/{RECORD_FILE}"))
        if not self.plans and not paths and (self.root / HOLDER_FILE).is_file():
            raise InputError(
                f"a run began in {self.root} and has no record yet: it is fitting tasks, or was killed; look again "
                "later, or run its command again"
            )
        if not self.plans and not paths:
            raise InputError(
                f"{self.root} holds neither records nor a plan; name the folder that a run was given with --out"
            )
        return paths

    @cached_property
    def wanted(self) -> list[Any]:
        """The plans' cells, and records of those whose task was refused, each as its latest plan has it.

        Without a plan it is what lies there.
        """
        if self.paths and not self.plans:
            return [head for path in self.paths if (head := _read(path, _Head)) is not None]
        wanted: dict[tuple[str, int, int], Cell | Record] = {}
        for plan in self.plans:
            certified = {(task.dataset, task.split) for task in plan.tasks if task.task_sha256 is not None}
            wanted = {
                key: of for key, of in wanted.items() if of.task_sha256 or (of.dataset, of.split) not in certified
            }
            wanted |= {(each.row, each.split, each.seed): each for each in plan.cells()}
            wanted |= {(each.row, each.split, each.seed): each for each in plan.refused_records()}
        return list(wanted.values())

    @cached_property
    def records(self) -> list[Record]:
        """One for each wanted cell that has one.

        Raises:
            InputError: as `paths`, or a file is not what it should be.
        """
        if self.paths and not self.plans:
            found: Iterable[Record | None] = (_read(path, Record) for path in self.paths)
        else:
            found = (each if isinstance(each, Record) else self.read(each) for each in self.wanted)
        return [record for record in found if record is not None]

    @property
    def planned(self) -> int:
        """Cells that the plans ask for."""
        return len(self.wanted)

    @property
    def missing(self) -> int:
        """Of these, cells without a record yet."""
        return self.planned - len(self.records)

    @cached_property
    def stale(self) -> int:
        """Records of cells that no plan asks for: of other code, kernels, settings or tasks."""
        known = {self.root / each.folder for each in self.wanted} if self.plans else set()
        return sum(path.parent not in known for path in self.paths if self.plans)


def _read(path: Path, model: type[Model], what: str = "a valid record") -> Model | None:
    """What a file says, or None if there is no such file (any more: a run may be at work in the folder).

    Raises:
        InputError: it is none of these.
    """
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else invalid_field(error)
        raise InputError(f"{path} is not {what} ({why}); move it away and run again") from error


def read_plans(root: Path) -> list[Plan]:
    """The plans in an output folder, the oldest first.

    Raises:
        InputError: a file there is not a plan.
    """
    plans = (_read(path, Plan, "a plan") for path in sorted((root / "plans").glob("*.json")))
    return sorted((plan for plan in plans if plan is not None), key=lambda plan: plan.written)


def _read_holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")[:200]
    except (OSError, UnicodeDecodeError):
        return "it did not leave its name"


def paths_of(records: Iterable[Record], root: Path, names: Iterable[str]) -> Iterator[Path]:
    """Files of these names in the records' folders, those that are there."""
    folders = [root.resolve() / record.folder for record in records]
    return filter(is_file, (folder / name for folder in folders for name in names))


def load_posterior(record: Record, root: Path, task: FrozenTask) -> Posterior:
    """The posterior that a record's scores are of.

    Raises:
        InputError: it is missing, or not a posterior of this task.
    """
    return read_posterior(root / record.folder / POSTERIOR_FILE, task.k, task.sha256)


def load_trace(record: Record, root: Path) -> Trace | None:
    """A record's trace; None if its method has none, or a run is just computing the cell again.

    Raises:
        InputError: the file is not a trace.
    """
    try:
        return read_trace(root / record.folder / TRACE_FILE)
    except FileNotFoundError:
        return None


def load_traces(records: Iterable[Record], root: Path) -> dict[str, Trace]:
    """`record.cell` -> trace, for those that have one.

    Raises:
        InputError: a file lies there that is not a trace.
    """
    return {record.cell: trace for record in records if (trace := load_trace(record, root)) is not None}
