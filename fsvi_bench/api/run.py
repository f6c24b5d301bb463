"""`fsvi_bench.run`: what the command `run` does, with the same options."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any, get_args

import pandas as pd
from pydantic import ValidationError

from fsvi_bench.errors import InputError, invalid_field, unknown_name
from fsvi_bench.presenting.summary import frame_of
from fsvi_bench.presenting.wandb_runs import NOTES, WandbUploads, wandb_mode
from fsvi_bench.running.executors import check_choice, make_executor, one_thread
from fsvi_bench.running.options import RunOptions
from fsvi_bench.running.plan import Plan, make_plan
from fsvi_bench.running.progress import Progress, Silent
from fsvi_bench.running.ray_cluster import RayExecutor
from fsvi_bench.running.runner import Rerun, Resources, RunResult, Watcher, require_data
from fsvi_bench.running.runner import run as run_plan
from fsvi_bench.running.store import Store
from fsvi_bench.training.trainer import choose_device


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
    for name in options:
        if name not in RunOptions.model_fields:
            raise unknown_name("option", name, RunOptions.model_fields)
    try:
        asked = RunOptions.model_validate(options)
    except ValidationError as error:
        raise InputError(f"option {invalid_field(error)}") from error
    plan = plan_of(asked)
    with WandbUploads(wandb_mode(asked.wandb), asked.out) as uploads:
        result = compute(asked, plan, Silent(), uploads.log)
    for what, reason in uploads.notes.items():
        warnings.warn(NOTES[what].format(reason, asked.out), stacklevel=2)
    return frame_of(result.records)


def plan_of(options: RunOptions) -> Plan:
    """What is asked for, spelled out; all that can be refused without starting anything is.

    Raises:
        InputError: an option makes no sense.
    """
    plan = make_plan(options)
    if options.rerun not in get_args(Rerun):
        raise InputError(
            f"--rerun is '{options.rerun}', expected failed, diverged or all; leave it out to keep what is finished"
        )
    check_choice(options.executor, options.ray_address, options.gpu_share)
    wandb_mode(options.wandb)
    return plan


def compute(options: RunOptions, plan: Plan, progress: Progress, watcher: Watcher) -> RunResult:
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
        require_data(plan, options.data_dir)
        stack.enter_context(one_thread())
        return run_plan(plan, Store(options.out), resources, progress, options.rerun, watcher)  # type: ignore[arg-type]
