"""What a report is made from: the archive of an output folder, and the traces beside its records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsvi_bench.errors import InputError
from fsvi_bench.files import is_file
from fsvi_bench.reporting.cell_files import folder_of
from fsvi_bench.running.archive import read_archive
from fsvi_bench.running.cell import Record
from fsvi_bench.running.store import TRACE_FILE
from fsvi_bench.training.trace import Trace, read_trace


@dataclass(frozen=True)
class Results:
    """Records, their traces by `record.cell`, and counts as in `running.archive.Archive`."""

    records: list[Record]
    traces: dict[str, Trace]
    planned: int
    missing: int
    stale: int


def read_results(root: Path) -> Results:
    """All current records beneath an output folder, and their traces. Nothing is written there.

    Raises:
        InputError: there is no such folder, it holds no records, or a file in it is not what its name says.
    """
    archive = read_archive(root)
    if not archive.records:
        raise InputError(f"{root} holds no records yet, only a plan; let `fsvi-bench run` finish some cells first")
    traces = {record.cell: trace for record in archive.records if (trace := _read_trace(root, record))}
    return Results(archive.records, traces, archive.planned, archive.missing, archive.stale)


def _read_trace(root: Path, record: Record) -> Trace | None:
    """Of a cell that finished: what a failed one left behind is no result."""
    if record.status != "ok":
        return None
    path = root / folder_of(record) / TRACE_FILE
    if not is_file(path):
        return None
    try:
        return read_trace(path)
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):  # a run with --rerun has just removed it
            return None
        raise
