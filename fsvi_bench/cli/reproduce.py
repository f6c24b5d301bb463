"""`fsvi-bench reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsvi_bench.cli.options import AsJson, DataDir, Workers

if TYPE_CHECKING:
    from fsvi_bench.papers.base import Outcome

OUT = Path("fsvi-bench-results")


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which figure; without it, what there is.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps and splits: a look, not the result.")] = False,
    compute: Annotated[
        bool | None,
        typer.Option(
            "--compute/--no-compute",
            help="Compute what the folder lacks, or show only what it holds. Default: compute, unless it takes days.",
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    workers: Workers = None,
    out: Annotated[
        Path | None, typer.Option("--out", help=f"Output folder, where a second run goes on. Default: {OUT}/NAME.")
    ] = None,
    data_dir: DataDir = None,
    json: AsJson = False,
) -> int:
    """Run a published experiment: figure (PNG, SVG), tables, the numbers behind them, and what became of its claims."""
    from fsvi_bench.cli.console import print_json, stderr
    from fsvi_bench.cli.progress import RichProgress
    from fsvi_bench.errors import InputError
    from fsvi_bench.files import require_writable_directory
    from fsvi_bench.papers.base import Workshop
    from fsvi_bench.papers.parts import PartFailed
    from fsvi_bench.papers.registry import find_reproduction
    from fsvi_bench.running.executors import LocalExecutor, available_cores, use_one_thread
    from fsvi_bench.running.runner import Resources
    from fsvi_bench.training.trainer import choose_device

    if name is None:
        return _list(json)
    reproduction = find_reproduction(name)
    wanted = quick or not reproduction.takes_days if compute is None else compute
    if wanted:
        reproduction.check(quick, data_dir)
    elif not reproduction.shows_unfinished:
        raise InputError(f"{name} computes all that it shows; leave --no-compute out")
    resources = Resources(choose_device(device), LocalExecutor(workers or available_cores()), data_dir)
    root = out or OUT / name
    require_writable_directory(root, "output folder", "choose another with --out")
    use_one_thread()
    try:
        with RichProgress() as progress:
            outcome = reproduction.make(Workshop(root, quick, resources, progress, wanted))
    except PartFailed as error:
        stderr.print(f"{error}; what was finished is kept in {root}, the same command goes on from there", style="red")
        return 1
    if json:
        print_json(outcome)
    else:
        _show(outcome)
    _say_what_became(outcome, root)
    return 0 if all(record.status == "ok" for record in outcome.records) else 1


def _show(outcome: Outcome) -> None:
    from fsvi_bench.cli.console import stdout
    from fsvi_bench.presenting.summary import result_table
    from fsvi_bench.presenting.tables import in_words

    if outcome.records:
        stdout.print(result_table(outcome.records, stdout.width))
    for table in outcome.tables:
        stdout.print(table.terminal())
    if outcome.claims and outcome.quick:
        stdout.print("A quick look at smaller scale settles no claim. At this scale:")
    for claim in outcome.claims:
        interval = "" if claim.low == claim.high else f" [{in_words(claim.low)}, {in_words(claim.high)}]"
        verdict = "held" if claim.holds else "undecided" if claim.undecided else "did not hold"
        stdout.print(f"{verdict}: {claim.says}\n    {claim.statistic}: {in_words(claim.value)}{interval}, ", end="")
        stdout.print(f"claimed {claim.side} {claim.threshold:g}")
    for path in outcome.files:
        stdout.print(str(path), soft_wrap=True)


def _say_what_became(outcome: Outcome, root: Path) -> None:
    """On stderr: where the results are, and what is not among them."""
    from fsvi_bench.cli.console import print_failures, stderr

    # An experiment without parts is made as a whole each time: it has nothing to count.
    parts = outcome.computed + outcome.reused
    counts = f"{outcome.computed} computed, {outcome.reused} found finished; " if parts else ""
    stderr.print(f"{counts}results lie in {root}")
    if outcome.missing:
        stderr.print(f"{outcome.missing:,} cells are not there yet and stand in no mean")
    if not outcome.files:
        stderr.print("nothing is drawn: no cell has a certified task", style="red")
    print_failures(outcome.records)


def _list(json: bool) -> int:
    from fsvi_bench.cli.console import print_json, stdout
    from fsvi_bench.papers.registry import REPRODUCTIONS
    from fsvi_bench.presenting.tables import Table

    if json:
        print_json([{"name": found.name, "summary": found.summary} for found in REPRODUCTIONS.values()])
        return 0
    rows = tuple((found.name, found.summary) for found in REPRODUCTIONS.values())
    stdout.print(Table(title="", columns=("name", "what it is"), rows=rows).terminal())
    return 0
