"""`fsvi-bench verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsvi_bench.arithmetic import use_kernels
from fsvi_bench.cli.leaderboard import EditionName, WithoutIsolation, local_verification
from fsvi_bench.cli.options import AsJson, DataDir, Workers

if TYPE_CHECKING:
    from fsvi_bench.leaderboard.entry import Entry
    from fsvi_bench.leaderboard.result import Result
    from fsvi_bench.leaderboard.verifying import Verification
    from fsvi_bench.running.executors import Executor


def verify(
    entries: Annotated[list[Path], typer.Argument(help="Folders of entries: LEADERBOARD/entries/NAME.")],
    edition: EditionName = None,
    secret: Annotated[Path | None, typer.Option("--secret", help="File of the edition's secret; a closed edition needs none.")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="SSH private key that signs the results.")] = None,
    max_seconds: Annotated[float, typer.Option("--max-seconds", min=1, help="Of one run, whatever its budget says.")] = 3600.0,
    without_isolation: WithoutIsolation = False,
    executor: Annotated[str, typer.Option("--executor", help="local or ray.")] = "local",
    ray_address: Annotated[str | None, typer.Option("--ray-address", help="With ray: the cluster's address.")] = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    json: AsJson = False,
) -> int:  # fmt: skip
    """Run entries on every task of an edition, in a jail, score them, and write LEADERBOARD/results/EDITION/NAME.json.

    The same command goes on where it was interrupted.
    """
    use_kernels("portable")  # before anything that imports torch
    from dataclasses import replace

    from fsvi_bench.cli.console import print_json, stderr
    from fsvi_bench.errors import InputError, TaskRefused
    from fsvi_bench.leaderboard.board import read_placed_entry
    from fsvi_bench.leaderboard.edition import read_secret
    from fsvi_bench.leaderboard.signing import require_key
    from fsvi_bench.running.executors import make_executor, use_one_thread

    use_one_thread()
    chosen = make_executor(executor, workers, ray_address)
    results: list[Result] = []
    for folder in entries:
        try:
            entry, root = read_placed_entry(folder)
            local = local_verification(root, edition, without_isolation, data_dir)
            limits = replace(local.limits, seconds=max_seconds)
            its = replace(local, secret=read_secret(local.edition, secret), limits=limits)
            require_key(key, root)  # before hours of work, not after
            results.append(_verified(entry, root, its, chosen, key))
        except (InputError, TaskRefused) as error:
            if len(entries) == 1:
                raise
            stderr.print(f"fsvi-bench: {error}", soft_wrap=True)  # a broken entry does not hold up those behind it
            continue
        if not json:
            _show(results[-1])
    if json:
        print_json(results)
    if len(results) < len(entries):
        return 2
    return 0 if all(cell.status == "ok" for result in results for cell in result.cells) else 1


def _verified(entry: Entry, root: Path, verification: Verification, executor: Executor, key: Path | None) -> Result:
    """The result, written and signed."""
    from fsvi_bench.cli.console import stderr
    from fsvi_bench.cli.progress import RichProgress
    from fsvi_bench.leaderboard.result import result_path, write_result
    from fsvi_bench.leaderboard.verifying import verify

    with RichProgress() as progress:
        result = verify(entry, verification, root, executor, progress)
    path = result_path(root, result.edition, result.entry)
    write_result(path, result, key)
    stderr.print(f"{path}{'' if key else ', unsigned'}", soft_wrap=True)
    return result


def _show(result: Result) -> None:
    """Medians by data set, of ranked tasks beside official ones."""
    import math
    from statistics import median

    from fsvi_bench.cli.console import stdout
    from fsvi_bench.presenting.tables import Table

    rows: list[tuple[str | float | None, ...]] = []
    for dataset in dict.fromkeys(cell.dataset for cell in result.cells):
        here = [cell for cell in result.cells if cell.dataset == dataset]
        ranked, official = ([cell for cell in here if cell.kind == kind] for kind in ("ranked", "official"))
        scores = [
            median(cell.scores.kl if cell.scores else math.inf for cell in each) if each else None
            for each in (ranked, official)
        ]
        finished = sum(cell.status == "ok" for cell in ranked)
        rows.append((dataset, f"{finished} of {len(ranked)}", *scores))
    columns = ("data set", "ranked runs finished", "KL, ranked", "KL, official")
    table = Table(title=f"{result.entry}: medians; isolation: {result.isolation}", columns=columns, rows=tuple(rows))
    stdout.print(table.terminal())
