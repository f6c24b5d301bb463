"""What every reproduction of a published figure or table is, and what it leaves behind."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from fsvi_bench.papers.claims import Verdict
from fsvi_bench.running.cell import Record
from fsvi_bench.running.progress import Progress
from fsvi_bench.running.runner import Resources

# JSON has no infinities and writes them as words; read as such they would not be numbers any more.
_WORDS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def _number_again(value: object) -> object:
    return _WORDS.get(value, value) if isinstance(value, str) else value


CellValue = Annotated[str | int | float | None, BeforeValidator(_number_again)]


class ResultTable(BaseModel):
    """A table of numbers and words; None stands for what does not apply."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[CellValue, ...], ...]


class Outcome(BaseModel):
    """What was written, and what stands in it. A claim that does not hold is a finding, not a failure."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    name: str
    quick: bool
    files: list[Path]
    computed: int
    reused: int
    tables: tuple[ResultTable, ...] = ()
    claims: tuple[Verdict, ...] = ()
    records: Sequence[Record] = ()
    missing: int = 0  #: planned cells without a record, which were not asked to be computed


@dataclass(frozen=True)
class Workshop:
    """Where a reproduction works: its output folder, its scale, and what it may use."""

    root: Path
    quick: bool
    resources: Resources
    progress: Progress
    compute: bool = True  #: else only what the folder holds is shown

    def stem(self, name: str) -> Path:
        """Path of what is written, without a suffix; a quick look never takes the place of a result."""
        return self.root / (f"{name}-quick" if self.quick else name)


class Reproduction(ABC):
    """A published experiment that can be made again, at the paper's scale or for a quick look."""

    name: str
    shows_unfinished = False  #: it can be shown as far as its folder goes, without computing anything
    takes_days = False  #: unless told so, or for a quick look, it computes nothing

    @property
    @abstractmethod
    def summary(self) -> str:
        """One line."""

    @abstractmethod
    def check(self, quick: bool, data_dir: Path | None) -> None:
        """Makes sure of everything that is needed before anything is computed or written.

        Raises:
            InputError: something is missing or does not validate.
        """

    @abstractmethod
    def make(self, workshop: Workshop) -> Outcome:
        """Computes what the folder does not hold yet, and writes figure, table and numbers there.

        Raises:
            InputError: the folder holds something that does not belong there.
            PartFailed: something could not be computed; what was finished is kept.
        """
