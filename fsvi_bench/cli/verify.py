"""`fsvi-bench verify`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import median

from rich.table import Table as Terminal

from fsvi_bench.cli.commands import Verify
from fsvi_bench.cli.console import show, stderr, stdout, table
from fsvi_bench.cli.leaderboard import local_verification
from fsvi_bench.cli.progress import RichProgress
from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.leaderboard import verifying
from fsvi_bench.leaderboard.board import read_placed_entry
from fsvi_bench.leaderboard.edition import read_secret
from fsvi_bench.leaderboard.result import Cell, Result, result_path, write_result
from fsvi_bench.leaderboard.signing import require_key
from fsvi_bench.running.executors import Executor, make_executor
from fsvi_bench.threads import use_one_thread


def verify(options: Verify) -> int:
    use_one_thread()
    executor = make_executor(options.executor, options.workers, options.ray_address)
    results: list[Result] = []
    for folder in options.entries:
        try:
            results.append(_verified(folder, executor, options))
        except (InputError, TaskRefused) as error:
            if len(options.entries) == 1:
                raise
            stderr.print(f"fsvi-bench: {error}")  # a broken entry does not hold up those behind it
        else:
            if not options.as_json:
                stdout.print(_medians(results[-1]))
    if options.as_json:
        show(True, results, str)
    if len(results) < len(options.entries):
        return 2
    return 0 if all(cell.status == "ok" for result in results for cell in result.cells) else 1


def _verified(folder: Path, executor: Executor, options: Verify) -> Result:
    """The result, written and signed."""
    entry, root = read_placed_entry(folder)
    local, key = local_verification(options, root), options.key
    limits = replace(local.limits, seconds=options.max_seconds)
    verification = replace(local, secret=read_secret(local.edition, options.secret), limits=limits)
    require_key(key, root)  # before hours of work, not after
    with RichProgress() as progress:
        result = verifying.verify(entry, verification, root, executor, progress)
    path = result_path(root, result.edition, result.entry)
    write_result(path, result, key)
    stderr.print(f"{path}{'' if key else ', unsigned'}")
    return result


def _medians(result: Result) -> Terminal:
    """By data set, of ranked tasks beside official ones."""

    def median_kl(cells: list[Cell]) -> float | None:
        return median(cell.scores.kl if cell.scores else math.inf for cell in cells) if cells else None

    rows = []
    for dataset in dict.fromkeys(cell.dataset for cell in result.cells):
        here = [cell for cell in result.cells if cell.dataset == dataset]
        ranked, official = ([cell for cell in here if cell.kind == kind] for kind in ("ranked", "official"))
        finished = sum(cell.status == "ok" for cell in ranked)
        rows.append((dataset, f"{finished} of {len(ranked)}", median_kl(ranked), median_kl(official)))
    columns = ("data set", "ranked runs finished", "KL, ranked", "KL, official")
    return table(columns, rows, f"{result.entry}: medians; isolation: {result.isolation}")
