"""`fsvi_bench.run`: the command `fsvi-bench run` as a function, with the same options."""

from __future__ import annotations

import re
import warnings
from contextlib import ExitStack
from typing import Any

import pandas as pd
from pydantic import ValidationError

from fsvi_bench.arithmetic import require_kernels_of
from fsvi_bench.errors import InputError, invalid_field, unknown_name
from fsvi_bench.presenting.summary import frame_of
from fsvi_bench.presenting.wandb_runs import NOTES, WandbUploads, wandb_mode
from fsvi_bench.running.cell import Plan, Record
from fsvi_bench.running.devices import device_for, work_of
from fsvi_bench.running.executors import make_executor
from fsvi_bench.running.options import RunOptions
from fsvi_bench.running.plan import make_plan
from fsvi_bench.running.progress import Progress, Silent
from fsvi_bench.running.ray_cluster import RayExecutor
from fsvi_bench.running.runner import Resources, Watcher, require_data
from fsvi_bench.running.runner import run as run_plan
from fsvi_bench.running.store import Store
from fsvi_bench.threads import one_thread

NAMES = {"dataset": "datasets", "task": "task_files", "method": "methods", "family": "families", "set": "options"}


def run(**options: Any) -> pd.DataFrame:
    """Runs methods on data sets, scores them against the exact posterior, and returns `results` of these cells.

    Runs resume: call it again with the same `out` to compute missing cells. Workers are processes, so a script
    must call it below `if __name__ == "__main__":`.

    Args:
        options: the options of `fsvi-bench run`, named as in `fsvi_bench.running.options.RunOptions`, such as
            `datasets=["toy"], methods=["exact"], out="folder"`.

    Raises:
        InputError: an option is not valid; one sentence says how to fix it.
    """
    try:
        return _run(options)
    except InputError as error:
        raise InputError(re.sub("`[^`]*`|--([a-z-]+)", _by_name, str(error))) from error


def _by_name(found: re.Match[str]) -> str:
    """Replaces a flag by the name of the option in Python, and leaves quoted commands unchanged."""
    name = NAMES.get(found[1], found[1].replace("-", "_")) if found[1] else None
    return name if name in RunOptions.model_fields else found[0]


def _run(options: dict[str, Any]) -> pd.DataFrame:
    for name in options:
        if name not in RunOptions.model_fields:
            raise unknown_name("option", name, RunOptions.model_fields)
    try:
        asked = RunOptions.model_validate(options)
    except ValidationError as error:
        raise InputError(f"option {invalid_field(error)}") from error
    require_kernels_of(asked.protocol)
    plan = make_plan(asked)
    with WandbUploads(wandb_mode(asked.wandb), asked.out) as uploads:
        records, _ = compute(asked, plan, Silent(), uploads.log)
    for what, reason in uploads.notes.items():
        warnings.warn(NOTES[what].format(reason, asked.out), stacklevel=3)
    return frame_of(records)


def compute(options: RunOptions, plan: Plan, progress: Progress, watcher: Watcher) -> tuple[list[Record], list[Record]]:
    """Computes the missing cells of a plan; returns as `fsvi_bench.running.runner.run`.

    Raises:
        InputError: the device or cluster is not available, raw data are missing, or the folder cannot be used.
    """
    executor = make_executor(options.executor, options.workers, options.ray_address, options.gpu_share)
    with ExitStack() as stack:
        if isinstance(executor, RayExecutor):
            stack.callback(executor.close)
            progress.note(f"Ray cluster at {executor.address}: {executor.workers} parallel calls")
        calls = {"cores": executor.on("cpu").workers, "gpus": executor.on("cuda").workers}
        device = device_for(options.device, work_of(plan), executor.has_gpu, **calls)
        resources = Resources(device, executor, options.data_dir)
        require_data(plan.splits, options.data_dir, plan.given, official=True)
        stack.enter_context(one_thread())
        return run_plan(plan, Store(options.out), resources, progress, options.rerun, watcher)
