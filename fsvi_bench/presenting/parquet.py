"""Records and traces as flat tables, one row per cell and one per trace point; derived, never read back by us."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json, write_atomically
from fsvi_bench.presenting.cell_files import load_traces
from fsvi_bench.presenting.frames import unnested
from fsvi_bench.running.archive import Archive
from fsvi_bench.running.cell import Record
from fsvi_bench.training.trace import COLUMNS as TRACE_COLUMNS
from fsvi_bench.training.trace import Trace

#: Columns by which rows of the two tables belong together.
IDENTITY = ["cell", "dataset", "split", "method", "family", "seed"]
WORDS = ["status", "reason", "task_sha256", "code_sha256", "hyperparameters"]
#: Types of the columns that are there whatever the rows hold, so that two exports fit together.
TYPES = dict.fromkeys([*IDENTITY, *WORDS], "string") | dict.fromkeys(TRACE_COLUMNS, "Float64")
TYPES |= dict.fromkeys(["split", "seed", "steps"], "Int64")


def write_tables(archive: Archive, folder: Path) -> list[tuple[Path, int]]:
    """Writes `records.parquet` and `traces.parquet`; returns each with its number of rows.

    Raises:
        InputError: pyarrow is not installed, the folder cannot be written, or a trace is not one.
    """
    traces = load_traces(archive.records, archive.root)
    # As objects: whole numbers of which some are missing stay whole.
    records = pd.DataFrame(map(record_row, archive.records), dtype=object).apply(_of_one_kind)
    points = pd.DataFrame(trace_rows(archive.records, traces))
    frames = {
        "records": _with_columns(records, [*IDENTITY, *WORDS]),
        "traces": _with_columns(points, [*IDENTITY, *TRACE_COLUMNS]),
    }
    return [(_write(folder / f"{name}.parquet", frame), len(frame)) for name, frame in frames.items()]


def record_row(record: Record) -> dict[str, Any]:
    """A record without nesting: `option_lr`, `kl`, `overconfidence_smallest`, `seconds_train`, `provenance_torch`, ...

    A setting that is a number here and a word there is a word everywhere; infinite scores are infinite numbers.
    """
    nested = record.model_dump(exclude={"format", "scores"})
    nested |= {"option": nested["hyperparameters"], "hyperparameters": canonical_json(record.hyperparameters)}
    nested |= {"detail": nested.pop("details"), "provenance": {n: _word(v) for n, v in record.provenance.items()}}
    nested |= record.scores.model_dump() if record.scores is not None else {}
    given = unnested({name: value for name, value in nested.items() if value is not None}, "_")
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def trace_rows(records: Sequence[Record], traces: Mapping[str, Trace]) -> Iterator[dict[str, Any]]:
    """A row per point of every trace (`record.cell` -> trace)."""
    for record in records:
        for point in traces[record.cell].points if record.cell in traces else ():
            yield {name: getattr(record, name) for name in IDENTITY} | vars(point)


def _with_columns(frame: pd.DataFrame, first: list[str]) -> pd.DataFrame:
    """These columns first, with their types, whatever the rows hold."""
    others = [name for name in frame.columns if name not in first]
    return frame.reindex(columns=[*first, *others]).astype({name: TYPES[name] for name in first})


def _of_one_kind(column: pd.Series[Any]) -> pd.Series[Any]:
    """Whole numbers and broken ones side by side are broken ones, numbers and words are words."""
    kinds = set(map(type, column.dropna()))
    if kinds <= {int, float}:
        return column.astype("Int64" if kinds == {int} else "Float64")
    return column if len(kinds) == 1 else column.map(_word, na_action="ignore")


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else canonical_json(value)


def _write(path: Path, frame: pd.DataFrame) -> Path:
    content = io.BytesIO()
    try:
        frame.to_parquet(content, engine="pyarrow", compression="zstd", index=False)
    except ImportError as error:
        mend = "in the clone: pip install -c constraints.txt -e '.[export]'"
        raise InputError(f"Parquet needs pyarrow, which is not installed; {mend}") from error
    write_atomically(path, content.getvalue())
    return path
