"""A plan is what a run set out to do, a cell is what is computed, a record is what came out: all plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import product
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


def record_of(cell: Cell, provenance: Mapping[str, Any], **outcome: Any) -> Record:
    """What became of a cell, `ok` unless the outcome says otherwise; without a task it has no key and is not stored."""
    own = cell.model_dump() | {"task_sha256": cell.task_sha256 or None, "cell": cell.key if cell.task_sha256 else ""}
    usual = {"status": "ok", **dict.fromkeys(("reason", "scores", "seconds"))}
    return Record.model_validate({**own, **usual, **outcome, "provenance": provenance})


def row_sha256(of: Cell | Record) -> str:
    """Names the row of the result table that a cell or a record belongs to."""
    return sha256_of_json([of.dataset, of.method, of.family, of.hyperparameters])


def content_sha256(row: Sequence[Record]) -> str:
    """Changes with a row's cells, and whenever one is computed again; a refused task is known by its reason."""
    when = [str(r.provenance.get("started") if r.task_sha256 else r.reason) for r in row]
    cells = [[r.cell, r.split, r.seed, r.status, time] for r, time in zip(row, when, strict=True)]
    return sha256_of_json([row_sha256(row[0]), sorted(cells)])


class _Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlannedTask(_Plain):
    """A split and its task, or why it has none."""

    dataset: str
    split: int
    task_sha256: str | None = None
    refused: str | None = None


class Variant(_Plain):
    """A method with its family, settings and seeds: one row of the result table per data set."""

    method: str
    family: Family
    hyperparameters: dict[str, Any]
    seeds: tuple[int, ...]
    code_sha256: str
    datasets: tuple[str, ...] | None = None  #: on which it is run; None for all of the plan's

    def is_for(self, dataset: str) -> bool:
        """Whether the plan has it on a data set."""
        return self.datasets is None or dataset in self.datasets

    def asked(self) -> dict[str, Any]:
        """What was asked for, apart from the code; without `datasets` where these are all, as in older plans."""
        left_out = {"code_sha256"} | ({"datasets"} if self.datasets is None else set())
        return self.model_dump(mode="json", exclude=left_out)


class PlanFile(_Plain):
    """All cells of one command, `fsvi-plan/1`: each variant on each task with each of its seeds.

    It is kept beside the records. With it a folder can tell what is still missing, and which of its records are of
    earlier code, settings or tasks.
    """

    format: Literal["fsvi-plan/1"] = "fsvi-plan/1"
    written: datetime
    tasks: tuple[PlannedTask, ...]
    variants: tuple[Variant, ...]
    provenance: dict[str, Any]

    @property
    def name(self) -> str:
        """The same for the same command: neither the code nor what its tasks turned out to be is part of it."""
        asked = sorted([t.dataset, t.split] for t in self.tasks)
        return sha256_of_json([asked, [variant.asked() for variant in self.variants]])[:16]

    def _each(self) -> Iterator[tuple[PlannedTask, Cell]]:
        """Data set by data set, so that few tasks are in use at any time."""
        for dataset in dict.fromkeys(task.dataset for task in self.tasks):
            tasks = [task for task in self.tasks if task.dataset == dataset]
            for variant in (each for each in self.variants if each.is_for(dataset)):
                own = {name: getattr(variant, name) for name in ("method", "family", "hyperparameters", "code_sha256")}
                for task, seed in product(tasks, variant.seeds):
                    # All of it is validated already, and there may be 100,000.
                    place: dict[str, Any] = {"dataset": dataset, "split": task.split, "seed": seed}
                    yield task, Cell.model_construct(**place, task_sha256=task.task_sha256 or "", **own)

    def cells(self) -> Iterator[Cell]:
        """Every cell that has a task."""
        return (cell for task, cell in self._each() if task.task_sha256 is not None)

    def refused_records(self) -> list[Record]:
        """A failed record for every cell whose task was refused."""
        return [
            record_of(cell, {**self.provenance, "seeds": [cell.seed]}, status="failed", reason=task.refused)
            for task, cell in self._each()
            if task.refused is not None
        ]
