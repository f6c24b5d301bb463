"""`fsvi-bench score`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsvi_bench.cli.options import AsJson, DataDir


def score(
    task: Annotated[Path, typer.Option("--task", help="A frozen task file (fsvi-task/1).")],
    posterior: Annotated[Path, typer.Option("--posterior", help="A posterior file (fsvi-posterior/1).")],
    data_dir: DataDir = None,
    json: AsJson = False,
) -> int:
    """Score one posterior file against one task; features depend on the raw inputs, so these are needed too."""
    from fsvi_bench.cli.console import print_json, stdout
    from fsvi_bench.posteriors.io import read_posterior
    from fsvi_bench.reporting.table import score_table
    from fsvi_bench.running.executors import use_one_thread
    from fsvi_bench.scoring.scores import score as score_posterior
    from fsvi_bench.tasks.certificate import certify, read_certified
    from fsvi_bench.tasks.problem import load_problem

    use_one_thread()
    frozen, _ = read_certified(task)
    q = read_posterior(posterior, frozen.k, frozen.sha256)
    problem = load_problem(frozen, data_dir)
    certify(problem).require_limits()
    scores = score_posterior(q, problem)
    if json:
        print_json(scores)
    else:
        stdout.print(score_table(scores))
    return 0
