"""Runs a plan: tasks from the cache or a fit, batches of cells through an executor, outcomes into the store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.files import require_writable_directory
from fsvi_bench.methods.base import Method
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import MethodEntry
from fsvi_bench.running.cell import Cell, Record, cell_of, row_sha256
from fsvi_bench.running.executors import Executor, LocalExecutor, use_one_thread
from fsvi_bench.running.job import Job, Outcome, failed, run_job
from fsvi_bench.running.plan import Plan
from fsvi_bench.running.progress import Progress
from fsvi_bench.running.store import Store, read_record_of
from fsvi_bench.tasks.build import build_task, cached_task_path
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import CertifiedTask, certify, save
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.official import (
    PROBLEMS_IN_MEMORY,
    Place,
    TaskSet,
    find_task,
    official_splits,
    read_official,
    require_official,
)
from fsvi_bench.tasks.raw import CACHE_VARIABLE, RawData, cache_dir, load_raw
from fsvi_bench.tasks.refit import Refit, compare
from fsvi_bench.tasks.task import bind_task, raw_data
from fsvi_bench.training.trainer import Device

Rerun = Literal["none", "failed", "diverged", "all"]
Watcher = Callable[[Sequence[Record]], None]  #: gets all records of a data set, method, family and settings
Refusals = dict[Place, str]  #: why there is no certified task


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
        tasks, refusals = _certified(plan, resources.executor, resources.data_dir, progress)
        planned = plan.file(tasks, refusals, resources.device)
        cells, refused = list(planned.cells()), planned.refused_records()
        # Whoever wants all of it again does not care what is there, be it a record or not.
        found = {} if rerun == "all" else {cell.key: read_record_of(cell, store.root) for cell in cells}
        records = {key: record for key, record in found.items() if record is not None and record.status != rerun}
        missing = [cell for cell in cells if cell.key not in records]
        problems = problems_of(tasks, resources.data_dir)
        check_settings(missing, plan.methods, problems)
        store.save_plan(planned)
        tell = _by_row([*records.values(), *refused], missing, watcher)
        computed = []
        for outcome in _compute(missing, plan.methods, problems, resources, progress):
            store.save(*outcome)
            computed.append(record := outcome.record)
            tell(record)
            progress.advance("cells", cell_of(record).name, _group(record), record.status)
    records |= {record.cell: record for record in computed}
    return RunResult([*(records[cell.key] for cell in cells), *refused], computed, refused)


def _by_row(records: Sequence[Record], missing: Iterable[Cell], watcher: Watcher) -> Callable[[Record], None]:
    """Takes the missing records one by one, and tells of each row of the table that is whole; of whole ones at once."""
    rows: defaultdict[str, list[Record]] = defaultdict(list)
    left = Counter([*map(row_sha256, records), *(cell.row for cell in missing)])

    def add(record: Record) -> None:
        row = row_sha256(record)
        rows[row].append(record)
        if len(rows[row]) == left[row]:
            watcher(sorted(rows[row], key=lambda record: (record.split, record.seed)))

    for record in records:
        add(record)
    return add


def problems_of(tasks: Iterable[FrozenTask], data_dir: Path | None) -> TaskSet:
    """Tasks whose data are loaded when they are needed."""
    return TaskSet({(task.dataset, task.split): task for task in tasks}, partial(bind_task, data_dir=data_dir))


def check_settings(cells: Iterable[Cell], methods: Mapping[str, MethodEntry], problems: TaskSet) -> None:
    """Lets every method that checks them look at its settings beside every problem, once for all families and seeds.

    Raises:
        InputError: settings do not fit a problem, or its raw data are missing or not the task's.
    """
    settings = {(cell.task_sha256, cell.method, str(cell.hyperparameters)): cell for cell in cells}
    data = lru_cache(PROBLEMS_IN_MEMORY)(lambda place: TrainingData.of(problems.problem(place)))
    for cell in settings.values():
        entry = methods[cell.method]
        options = entry.options(cell.hyperparameters)
        own = _function(entry.cls.check) is not _function(Method.check)
        if own or getattr(options, "design", None) is not None:
            entry.cls.check(options, data((cell.dataset, cell.split)))


def _function(method: Any) -> object:
    """What a class or static method calls."""
    return getattr(method, "__func__", method)


def _compute(
    cells: Iterable[Cell],
    methods: Mapping[str, MethodEntry],
    problems: TaskSet,
    resources: Resources,
    progress: Progress,
) -> Iterator[Outcome]:
    """Outcomes as jobs finish. Every batch that trains is split over the workers, which moves no result on a CPU."""
    batches = _batches(cells, problems)
    progress.start("cells", sum(map(len, batches)), Counter(_group(cell) for batch in batches for cell in batch))

    def job(batch: Sequence[Cell]) -> Job:
        tasks = [problems.problem((cell.dataset, cell.split)) for cell in batch]
        return Job(methods[batch[0].method], list(zip(tasks, batch, strict=True)), resources.device)

    trains = [_takes_time(methods[batch[0].method], batch[0]) for batch in batches]
    # What is a formula costs less than to send it anywhere.
    here = resources.device == "cpu" and not any(trains)
    executor = LocalExecutor() if here else resources.executor.on(resources.device)
    workers = executor.workers  # of a cluster, as it is now: to ask again for each batch might meet it in a bad moment
    counts = (workers if each else 1 for each in trains)
    jobs = (job(part) for batch, count in zip(batches, counts, strict=True) for part in _parts(batch, count))
    for each, outcome in executor.map(run_job, jobs):
        yield from failed(each, datetime.now(UTC), outcome) if isinstance(outcome, Exception) else outcome


def _group(of: Cell | Record) -> str:
    return f"{of.dataset} {of.method} {of.family}"


def _batches(cells: Iterable[Cell], problems: TaskSet) -> list[list[Cell]]:
    """Cells that can be trained side by side: one row of the table, features of one kind, equal shapes."""
    groups: dict[tuple[object, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        task = problems.tasks[cell.dataset, cell.split]
        groups[cell.row, task.features, len(task.train_index), task.inducing_points.shape].append(cell)
    return list(groups.values())


def _parts(batch: Sequence[Cell], count: int) -> Iterator[Sequence[Cell]]:
    """A batch in `count` parts of nearly equal size."""
    edges = [len(batch) * part // count for part in range(count + 1)]
    return (batch[start:stop] for start, stop in pairwise(edges) if stop > start)


def _takes_time(entry: MethodEntry, cell: Cell) -> bool:
    """Whether the method takes steps or draws. It is not made for that, which would load a task for every batch."""
    return entry.cls.solve is Method.solve or not entry.cls.is_deterministic(entry.options(cell.hyperparameters))


# --- Certified tasks: official ones, from the cache, from files, or from fits side by side; and fits checked ----------


def _certified(
    plan: Plan, executor: Executor, data_dir: Path | None, progress: Progress
) -> tuple[list[FrozenTask], Refusals]:
    """Certified tasks in the plan's order, and the reasons of those that could not be certified.

    Raises:
        InputError: raw data are missing or are not the task's.
    """
    found, refusals = fit_missing(plan.splits, executor, data_dir, progress, official=True)
    tasks = [found[place] for place in plan.splits if place in found]
    for task in plan.tasks:
        try:
            certify(bind_task(task, data_dir)).require_limits()
            tasks.append(task)
        except TaskRefused as error:
            refusals[task.dataset, task.split] = str(error)
    return tasks, refusals


def known_tasks(
    splits: Sequence[Place], official: bool = True
) -> tuple[dict[Place, FrozenTask], list[Place], Refusals]:
    """The tasks that are at hand, the splits still to be fitted, and what was refused. Nothing is fitted."""
    tasks: dict[Place, FrozenTask] = {}
    unfitted: list[Place] = []
    refusals: Refusals = {}
    for place in splits:
        try:
            if (found := find_task(*place, official=official)) is None:
                unfitted.append(place)
            else:
                tasks[place] = found.task
        except TaskRefused as error:
            refusals[place] = str(error)
    return tasks, unfitted, refusals


def require_data(plan: Plan, data_dir: Path | None) -> None:
    """Makes sure of the raw data of every task, and of the cache, before anything is fitted or written.

    Raises:
        InputError: raw data are missing, altered, or not the ones that a task file was made from; fitted tasks cannot
            be kept.
    """
    if plan.splits:
        require_writable_directory(cache_dir() / "tasks", "the cache", f"set ${CACHE_VARIABLE} to a folder that is")
    for name, split in plan.splits:
        load_raw(load_card(name), split, data_dir)
    for task in plan.tasks:
        raw_data(task, data_dir)


def fit_missing(
    splits: Sequence[Place], executor: Executor, data_dir: Path | None, progress: Progress, *, official: bool = False
) -> tuple[dict[Place, FrozenTask], Refusals]:
    """Fits into the cache what is not there, each split on one thread: the tasks, and reasons of what was refused.

    Args:
        official: whether what has an official task need not be fitted.
    """
    tasks, missing, refusals = known_tasks(splits, official)
    progress.start("tasks", len(missing))
    for (name, split), fitted in _fits(_fit, missing, executor, data_dir):
        if isinstance(fitted, str):
            refusals[name, split] = fitted
            progress.advance("tasks", f"{name} split {split}: refused", status="failed")
        else:
            save(fitted, cached_task_path(load_card(name), split))
            tasks[name, split] = fitted.task
            progress.advance("tasks", f"{name} split {split}: {_words(fitted)}")
    return tasks, refusals


def refit_official(
    places: Sequence[Place], executor: Executor, data_dir: Path | None, progress: Progress
) -> dict[Place, Refit | str]:
    """Each official task's split fitted again and compared, or why it could not be; nothing is written.

    Raises:
        InputError: a split has no official task, or its raw data are missing or altered.
        TaskRefused: an official task fails the limits of this version.
    """
    for name, split in places:
        if not official_splits(load_card(name).name):
            raise InputError(f"{name} has no official tasks to be compared with; name a data set that has")
        require_official(name, [split])
        read_official(name, split)
    progress.start("refits", len(places))
    found: dict[Place, Refit | str] = {}
    for (name, split), compared in _fits(_refit, places, executor, data_dir):
        found[name, split] = compared
        progress.advance("refits", f"{name} split {split}")
    return {place: found[place] for place in places}


class _Fit(NamedTuple):
    """One split to be fitted. Its raw data travel to the worker: neither needs a folder that all machines see."""

    dataset: str
    split: int
    raw: RawData


def _fits(
    function: Callable[[_Fit], Any], places: Sequence[Place], executor: Executor, data_dir: Path | None
) -> Iterator[tuple[Place, Any]]:
    """What a function makes of each split, as it is done, or why it makes nothing."""
    jobs = (_Fit(name, split, load_raw(load_card(name), split, data_dir)) for name, split in places)
    for job, outcome in executor.on("cpu").map(function, jobs):
        if isinstance(outcome, Exception):
            outcome = str(outcome) if isinstance(outcome, TaskRefused) else f"{type(outcome).__name__}: {outcome}"
        yield (job.dataset, job.split), outcome


def _fit(job: _Fit) -> CertifiedTask:
    """Runs in a worker or here. One thread: with two, BLAS rounds otherwise."""
    use_one_thread()
    return build_task(load_card(job.dataset), job.split, raw=job.raw)


def _refit(job: _Fit) -> Refit:
    """The cache is not asked: what lies there may be the frozen task itself."""
    return compare(read_official(job.dataset, job.split), _fit(job), job.raw)


def _words(built: CertifiedTask) -> str:
    fit = built.certificate.fit
    if fit is None:
        return "drawn"
    return f"bound {fit.bound_per_point:+.4f} per point after {fit.iterations} iterations, {fit.seconds:.1f} s"
