"""`fsvi-bench score`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsvi_bench.cli.options import AsJson, DataDir

if TYPE_CHECKING:
    from rich.table import Table as Terminal

    from fsvi_bench.running.posterior_folder import ScoredFile
    from fsvi_bench.scoring.scores import Scores


def score(
    task: Annotated[
        Path | None,
        typer.Option("--task", help="A frozen task file (fsvi-task/1), or an official task such as boston:0."),
    ] = None,
    posterior: Annotated[Path | None, typer.Option("--posterior", help="A posterior file (fsvi-posterior/1).")] = None,
    posteriors: Annotated[
        Path | None, typer.Option("--posteriors", help="A folder of posterior files, all of them scored.")
    ] = None,
    task_set: Annotated[
        str | None, typer.Option("--task-set", help="With --posteriors: official, or a folder of task files.")
    ] = None,
    data_dir: DataDir = None,
    json: AsJson = False,
) -> int:
    """Score one posterior file against one task, or a folder of them; features depend on the raw inputs, so these are
    needed too."""
    from fsvi_bench.errors import InputError
    from fsvi_bench.running.executors import use_one_thread

    if posteriors is not None and task is None and posterior is None:
        use_one_thread()
        return _score_folder(posteriors, task_set or "official", data_dir, json)
    if posteriors is not None or task_set is not None or task is None or posterior is None:
        raise InputError(
            "score takes --task FILE with --posterior FILE, or --posteriors FOLDER (with --task-set if its tasks are "
            "not the official ones); give one of the two pairs"
        )
    use_one_thread()
    return _score_one(task, posterior, data_dir, json)


def _score_one(task: Path, posterior: Path, data_dir: Path | None, json: bool) -> int:
    from fsvi_bench.cli.console import print_json, stdout
    from fsvi_bench.posteriors.io import read_posterior
    from fsvi_bench.scoring.scores import score as score_posterior
    from fsvi_bench.tasks.certificate import certify
    from fsvi_bench.tasks.official import read_named
    from fsvi_bench.tasks.task import bind_task

    frozen, _ = read_named(task)
    q = read_posterior(posterior, frozen.k, frozen.sha256)
    problem = bind_task(frozen, data_dir)
    certify(problem).require_limits()
    scores = score_posterior(q, problem)
    if json:
        print_json(scores)
    else:
        stdout.print(in_lines(scores))
    return 0


def in_lines(scores: Scores) -> Terminal:
    """Every score, a line each."""
    from fsvi_bench.presenting.summary import flat
    from fsvi_bench.presenting.tables import facts

    named = flat(scores)
    del named["overconfidence.quantiles"]  # its ends and its median are told
    return facts({name: _score(value) for name, value in named.items()})


def _score(value: float | bool | tuple[float, float] | None) -> str:
    from fsvi_bench.presenting.tables import in_words

    if value is None:
        return "does not apply"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " to ".join(in_words(end, 10) for end in (value if isinstance(value, tuple) else [value]))


def _score_folder(folder: Path, task_set: str, data_dir: Path | None, json: bool) -> int:
    from fsvi_bench.cli.console import print_json, stderr, stdout
    from fsvi_bench.running.posterior_folder import load_task_set, posterior_files, score_folder

    posterior_files(folder)
    scored = list(score_folder(folder, load_task_set(task_set, data_dir)))
    if json:
        print_json(scored)
    else:
        stdout.print(_folder_table(scored))
    for file in scored:
        if file.status != "ok":
            stderr.print(f"{file.file}: {file.reason}", style="red")
    return 0 if all(file.status == "ok" for file in scored) else 1


def _folder_table(scored: list[ScoredFile]) -> Terminal:
    from fsvi_bench.presenting.summary import SHOWN
    from fsvi_bench.presenting.tables import Table

    names = ("kl", "predictive_kl_test", "predictive_kl_box", "nlpd", "rmse")
    rows = tuple(
        (file.file, f"{file.dataset} {file.split}", *(getattr(file.scores, name) for name in names))
        for file in scored
        if file.scores is not None
    )
    columns = ("file", "task", *(SHOWN[name]["heading"] for name in names))
    return Table(title=f"{len(rows)} of {len(scored)} files scored", columns=columns, rows=rows).terminal()
