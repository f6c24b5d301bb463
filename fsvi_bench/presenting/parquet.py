"""Records and traces as flat tables, one row per cell and one per trace point; derived, never read back by us."""

from __future__ import annotations

import io
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
    frames = {"records": records_frame(archive), "traces": traces_frame(archive)}
    return [(_write(folder / f"{name}.parquet", frame), len(frame)) for name, frame in frames.items()]


def records_frame(archive: Archive) -> pd.DataFrame:
    """Records without nesting: `option_lr`, `kl`, `overconfidence_smallest`, `seconds_train`, `provenance_torch`, ...

    A setting that is a number here and a word there is a word everywhere; infinite scores are infinite numbers.
    """
    frame = pd.DataFrame([unnested(_nested(record), "_") for record in archive.records], dtype=object)
    return _with_columns(frame.apply(_of_one_kind), [*IDENTITY, *WORDS])


def _nested(record: Record) -> dict[str, Any]:
    """A record under the names of its columns."""
    nested = record.model_dump(exclude={"format", "scores"})
    nested |= {"option": nested["hyperparameters"], "hyperparameters": canonical_json(record.hyperparameters)}
    nested |= {"detail": nested.pop("details"), "provenance": {n: _word(v) for n, v in record.provenance.items()}}
    nested |= record.scores.model_dump() if record.scores is not None else {}
    return {name: value for name, value in nested.items() if value is not None}


def traces_frame(archive: Archive) -> pd.DataFrame:
    """A row per point of every trace."""
    traces = load_traces(archive.records, archive.root)
    named = {record.cell: {name: getattr(record, name) for name in IDENTITY} for record in archive.records}
    rows = [named[cell] | vars(point) for cell, trace in traces.items() for point in trace.points]
    return _with_columns(pd.DataFrame(rows), [*IDENTITY, *TRACE_COLUMNS])


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
