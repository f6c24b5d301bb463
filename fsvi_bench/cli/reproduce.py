"""`fsvi-bench reproduce`."""

from __future__ import annotations

from pathlib import Path

from fsvi_bench.cli.commands import Reproduce
from fsvi_bench.cli.console import print_failures, show, stderr, stdout
from fsvi_bench.cli.progress import RichProgress
from fsvi_bench.errors import InputError
from fsvi_bench.files import require_writable_directory
from fsvi_bench.papers.experiment import Outcome
from fsvi_bench.papers.parts import PartFailed
from fsvi_bench.papers.registry import REPRODUCTIONS, find_reproduction
from fsvi_bench.papers.workspace import Scale, Workspace
from fsvi_bench.presenting.summary import result_table
from fsvi_bench.presenting.tables import Table
from fsvi_bench.running.executors import LocalExecutor, available_cores
from fsvi_bench.running.runner import Resources
from fsvi_bench.threads import use_one_thread
from fsvi_bench.training.trainer import choose_device


def reproduce(options: Reproduce) -> int:
    if options.name is None:
        found = [(each.name, each.summary) for each in REPRODUCTIONS.values()]
        document = [{"name": name, "summary": summary} for name, summary in found]
        show(options.as_json, document, lambda: Table(columns=("name", "summary"), rows=found).terminal())
        return 0
    root = options.out or Path("fsvi-bench-results") / options.name
    try:
        outcome = _make(options, options.name, root)
    except PartFailed as error:
        stderr.print(f"{error}; finished parts are kept in {root}: rerun the command to resume", style="red")
        return 1
    if options.as_json:
        show(True, outcome, str)
    else:
        _show(outcome)
    return _summarise(outcome, root)


def _make(options: Reproduce, name: str, root: Path) -> Outcome:
    reproduction, scale, compute = find_reproduction(name), _scale(options), options.compute
    reproduction.require(scale)
    if compute is None:
        compute = scale != "paper" or not reproduction.takes_days
    if compute:
        reproduction.check(scale, options.data_dir)
    elif not reproduction.shows_unfinished:
        raise InputError(
            f"{name} is not made from the cells of a run, which --no-compute shows; drop it, or see docs/reproductions "
            "for stored results"
        )
    executor = LocalExecutor(options.workers or available_cores())
    resources = Resources(choose_device(options.device), executor, options.data_dir)
    require_writable_directory(root, "output folder", "choose another with --out")
    use_one_thread()
    with RichProgress() as progress:
        return reproduction.make(Workspace(root, scale, resources, progress, compute))


def _scale(options: Reproduce) -> Scale:
    if options.quick and options.medium:
        raise InputError("got both --quick and --medium, expected one scale; drop one of them")
    return "quick" if options.quick else "medium" if options.medium else "paper"


def _show(outcome: Outcome) -> None:
    if outcome.records:
        stdout.print(result_table(outcome.records, stdout.width), crop=False)
    for each in outcome.tables:
        stdout.print(each.terminal(), crop=False)
    if outcome.claims:
        print(_introduction(outcome))
    for claim in outcome.claims:
        interval = "" if claim.low == claim.high else f" ({claim.between})"
        print(f"{claim.outcome}: {claim.says}")
        print(f"    {claim.statistic}: {claim.found}{interval}, claimed {claim.side} {claim.threshold:g}")
    for path in outcome.files:
        print(path)


def _introduction(outcome: Outcome) -> str:
    """Says at which scale the verdicts are."""
    if outcome.scale == "quick":
        return "A preview at reduced scale cannot confirm or refute a claim. At this scale:"
    if outcome.scale == "medium":
        return f"At medium scale: {find_reproduction(outcome.name).changes('medium')}:"
    return "At full scale:"


def _summarise(outcome: Outcome, root: Path) -> int:
    """Prints on stderr where the results are and what is missing, and returns the exit status."""
    # An experiment without parts is recomputed as a whole, so there is nothing to count.
    parts = outcome.computed + outcome.reused
    counts = f"{outcome.computed} computed, {outcome.reused} reused; " if parts else ""
    stderr.print(f"{counts}results are in {root}")
    if outcome.missing:
        stderr.print(f"{outcome.missing:,} cells are missing and left out of all means")
    if not outcome.files:
        stderr.print("no figure was drawn: no cell has a certified task", style="red")
    return print_failures(outcome.records, root)
