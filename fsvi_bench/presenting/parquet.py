"""Records and traces as flat tables, one row per cell and one per trace point; derived, never read back by us."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json, write_atomically
from fsvi_bench.presenting.cell_files import load_traces
from fsvi_bench.running.archive import Archive
from fsvi_bench.running.cell import Record
from fsvi_bench.training.trace import COLUMNS as TRACE_COLUMNS
from fsvi_bench.training.trace import Trace

#: Columns by which rows of the two tables belong together, and what they are called in both.
IDENTITY = {
    "cell": "string", "dataset": "string", "split": "int64", "method": "string", "family": "string", "seed": "int64",
}  # fmt: skip
#: Columns that are there whatever the rows hold, with their types, so that two exports fit together.
RECORD_COLUMNS = IDENTITY | dict.fromkeys(
    ("status", "reason", "task_sha256", "code_sha256", "hyperparameters"), "string"
)
TRACE_TYPES = IDENTITY | dict.fromkeys(TRACE_COLUMNS, "float64") | {"steps": "int64"}


def write_tables(archive: Archive, folder: Path) -> list[tuple[Path, int]]:
    """Writes `records.parquet` and `traces.parquet`; returns each with its number of rows.

    Raises:
        InputError: pyarrow is not installed, the folder cannot be written, or a trace is not one.
    """
    records = list(map(record_row, archive.records))
    traces = list(trace_rows(archive.records, load_traces(archive.records, archive.root)))
    return [
        (_write(folder / "records.parquet", records, RECORD_COLUMNS), len(records)),
        (_write(folder / "traces.parquet", traces, TRACE_TYPES), len(traces)),
    ]


def record_row(record: Record) -> dict[str, Any]:
    """A record without nesting: `option_lr`, `kl`, `overconfidence_smallest`, `seconds_train`, `provenance_torch`, ...

    A setting that is a number here and a word there is a word everywhere; infinite scores are infinite numbers.
    """
    row: dict[str, Any] = {name: getattr(record, name) for name in IDENTITY}
    row |= {"status": record.status, "reason": record.reason, "task_sha256": record.task_sha256}
    row |= {"code_sha256": record.code_sha256, "hyperparameters": canonical_json(record.hyperparameters)}
    row |= {f"option_{name}": value for name, value in record.hyperparameters.items()}
    row |= _flat("", record.scores.model_dump() if record.scores is not None else {})
    row |= _flat("work_", record.work or {}) | _flat("detail_", record.details or {})
    row |= _flat("seconds_", record.seconds.model_dump() if record.seconds is not None else {})
    row |= {f"provenance_{name}": _word(value) for name, value in record.provenance.items()}
    return row


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings become one column per key, pairs and longer sequences become lists."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(f"{prefix}{name}_", value)
        else:
            flat[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else canonical_json(value)


def trace_rows(records: Sequence[Record], traces: Mapping[str, Trace]) -> Iterator[dict[str, Any]]:
    """A row per point of every trace (`record.cell` -> trace)."""
    for record in records:
        for point in traces[record.cell].points if record.cell in traces else ():
            yield {name: getattr(record, name) for name in IDENTITY} | {n: getattr(point, n) for n in TRACE_COLUMNS}


def _write(path: Path, rows: Sequence[Mapping[str, Any]], always: Mapping[str, str]) -> Path:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError as error:
        mend = "in the clone: pip install -c constraints.txt -e '.[export]'"
        raise InputError(f"Parquet needs pyarrow, which is not installed; {mend}") from error
    columns = dict.fromkeys([*always, *(name for row in rows for name in row)])
    table = pa.table({name: _column(pa, [row.get(name) for row in rows], always.get(name)) for name in columns})
    content = io.BytesIO()
    parquet.write_table(table, content, compression="zstd")
    write_atomically(path, content.getvalue())
    return path


def _column(pa: Any, values: Sequence[Any], kind: str | None) -> Any:
    """Whole numbers and broken ones side by side are broken ones; a column without a value is one of numbers."""
    if kind is not None:
        return pa.array(values, kind)
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return pa.array(values, pa.float64())
    if kinds == {int, float}:
        return pa.array(values, pa.float64())
    return pa.array(values if len(kinds) == 1 else [_word(value) for value in values])
