"""The output folder: one folder per cell, each file whole or absent, the record last; one run at a time."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError

from fsvi_bench.errors import InputError, plain
from fsvi_bench.files import remove_leftovers, replace_together, require_writable_directory, write_atomically
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.io import posterior_file
from fsvi_bench.running.cell import Cell, Record, cell_of
from fsvi_bench.running.planfile import PlanFile
from fsvi_bench.scoring.scores import not_a_number
from fsvi_bench.training.trace import Trace

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
            write_atomically(holder, _this_process().encode())
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
        newest = max(read_plans(self.root), key=lambda each: each.written, default=None)
        same = newest is not None and newest.model_copy(update={"written": plan.written, "provenance": {}}) == (
            plan.model_copy(update={"provenance": {}})
        )
        if not (same and path.is_file()):
            write_atomically(path, (plan.model_dump_json(indent=1) + "\n").encode())

    def load(self, cell: Cell) -> Record | None:
        """A cell's finished record, or None. A record is written after its posterior, so it marks the cell finished.

        Raises:
            InputError: a file lies there that is not this cell's record; it is never overwritten unseen.
        """
        return read_record_of(cell, self.root / cell.folder / RECORD_FILE)

    def save(
        self,
        cell: Cell,
        record: Record,
        posterior: Posterior | None,
        trace: Trace | None = None,
        traceback: str | None = None,
    ) -> None:
        """Writes what a cell has of trace, posterior and traceback, and its record, in place of what was there.

        Raises:
            InputError: that cannot be done; an earlier record then still stands with its files.
        """
        others = {
            TRACE_FILE: None if trace is None else trace.to_csv().encode(),
            POSTERIOR_FILE: None if posterior is None else posterior_file(posterior, cell.task_sha256),
            TRACEBACK_FILE: None if traceback is None else traceback.encode(),
        }
        text = (record.model_dump_json(indent=2) + "\n").encode()
        replace_together(self.root / cell.folder, others, RECORD_FILE, text)


def read_record(path: Path) -> Record:
    """A record's file.

    Raises:
        FileNotFoundError: there is none.
        InputError: it is not a record.
    """
    try:
        record = Record.model_validate_json(path.read_bytes())
        if record.scores is not None and (names := not_a_number(record.scores)):
            raise ValueError(f"{', '.join(names)} not numbers")
        return record
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise not_a_record(path, error) from error


def read_record_of(cell: Cell, path: Path) -> Record | None:
    """A cell's record, or None if there is no such file (any more: a run may be at work in the folder).

    Raises:
        InputError: it is not a record, or another cell's.
    """
    try:
        record = read_record(path)
    except FileNotFoundError:
        return None
    if record.cell != cell.key or cell_of(record).key != cell.key:
        raise InputError(f"{path} is the record of another cell; move it away and run again")
    return record


def not_a_record(path: Path, error: Exception) -> InputError:
    """The error for a file that lies where a record should."""
    return InputError(f"{path} is not a valid record ({_why(error)}); move it away and run again")


def _why(error: Exception) -> str:
    """The first of what is wrong with a file, in a clause."""
    match error:
        case ValidationError():
            first = error.errors(include_url=False)[0]
            where = "".join(f"{part}: " for part in first["loc"])
            return plain(f"{where}{first['msg']}")
        case KeyError():
            return plain(f"{error.args[0]}: Field required")
        case TypeError():
            return "no object of fields"
        case OSError():
            return error.strerror or type(error).__name__
    return plain(str(error))


def read_plans(root: Path) -> list[PlanFile]:
    """The plans in an output folder, the oldest first.

    Raises:
        InputError: a file there is not a plan.
    """
    plans = []
    for path in sorted((root / "plans").glob("*.json")):
        try:
            plans.append(PlanFile.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            raise InputError(f"{path} is not a plan ({_why(error)}); move it away and run again") from error
    return sorted(plans, key=lambda plan: plan.written)


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now(UTC).isoformat(timespec='seconds')}"


def _read_holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")[:200]
    except (OSError, UnicodeDecodeError):
        return "it did not leave its name"
