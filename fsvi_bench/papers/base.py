"""What every reproduction of a published figure or table is, and what it leaves behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from fsvi_bench.papers.claims import Verdict
from fsvi_bench.presenting.tables import Table
from fsvi_bench.running.cell import Record
from fsvi_bench.running.progress import Progress
from fsvi_bench.running.runner import Resources


class Outcome(BaseModel):
    """What was written, and what stands in it. A claim that does not hold is a finding, not a failure."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    name: str
    quick: bool
    files: list[Path] = []
    computed: int
    reused: int
    tables: tuple[Table, ...] = ()
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
