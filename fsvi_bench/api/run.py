"""`fsvi_bench.run`: what the command `run` does, with the same options."""

from __future__ import annotations

import re
import warnings
from contextlib import ExitStack
from typing import Any

import pandas as pd
from pydantic import ValidationError

from fsvi_bench.errors import InputError, invalid_field, unknown_name
from fsvi_bench.presenting.summary import frame_of
from fsvi_bench.presenting.wandb_runs import NOTES, WandbUploads, wandb_mode
from fsvi_bench.running.cell import Plan, Record
from fsvi_bench.running.executors import make_executor, one_thread
from fsvi_bench.running.options import RunOptions
from fsvi_bench.running.plan import make_plan
from fsvi_bench.running.progress import Progress, Silent
from fsvi_bench.running.ray_cluster import RayExecutor
from fsvi_bench.running.runner import Resources, Watcher, require_data
from fsvi_bench.running.runner import run as run_plan
from fsvi_bench.running.store import Store
from fsvi_bench.training.trainer import choose_device

NAMES = {"dataset": "datasets", "task": "task_files", "method": "methods", "family": "families", "set": "options"}


def run(**options: Any) -> pd.DataFrame:
    """Runs methods on data sets, scores them against the exact posterior, and returns `results` of these cells.

    A second run with the same `out` finishes what is missing. Workers are processes: a script calls this below
    `if __name__ == "__main__":`.

    Args:
        options: those of `fsvi-bench run`, by the names that `fsvi_bench.running.options.RunOptions` has for them,
            such as `datasets=["toy"], methods=["exact"], out="folder"`.

    Raises:
        InputError: as the command refuses them; one sentence says what to change.
    """
    try:
        return _run(options)
    except InputError as error:
        raise InputError(re.sub("`[^`]*`|--([a-z-]+)", _by_name, str(error))) from error


def _by_name(found: re.Match[str]) -> str:
    """A flag of the command as the option's name in Python; a command in a sentence stays one."""
    return NAMES.get(found[1], found[1].replace("-", "_")) if found[1] else found[0]


def _run(options: dict[str, Any]) -> pd.DataFrame:
    for name in options:
        if name not in RunOptions.model_fields:
            raise unknown_name("option", name, RunOptions.model_fields)
    try:
        asked = RunOptions.model_validate(options)
    except ValidationError as error:
        raise InputError(f"option {invalid_field(error)}") from error
    plan = make_plan(asked)
    with WandbUploads(wandb_mode(asked.wandb), asked.out) as uploads:
        records, _ = compute(asked, plan, Silent(), uploads.log)
    for what, reason in uploads.notes.items():
        warnings.warn(NOTES[what].format(reason, asked.out), stacklevel=3)
    return frame_of(records)


def compute(options: RunOptions, plan: Plan, progress: Progress, watcher: Watcher) -> tuple[list[Record], list[Record]]:
    """Computes what the output folder lacks of a plan.

    Raises:
        InputError: there is no such device or cluster, raw data are missing, or the folder cannot be used.
    """
    executor = make_executor(options.executor, options.workers, options.ray_address, options.gpu_share)
    with ExitStack() as stack:
        if isinstance(executor, RayExecutor):
            stack.callback(executor.close)
            progress.note(f"Ray cluster at {executor.address}, room for {executor.workers} calls at once")
        resources = Resources(choose_device(options.device, executor.has_gpu), executor, options.data_dir)
        require_data(plan.splits, options.data_dir, plan.given)
        stack.enter_context(one_thread())
        return run_plan(plan, Store(options.out), resources, progress, options.rerun, watcher)
