"""Runs a plan: tasks from the cache or a fit, batches of cells through an executor, outcomes into the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from fsvi_bench.methods.base import Method
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.running.cell import Cell, Record
from fsvi_bench.running.executors import Executor, LocalExecutor
from fsvi_bench.running.grid import Planned, batches, expand, parts, plan_file
from fsvi_bench.running.job import Job, Outcome, failed, run_job
from fsvi_bench.running.plan import Plan, Variant
from fsvi_bench.running.prepare import prepare
from fsvi_bench.running.progress import Progress
from fsvi_bench.running.rows import Rows, Watcher
from fsvi_bench.running.store import Store
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.task import Task, bind_task
from fsvi_bench.training.trainer import Device

Rerun = Literal["none", "failed", "diverged", "all"]
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
        planned = list(expand(plan.variants, tasks))
        # Whoever wants all of it again does not care what is there, be it a record or not.
        found = {item.cell.key: None if rerun == "all" else store.load(item.cell) for item in planned}
        missing = [item for item in planned if _is_missing(found[item.cell.key], rerun)]
        kept = {key: record for key, record in found.items() if not _is_missing(record, rerun) and record is not None}
        loader = Loader(resources.data_dir)
        check_settings(missing, loader)
        saved = plan_file(plan, tasks, refusals, resources.device)
        store.save_plan(saved)
        refused, computed = saved.refused_records(), {}
        rows = Rows((item.cell for item in planned), refused, kept, watcher)
        rows.tell_of_finished()
        for outcome in _compute(missing, loader, resources, progress):
            store.save(outcome.cell, outcome.record, outcome.posterior, outcome.trace, outcome.traceback)
            computed[outcome.cell.key] = outcome.record
            rows.add(outcome.cell, outcome.record)
            progress.advance("cells", outcome.cell.name, _group(outcome.cell), outcome.record.status)
    by_key = {**kept, **computed}
    return RunResult([by_key[item.cell.key] for item in planned] + refused, list(computed.values()), refused)


def _is_missing(record: Record | None, rerun: Rerun) -> bool:
    return record is None or rerun in ("all", record.status)


class Loader:
    """Problems of tasks, loaded when they are needed; the last few are kept."""

    def __init__(self, data_dir: Path | None) -> None:
        self._tasks: dict[str, FrozenTask] = {}
        self._load = lru_cache(PROBLEMS_IN_MEMORY)(lambda key: bind_task(self._tasks[key], data_dir))

    def __call__(self, task: FrozenTask) -> Task:
        self._tasks[task.sha256] = task
        return self._load(task.sha256)


def check_settings(missing: Sequence[Planned], loader: Loader) -> None:
    """Lets every method that checks them look at its settings beside every problem, once for all families and seeds.

    Raises:
        InputError: settings do not fit a problem, or its raw data are missing or not the task's.
    """
    by_task: dict[str, tuple[FrozenTask, dict[tuple[str, str], Variant]]] = {}
    pairs = {(id(variant), task.sha256): (variant, task) for variant, task, _ in missing}  # there may be many seeds
    for variant, task in pairs.values():
        own = _function(variant.method.cls.check) is not _function(Method.check)
        if own or getattr(variant.options, "design", None) is not None:
            settings = (variant.method.name, variant.options.model_dump_json())
            by_task.setdefault(task.sha256, (task, {}))[1].setdefault(settings, variant)
    for task, variants in by_task.values():
        problem = TrainingData.of(loader(task))
        for variant in variants.values():
            variant.method.cls.check(variant.options, problem)


def _function(method: Any) -> object:
    """What a class or static method calls."""
    return getattr(method, "__func__", method)


def _group(cell: Cell) -> str:
    return f"{cell.dataset} {cell.method} {cell.family}"


def _compute(missing: Sequence[Planned], loader: Loader, resources: Resources, progress: Progress) -> Iterator[Outcome]:
    """Outcomes as jobs finish. Every batch is split over the workers, which moves no result on a CPU."""
    formulas = _formulas(missing, loader)
    executor = _executor(missing, resources, formulas)
    workers = executor.workers  # of a cluster, as it is now: to ask again for each batch might meet it in a bad moment
    progress.start("cells", len(missing), Counter(_group(item.cell) for item in missing))
    jobs = (
        Job(part[0].variant, [(loader(task), cell) for _, task, cell in part], resources.device)
        for batch in batches(missing)
        for part in parts(batch, 1 if id(batch[0].variant) in formulas else workers)
    )
    for job, outcome in executor.map(run_job, jobs):
        yield from failed(job, datetime.now(UTC), outcome) if isinstance(outcome, Exception) else outcome


def _formulas(missing: Sequence[Planned], loader: Loader) -> set[int]:
    """Ids of the variants that draw nothing and take one step, by their own word on one problem of theirs."""
    first = {id(item.variant): item for item in reversed(missing) if item.variant.deterministic}
    return {key for key, item in first.items() if not _trains(item.variant, loader(item.task))}


def _trains(variant: Variant, problem: Task) -> bool:
    try:
        return variant.method.cls(problem, variant.family, [0], variant.options).trains
    except Exception:
        return True  # its job says what it raised


def _executor(missing: Sequence[Planned], resources: Resources, formulas: Set[int]) -> Executor:
    """What takes no training costs less than to send it anywhere."""
    here = resources.device == "cpu" and all(id(item.variant) in formulas for item in missing)
    return LocalExecutor() if here else resources.executor.on(resources.device)
