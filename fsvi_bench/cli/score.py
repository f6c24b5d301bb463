"""`fsvi-bench score`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table as Terminal

from fsvi_bench.cli.commands import Score
from fsvi_bench.cli.console import show, stderr, stdout
from fsvi_bench.errors import InputError
from fsvi_bench.networks.official import find_network, load_network, official_network
from fsvi_bench.networks.reference import read_functions
from fsvi_bench.networks.scores import NetworkScores, score_functions
from fsvi_bench.posteriors.io import named_task, read_approximation
from fsvi_bench.presenting.summary import flat, posterior_table
from fsvi_bench.presenting.tables import Cell, Table, Written, facts, in_words
from fsvi_bench.running.posterior_folder import ScoredFile, load_task_set, posterior_files, score_folder
from fsvi_bench.scoring import scores as scoring
from fsvi_bench.tasks.certificate import certify
from fsvi_bench.tasks.official import official_name, read_one_task
from fsvi_bench.tasks.task import bind_task
from fsvi_bench.threads import use_one_thread


def score(options: Score) -> int:
    use_one_thread()
    match options:
        case Score(task=None, posterior=None, posteriors=Path() as folder):
            return _score_folder(folder, options)
        case Score(task=Path() as task, posterior=Path() as posterior, posteriors=None, task_set=None):
            _score_one(task, posterior, options)
            return 0
    raise InputError(
        "score needs either --task with --posterior, or --posteriors (with --task-set unless the tasks are official); "
        "give one of these combinations"
    )


def _score_one(task: Path, posterior: Path, options: Score) -> None:
    if find_network(task) is not None:
        network = load_network(task)
        found = score_functions(read_functions(posterior, network.task), network.task, network.reference)
        show(options.as_json, found, lambda: network_table(found).terminal())
        return
    frozen = read_one_task(task)
    named = named_task(posterior)
    if named not in (None, frozen.sha256) and (own := official_name(named) or official_network(named)) is not None:
        raise InputError(f"{posterior} belongs to {own}, but --task is {task}; use --task {own}")
    q = read_approximation(posterior, frozen.k, frozen.sha256)
    problem = bind_task(frozen, options.data_dir)
    certify(problem).require_limits()
    scores = scoring.score(q, problem)
    if names := scoring.not_a_number(scores):
        raise InputError(
            f"{posterior}: these scores are not numbers: {', '.join(names)}; the posterior's numbers are too large or "
            "too small for them"
        )
    show(options.as_json, scores, lambda: in_lines(scores))


def network_table(found: NetworkScores) -> Table:
    """A line for each score, with its floor: what exact draws score."""
    rows: list[list[Cell]] = [
        [name, *map(_number, score.model_dump().values())] for name, score in found.scores.items()
    ]
    title = f"{found.functions:,} functions on {found.task}"
    return Table(title=title, columns=("score", "value", "± s.e.", "floor", "± s.e. "), rows=rows)


def _number(value: float | None) -> Written:
    return Written(value, "" if value is None else f"{value:.3g}")


def in_lines(scores: scoring.Scores) -> Terminal:
    """A table with one score per line."""
    named = flat(scores)
    del named["overconfidence.quantiles"]  # the table has its ends and its median
    return facts({name: _score(value) for name, value in named.items()})


def _score(value: float | bool | tuple[float, float] | None) -> str:
    if value is None:
        return "does not apply"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " to ".join(in_words(end, 10) for end in (value if isinstance(value, tuple) else [value]))


def _score_folder(folder: Path, options: Score) -> int:
    posterior_files(folder)
    scored = list(score_folder(folder, load_task_set(options.task_set or "official", options.data_dir)))
    show(options.as_json, scored, lambda: _folder_table(scored))
    bad = [file for file in scored if file.status != "ok"]
    for file in bad:
        stderr.print(f"{file.file}: {file.reason}", style="red")
    return 1 if bad else 0


def _folder_table(scored: Sequence[ScoredFile]) -> Terminal | str:
    posteriors = [
        (f"{file.dataset} {file.split}", file.file, file.scores) for file in scored if file.scores is not None
    ]
    title = f"{len(posteriors)} of {len(scored)} files scored"
    if not posteriors:
        return title
    table = posterior_table(posteriors, stdout.width)
    table.title = title
    return table
