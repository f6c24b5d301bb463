"""Plans (what a run computes), cells (the units of computation) and records (their results), all as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from fsvi_bench.files import sha256_of_json
from fsvi_bench.networks.scores import NetworkScores
from fsvi_bench.posteriors.base import Family
from fsvi_bench.running.progress import Status
from fsvi_bench.running.provenance import provenance
from fsvi_bench.scoring.scores import Scores, not_a_number
from fsvi_bench.strict import Plain

if TYPE_CHECKING:
    from fsvi_bench.networks.official import CertifiedNetwork
    from fsvi_bench.tasks.frozen import FrozenTask

#: Part of a path: short, and without separators.
Name = Annotated[str, Field(pattern=r"^[^/\\\x00-\x1f]{1,200}$")]


class _Named:
    """The names of a cell and its record, derived from their common fields."""

    @property
    def name(self: Any) -> str:
        """For display: data set, split, method and family, and the seed unless it is 0."""
        seed = f" seed {self.seed}" if self.seed else ""
        return f"{self.dataset} split {self.split} {self.method} {self.family}{seed}"

    @cached_property
    def row(self: Any) -> str:
        """Hash that identifies its row in the result table."""
        return sha256_of_json([self.dataset, self.method, self.family, self.hyperparameters])

    @property
    def folder(self: Any) -> str:
        """The folder of its files, relative to the output folder."""
        name = f"split-{self.split:02d}-seed-{self.seed}-{self.key[:12]}"
        return f"cells/{self.dataset}/{self.method}-{self.family}/{name}"


class Cell(Plain, _Named):
    """One task, one method with its settings, and one seed: everything that determines a result, and nothing else."""

    task_sha256: str  #: empty while the task is not known
    dataset: Name
    split: int
    method: Name
    family: Family
    hyperparameters: dict[str, Any]
    seed: int
    code_sha256: str  #: hash of the code that determines the result, see `running.provenance.decisive_sha256`
    reference_sha256: str | None = None  #: on a network task, of the functions that scores compare with

    @cached_property
    def key(self) -> str:
        """SHA-256 that names the cell's folder; it changes with anything that determines the result."""
        unset = {"reference_sha256"} if self.reference_sha256 is None else None
        return sha256_of_json(self.model_dump(mode="json", exclude=unset))


class Seconds(Plain):
    """Wall-clock seconds of one cell. `train` is the time of the batch divided by its size, without imports.

    On networks it includes the search for a mode, if the method needs one.
    """

    train: float
    batch_train: float
    batch_size: int
    score: float


class Record(Plain, _Named):
    """The outcome of one cell, `fsvi-record/1`. Infinite scores are the string "Infinity"; null: not applicable."""

    format: Literal["fsvi-record/1"] = "fsvi-record/1"
    cell: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]  #: key of the cell; empty without a task
    dataset: Name
    split: int
    method: Name
    family: Family
    seed: int
    hyperparameters: dict[str, Any]
    task_sha256: str | None  #: null where no task could be certified
    code_sha256: str
    reference_sha256: str | None = None  #: on a network task, of the functions that scores compare with
    status: Status
    reason: str | None
    scores: Scores | None
    network_scores: NetworkScores | None = None  #: on a network task, in place of `scores`
    work: dict[str, int] | None = None  #: gradients, and the rows and samples they used; null if there were none
    details: dict[str, float] | None = None  #: quantities specific to the method, such as a sparsity
    seconds: Seconds | None
    provenance: dict[str, Any]

    @property
    def key(self) -> str:
        """The key of the cell."""
        return self.cell

    @model_validator(mode="after")
    def _scores_are_numbers(self) -> Record:
        if self.scores is not None and (names := not_a_number(self.scores)):
            raise ValueError(f"these scores are not numbers: {', '.join(names)}")
        return self


def record_of(cell: Cell, provenance: Mapping[str, Any], /, **outcome: Any) -> Record:
    """The record of a cell, with status `ok` unless the outcome has another one."""
    usual = {"cell": cell.key, "status": "ok", **dict.fromkeys(("reason", "scores", "seconds"))}
    return Record.model_validate({**cell.model_dump(), **usual, **outcome, "provenance": provenance})


def on_task(planned: Record | Cell, task: PlannedTask) -> Cell:
    """The cell of one whose task was refused or not known, now that there is one."""
    fields = {name: getattr(planned, name) for name in Cell.model_fields}
    return Cell(**fields | {"task_sha256": task.task_sha256, "reference_sha256": task.reference_sha256})


def content_sha256(row: Sequence[Record]) -> str:
    """Hash that changes with a row's cells and when one is recomputed; a refused task is identified by its reason."""
    cells = [
        [r.cell, r.split, r.seed, r.status, str(r.provenance.get("started") if r.task_sha256 else r.reason)]
        for r in row
    ]
    return sha256_of_json([row[0].row, sorted(cells)])


class PlannedTask(Plain):
    """A split with its task, or the reason why it has none; neither while that is not known."""

    dataset: str
    split: int
    task_sha256: str | None = None
    reference_sha256: str | None = None
    N: int | None = None  #: number of training rows; unknown on networks and in older plans
    N_test: int | None = None
    refused: str | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Data set and split."""
        return self.dataset, self.split


def _facts(task: FrozenTask | CertifiedNetwork) -> dict[str, Any]:
    """What a plan says about a task."""
    rows = {"N": getattr(task, "train_index", ()), "N_test": getattr(task, "test_index", ())}
    sizes = {name: len(index) or None for name, index in rows.items()}
    return {"task_sha256": task.sha256, "reference_sha256": getattr(task, "reference_sha256", None), **sizes}


class Variant(Plain):
    """A method with its family, settings and seeds: one row of the result table per data set."""

    method: str
    family: Family
    hyperparameters: dict[str, Any]
    seeds: tuple[int, ...]
    code_sha256: str
    datasets: tuple[str, ...] | None = None  #: data sets to run it on; None for all of the plan

    def is_for(self, dataset: str) -> bool:
        """Whether it is run on a data set."""
        return self.datasets is None or dataset in self.datasets


class Plan(Plain):
    """All cells of one command, `fsvi-plan/1`: each variant on each task with each of its seeds.

    It is stored with the records. It shows which cells are missing, and which records belong to earlier code, kernels
    or tasks.
    """

    format: Literal["fsvi-plan/1"] = "fsvi-plan/1"
    written: datetime
    tasks: tuple[PlannedTask, ...]
    variants: tuple[Variant, ...]
    provenance: dict[str, Any]
    # Not stored:
    given: tuple[Any, ...] = Field(default=(), exclude=True)  #: `FrozenTask`s from files, and `CertifiedNetwork`s
    methods: dict[str, Any] = Field(default={}, exclude=True)  #: name -> `MethodEntry`
    unused: tuple[str, ...] = Field(default=(), exclude=True)  #: flags without effect on the chosen methods
    #: option -> methods, for the options that a request sets for several methods at once
    shared: dict[str, tuple[str, ...]] = Field(default={}, exclude=True)

    @property
    def name(self) -> str:
        """Equal for equal commands: it depends neither on the code nor on the fitted tasks."""
        asked = sorted([t.dataset, t.split] for t in self.tasks)
        # Default values are left out, as in older plans.
        rows = [v.model_dump(mode="json", exclude={"code_sha256"}, exclude_defaults=True) for v in self.variants]
        return sha256_of_json([asked, rows])[:16]

    @property
    def splits(self) -> list[tuple[str, int]]:
        """(data set, split) of the tasks that are not given as files."""
        given = {task.place for task in self.given}
        return [task.place for task in self.tasks if task.place not in given]

    def bind(
        self, tasks: Iterable[FrozenTask | CertifiedNetwork], refusals: Mapping[tuple[str, int], str], device: str
    ) -> Plan:
        """The plan with its tasks, or with the reasons why they were refused."""
        now = datetime.now(UTC)
        known = {task.place: _facts(task) for task in tasks}
        bound = tuple(
            PlannedTask(
                dataset=task.dataset, split=task.split, refused=refusals.get(task.place), **known.get(task.place, {})
            )
            for task in self.tasks
        )
        return self.model_copy(update={"tasks": bound, "written": now, "provenance": provenance(device, 0, now)})

    def cells(self, refused: bool = False) -> Iterator[Cell]:
        """All cells with a task, or those whose task was refused; by data set, so that few tasks are in use at once."""
        for dataset in dict.fromkeys(task.dataset for task in self.tasks):
            tasks = [task for task in self.tasks if task.dataset == dataset and (task.refused is not None) == refused]
            for variant in (each for each in self.variants if each.is_for(dataset)):
                own = {name: getattr(variant, name) for name in ("method", "family", "hyperparameters", "code_sha256")}
                for task, seed in product(tasks, variant.seeds):
                    # The fields are validated already, and there may be 100,000 cells.
                    of: dict[str, Any] = {"dataset": dataset, "split": task.split, "seed": seed}
                    of |= {"task_sha256": task.task_sha256 or "", "reference_sha256": task.reference_sha256}
                    yield Cell.model_construct(**of, **own)

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
