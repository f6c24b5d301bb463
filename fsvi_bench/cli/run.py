"""`fsvi-bench run`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fsvi_bench.api.run import compute, plan_of
from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.commands import Run
from fsvi_bench.cli.console import print_failures, show, stderr, stdout
from fsvi_bench.cli.progress import RichProgress
from fsvi_bench.cli.status import show_status
from fsvi_bench.presenting.summary import result_table
from fsvi_bench.presenting.wandb_runs import NOTES, WandbUploads, wandb_mode
from fsvi_bench.running.plan import Plan
from fsvi_bench.running.runner import RunResult, check_settings, known_tasks, problems_of
from fsvi_bench.running.store import count_cells, status_of
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.raw import is_here


def run(options: Run) -> int:
    plan, out = plan_of(options), options.out
    for flag in plan.unused:
        stderr.print(f"{flag} is not used: none of the chosen methods has such a setting", style="yellow")
    if options.dry_run:
        return _show_planned(plan, options)
    with WandbUploads(wandb_mode(options.wandb), out) as uploads:
        with RichProgress() as progress:
            result = compute(options, plan, progress, uploads.log)
        show(options.as_json, result.records, lambda: result_table(result.records, stdout.width))
        if not options.as_json:
            stderr.print(f"{_counts(result)}; results lie in {out}")
        sys.stdout.flush()  # whoever waits for the numbers does not wait for W&B
    if uploads.kept:
        send = f"wandb sync {out / 'wandb'}/offline-run-*"
        stderr.print(f"{uploads.kept} W&B runs are kept offline (none with --wandb off); to send them: {send}")
    for what, reason in uploads.notes.items():
        stderr.print(NOTES[what].format(reason, out), style="yellow")
    return print_failures(result.records)


def _counts(result: RunResult) -> str:
    reused = len(result.records) - len(result.computed) - len(result.refused)
    refused = f", {len(result.refused)} without a certified task" if result.refused else ""
    return f"{len(result.computed)} cells computed, {reused} found finished{refused}"


@no_garbage_collection()
def _show_planned(plan: Plan, options: Run) -> int:
    """What `run` would find and compute. Splits whose task is not fitted yet count as missing.

    Raises:
        InputError: what `run` would refuse, so far as that takes neither a fit nor a download.
    """
    known, unfitted, refusals = known_tasks(plan.splits)
    tasks = [*plan.tasks, *known.values()]
    _check_missing(plan, tasks, options)
    planned = plan.file(tasks, refusals, "cpu", unfitted)
    counts = count_cells(planned.cells(), planned.refused_records(), options.out, options.rerun)
    show_status(counts, 0, options.as_json)
    return 0


def _check_missing(plan: Plan, tasks: Sequence[FrozenTask], options: Run) -> None:
    names = sorted({task.dataset for task in tasks if task.own_data is None})
    unchecked = [name for name in names if not is_here(load_card(name), options.data_dir)]
    if unchecked:
        absent = f"the raw data of {', '.join(unchecked)} are not here"
        stderr.print(f"{absent}, so that no setting is held to them", style="yellow")
    held = [task for task in tasks if task.dataset not in unchecked]
    cells = plan.file(held, {}, "cpu").cells()
    missing = [cell for cell in cells if status_of(cell, options.out, options.rerun) == "missing"]
    check_settings(missing, plan.methods, problems_of(held, options.data_dir))
