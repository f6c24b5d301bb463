"""`fsvi_bench.results`: the records of an output folder as a pandas DataFrame."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.presenting.summary import frame_of
from fsvi_bench.running.store import Store


def results(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """One row per finished cell of an output folder of `fsvi-bench run`, or cell of a refused task.

    Columns: `dataset`, `split`, `method`, `family`, `seed`, `settings` (JSON) and each setting separately
    (`settings.lr`), `status` (ok, diverged or failed) with its `reason`, `task_sha256`, `code_sha256` of code
    and kernels, `seconds` of training, and the scores, named as in `score`. Scores that do not apply are missing;
    infinite scores are infinite.

    Raises:
        InputError: the folder does not exist or has no records, or a file in it is not valid.
    """
    if not isinstance(folder, str | os.PathLike):
        raise InputError(
            f"the folder is of type {type(folder).__name__}, expected a path; give the output folder of a run"
        )
    return frame_of(Store(Path(folder)).records)
