"""What lies beside a record in its cell's folder, found again from the record."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.running.cell import Cell, Record
from fsvi_bench.running.store import Store
from fsvi_bench.tasks.task import Task
from fsvi_bench.training.trace import Trace


def folder_of(record: Record) -> str:
    """The folder beneath the output folder that holds a record's files."""
    # A record was validated when it was read, and knows its cell's key: neither again, ten thousand times.
    cell = Cell.model_construct(**{name: getattr(record, name) for name in Cell.model_fields})
    cell.__dict__["key"] = record.cell
    return cell.folder


def load_posterior(record: Record, store: Store, task: Task) -> Posterior:
    """The posterior that a record's scores are of.

    Raises:
        InputError: it is missing, or not a posterior of this task.
    """
    path = store.root / Path(folder_of(record)) / "posterior.safetensors"
    return read_posterior(path, task.k, task.sha256)


def load_traces(records: Iterable[Record], store: Store) -> dict[str, Trace]:
    """`record.cell` -> trace, for those that have one.

    Raises:
        InputError: a file lies there that is not a trace.
    """
    found = {r.cell: store.load_trace(folder_of(r)) for r in records if r.task_sha256 is not None}
    return {cell: trace for cell, trace in found.items() if trace is not None}
