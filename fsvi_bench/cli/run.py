"""`fsvi-bench run`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

from fsvi_bench.api.run import compute
from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.commands import Run
from fsvi_bench.cli.console import print_failures, show, stderr, stdout
from fsvi_bench.cli.progress import RichProgress
from fsvi_bench.cli.status import show_status
from fsvi_bench.files import require_writable_directory
from fsvi_bench.presenting.summary import result_table
from fsvi_bench.presenting.wandb_runs import NOTES, WandbUploads, wandb_mode
from fsvi_bench.running.cell import Plan, Record
from fsvi_bench.running.options import setting
from fsvi_bench.running.plan import make_plan
from fsvi_bench.running.runner import AnyTask, check_settings, known_tasks, problems_of
from fsvi_bench.running.store import Store
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.raw import is_here
from fsvi_bench.training.trainer import choose_device


def run(options: Run) -> int:
    with redirect_stdout(sys.stderr):  # what the code of a method prints; stdout is for results
        plan, out = make_plan(options), options.out
    for flag in plan.unused:
        stderr.print(
            f"{flag} has no effect: the chosen methods lack this option, or are in closed form", style="yellow"
        )
    for name, methods in plan.shared.items():
        one = f"{methods[0]}.{setting(name, options.options[name])}"
        stderr.print(f"--set {name} applies to {', '.join(methods)}; to set it for one method, write --set {one}")
    if options.dry_run:
        return _show_planned(plan, options)
    with WandbUploads(wandb_mode(options.wandb), out) as uploads:
        with RichProgress() as progress, redirect_stdout(sys.stderr):
            records, computed = compute(options, plan, progress, uploads.log)
        show(options.as_json, records, lambda: result_table(records, stdout.width))
        if not options.as_json:
            stderr.print(f"{_counts(records, computed)}; results are in {out}")
        sys.stdout.flush()  # a reader of stdout should not have to wait for W&B
    if uploads.kept:
        send = f"wandb sync {shlex.quote(str(out / 'wandb'))}/offline-run-*"
        stderr.print(
            f"{uploads.kept} W&B runs are stored offline (--wandb off disables them); upload them with: {send}"
        )
    for what, reason in uploads.notes.items():
        stderr.print(NOTES[what].format(reason, out), style="yellow")
    return print_failures(records, out)


def _counts(records: Sequence[Record], computed: Sequence[Record]) -> str:
    refused = sum(record.task_sha256 is None for record in records)
    without = f", {refused} without a certified task" if refused else ""
    return f"{len(computed)} cells computed, {len(records) - len(computed) - refused} reused{without}"


@no_garbage_collection()
def _show_planned(plan: Plan, options: Run) -> int:
    """Shows what `run` would reuse and compute. Splits whose task is not fitted yet count as missing.

    Raises:
        InputError: `run` would refuse the request for a reason that shows without a fit, a download, a cluster, or
            reading all scores of finished cells.
    """
    require_writable_directory(options.out, "output folder", "choose another with --out")
    if options.executor == "local":
        choose_device(options.device)
    known, refusals = known_tasks(plan.splits)
    tasks, store = [*plan.given, *known.values()], Store(options.out)
    planned = plan.bind(tasks, refusals, "cpu")
    with redirect_stdout(sys.stderr):
        _check_missing(planned, tasks, store, options)
    counts = store.count([*planned.cells(), *planned.refused_records()], options.rerun)
    show_status(counts, 0, options.as_json)
    return 0


def _raw_data(task: AnyTask) -> str:
    """The data set whose raw data a task needs; empty if it has its own."""
    if isinstance(task, FrozenTask):
        return task.dataset if task.own_data is None else ""
    return task.task.dataset


def _check_missing(plan: Plan, tasks: Sequence[AnyTask], store: Store, options: Run) -> None:
    names = sorted({_raw_data(task) for task in tasks} - {""})
    unchecked = [name for name in names if not is_here(load_card(name), options.data_dir)]
    if unchecked:
        absent = f"the raw data of {', '.join(unchecked)} are not available locally"
        stderr.print(f"{absent}; the settings were not checked against them", style="yellow")
    checkable = {task.sha256: task for task in tasks if _raw_data(task) not in unchecked}
    cells = [each for each in plan.cells() if each.task_sha256 in checkable]
    missing = [cell for cell in cells if store.status(cell, options.rerun) == "missing"]
    check_settings(missing, plan.methods, problems_of(checkable.values(), options.data_dir))
