"""Runs a plan: tasks from the cache or a fit, batches of cells through an executor, outcomes into the store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from fsvi_bench.methods.base import Method
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import MethodEntry
from fsvi_bench.running.cell import Cell, Record, row_sha256
from fsvi_bench.running.executors import Executor, LocalExecutor
from fsvi_bench.running.job import Job, Outcome, failed, method_of, run_job
from fsvi_bench.running.plan import Plan
from fsvi_bench.running.prepare import prepare
from fsvi_bench.running.progress import Progress
from fsvi_bench.running.store import Store, group_of, read_record_of
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.task import Task, bind_task
from fsvi_bench.training.trainer import Device

Rerun = Literal["none", "failed", "diverged", "all"]
Watcher = Callable[[Sequence[Record]], None]  #: gets all records of a data set, method, family and settings
PROBLEMS_IN_MEMORY = 48  #: two data sets' splits; a large data set's features take some 30 MB a split


@dataclass(frozen=True)
class Resources:
    """Where a run works: device, executor for fitting and training, folder of raw data."""

    device: Device = "cpu"
    executor: Executor = field(default_factory=LocalExecutor)
    data_dir: Path | None = None


@dataclass(frozen=True)
class RunResult:
    """All records of the plan; those among them that were computed now; those that had no certified task."""

    records: list[Record]
    computed: list[Record]
    refused: list[Record]


def run(
    plan: Plan,
    store: Store,
    resources: Resources,
    progress: Progress,
    rerun: Rerun = "none",
    watcher: Watcher = lambda records: None,
) -> RunResult:
    """Computes whatever the store does not hold yet and returns every record of the plan.

    Args:
        rerun: which finished cells are computed again all the same; each old record stands until its cell is done.
        watcher: told of each row of the table as soon as its last cell is stored.

    Raises:
        InputError: raw data are missing or wrong, settings do not fit a data set, the store is in use by another run or
            holds something that is not a record, or the sources changed while the run was under way.
    """
    with store.locked():
        tasks, refusals = prepare(plan, resources.executor, resources.data_dir, progress)
        planned = plan.file(tasks, refusals, resources.device)
        cells, refused = list(planned.cells()), planned.refused_records()
        # Whoever wants all of it again does not care what is there, be it a record or not.
        found = {} if rerun == "all" else {cell.key: read_record_of(cell, store.root) for cell in cells}
        records = {key: record for key, record in found.items() if record is not None and record.status != rerun}
        missing = [cell for cell in cells if cell.key not in records]
        problems = Problems(tasks, resources.data_dir)
        check_settings(missing, plan.methods, problems)
        store.save_plan(planned)
        rows = _Rows([*records.values(), *refused], missing, watcher)
        computed = []
        for outcome in _compute(missing, plan.methods, problems, resources, progress):
            store.save(*outcome)
            computed.append(outcome.record)
            rows.add(outcome.record)
            progress.advance("cells", outcome.cell.name, _group(outcome.cell), outcome.record.status)
    records |= {record.cell: record for record in computed}
    return RunResult([*(records[cell.key] for cell in cells), *refused], computed, refused)


class _Rows:
    """Rows of the result table while a run fills them; whoever watches is told of each that is whole."""

    def __init__(self, records: Iterable[Record], missing: Iterable[Cell], watcher: Watcher) -> None:
        self._watcher, self._left = watcher, Counter(cell.row for cell in missing)
        self._rows: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            self._rows[row_sha256(record)].append(record)
        for row in self._rows:
            self._tell(row)

    def add(self, record: Record) -> None:
        """One more cell is stored."""
        row = row_sha256(record)
        self._rows[row].append(record)
        self._left[row] -= 1
        self._tell(row)

    def _tell(self, row: str) -> None:
        if not self._left[row]:
            self._watcher(sorted(self._rows[row], key=lambda record: (record.split, record.seed)))


class Problems:
    """Tasks by their hashes; those with their data are loaded when they are needed, and the last few are kept."""

    def __init__(self, tasks: Iterable[FrozenTask], data_dir: Path | None) -> None:
        self.frozen = {task.sha256: task for task in tasks}
        self._load = lru_cache(PROBLEMS_IN_MEMORY)(lambda sha256: bind_task(self.frozen[sha256], data_dir))

    def __getitem__(self, sha256: str) -> Task:
        return self._load(sha256)


def check_settings(cells: Iterable[Cell], methods: Mapping[str, MethodEntry], problems: Problems) -> None:
    """Lets every method that checks them look at its settings beside every problem, once for all families and seeds.

    Raises:
        InputError: settings do not fit a problem, or its raw data are missing or not the task's.
    """
    settings = {(cell.task_sha256, cell.method, str(cell.hyperparameters)): cell for cell in cells}
    data = lru_cache(PROBLEMS_IN_MEMORY)(lambda sha256: TrainingData.of(problems[sha256]))
    for cell in settings.values():
        entry = methods[cell.method]
        options = entry.options(cell.hyperparameters)
        own = _function(entry.cls.check) is not _function(Method.check)
        if own or getattr(options, "design", None) is not None:
            entry.cls.check(options, data(cell.task_sha256))


def _function(method: Any) -> object:
    """What a class or static method calls."""
    return getattr(method, "__func__", method)


def _compute(
    cells: Iterable[Cell],
    methods: Mapping[str, MethodEntry],
    problems: Problems,
    resources: Resources,
    progress: Progress,
) -> Iterator[Outcome]:
    """Outcomes as jobs finish. Every batch that trains is split over the workers, which moves no result on a CPU."""
    batches = _batches(cells, problems)
    progress.start("cells", sum(map(len, batches)), Counter(_group(cell) for batch in batches for cell in batch))

    def job(batch: Sequence[Cell]) -> Job:
        return Job(methods[batch[0].method], [(problems[cell.task_sha256], cell) for cell in batch], resources.device)

    trains = [not _is_deterministic(batch[0], methods) or _trains(job(batch[:1])) for batch in batches]
    # What takes no training costs less than to send it anywhere.
    here = resources.device == "cpu" and not any(trains)
    executor = LocalExecutor() if here else resources.executor.on(resources.device)
    workers = executor.workers  # of a cluster, as it is now: to ask again for each batch might meet it in a bad moment
    counts = (workers if each else 1 for each in trains)
    jobs = (job(part) for batch, count in zip(batches, counts, strict=True) for part in _parts(batch, count))
    for each, outcome in executor.map(run_job, jobs):
        yield from failed(each, datetime.now(UTC), outcome) if isinstance(outcome, Exception) else outcome


def _group(of: Cell | Record) -> str:
    return " ".join(group_of(of))


def _batches(cells: Iterable[Cell], problems: Problems) -> list[list[Cell]]:
    """Cells that can be trained side by side: one row of the table, features of one kind, equal shapes."""
    groups: dict[tuple[object, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        task = problems.frozen[cell.task_sha256]
        groups[cell.row, task.features, len(task.train_index), task.inducing_points.shape].append(cell)
    return list(groups.values())


def _parts(batch: Sequence[Cell], count: int) -> Iterator[Sequence[Cell]]:
    """A batch in `count` parts of nearly equal size."""
    edges = [len(batch) * part // count for part in range(count + 1)]
    return (batch[start:stop] for start, stop in pairwise(edges) if stop > start)


def _is_deterministic(cell: Cell, methods: Mapping[str, MethodEntry]) -> bool:
    entry = methods[cell.method]
    return entry.cls.is_deterministic(entry.options(cell.hyperparameters))


def _trains(job: Job) -> bool:
    """Whether a method takes steps, by its own word."""
    try:
        return method_of(job).trains
    except Exception:
        return True  # its job says what it raised
