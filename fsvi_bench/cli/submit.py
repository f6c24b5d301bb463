"""`fsvi-bench submit`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsvi_bench.cli.options import DataDir, Workers

if TYPE_CHECKING:
    from fsvi_bench.leaderboard.submitting import Draft
    from fsvi_bench.tasks.official import TaskSet

DEFAULT_OUT = Path("leaderboard/submissions")


def submit(
    rundir: Annotated[Path | None, typer.Argument(help="Folder that a run was given with --out.")] = None,
    author: Annotated[list[str] | None, typer.Option("--author", help="Who submits; may be repeated.")] = None,
    licence: Annotated[str | None, typer.Option("--licence", "--license", help="Of the source, such as MIT.")] = None,
    method: Annotated[str | None, typer.Option("--method", help="Which method of the run.")] = None,
    family: Annotated[str | None, typer.Option("--family", help="Which family of it.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Which settings of it; may be repeated.")] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="FILE.py:CLASS", help="The method's file, unless it is built in.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of the submission's folder; default: method and family.")] = None,
    title: Annotated[str | None, typer.Option("--title", help="In tables; default: the method's.")] = None,
    link: Annotated[str | None, typer.Option("--link", help="https:// address of a paper or repository.")] = None,
    hardware: Annotated[str | None, typer.Option("--hardware", help="What it ran on; default: as the run recorded it.")] = None,
    notes: Annotated[str, typer.Option("--notes", help="Free text.")] = "",
    reference: Annotated[bool, typer.Option("--reference", help="Show it to compare with; it is never ranked.")] = False,
    posteriors: Annotated[Path | None, typer.Option("--posteriors", metavar="FOLDER", help="In place of a run: <data set>/split-NN.safetensors of any tool.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=0, help="With --posteriors: steps of training of one cell, at most.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="With --posteriors: seconds of it, at most.")] = None,
    likelihood_rows: Annotated[int | None, typer.Option("--likelihood-rows", min=0, help="With --posteriors, if known.")] = None,
    measurement_rows: Annotated[int | None, typer.Option("--measurement-rows", min=0, help="With --posteriors, if known.")] = None,
    function_samples: Annotated[int | None, typer.Option("--function-samples", min=0, help="With --posteriors, if known.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of submissions.")] = DEFAULT_OUT,
    allow_other_sources: Annotated[bool, typer.Option("--allow-other-sources", help="Though the run's sources are not those installed; the notes say so.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Write anew a submission that is there.")] = False,
    extend: Annotated[bool, typer.Option("--extend", help="Add data sets to a submission that is there and keep its words; with --replace also those that it has.")] = False,
    workers: Workers = None,
    data_dir: DataDir = None,
) -> int:  # fmt: skip
    """Make a submission of a run's folder, or of posterior files from any tool; its claims are their scores."""
    from fsvi_bench.cli.console import stderr, stdout
    from fsvi_bench.errors import InputError
    from fsvi_bench.leaderboard.drafting import Choice, draft_from_run
    from fsvi_bench.leaderboard.extending import extend as extend_submission
    from fsvi_bench.leaderboard.protocol import protocol_tasks
    from fsvi_bench.leaderboard.submitting import Words, write_submission
    from fsvi_bench.running.executors import available_cores, use_one_thread
    from fsvi_bench.running.settings import parse_setting

    if (rundir is None) == (posteriors is None):
        raise InputError("name the folder of a run, or posterior files with --posteriors; one of the two")
    said: dict[str, object] = {} if extend else {"--author": author, "--licence": licence}
    if posteriors is not None:  # a run says all this itself
        made = {"--method": method, "--family": family, "--steps": steps, "--seconds": seconds, "--hardware": hardware}
        said.update(made)
    if missing := [flag for flag, value in said.items() if value in (None, [])]:
        raise InputError(f"a submission says by whom it is and what made it; give {', '.join(missing)} too")
    words = Words(tuple(author or ()), licence or "", name, title, link, hardware, notes, reference)
    chosen = dict(parse_setting(text) for text in settings or ())
    budget = {
        "steps": steps,
        "seconds": seconds,
        "likelihood_rows": likelihood_rows,
        "measurement_rows": measurement_rows,
        "function_samples": function_samples,
    }
    given = {flag: value for flag, value in budget.items() if value is not None}
    use_one_thread()
    tasks, processes = protocol_tasks(data_dir), workers or available_cores()
    if rundir is not None:
        if given:
            flag = next(iter(given)).replace("_", "-")
            raise InputError(f"--{flag} has no meaning with a run's folder, which says it itself; drop it")
        choice = Choice(method, family, chosen)
        draft = draft_from_run(rundir, tasks, choice, source, allow_other_sources=allow_other_sources)
    else:
        assert posteriors is not None
        assert method is not None
        assert family is not None
        if allow_other_sources:
            raise InputError(
                "--allow-other-sources has no meaning with --posteriors, which no source is held to; drop it"
            )
        draft = _from_files(posteriors, tasks, method, family, given, chosen, source)
    if extend:
        draft, words = extend_submission(draft, words, tasks, out, replace=replace)
    submission = write_submission(draft, words, tasks, out, replace=replace or extend, workers=processes)
    if draft.left_out:
        stderr.print(
            f"left out, having no cell there: {', '.join(draft.left_out)}; an entry that lacks a data set of the tables has no rank"
        )
    folder = out / submission.manifest.name
    stdout.print(f"{folder}: track {submission.manifest.track}, {len(submission.claims.cells)} cells")
    if submission.manifest.source is None:
        stdout.print("it has no source, so it can be scored again but not run again: it will be shown without a rank")
        stdout.print(f"next: fsvi-bench verify {shlex.quote(str(folder))}")
    else:
        stdout.print(f"next: fsvi-bench verify {shlex.quote(str(folder))} --rerun 2")
    return 0


def _from_files(
    folder: Path,
    tasks: TaskSet,
    method: str,
    family: str,
    budget: dict[str, int | float],
    settings: dict[str, object],
    source: str | None,
) -> Draft:
    from fsvi_bench.errors import unknown_name
    from fsvi_bench.leaderboard.drafting import draft_from_files
    from fsvi_bench.posteriors.base import KIND_OF

    for known in KIND_OF:
        if known == family:
            return draft_from_files(folder, tasks, method, known, budget, hyperparameters=settings, source=source)
    raise unknown_name("family", family, KIND_OF)
