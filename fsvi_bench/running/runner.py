"""Runs a plan: gets the tasks from the cache or a fit, sends batches of cells to an executor, stores the outcomes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.files import require_writable_directory
from fsvi_bench.methods.base import Method
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import MethodEntry
from fsvi_bench.networks.official import CertifiedNetwork
from fsvi_bench.networks.task import LogitTask, network_name
from fsvi_bench.running.cell import Cell, Plan, Record
from fsvi_bench.running.executors import Executor, LocalExecutor
from fsvi_bench.running.job import Job, Outcome, failed, run_job
from fsvi_bench.running.network_job import NetworkProblem, network_data
from fsvi_bench.running.options import Rerun
from fsvi_bench.running.progress import Progress, Status
from fsvi_bench.running.store import Store
from fsvi_bench.tasks.build import build_task, cached_task_path
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import CertifiedTask, certify, save
from fsvi_bench.tasks.fetch import CACHE_VARIABLE, cache_dir
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.official import (
    PROBLEMS_IN_MEMORY,
    Split,
    TaskSet,
    find_task,
    official_splits,
    read_official,
    require_official,
)
from fsvi_bench.tasks.raw import RawData, load_raw
from fsvi_bench.tasks.refit import Refit, compare
from fsvi_bench.tasks.task import Task, bind_task, raw_data
from fsvi_bench.threads import use_one_thread
from fsvi_bench.training.trainer import Device

Watcher = Callable[[Sequence[Record]], None]  #: called with all records of one row of the result table
AnyTask = FrozenTask | CertifiedNetwork
Problems = TaskSet[AnyTask, Task | NetworkProblem]
MIXTURES = ("bernoulli", "spike-slab")  #: families whose scores take seconds
Refusals = dict[Split, str]  #: the reason why a split has no certified task


@dataclass(frozen=True)
class Resources:
    """What a run uses: the device, the executor for fitting and training, and the folder of raw data."""

    device: Device = "cpu"
    executor: Executor = field(default_factory=LocalExecutor)
    data_dir: Path | None = None


def run(
    plan: Plan,
    store: Store,
    resources: Resources,
    progress: Progress,
    rerun: Rerun = "none",
    watcher: Watcher = lambda records: None,
) -> tuple[list[Record], list[Record]]:
    """Computes the missing cells of a plan; returns all records of the plan, and those computed by this call.

    Records of cells whose task was refused come last, and have no `task_sha256`.

    Args:
        rerun: which finished cells to recompute; an old record is kept until its cell is finished again.
        watcher: called with the records of a row of the result table as soon as its last cell is stored.

    Raises:
        InputError: raw data are missing or wrong, settings do not fit a data set, the store is used by another run or
            contains an invalid record, or the sources changed during the run.
        KeyboardInterrupt: Ctrl-C; the message says how many cells are finished.
    """
    with store.locked():
        tasks, refusals = _certified(plan, resources, progress)
        plan = plan.bind(tasks, refusals, resources.device)
        cells, refused = list(plan.cells()), plan.refused_records()
        # If everything is recomputed, existing files need not be valid records.
        found = {} if rerun == "all" else {cell.key: store.read(cell) for cell in cells}
        records = {key: record for key, record in found.items() if record is not None and record.status != rerun}
        missing = [cell for cell in cells if cell.key not in records]
        problems = problems_of(tasks, resources.data_dir)
        check_settings(missing, plan.methods, problems)
        store.save_plan(plan)
        rows = defaultdict[str, list[Record]](list)
        sizes = Counter([*(cell.row for cell in cells), *(record.row for record in refused)])

        def add(record: Record) -> None:
            row = rows[record.row]
            row.append(record)
            if len(row) == sizes[record.row]:
                watcher(sorted(row, key=lambda record: (record.split, record.seed)))

        for record in [*records.values(), *refused]:
            add(record)
        try:
            for outcome in _compute(missing, plan.methods, problems, resources, progress):
                store.save(*outcome)
                records[outcome.record.cell] = record = outcome.record
                add(record)
                progress.advance("cells", record.name, _group(record), record.status)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(f"{len(records)} of {len(cells)} cells are finished") from error
    return [*(records[cell.key] for cell in cells), *refused], [records[cell.key] for cell in missing]


def problems_of(tasks: Iterable[AnyTask], data_dir: Path | None) -> Problems:
    """A set of tasks whose data are loaded on demand."""
    return TaskSet({task.place: task for task in tasks}, partial(_bind, data_dir=data_dir))


def _bind(task: AnyTask, data_dir: Path | None) -> Task | NetworkProblem:
    if isinstance(task, CertifiedNetwork):
        return NetworkProblem(task, task.task.training(data_dir))
    return bind_task(task, data_dir=data_dir)


def check_settings(cells: Iterable[Cell], methods: Mapping[str, MethodEntry], problems: Problems) -> None:
    """Checks the settings of each method against every problem, once for all families and seeds.

    Raises:
        InputError: settings do not fit a problem, or its raw data are missing or do not match the task.
    """
    settings = {(cell.task_sha256, cell.method, str(cell.hyperparameters)): cell for cell in cells}

    @lru_cache(PROBLEMS_IN_MEMORY)
    def data(place: Split) -> TrainingData | NetworkData:
        found = problems.problem(place)
        return network_data([found]) if isinstance(found, NetworkProblem) else TrainingData.of(found)

    for cell in settings.values():
        entry = methods[cell.method]
        options = entry.options(cell.hyperparameters)
        own = _function(entry.cls.check) is not _function(Method.check)
        on_network = network_name(cell.dataset, cell.split) is not None  # where `Method.check` looks at all settings
        if own or on_network or getattr(options, "design", None) is not None:
            entry.check(options, data((cell.dataset, cell.split)))


def _function(method: Any) -> object:
    """The function behind a class method or static method."""
    return getattr(method, "__func__", method)


def _compute(
    cells: Sequence[Cell],
    methods: Mapping[str, MethodEntry],
    problems: Problems,
    resources: Resources,
    progress: Progress,
) -> Iterator[Outcome]:
    """Yields outcomes as jobs finish. Results on a CPU do not depend on how batches are split into jobs."""
    progress.start("cells", len(cells), Counter(map(_group, cells)))
    batches = [(batch, _demand(methods[batch[0].method], batch[0])) for batch in _batches(cells, problems)]
    # Closed forms take less time than sending them to a worker.
    here = resources.device == "cpu" and all(demand == "little" for _, demand in batches)
    executor = LocalExecutor() if here else resources.executor.on(resources.device)
    workers = executor.workers  # asked once: the size of a cluster may change between batches

    def job(part: Sequence[Cell]) -> Job:
        tasks = [problems.problem((cell.dataset, cell.split)) for cell in part]
        return Job(methods[part[0].method], list(zip(tasks, part, strict=True)), resources.device)

    # What is trained side by side goes to as many jobs as there are workers. Other cells are saved one by one.
    most = {"little": 1, "training": workers, "seconds": len(cells)}
    counts = [(batch, min(len(batch), most[demand])) for batch, demand in batches]
    jobs = (job(batch[place::count]) for batch, count in counts for place in range(count))
    for each, outcome in executor.map(run_job, jobs):
        yield from failed(each, datetime.now(UTC), outcome) if isinstance(outcome, Exception) else outcome


def _group(of: Cell | Record) -> str:
    return f"{of.dataset} {of.method} {of.family}"


def _batches(cells: Iterable[Cell], problems: Problems) -> list[list[Cell]]:
    """Groups of cells that can be trained together: one row of the table, features of one kind, equal shapes."""
    groups: dict[tuple[object, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        task = problems.tasks[cell.dataset, cell.split]
        if isinstance(task, CertifiedNetwork):
            # The features of different splits are different models, and so are networks of other scales.
            model = task.task.linear_task if isinstance(task.task, LogitTask) else repr(task.task.network)
            groups[cell.row, len(task.task.train_index), model].append(cell)
        else:
            groups[cell.row, task.features, len(task.train_index), task.inducing_points.shape].append(cell)
    return list(groups.values())


def _demand(entry: MethodEntry, cell: Cell) -> Literal["little", "seconds", "training"]:
    """What a cell demands: training, or seconds for draws, for a network's mode, or for the scores of a mixture.

    The class decides: an instance would need a task for every batch.
    """
    options = entry.options(cell.hyperparameters)
    if entry.trains_with(options):
        return "training"
    is_network = network_name(cell.dataset, cell.split) is not None
    return "seconds" if is_network or cell.family in MIXTURES or not entry.is_deterministic(options) else "little"


# --- Certified tasks: official ones, from the cache, from files, or from parallel fits; and refits for checking -------


def _certified(plan: Plan, resources: Resources, progress: Progress) -> tuple[list[AnyTask], Refusals]:
    """The certified tasks, and the reasons why others could not be certified.

    Raises:
        InputError: raw data are missing or do not match the task.
    """
    found, refusals = fit_missing(plan.splits, resources.executor, resources.data_dir, progress, official=True)
    for task in plan.given:
        try:
            if isinstance(task, FrozenTask):
                certify(bind_task(task, resources.data_dir)).require_limits()
            found[task.place] = task
        except TaskRefused as error:
            refusals[task.place] = str(error)
    return list(found.values()), refusals


def known_tasks(splits: Iterable[Split], official: bool = True) -> tuple[dict[Split, FrozenTask], Refusals]:
    """The tasks that exist already, and the refusals; other splits have yet to be fitted. Nothing is fitted here."""
    tasks: dict[Split, FrozenTask] = {}
    refusals: Refusals = {}
    for place in splits:
        try:
            if (found := find_task(*place, official=official)) is not None:
                tasks[place] = found.task
        except TaskRefused as error:
            refusals[place] = str(error)
    return tasks, refusals


def require_data(
    splits: Iterable[Split], data_dir: Path | None, given: Iterable[AnyTask] = (), *, official: bool = False
) -> None:
    """Checks the raw data of every task, and the cache, before anything is fitted or written.

    Args:
        official: whether official tasks are used where they exist; these need no cache.

    Raises:
        InputError: raw data are missing, altered, or do not match a task file; or the cache is not writable.
    """
    cache, fix = cache_dir() / "tasks", f"set ${CACHE_VARIABLE} to a writable folder"
    for name, split in splits:
        if not official or split not in official_splits(name):
            require_writable_directory(cache, "the cache", fix)
        load_raw(load_card(name), split, data_dir)
    for task in given:
        raw_data(task, data_dir) if isinstance(task, FrozenTask) else task.task.training(data_dir)


def fit_missing(
    splits: Sequence[Split], executor: Executor, data_dir: Path | None, progress: Progress, *, official: bool = False
) -> tuple[dict[Split, FrozenTask], Refusals]:
    """Fits the tasks that are not in the cache, each on one thread; returns all tasks, and the reasons for refusals.

    Args:
        official: whether to use official tasks where they exist.
    """
    tasks, refusals = known_tasks(splits, official)
    missing = [place for place in splits if place not in tasks and place not in refusals]
    progress.start("tasks", len(missing))
    for place, fitted in _fits(_fit, missing, executor, data_dir):
        if isinstance(fitted, str):
            refusals[place], words = fitted, "refused"
        else:
            save(fitted, cached_task_path(load_card(place[0]), place[1]))
            tasks[place], words = fitted.task, _words(fitted)
        status: Status = "failed" if place in refusals else "ok"
        progress.advance("tasks", f"{place[0]} split {place[1]}: {words}", status=status)
    return tasks, refusals


def refit_official(
    places: Sequence[Split], executor: Executor, data_dir: Path | None, progress: Progress
) -> dict[Split, Refit | str]:
    """Refits official tasks and compares them, without writing; returns each comparison, or why there is none.

    Raises:
        InputError: a split has no official task, or its raw data are missing or altered.
        TaskRefused: an official task fails the limits of this version.
    """
    for name, split in places:
        if not official_splits(load_card(name).name):
            raise InputError(f"{name} has no official tasks to compare with; choose a data set with official tasks")
        require_official(name, [split])
        read_official(name, split)
    progress.start("refits", len(places))
    found: dict[Split, Refit | str] = {}
    for place, found[place] in _fits(_refit, places, executor, data_dir):
        progress.advance("refits", f"{place[0]} split {place[1]}")
    return {place: found[place] for place in places}


def _fits(
    function: Callable[[tuple[Split, RawData]], Any], places: Iterable[Split], executor: Executor, data_dir: Path | None
) -> Iterator[tuple[Split, Any]]:
    """Yields a function's result for each split as it finishes, or the reason for its failure.

    Raw data are sent to the worker, so no shared folder is needed.
    """
    jobs = ((place, load_raw(load_card(place[0]), place[1], data_dir)) for place in places)
    for (place, _), outcome in executor.on("cpu").map(function, jobs):
        if isinstance(outcome, Exception):
            outcome = str(outcome) if isinstance(outcome, TaskRefused) else f"{type(outcome).__name__}: {outcome}"
        yield place, outcome


def _fit(job: tuple[Split, RawData]) -> CertifiedTask:
    """Runs in a worker or in this process, on one thread: with two, BLAS rounds differently."""
    use_one_thread()
    (name, split), raw = job
    return build_task(load_card(name), split, raw=raw)


def _refit(job: tuple[Split, RawData]) -> Refit:
    """Fits without the cache, which may contain the frozen task itself."""
    return compare(read_official(*job[0]), _fit(job), job[1])


def _words(built: CertifiedTask) -> str:
    fit = built.certificate.fit
    if fit is None:
        return "drawn"
    return f"bound {fit.bound_per_point:+.4f} per point after {fit.iterations} iterations, {fit.seconds:.1f} s"
