"""Certified tasks: the official ones, from the cache, from files, or from fits side by side; and fits checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.files import require_writable_directory
from fsvi_bench.running.executors import Executor, use_one_thread
from fsvi_bench.running.plan import Plan
from fsvi_bench.running.progress import Progress
from fsvi_bench.tasks.build import build_task, cached_task_path
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import CertifiedTask, certify, save
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.official import Place, find_task, official_splits, read_official, require_official
from fsvi_bench.tasks.raw import CACHE_VARIABLE, RawData, cache_dir, load_raw
from fsvi_bench.tasks.refit import Refit, compare
from fsvi_bench.tasks.task import bind_task, raw_data

Refusals = dict[Place, str]  #: why there is no certified task


def prepare(
    plan: Plan, executor: Executor, data_dir: Path | None, progress: Progress
) -> tuple[list[FrozenTask], Refusals]:
    """Certified tasks in the plan's order, and the reasons of those that could not be certified.

    Raises:
        InputError: raw data are missing or are not the task's.
    """
    refusals = fit_missing(plan.splits, executor, data_dir, progress, official=True)
    tasks, unfitted, refused = _look_up(plan.splits)
    vanished = "the fitted task vanished from the cache while the run was under way"
    refusals = dict.fromkeys(unfitted, vanished) | refused | refusals
    for task in plan.tasks:
        try:
            certify(bind_task(task, data_dir)).require_limits()
            tasks.append(task)
        except TaskRefused as error:
            refusals[task.dataset, task.split] = str(error)
    return tasks, refusals


def known_tasks(plan: Plan) -> tuple[list[FrozenTask], list[Place], Refusals]:
    """Of a plan: the tasks that are at hand, the splits still to be fitted, and what was refused. Nothing is fitted."""
    tasks, unfitted, refusals = _look_up(plan.splits)
    return [*plan.tasks, *tasks], unfitted, refusals


def _look_up(splits: Sequence[Place], official: bool = True) -> tuple[list[FrozenTask], list[Place], Refusals]:
    tasks: list[FrozenTask] = []
    missing: list[Place] = []
    refusals: Refusals = {}
    for place in splits:
        try:
            found = find_task(*place, official=official)
        except TaskRefused as error:
            refusals[place] = str(error)
            continue
        if found is None:
            missing.append(place)
        else:
            tasks.append(found.task)
    return tasks, missing, refusals


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
) -> Refusals:
    """Fits into the cache what is not there, each split on one thread; reasons of what was refused.

    Args:
        official: whether what has an official task need not be fitted.
    """
    _, missing, refusals = _look_up(splits, official)
    progress.start("tasks", len(missing))
    for (name, split), fitted in _fits(_fit, missing, executor, data_dir):
        if isinstance(fitted, str):
            refusals[name, split] = fitted
            progress.advance("tasks", f"{name} split {split}: refused", status="failed")
        else:
            save(fitted, cached_task_path(load_card(name), split))
            progress.advance("tasks", f"{name} split {split}: {_words(fitted)}")
    return refusals


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
