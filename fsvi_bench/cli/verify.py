"""`fsvi-bench verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsvi_bench.arithmetic import use_kernels
from fsvi_bench.cli.options import AsJson, DataDir, Workers

if TYPE_CHECKING:
    from fsvi_bench.leaderboard.rerun import RerunSettings
    from fsvi_bench.leaderboard.verifying import Refused, Unverified, Verified
    from fsvi_bench.running.progress import Progress
    from fsvi_bench.tasks.official import TaskSet

Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, help="Which cells are run again and which withheld tasks are drawn; default: fresh."),
]


def verify(
    submissions: Annotated[list[Path] | None, typer.Argument(help="Folders of submissions.")] = None,
    rerun: Annotated[
        int, typer.Option("--rerun", min=0, help="Train the submitted source on so many official and withheld tasks.")
    ] = 0,
    seed: Seed = None,
    all_in: Annotated[
        Path | None, typer.Option("--all", metavar="ROOT", help="Verify ROOT/submissions/*, write ROOT/verified.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="With --all: verify anew what is verified already.")] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="DIR",
            help="Write DIR/<name>.json. Default: verified/ beside the submissions/ that the folder lies in.",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            help="With --rerun: how far a score may be off, relative. Default: 0.0001, the widest that is ranked.",
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option("--max-seconds", help="With --rerun: of one run, whatever its budget says. Default: 3600."),
    ] = None,
    without_isolation: Annotated[
        bool,
        typer.Option(
            "--without-isolation",
            help="With --rerun: go on without a jail where bubblewrap does not work. What is run so is not ranked.",
        ),
    ] = False,
    workers: Workers = None,
    data_dir: DataDir = None,
    json: AsJson = False,
) -> int:
    """Score every cell of a submission again and refuse a claim that differs; with --rerun, run its source too.

    Without --rerun no submitted code is run. Its posteriors may still be anybody's: what is only scored has no rank.
    """
    use_kernels("portable" if rerun else "own")  # before anything that imports torch
    from fsvi_bench.cli.console import print_json, stderr
    from fsvi_bench.cli.progress import RichProgress
    from fsvi_bench.errors import InputError, plain
    from fsvi_bench.leaderboard.protocol import protocol_tasks
    from fsvi_bench.leaderboard.verification import VERIFIED
    from fsvi_bench.leaderboard.verifying import (
        Refused,
        Verified,
        keep,
        require_isolation_works,
        require_writable_shelf,
        verify_all,
    )
    from fsvi_bench.running.executors import available_cores, use_one_thread

    if (all_in is None) == (not submissions):
        raise InputError("name folders of submissions, or a leaderboard's folder with --all; one of the two")
    if all_in is not None and save is not None:
        raise InputError("--save has no meaning with --all, which writes ROOT/verified; drop it")
    settings = _settings(rerun, seed, tolerance, max_seconds, without_isolation)
    if settings is not None:
        require_isolation_works(settings)
    use_one_thread()
    tasks, processes = protocol_tasks(data_dir), workers or available_cores()
    hidden = [] if data_dir is None else [data_dir]
    for shelf in dict.fromkeys(_shelf(folder, save) for folder in submissions or []):
        if shelf is not None:
            require_writable_shelf(shelf)
    found: list[Verified | Refused | Unverified] = []
    with RichProgress() as progress:
        if settings is not None:
            progress.note(f"seed {settings.seed}: --seed {settings.seed} draws the same cells and tasks again")
        if all_in is not None:
            each_one = verify_all(all_in, tasks, settings, processes, progress, again=again, hidden=hidden)
        else:
            each_one = _named(submissions or [], tasks, settings, processes, progress, hidden)
        for each in each_one:
            found.append(each)
            if not isinstance(each, Verified):
                continue
            if not json:
                _show(each)
            if all_in is None and (shelf := _shelf(each.submission.folder, save)) is not None:
                place = shelf / f"{each.submission.manifest.name}.json"
                stderr.print(keep(each.verification, place)[1], soft_wrap=True)
    if json:
        print_json([each.verification for each in found if isinstance(each, Verified)])
    for each in found:
        if not isinstance(each, Verified):
            outcome = "refused" if isinstance(each, Refused) else f"{each.folder} is not verified"
            stderr.print(f"{outcome}: {plain(each.reason, 2000)}", style="red")
    holding = sum(isinstance(each, Verified) for each in found)
    if all_in is not None:
        stderr.print(f"{holding} of {len(found)} submissions hold; verifications in {all_in / VERIFIED}")
    return 1 if holding < len(found) else 0


def _named(
    folders: list[Path],
    tasks: TaskSet,
    settings: RerunSettings | None,
    workers: int,
    progress: Progress,
    hidden: list[Path],
) -> Iterator[Verified | Refused | Unverified]:
    """Each folder in turn; of several, one that is refused costs the others nothing."""
    from fsvi_bench.errors import InputError, TaskRefused
    from fsvi_bench.leaderboard.submission import SubmissionRefused
    from fsvi_bench.leaderboard.verifying import Refused, Unverified, Verified, read, verify_submission

    for folder in folders:
        try:
            submission = read(folder, tasks)
            verification = verify_submission(submission, tasks, settings, workers, progress, hidden=hidden)
        except (InputError, TaskRefused) as error:
            if len(folders) == 1:
                raise
            kind = Refused if isinstance(error, SubmissionRefused) else Unverified
            yield kind(folder, str(error))
        else:
            yield Verified(submission, verification)


def _shelf(submission: Path, save: Path | None) -> Path | None:
    """The folder that a submission's verification belongs in, if there is one."""
    from fsvi_bench.leaderboard.verification import VERIFIED
    from fsvi_bench.leaderboard.verifying import SUBMISSIONS

    beside = submission.absolute().parent
    return save or (beside.parent / VERIFIED if beside.name == SUBMISSIONS else None)


def _settings(
    count: int, seed: int | None, tolerance: float | None, max_seconds: float | None, without_isolation: bool
) -> RerunSettings | None:
    from fsvi_bench.errors import InputError

    if not count:
        if without_isolation or any(value is not None for value in (seed, tolerance, max_seconds)):
            raise InputError("--seed, --tolerance, --max-seconds and --without-isolation need --rerun; add it")
        return None
    import secrets

    from fsvi_bench.leaderboard.rerun import RerunSettings

    seed = secrets.randbits(63) if seed is None else seed
    settings = RerunSettings(count=count, seed=seed, require_isolation=not without_isolation)
    if tolerance is not None:
        settings = replace(settings, tolerance=tolerance)
    return settings if max_seconds is None else replace(settings, max_seconds=max_seconds)


def _show(verified: Verified) -> None:
    from fsvi_bench.cli.console import stdout
    from fsvi_bench.leaderboard.verifying import dataset_means, score_name

    manifest, verification = verified.submission.manifest, verified.verification
    counts = Counter(cell.status for cell in verification.cells)
    cells = ", ".join(f"{count} {status}" for status, count in counts.items())
    label = verification.label + (" (verified before)" if verified.kept else "")
    stdout.print(f"{manifest.name}: track {manifest.track}, {cells}, every claim holds; {label}")
    floor = ", the family's floor included" if manifest.track == "ffg" else ""
    stdout.print(f"  mean {score_name(manifest.track)} over splits (nats{floor})")
    for dataset, mean in dataset_means(verification, manifest.track).items():
        stdout.print(f"    {dataset:<12} {mean:>12.6g}")
    if (again := verification.rerun) is not None:
        for one in again.official:
            both = (
                " and re-run: no score"
                if one.submitted is one.rerun is None
                else f" {one.submitted}, re-run {one.rerun}"
            )
            stdout.print(f"  re-run {one.dataset} split {one.split}: submitted{both}")
        for fresh in again.withheld:
            score = None if fresh.scores is None else getattr(fresh.scores, score_name(manifest.track))
            stdout.print(f"  withheld {fresh.dataset} draw {fresh.draw}: {fresh.status}, {score}")
        stdout.print(f"  seed {again.seed}; {again.isolation}")
