"""Problems for a plan: tasks from the cache, from files, or from a fit in parallel processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fsvi_bench.errors import TaskRefused
from fsvi_bench.files import require_writable_directory
from fsvi_bench.running.executors import Executor, use_one_thread
from fsvi_bench.running.plan import Plan
from fsvi_bench.running.progress import Progress
from fsvi_bench.tasks.build import build_into_cache, load_cached
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import certify
from fsvi_bench.tasks.problem import Problem, load_problem, require_same_data
from fsvi_bench.tasks.raw import CACHE_VARIABLE, cache_dir, load_raw

Refusals = dict[tuple[str, int], str]  #: (data set, split) -> why it has no certified task


def prepare(
    plan: Plan, executor: Executor, data_dir: Path | None, progress: Progress
) -> tuple[list[Problem], Refusals]:
    """Problems in the plan's order, and the reasons of those tasks that could not be certified.

    Raises:
        InputError: raw data are missing or are not the task's.
    """
    refusals = fit_missing(plan.splits, executor, data_dir, progress)
    problems: list[Problem] = []
    for name, split in plan.splits:
        if (name, split) in refusals:
            continue
        cached = load_cached(load_card(name), split)
        if cached is None:
            refusals[name, split] = "the fitted task vanished from the cache while the run was under way"
            continue
        problems.append(load_problem(cached.task, data_dir))
    for task in plan.tasks:
        try:
            problem = load_problem(task, data_dir)
            certify(problem).require_limits()
            problems.append(problem)
        except TaskRefused as error:
            refusals[task.dataset, task.split] = str(error)
    return problems, refusals


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
        require_same_data(task, load_raw(load_card(task.dataset), task.split, data_dir))


def fit_missing(
    splits: Sequence[tuple[str, int]], executor: Executor, data_dir: Path | None, progress: Progress
) -> Refusals:
    """Fits into the cache what is not there, each split in a process of one thread; reasons of what was refused."""
    refusals: Refusals = {}
    jobs: list[tuple[str, int, Path | None]] = []
    for name, split in splits:
        try:
            if load_cached(load_card(name), split) is None:
                jobs.append((name, split, data_dir))
        except TaskRefused as error:
            refusals[name, split] = str(error)
    progress.start("tasks", len(jobs))
    for (name, split, _), outcome in executor.map(_fit, jobs):
        if isinstance(outcome, Exception):
            refusals[name, split] = f"{type(outcome).__name__}: {outcome}"
            outcome = "refused"
        progress.advance("tasks", f"{name} split {split}: {outcome}")
    return refusals


def _fit(job: tuple[str, int, Path | None]) -> str:
    """Runs in a worker or here; says in a few words how it went. One thread: with two, BLAS rounds otherwise."""
    use_one_thread()
    name, split, data_dir = job
    fit = build_into_cache(load_card(name), split, data_dir).certificate.fit
    if fit is None:
        return "drawn"
    return f"bound {fit.bound_per_point:+.4f} per point after {fit.iterations} iterations, {fit.seconds:.1f} s"
