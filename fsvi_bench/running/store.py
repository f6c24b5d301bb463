"""The output folder: one folder per cell, written atomically with the record last, by one run at a time.

`Store` writes it and reads its plans and records; `load_*` read the other files of a cell.
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
from fsvi_bench.networks.reference import Functions, functions_file
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.io import posterior_file, read_posterior
from fsvi_bench.running.cell import Cell, Plan, Record, on_task
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.training.trace import Trace, read_trace

TRACE_FILE, POSTERIOR_FILE, TRACEBACK_FILE = "trace.csv", "posterior.safetensors", "traceback.txt"
RECORD_FILE = "record.json"
LOCK_FILE = ".lock"
HOLDER_FILE = ".running"  #: names the process that is using the folder

Model = TypeVar("Model", bound=BaseModel)
#: Numbers of cells by data set, method, family and status, which may be `missing`.
Counts = Counter[tuple[str, str, str, str]]


class _Head(BaseModel):
    """The fields of a record that a count needs; the others are not validated."""

    cell: str
    dataset: str
    method: str
    family: str
    status: str


class Store:
    """Plans, records and posteriors in one folder.

    `plans`, `wanted`, `records` and the counts are read on first use and cached.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder against other writers; the system releases the lock however this process ends.

        Temporary files of a killed run are removed first. If the folder is new and still empty at the end, it is
        removed while the lock is held: a waiting process then finds the lock file gone and creates another.

        Raises:
            InputError: the folder cannot be created or written, or another process is using it.
        """
        require_writable_directory(self.root, "output folder", "choose another with --out")
        holder, lock = self.root / HOLDER_FILE, FileLock(self.root / LOCK_FILE)
        new = not self.root.exists()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise InputError(
                f"another run is using {self.root} ({_read_holder(holder)}); wait until it is finished, or "
                "choose another folder with --out"
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
        """Writes a plan, unless the newest plan here is equal to it."""
        path = self.root / "plans" / f"{plan.name}.json"
        now, *before = (each.model_dump(exclude={"written", "provenance"}) for each in [plan, *read_plans(self.root)])
        if before[-1:] != [now] or not path.is_file():
            write_atomically(path, (plan.model_dump_json(indent=1) + "\n").encode())

    def save(
        self,
        record: Record,
        posterior: Posterior | Functions | None,
        trace: Trace | None = None,
        traceback: str | None = None,
    ) -> None:
        """Replaces a cell's record, and its trace, posterior and traceback as far as it has them.

        Raises:
            InputError: the files cannot be written; an earlier record and its files are then kept.
        """
        others = {
            TRACE_FILE: None if trace is None else trace.to_csv().encode(),
            POSTERIOR_FILE: _posterior_file(posterior, record.task_sha256),
            TRACEBACK_FILE: None if traceback is None else traceback.encode(errors="backslashreplace"),
        }
        text = (record.model_dump_json(indent=2) + "\n").encode()
        replace_together(self.root / record.folder, others, RECORD_FILE, text)

    def read(self, cell: Cell) -> Record | None:
        """The record of a cell, if it is finished: the record is written after the other files.

        Raises:
            InputError: the file there is not the record of this cell; such a file is never overwritten.
        """
        path = self.root / cell.folder / RECORD_FILE
        record = _read(path, Record)
        if record and (record.cell != cell.key or any(getattr(record, name) != value for name, value in cell)):
            raise InputError(f"{path} is the record of another cell; move it elsewhere and rerun the command")
        return record

    def status(self, cell: Cell | Record | _Head, rerun: str = "none") -> str:
        """The status of a cell; `missing` if it has no record.

        Args:
            rerun: `all`, or the status of cells to be recomputed; these count as missing.
        """
        if not isinstance(cell, Cell):
            return cell.status
        # Skips the scores: with them, 100,000 cells would take seconds.
        head = None if rerun == "all" else _read(self.root / cell.folder / RECORD_FILE, _Head)
        return "missing" if head is None or head.status == rerun else head.status

    def count(self, cells: Iterable[Cell | Record | _Head], rerun: str = "none") -> Counts:
        """Counts of cells by status, including cells without a task; see `status` for `rerun`."""
        return Counter((cell.dataset, cell.method, cell.family, self.status(cell, rerun)) for cell in cells)

    @cached_property
    def plans(self) -> list[Plan]:
        """All plans, the oldest first."""
        return read_plans(self.root)

    @cached_property
    def paths(self) -> list[Path]:
        """The paths of all records, sorted.

        Raises:
            InputError: the folder does not exist, or has neither records nor a plan.
        """
        if not is_directory(self.root):
            fault = f"{self.root} is a file" if is_file(self.root) else f"folder {self.root} does not exist"
            raise InputError(f"{fault}; name the output folder (--out) of an earlier run")
        paths = sorted((self.root / "cells").glob(f"*/*/*/{RECORD_FILE}"))
        if not self.plans and not paths and (self.root / HOLDER_FILE).is_file():
            raise InputError(
                f"the run in {self.root} has no records yet: it is fitting tasks, or was killed; try again later, or "
                "rerun its command"
            )
        if not self.plans and not paths:
            raise InputError(
                f"{self.root} contains neither records nor a plan; name the output folder (--out) of an earlier run"
            )
        return paths

    @cached_property
    def wanted(self) -> list[Any]:
        """The cells of all plans, and records of those whose task was refused, each from its latest plan.

        Without a plan, all records in the folder.
        """
        if self.paths and not self.plans:
            return [head for path in self.paths if (head := _read(path, _Head)) is not None]
        wanted: dict[tuple[str, int, int], Cell | Record] = {}
        for plan in self.plans:
            certified = {task.place: task for task in plan.tasks if task.task_sha256 is not None}
            for key, of in wanted.items():  # what was refused or not known is missing from now on
                if not of.task_sha256 and (task := certified.get((of.dataset, of.split))):
                    wanted[key] = on_task(of, task)
            wanted |= {(each.row, each.split, each.seed): each for each in plan.cells()}
            wanted |= {(each.row, each.split, each.seed): each for each in plan.refused_records()}
        return list(wanted.values())

    @cached_property
    def records(self) -> list[Record]:
        """The records of the wanted cells, as far as they exist.

        Raises:
            InputError: as `paths`, or a file is not a valid record.
        """
        if self.paths and not self.plans:
            found: Iterable[Record | None] = (_read(path, Record) for path in self.paths)
        else:
            found = (each if isinstance(each, Record) else self.read(each) for each in self.wanted)
        return [record for record in found if record is not None]

    @property
    def planned(self) -> int:
        """Number of cells in the plans."""
        return len(self.wanted)

    @property
    def missing(self) -> int:
        """Number of planned cells without a record."""
        return self.planned - len(self.records)

    @cached_property
    def stale(self) -> int:
        """Number of records in no plan: their cells were planned again with other code, kernels or tasks."""
        known = {self.root / each.folder for each in self.wanted} if self.plans else set()
        return sum(path.parent not in known for path in self.paths if self.plans)


def _posterior_file(posterior: Posterior | Functions | None, task_sha256: str | None) -> bytes | None:
    if isinstance(posterior, Functions):
        return functions_file(posterior, task_sha256)
    return None if posterior is None else posterior_file(posterior, task_sha256)


def _read(path: Path, model: type[Model], what: str = "a valid record") -> Model | None:
    """The content of a file, or None if there is no such file: a run may have removed it.

    Raises:
        InputError: the file is not valid.
    """
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else invalid_field(error)
        raise InputError(f"{path} is not {what} ({why}); move it elsewhere and rerun the command") from error


def read_plans(root: Path) -> list[Plan]:
    """The plans in an output folder, the oldest first.

    Raises:
        InputError: a file is not a valid plan.
    """
    plans = (_read(path, Plan, "a plan") for path in sorted((root / "plans").glob("*.json")))
    return sorted((plan for plan in plans if plan is not None), key=lambda plan: plan.written)


def _read_holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")[:200]
    except (OSError, UnicodeDecodeError):
        return "its process is unknown"


def paths_of(records: Iterable[Record], root: Path, names: Iterable[str]) -> Iterator[Path]:
    """The files with these names in the folders of the records, as far as they exist."""
    folders = [root.resolve() / record.folder for record in records]
    return filter(is_file, (folder / name for folder in folders for name in names))


def load_posterior(record: Record, root: Path, task: FrozenTask) -> Posterior:
    """The posterior behind the scores of a record.

    Raises:
        InputError: it is missing, or not a posterior of this task.
    """
    return read_posterior(root / record.folder / POSTERIOR_FILE, task.k, task.sha256)


def load_trace(record: Record, root: Path) -> Trace | None:
    """The trace of a record; None if its method has none, or a run is recomputing the cell.

    Raises:
        InputError: the file is not a trace.
    """
    try:
        return read_trace(root / record.folder / TRACE_FILE)
    except FileNotFoundError:
        return None


def load_traces(records: Iterable[Record], root: Path) -> dict[str, Trace]:
    """`record.cell` -> trace, for the records that have one.

    Raises:
        InputError: a file is not a trace.
    """
    return {record.cell: trace for record in records if (trace := load_trace(record, root)) is not None}
