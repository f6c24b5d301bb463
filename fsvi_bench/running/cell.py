"""A cell is what is computed, a record is what came out; both are plain data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fsvi_bench.files import sha256_of_json
from fsvi_bench.posteriors.base import Family
from fsvi_bench.scoring.scores import Scores, not_a_number

#: Part of a path, so it holds no separator, and it is short enough for one.
Name = Annotated[str, Field(pattern=r"^[^/\\\x00-\x1f]{1,200}$")]
Status = Literal["ok", "diverged", "failed"]


class Cell(BaseModel):
    """One task, one method with its settings, one seed: all that decides a result, and nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    task_sha256: str
    dataset: Name
    split: int
    method: Name
    family: Family
    hyperparameters: dict[str, Any]
    seed: int
    code_sha256: str  #: of the code that decides the result: `running.provenance.decisive_sha256`

    @property
    def name(self) -> str:
        """For people: data set, split, method and family, and the seed unless it is the first."""
        seed = f" seed {self.seed}" if self.seed else ""
        return f"{self.dataset} split {self.split} {self.method} {self.family}{seed}"

    @cached_property
    def row(self) -> str:
        """The row of the result table that the cell belongs to."""
        return row_sha256(self)

    @cached_property
    def key(self) -> str:
        """SHA-256 that names the cell's folder; any change of what decides the result changes it."""
        return sha256_of_json(self.model_dump(mode="json"))

    @property
    def folder(self) -> str:
        """Where the cell's files lie beneath the output folder."""
        name = f"split-{self.split:02d}-seed-{self.seed}-{self.key[:12]}"
        return f"cells/{self.dataset}/{self.method}-{self.family}/{name}"


class Seconds(BaseModel):
    """Wall-clock seconds of one cell. `train` is the batch's time over its size; imports are not in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    train: float
    batch_train: float
    batch_size: int
    score: float


class Record(BaseModel):
    """One cell's outcome, `fsvi-record/1`. Infinite scores are the string "Infinity"; what does not apply is null."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    format: Literal["fsvi-record/1"] = "fsvi-record/1"
    cell: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]  #: the cell's key; empty without a task
    dataset: Name
    split: int
    method: Name
    family: Family
    seed: int
    hyperparameters: dict[str, Any]
    task_sha256: str | None  #: null where no task could be certified
    code_sha256: str
    status: Status
    reason: str | None
    scores: Scores | None
    work: dict[str, int] | None = None  #: gradients, and the rows and samples behind them; null where none were taken
    details: dict[str, float] | None = None  #: of the method's own, such as a sparsity
    seconds: Seconds | None
    provenance: dict[str, Any]

    @model_validator(mode="after")
    def _scores_are_numbers(self) -> Record:
        if self.scores is not None and (names := not_a_number(self.scores)):
            raise ValueError(f"{', '.join(names)} not numbers")
        return self


def cell_of(record: Record) -> Cell:
    """The cell that a record's own fields describe (of a record that has a task)."""
    return Cell.model_construct(**{name: getattr(record, name) for name in Cell.model_fields})


def row_sha256(of: Cell | Record) -> str:
    """Names the row of the result table that a cell or a record belongs to."""
    return sha256_of_json([of.dataset, of.method, of.family, of.hyperparameters])


def content_sha256(row: Sequence[Record]) -> str:
    """Changes with a row's cells, and whenever one is computed again; a refused task is known by its reason."""
    when = [str(r.provenance.get("started") if r.task_sha256 else r.reason) for r in row]
    cells = [[r.cell, r.split, r.seed, r.status, time] for r, time in zip(row, when, strict=True)]
    return sha256_of_json([row_sha256(row[0]), sorted(cells)])
