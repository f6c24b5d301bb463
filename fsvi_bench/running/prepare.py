"""Certified tasks for a plan: the official ones, from the cache, from files, or from fits side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsvi_bench.errors import TaskRefused
from fsvi_bench.files import require_writable_directory
from fsvi_bench.running.executors import Executor, use_one_thread
from fsvi_bench.running.plan import Plan
from fsvi_bench.running.progress import Progress
from fsvi_bench.tasks.build import build_from, cached_task_path
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import CertifiedTask, certify, save
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.official import find_task
from fsvi_bench.tasks.raw import CACHE_VARIABLE, RawData, cache_dir, load_raw
from fsvi_bench.tasks.task import bind_task, raw_data

Refusals = dict[tuple[str, int], str]  #: (data set, split) -> why it has no certified task


def prepare(
    plan: Plan, executor: Executor, data_dir: Path | None, progress: Progress
) -> tuple[list[FrozenTask], Refusals]:
    """Certified tasks in the plan's order, and the reasons of those that could not be certified.

    Raises:
        InputError: raw data are missing or are not the task's.
    """
    refusals = fit_missing(plan.splits, executor, data_dir, progress, official=True)
    tasks: list[FrozenTask] = []
    for name, split in plan.splits:
        if (name, split) in refusals:
            continue
        found = find_task(name, split)
        if found is None:
            refusals[name, split] = "the fitted task vanished from the cache while the run was under way"
            continue
        tasks.append(found.task)
    for task in plan.tasks:
        try:
            certify(bind_task(task, data_dir)).require_limits()
            tasks.append(task)
        except TaskRefused as error:
            refusals[task.dataset, task.split] = str(error)
    return tasks, refusals


def known_tasks(plan: Plan) -> tuple[list[FrozenTask], list[tuple[str, int]], Refusals]:
    """Of a plan: the tasks that are at hand, the splits still to be fitted, and what was refused. Nothing is fitted."""
    tasks, unfitted, refusals = list(plan.tasks), [], {}
    for name, split in plan.splits:
        try:
            found = find_task(name, split)
        except TaskRefused as error:
            refusals[name, split] = str(error)
            continue
        if found is None:
            unfitted.append((name, split))
        else:
            tasks.append(found.task)
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
    splits: Sequence[tuple[str, int]],
    executor: Executor,
    data_dir: Path | None,
    progress: Progress,
    *,
    official: bool = False,
) -> Refusals:
    """Fits into the cache what is not there, each split on one thread; reasons of what was refused.

    Args:
        official: whether what has an official task need not be fitted.

    Raw data travel to the workers and tasks back from them: neither needs a folder that all machines see.
    """
    refusals: Refusals = {}
    missing: list[tuple[str, int]] = []
    for name, split in splits:
        try:
            if find_task(name, split, official=official) is None:
                missing.append((name, split))
        except TaskRefused as error:
            refusals[name, split] = str(error)
    progress.start("tasks", len(missing))
    jobs = (_Fit(name, split, load_raw(load_card(name), split, data_dir)) for name, split in missing)
    for job, outcome in executor.on("cpu").map(_fit, jobs):
        name, split = job.dataset, job.split
        if isinstance(outcome, Exception):
            own_words = isinstance(outcome, TaskRefused)
            refusals[name, split] = str(outcome) if own_words else f"{type(outcome).__name__}: {outcome}"
            progress.advance("tasks", f"{name} split {split}: refused", status="failed")
            continue
        save(outcome, cached_task_path(load_card(name), split))
        progress.advance("tasks", f"{name} split {split}: {_words(outcome)}")
    return refusals


@dataclass(frozen=True)
class _Fit:
    """One split to be fitted."""

    dataset: str
    split: int
    raw: RawData


def _fit(job: _Fit) -> CertifiedTask:
    """Runs in a worker or here. One thread: with two, BLAS rounds otherwise."""
    use_one_thread()
    return build_from(load_card(job.dataset), job.split, job.raw)


def _words(built: CertifiedTask) -> str:
    fit = built.certificate.fit
    if fit is None:
        return "drawn"
    return f"bound {fit.bound_per_point:+.4f} per point after {fit.iterations} iterations, {fit.seconds:.1f} s"
