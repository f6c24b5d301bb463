"""`fsvi_bench.results`: the records of an output folder as a pandas frame."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.presenting.summary import frame_of
from fsvi_bench.running.store import Store


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
    return frame_of(Store(Path(folder)).records)
