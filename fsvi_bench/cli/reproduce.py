"""`fsvi-bench reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsvi_bench.cli.options import AsJson, DataDir, Workers

OUT = Path("fsvi-bench-results")


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which figure; without it, what there is.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps and splits: a look, not the result.")] = False,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    workers: Workers = None,
    out: Annotated[
        Path | None, typer.Option("--out", help=f"Output folder, where a second run goes on. Default: {OUT}/NAME.")
    ] = None,
    data_dir: DataDir = None,
    json: AsJson = False,
) -> int:
    """Run a published experiment and draw its figure: PNG, SVG, and the numbers behind them as JSON."""
    from fsvi_bench.cli.console import RichProgress, print_json, stderr, stdout
    from fsvi_bench.reporting.reproduce import Outcome, find_reproduction
    from fsvi_bench.reporting.summary import summarise
    from fsvi_bench.reporting.table import failures, result_table
    from fsvi_bench.running.executors import available_cores, use_one_thread
    from fsvi_bench.running.plan import make_plan
    from fsvi_bench.running.prepare import require_data
    from fsvi_bench.running.runner import Resources, run
    from fsvi_bench.running.store import Store
    from fsvi_bench.training.trainer import choose_device

    if name is None:
        return _list(json)
    reproduction = find_reproduction(name)
    plan = make_plan(reproduction.request(quick))
    resources = Resources(choose_device(device), workers or available_cores(), data_dir)
    require_data(plan, data_dir)
    store = Store(out or OUT / name)
    use_one_thread()
    with RichProgress() as progress:
        result = run(plan, store, resources, progress)
    paths = reproduction.write(result.records, store, quick)
    if json:
        print_json(Outcome(name=name, quick=quick, files=paths, records=result.records))
    else:
        stdout.print(result_table(summarise(result.records), stdout.width))
        for path in paths:
            stdout.print(str(path), soft_wrap=True)
    reused = len(result.records) - len(result.computed) - len(result.refused)
    stderr.print(f"{len(result.computed)} cells computed, {reused} found finished; results lie in {store.root}")
    if not paths:
        stderr.print("nothing is drawn: no cell has a certified task", style="red")
    for line in failures(result.records):
        stderr.print(line, style="red")
    return 0 if all(record.status == "ok" for record in result.records) else 1


def _list(json: bool) -> int:
    from rich.table import Table

    from fsvi_bench.cli.console import print_json, stdout
    from fsvi_bench.reporting.reproduce import REPRODUCTIONS

    if json:
        print_json([{"name": found.name, "summary": found.summary} for found in REPRODUCTIONS.values()])
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for found in REPRODUCTIONS.values():
        table.add_row(found.name, found.summary)
    stdout.print(table)
    return 0
