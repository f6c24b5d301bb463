"""The study's file: `conf/reproductions/burt2020-study.yaml`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.study.claims import StudyClaim
from fsvi_bench.presenting.plots import FigureSpec
from fsvi_bench.presenting.tables import TableSpec
from fsvi_bench.resources import read_yaml, resource_dir


class StudyFile(BaseModel):
    """What is run, the claims with their thresholds, and what is shown."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    summary: str
    protocol: str
    quick: dict[str, Any]
    published: str  #: SHA-256 of the cells' table, as CSV, that the page's sentences are about
    claims: tuple[StudyClaim, ...]
    tables: tuple[TableSpec, ...]
    figures: dict[str, FigureSpec]


def load_study_file() -> StudyFile:
    """Raises InputError if the file does not validate."""
    path = resource_dir("conf") / "reproductions" / "burt2020-study.yaml"
    try:
        return StudyFile.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path}: '{'.'.join(map(str, first['loc']))}': {first['msg']}; mend the file") from error
