"""Problems for a plan: tasks from the cache, from files, or from a fit in parallel processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fsvi_bench.errors import TaskRefused
from fsvi_bench.files import require_writable_directory
from fsvi_bench.running.executors import Executor, use_one_thread
from fsvi_bench.running.plan import Plan
from fsvi_bench.running.progress import Progress
from fsvi_bench.tasks.build import CertifiedTask, build_task, load_cached, save_to_cache
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import certify
from fsvi_bench.tasks.problem import Problem, load_problem, require_same_data
from fsvi_bench.tasks.raw import CACHE_VARIABLE, RawData, cache_dir, load_raw

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
    """Fits into the cache what is not there, each split in a process of one thread; reasons of what was refused.

    Data travel to the workers and tasks travel back: a worker may be a machine that has neither the data nor this
    cache.
    """
    refusals: Refusals = {}
    missing: list[tuple[str, int]] = []
    for name, split in splits:
        try:
            if load_cached(load_card(name), split) is None:
                missing.append((name, split))
        except TaskRefused as error:
            refusals[name, split] = str(error)
    progress.start("tasks", len(missing))
    jobs = ((name, split, load_raw(load_card(name), split, data_dir)) for name, split in missing)
    for (name, split, _), outcome in executor.on("cpu").map(_fit, jobs):
        if isinstance(outcome, Exception):
            refusals[name, split] = f"{type(outcome).__name__}: {outcome}"
            said = "refused"
        else:
            save_to_cache(outcome, load_card(name))
            said = _in_words(outcome)
        progress.advance("tasks", f"{name} split {split}: {said}")
    return refusals


def _fit(job: tuple[str, int, RawData]) -> CertifiedTask:
    """Runs in a worker or here. One thread: with two, BLAS rounds otherwise."""
    use_one_thread()
    name, split, raw = job
    return build_task(load_card(name), split, raw=raw)


def _in_words(built: CertifiedTask) -> str:
    fit = built.certificate.fit
    if fit is None:
        return "drawn"
    return f"bound {fit.bound_per_point:+.4f} per point after {fit.iterations} iterations, {fit.seconds:.1f} s"
