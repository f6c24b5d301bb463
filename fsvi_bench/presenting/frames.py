"""Records as one tidy frame: a row per cell, with its settings and its scores by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fsvi_bench.files import canonical_json
from fsvi_bench.running.cell import Record
from fsvi_bench.scoring.predictive import LEVELS
from fsvi_bench.scoring.scores import Scores

CELL = ("dataset", "split", "method", "family", "seed")
COLUMNS = (*CELL, "settings", "status", "reason", "task_sha256", "seconds")


def frame_of(records: Sequence[Record]) -> pd.DataFrame:
    """One row per record, in their order. Columns: see `fsvi_bench.results`."""
    rows = [_row(record) for record in records]
    return pd.DataFrame(rows, columns=list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)])))


def _row(record: Record) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in (*CELL, "status", "reason", "task_sha256")}
    row |= {"settings": canonical_json(record.hyperparameters), "seconds": record.seconds and record.seconds.train}
    return row | unnested({"settings": record.hyperparameters}) | (flat(record.scores) if record.scores else {})


def flat(scores: Scores) -> dict[str, Any]:
    """Scores by their names, nested ones with a dot."""
    named = scores.model_dump(exclude=None if scores.intervals else {"intervals"})  # which only samples have
    return unnested(named | {"coverage": named["coverage"] or dict.fromkeys(LEVELS)})


def unnested(values: Mapping[str, Any], between: str = ".") -> dict[str, Any]:
    """One entry per key of mappings within mappings. `pandas.json_normalize` turns integers into floats."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        inner = unnested(value, between) if isinstance(value, Mapping) else None
        found |= {name: value} if inner is None else {f"{name}{between}{key}": each for key, each in inner.items()}
    return found


def shared(frame: pd.DataFrame) -> dict[str, Any]:
    """What the rows of each column share, or a list of all their different values."""
    found = {str(name): column[~column.astype(str).duplicated()].dropna().tolist() for name, column in frame.items()}
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}
