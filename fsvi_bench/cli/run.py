"""`fsvi-bench run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsvi_bench.arithmetic import kernels_of_protocol, use_kernels
from fsvi_bench.cli.options import AsJson, takes
from fsvi_bench.running.options import RunOptions

if TYPE_CHECKING:
    from fsvi_bench.running.runner import RunResult


@takes(RunOptions)
def run(
    options: RunOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be computed; compute and write nothing.")
    ] = False,
    json: AsJson = False,
) -> int:
    """Run methods on data sets, score them against the exact posterior, and print a table."""
    use_kernels(kernels_of_protocol(options.protocol))  # before anything that imports torch
    from fsvi_bench.api.run import compute, plan_of
    from fsvi_bench.cli.console import print_failures, print_json, stderr
    from fsvi_bench.cli.progress import RichProgress
    from fsvi_bench.cli.status import show_planned
    from fsvi_bench.presenting.wandb_runs import NOTES, WandbUploads, wandb_mode

    plan, out = plan_of(options), options.out
    for flag in plan.unused:
        stderr.print(f"{flag} is not used: none of the chosen methods has such a setting", style="yellow")
    if dry_run:
        return show_planned(plan, out, options.rerun, options.data_dir, json)
    with WandbUploads(wandb_mode(options.wandb), out) as uploads:
        with RichProgress() as progress:
            result = compute(options, plan, progress, uploads.log)
        if json:
            print_json(result.records)
        else:
            _show(result, out)
        sys.stdout.flush()  # whoever waits for the numbers does not wait for W&B
    if uploads.kept:
        send = f"wandb sync {out / 'wandb'}/offline-run-*"
        stderr.print(f"{uploads.kept} W&B runs are kept offline (none with --wandb off); to send them: {send}")
    for what, reason in uploads.notes.items():
        stderr.print(NOTES[what].format(reason, out), style="yellow")
    print_failures(result.records)
    return 0 if all(record.status == "ok" for record in result.records) else 1


def _show(result: RunResult, out: Path) -> None:
    from fsvi_bench.cli.console import stderr, stdout
    from fsvi_bench.presenting.summary import result_table

    stdout.print(result_table(result.records, stdout.width))
    reused = len(result.records) - len(result.computed) - len(result.refused)
    refused = f", {len(result.refused)} without a certified task" if result.refused else ""
    stderr.print(f"{len(result.computed)} cells computed, {reused} found finished{refused}; results lie in {out}")
