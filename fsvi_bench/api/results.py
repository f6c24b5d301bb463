"""`fsvi_bench.results`: the records of an output folder as a pandas frame."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd

from fsvi_bench.api.score import flat
from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json
from fsvi_bench.running.archive import read_archive
from fsvi_bench.running.cell import Record

COLUMNS = ("dataset", "split", "method", "family", "seed", "settings", "status", "reason", "task_sha256", "seconds")


def results(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """One row per finished cell of a folder that `fsvi-bench run --out` wrote.

    Columns: `dataset`, `split`, `method`, `family`, `seed`, `settings` (JSON) and each setting by itself
    (`settings.lr`), `status` (ok, diverged or failed) and its `reason`, `task_sha256`, `seconds` of training, and the
    scores under the names that `score` gives them. A score that does not apply is missing, an infinite one infinite.

    Raises:
        InputError: there is no such folder, it holds no records, or a file in it is not what it should be.
    """
    if not isinstance(folder, str | os.PathLike):
        raise InputError(f"the folder is of type {type(folder).__name__}, expected a path; give what --out was given")
    rows = [_row(record) for record in read_archive(Path(folder)).records]
    return pd.DataFrame(rows, columns=list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)])))


def _row(record: Record) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in COLUMNS if name not in ("settings", "seconds")}
    row["settings"] = canonical_json(record.hyperparameters)
    row["seconds"] = None if record.seconds is None else record.seconds.train
    row |= {f"settings.{name}": value for name, value in record.hyperparameters.items()}
    return row | (flat(record.scores) if record.scores is not None else {})
