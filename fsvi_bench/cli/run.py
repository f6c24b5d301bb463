"""`fsvi-bench run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from fsvi_bench.arithmetic import kernels_of_protocol, use_kernels
from fsvi_bench.cli.options import AsJson, DataDir, Workers, wandb_mode

if TYPE_CHECKING:
    from fsvi_bench.running.runner import RunResult

#: Data sets, methods and output that a plain `run` uses are said in the help, since nobody reads the source for them.
DEFAULT_OUT = Path("fsvi-bench-results")
WANDB_NOTES = {
    "offline": "W&B did not go online ({}); its runs are kept in {}/wandb, and `wandb sync` sends them",
    "stopped": "W&B logging stopped ({}); the records are complete in {}, and the same command again logs what is missing",
}


def run(
    dataset: Annotated[list[str] | None, typer.Option("--dataset", help="Data set; may be repeated. Default: diabetes (bundled).")] = None,
    task: Annotated[list[Path] | None, typer.Option("--task", help="A frozen task file, or an official task such as boston:0; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="Method name or file.py:Class; default: all.")] = None,
    family: Annotated[list[str] | None, typer.Option("--family", help="full, ffg, bernoulli or spike-slab; default: all that a method has.")] = None,
    splits: Annotated[str | None, typer.Option("--splits", help="0-19 or 0,3,5; default: all.")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="0-4 or 0,2; a deterministic method is one cell.")] = None,
    measurement_points: Annotated[list[int] | None, typer.Option("--measurement-points", help="Size M of the measurement set; may be repeated.")] = None,
    max_steps: Annotated[int | None, typer.Option("--max-steps", help="Training steps, for methods that train.")] = None,
    protocol: Annotated[str | None, typer.Option("--protocol", help="A named experiment, such as quick.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A method option; may be repeated.")] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    executor: Annotated[str, typer.Option("--executor", help="local (processes here) or ray (a cluster).")] = "local",
    ray_address: Annotated[str | None, typer.Option("--ray-address", metavar="HOST:PORT", help="Head of a Ray cluster, or auto. Default: $RAY_ADDRESS, else one started here.")] = None,
    gpu_share: Annotated[float | None, typer.Option("--gpu-share", help="With ray: what a call takes of one GPU, such as 0.25. Default: 1.")] = None,
    workers: Workers = None,
    wandb: Annotated[str, typer.Option("--wandb", help="auto (online with a key, else offline), online, offline or off.")] = "auto",
    out: Annotated[Path, typer.Option("--out", help="Output folder; a second run there finishes what is missing.")] = DEFAULT_OUT,
    rerun: Annotated[str, typer.Option("--rerun", help="Finished cells to compute again: failed, diverged or all.")] = "none",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be computed; compute and write nothing.")] = False,
    data_dir: DataDir = None,
    json: AsJson = False,
) -> int:  # fmt: skip
    """Run methods on data sets, score them against the exact posterior, and print a table."""
    use_kernels(kernels_of_protocol(protocol))  # before anything that imports torch
    from fsvi_bench.cli.console import print_failures, print_json, stderr
    from fsvi_bench.cli.progress import RichProgress
    from fsvi_bench.cli.status import show_planned
    from fsvi_bench.errors import InputError
    from fsvi_bench.presenting.wandb_runs import WandbUploads
    from fsvi_bench.running.executors import RayExecutor, check_choice, make_executor, use_one_thread
    from fsvi_bench.running.plan import Request, make_plan
    from fsvi_bench.running.prepare import require_data
    from fsvi_bench.running.runner import Rerun, Resources
    from fsvi_bench.running.runner import run as run_plan
    from fsvi_bench.running.settings import parse_option
    from fsvi_bench.running.store import Store
    from fsvi_bench.training.trainer import choose_device

    request = Request(
        datasets=dataset or (),
        task_files=task or (),
        methods=method or (),
        families=family or (),
        splits=splits,
        seeds=seeds,
        measurement_points=measurement_points or (),
        max_steps=max_steps,
        protocol=protocol,
        options=dict(parse_option(text) for text in settings or ()),
    )
    plan = make_plan(request)
    if rerun not in get_args(Rerun):
        raise InputError(
            f"--rerun is '{rerun}', expected failed, diverged or all; leave it out to keep what is finished"
        )
    check_choice(executor, ray_address, gpu_share)
    mode = wandb_mode(wandb)
    for flag in plan.unused:
        stderr.print(f"{flag} is not used: none of the chosen methods has such a setting", style="yellow")
    if dry_run:
        return show_planned(plan, out, rerun, data_dir, json)
    chosen = make_executor(executor, workers, ray_address, gpu_share)
    resources = Resources(choose_device(device, chosen.has_gpu), chosen, data_dir)
    require_data(plan, data_dir)
    store = Store(out)
    use_one_thread()
    with WandbUploads(mode, out) as uploads:
        with RichProgress() as progress:
            if isinstance(chosen, RayExecutor):
                progress.note(f"Ray cluster at {chosen.connection.address}, room for {chosen.workers} calls at once")
            result = run_plan(plan, store, resources, progress, rerun, uploads.log)  # type: ignore[arg-type]
        if json:
            print_json(result.records)
        else:
            _show(result, out)
        sys.stdout.flush()  # whoever waits for the numbers does not wait for W&B
    if uploads.kept:
        send = f"wandb sync {out / 'wandb'}/offline-run-*"
        stderr.print(f"{uploads.kept} W&B runs are kept offline (none with --wandb off); to send them: {send}")
    for what, reason in uploads.notes.items():
        stderr.print(WANDB_NOTES[what].format(reason, out), style="yellow")
    print_failures(result.records)
    return 0 if all(record.status == "ok" for record in result.records) else 1


def _show(result: RunResult, out: Path) -> None:
    from fsvi_bench.cli.console import stderr, stdout
    from fsvi_bench.presenting.result_table import result_table

    stdout.print(result_table(result.records, stdout.width))
    reused = len(result.records) - len(result.computed) - len(result.refused)
    refused = f", {len(result.refused)} without a certified task" if result.refused else ""
    stderr.print(f"{len(result.computed)} cells computed, {reused} found finished{refused}; results lie in {out}")
