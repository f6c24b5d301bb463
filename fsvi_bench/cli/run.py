"""`fsvi-bench run`."""

from __future__ import annotations

import sys

from fsvi_bench.api.run import compute, plan_of
from fsvi_bench.cli.commands import Run
from fsvi_bench.cli.console import print_failures, show, stderr, stdout
from fsvi_bench.cli.progress import RichProgress
from fsvi_bench.cli.status import show_planned
from fsvi_bench.presenting.result_table import result_table
from fsvi_bench.presenting.wandb_runs import NOTES, WandbUploads, wandb_mode
from fsvi_bench.running.runner import RunResult


def run(options: Run) -> int:
    plan, out = plan_of(options), options.out
    for flag in plan.unused:
        stderr.print(f"{flag} is not used: none of the chosen methods has such a setting", style="yellow")
    if options.dry_run:
        return show_planned(plan, options)
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
