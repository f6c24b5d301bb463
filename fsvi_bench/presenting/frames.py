"""Records as one tidy frame: a row per cell, with its settings and its scores by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from fsvi_bench.files import canonical_json
from fsvi_bench.running.cell import Record
from fsvi_bench.scoring.predictive import LEVELS
from fsvi_bench.scoring.scores import Scores

CELL = ("dataset", "split", "method", "family", "seed")
COLUMNS = (*CELL, "settings", "status", "reason", "task_sha256", "seconds")


def frame_of(records: Sequence[Record]) -> pd.DataFrame:
    """One row per record, in their order; what its columns are is said in `fsvi_bench.results`."""
    rows = [_row(record) for record in records]
    return pd.DataFrame(rows, columns=list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)])))


def _row(record: Record) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in (*CELL, "status", "reason", "task_sha256")}
    row["settings"] = canonical_json(record.hyperparameters)
    row["seconds"] = None if record.seconds is None else record.seconds.train
    row |= {f"settings.{name}": value for name, value in record.hyperparameters.items()}
    return row | (flat(record.scores) if record.scores is not None else {})


def flat(scores: Scores) -> dict[str, Any]:
    """Scores by their names, nested ones with a dot."""
    named: dict[str, Any] = {}
    for name, value in scores.model_dump().items():
        if name == "coverage" and value is None:
            value = dict.fromkeys(LEVELS)
        if isinstance(value, dict):
            named |= {f"{name}.{part}": each for part, each in value.items()}
        elif name != "intervals":  # which only samples have
            named[name] = value
    return named
