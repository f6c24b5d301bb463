"""A plan is what a run set out to do, a cell is what is computed, a record is what came out: all plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fsvi_bench.files import sha256_of_json
from fsvi_bench.posteriors.base import Family
from fsvi_bench.running.progress import Status
from fsvi_bench.running.provenance import provenance
from fsvi_bench.scoring.scores import Scores, not_a_number

if TYPE_CHECKING:
    from fsvi_bench.tasks.frozen import FrozenTask

#: Part of a path, so it holds no separator, and it is short enough for one.
Name = Annotated[str, Field(pattern=r"^[^/\\\x00-\x1f]{1,200}$")]


class _Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class _Named:
    """What a cell and its record are called, from the fields that both have."""

    @property
    def name(self: Any) -> str:
        """For people: data set, split, method and family, and the seed unless it is the first."""
        seed = f" seed {self.seed}" if self.seed else ""
        return f"{self.dataset} split {self.split} {self.method} {self.family}{seed}"

    @cached_property
    def row(self: Any) -> str:
        """Names the row of the result table that it belongs to."""
        return sha256_of_json([self.dataset, self.method, self.family, self.hyperparameters])

    @property
    def folder(self: Any) -> str:
        """Where its files lie beneath the output folder."""
        name = f"split-{self.split:02d}-seed-{self.seed}-{self.key[:12]}"
        return f"cells/{self.dataset}/{self.method}-{self.family}/{name}"


class Cell(_Plain, _Named):
    """One task, one method with its settings, one seed: all that decides a result, and nothing else."""

    task_sha256: str  #: empty if the task is not known yet
    dataset: Name
    split: int
    method: Name
    family: Family
    hyperparameters: dict[str, Any]
    seed: int
    code_sha256: str  #: of the code that decides the result: `running.provenance.decisive_sha256`

    @cached_property
    def key(self) -> str:
        """SHA-256 that names the cell's folder; any change of what decides the result changes it."""
        return sha256_of_json(self.model_dump(mode="json"))


class Seconds(_Plain):
    """Wall-clock seconds of one cell. `train` is the batch's time over its size; imports are not in it."""

    train: float
    batch_train: float
    batch_size: int
    score: float


class Record(_Plain, _Named):
    """One cell's outcome, `fsvi-record/1`. Infinite scores are the string "Infinity"; what does not apply is null."""

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

    @property
    def key(self) -> str:
        """The cell's."""
        return self.cell

    @model_validator(mode="after")
    def _scores_are_numbers(self) -> Record:
        if self.scores is not None and (names := not_a_number(self.scores)):
            raise ValueError(f"{', '.join(names)} not numbers")
        return self


def record_of(cell: Cell, provenance: Mapping[str, Any], /, **outcome: Any) -> Record:
    """What became of a cell, `ok` unless the outcome says otherwise."""
    usual = {"cell": cell.key, "status": "ok", **dict.fromkeys(("reason", "scores", "seconds"))}
    return Record.model_validate({**cell.model_dump(), **usual, **outcome, "provenance": provenance})


def content_sha256(row: Sequence[Record]) -> str:
    """Changes with a row's cells, and whenever one is computed again; a refused task is known by its reason."""
    cells = [
        [r.cell, r.split, r.seed, r.status, str(r.provenance.get("started") if r.task_sha256 else r.reason)]
        for r in row
    ]
    return sha256_of_json([row[0].row, sorted(cells)])


class PlannedTask(_Plain):
    """A split and its task, or why it has none; neither as long as that is not known."""

    dataset: str
    split: int
    task_sha256: str | None = None
    refused: str | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Data set and split."""
        return self.dataset, self.split


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


class Plan(_Plain):
    """All cells of one command, `fsvi-plan/1`: each variant on each task with each of its seeds.

    It is kept beside the records. With it a folder can tell what is still missing, and which of its records are of
    earlier code, settings or tasks.
    """

    format: Literal["fsvi-plan/1"] = "fsvi-plan/1"
    written: datetime
    tasks: tuple[PlannedTask, ...]
    variants: tuple[Variant, ...]
    provenance: dict[str, Any]
    # What a plan has as long as its command runs:
    given: tuple[Any, ...] = Field(default=(), exclude=True)  #: the `FrozenTask`s of files
    methods: dict[str, Any] = Field(default={}, exclude=True)  #: a `MethodEntry` for each method's name
    unused: tuple[str, ...] = Field(default=(), exclude=True)  #: flags that no chosen method has a use for

    @property
    def name(self) -> str:
        """The same for the same command: neither the code nor what its tasks turned out to be is part of it."""
        asked = sorted([t.dataset, t.split] for t in self.tasks)
        # Without `datasets` where these are all, as in older plans.
        rows = [v.model_dump(mode="json", exclude={"code_sha256"}, exclude_defaults=True) for v in self.variants]
        return sha256_of_json([asked, rows])[:16]

    @property
    def splits(self) -> list[tuple[str, int]]:
        """(data set, split) of those tasks that no file gives."""
        given = {(task.dataset, task.split) for task in self.given}
        return [task.place for task in self.tasks if task.place not in given]

    def bind(self, tasks: Iterable[FrozenTask], refusals: Mapping[tuple[str, int], str], device: str) -> Plan:
        """The plan once its tasks are known, or why there are none."""
        known, now = {(task.dataset, task.split): task.sha256 for task in tasks}, datetime.now(UTC)
        bound = tuple(
            task.model_copy(update={"task_sha256": known.get(task.place), "refused": refusals.get(task.place)})
            for task in self.tasks
        )
        return self.model_copy(update={"tasks": bound, "written": now, "provenance": provenance(device, 0, now)})

    def cells(self, refused: bool = False) -> Iterator[Cell]:
        """Every cell, or every one whose task was refused; data set by data set: few tasks are in use at once."""
        for dataset in dict.fromkeys(task.dataset for task in self.tasks):
            tasks = [task for task in self.tasks if task.dataset == dataset and (task.refused is not None) == refused]
            for variant in (each for each in self.variants if each.is_for(dataset)):
                own = {name: getattr(variant, name) for name in ("method", "family", "hyperparameters", "code_sha256")}
                for task, seed in product(tasks, variant.seeds):
                    # All of it is validated already, and there may be 100,000.
                    place: dict[str, Any] = {"dataset": dataset, "split": task.split, "seed": seed}
                    yield Cell.model_construct(**place, task_sha256=task.task_sha256 or "", **own)

    def refused_records(self) -> list[Record]:
        """A failed record, without a key, for every cell whose task was refused."""
        why = {task.place: task.refused for task in self.tasks}
        return [
            record_of(
                cell,
                {**self.provenance, "seeds": [cell.seed]},
                **{"cell": "", "task_sha256": None, "status": "failed", "reason": why[cell.dataset, cell.split]},
            )
            for cell in self.cells(refused=True)
        ]
