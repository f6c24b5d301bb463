"""What lies beside a record in its cell's folder, found again from the record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from fsvi_bench.files import is_file
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.running.cell import Record, cell_of
from fsvi_bench.running.store import POSTERIOR_FILE, TRACE_FILE
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.training.trace import Trace, read_trace


def folder_of(record: Record) -> str:
    """The folder beneath the output folder that holds a record's files."""
    # A record was validated when it was read, and knows its cell's key: neither again, ten thousand times.
    cell = cell_of(record)
    cell.__dict__["key"] = record.cell
    return cell.folder


def paths_of(records: Iterable[Record], root: Path, names: Iterable[str]) -> Iterator[Path]:
    """Files of these names in the records' folders, those that are there."""
    folders = [root.resolve() / folder_of(record) for record in records if record.task_sha256]
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
    if record.task_sha256 is None:
        return None
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
