"""What a report is made from: the archive of an output folder, and the traces beside its records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsvi_bench.errors import InputError
from fsvi_bench.presenting.cell_files import load_traces
from fsvi_bench.running.archive import read_archive
from fsvi_bench.running.cell import Record
from fsvi_bench.training.trace import Trace


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
    # What a failed cell left behind is no result.
    traces = load_traces((record for record in archive.records if record.status == "ok"), root)
    return Results(archive.records, traces, archive.planned, archive.missing, archive.stale)
