"""Records and traces as flat Parquet tables, with one row per cell and one per trace point; for export only."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json, write_atomically
from fsvi_bench.presenting.summary import flat_of_network, unnested
from fsvi_bench.running.cell import Record
from fsvi_bench.running.store import Store, load_traces
from fsvi_bench.scoring.scores import NESTED, Scores
from fsvi_bench.training.trace import COLUMNS as TRACE_COLUMNS
from fsvi_bench.training.trace import Trace

LIST = "list"  #: list of numbers, for which Arrow has no short name
#: Columns, with Arrow types, that link the rows of both tables; then columns that every record has.
IDENTITY = dict.fromkeys(["cell", "dataset", "split", "method", "family", "seed"], "string")
IDENTITY |= {"split": "int64", "seed": "int64"}
WORDS = dict.fromkeys(["status", "reason", "task_sha256", "code_sha256", "hyperparameters"], "string")
SCORES = dict.fromkeys(unnested(dict.fromkeys(Scores.model_fields) | NESTED, "_"), "float64")
SCORES |= {"singular": "bool", "overconfidence_quantiles": LIST}
#: Columns that always exist, so that exports have the same schema.
TRACE_TYPES = IDENTITY | dict.fromkeys(TRACE_COLUMNS, "float64") | {"steps": "int64"}


def write_tables(archive: Store, folder: Path) -> list[tuple[Path, int]]:
    """Writes `records.parquet` and `traces.parquet`; returns each with its number of rows.

    Raises:
        InputError: pyarrow is not installed, the folder cannot be written, or a trace is not valid.
    """
    records = list(map(record_row, archive.records))
    points = list(trace_rows(archive.records, load_traces(archive.records, archive.root)))
    options = dict.fromkeys(name for row in records for name in row if name.startswith("option_"))
    return [
        (_write(folder / "records.parquet", records, IDENTITY | WORDS | options | SCORES), len(records)),
        (_write(folder / "traces.parquet", points, TRACE_TYPES), len(points)),
    ]


def record_row(record: Record) -> dict[str, Any]:
    """A record without nesting: `option_lr`, `kl`, `overconfidence_smallest`, `seconds_train`, `provenance_torch`, ...

    Infinite scores are infinite numbers.
    """
    nested = {name: getattr(record, name) for name in (*IDENTITY, *WORDS)} | {"option": record.hyperparameters}
    nested |= {"hyperparameters": canonical_json(record.hyperparameters)}
    nested |= record.scores.model_dump() if record.scores is not None else {}
    nested |= {name.replace(".", "_"): value for name, value in flat_of_network(record.network_scores).items()}
    nested |= {"work": record.work, "detail": record.details, "seconds": record.seconds and record.seconds.model_dump()}
    nested |= {"provenance": {name: _word(value) for name, value in record.provenance.items()}}
    given = unnested({name: value for name, value in nested.items() if value is not None}, "_")
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def record_frame(records: Sequence[Record]) -> pd.DataFrame:
    """Rows of `record_row` with None for values that do not apply. The first columns are those of every record."""
    frame = pd.DataFrame(map(record_row, records), dtype=object)
    frame = frame.reindex(columns=list(dict.fromkeys([*IDENTITY, *WORDS, *SCORES, *frame])))
    return frame.where(frame.notna(), None)


def trace_rows(records: Sequence[Record], traces: Mapping[str, Trace]) -> Iterator[dict[str, Any]]:
    """Yields one row per point of every trace (`record.cell` -> trace)."""
    for record in records:
        for point in traces[record.cell].points if record.cell in traces else ():
            yield {name: getattr(record, name) for name in IDENTITY} | vars(point)


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else canonical_json(value)


def _write(path: Path, rows: Sequence[Mapping[str, Any]], types: Mapping[str, str | None]) -> Path:
    """Writes rows, with these columns first. It uses Arrow directly: pandas does not distinguish NA from NaN."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError as error:
        fix = "in the clone, run: pip install -c constraints.txt -e '.[export]'"
        raise InputError(f"the export needs pyarrow, which is not installed; {fix}") from error
    columns = dict.fromkeys([*types, *(name for row in rows for name in row)])
    table = pa.table({name: _column(pa, [row.get(name) for row in rows], types.get(name)) for name in columns})
    content = io.BytesIO()
    parquet.write_table(table, content, compression="zstd")
    write_atomically(path, content.getvalue())
    return path


def _column(pa: Any, values: Sequence[Any], kind: str | None) -> Any:
    """A column; if types are mixed, integers become floats and numbers become text. An empty column is of floats."""
    try:
        found = pa.array(values, pa.list_(pa.float64()) if kind == LIST else kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array(map(_word, values))
    return found.cast("float64") if found.type == pa.null() else found
