"""Verifies submissions: one, or every one in a leaderboard's folder."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import fsvi_bench
from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.files import is_directory
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.rescoring import rescore
from fsvi_bench.leaderboard.submission import Submission, Track
from fsvi_bench.leaderboard.verification import (
    Rerun,
    Verification,
    VerifiedCell,
    read_verification,
    verification_path,
    write_verification,
)
from fsvi_bench.running.progress import Progress
from fsvi_bench.tasks.official import TaskSet

if TYPE_CHECKING:
    from fsvi_bench.leaderboard.rerun import RerunSettings

SUBMISSIONS = "submissions"
_HIDDEN = re.compile(r"\..*")  #: what `submit` has half written, and what other programs leave behind


@dataclass(frozen=True, eq=False)
class Verified:
    """A submission that holds; `kept` if an earlier verification of these very files was found."""

    submission: Submission
    verification: Verification
    kept: bool = False


@dataclass(frozen=True)
class Refused:
    """A submission that does not, and why."""

    folder: Path
    reason: str


def verify_submission(
    submission: Submission, tasks: TaskSet, settings: RerunSettings | None, workers: int, progress: Progress
) -> Verification:
    """Scores every cell again and, with settings for it, runs the submitted source.

    Raises:
        InputError: a claim differs from its score, or what the source makes from the submitted files.
    """
    cells = rescore(submission, tasks, workers)
    again = None if settings is None else _rerun(submission, tasks, cells, settings, progress)
    return Verification(
        submission=submission.manifest.name,
        submission_sha256=submission.sha256,
        fsvi_bench=fsvi_bench.__version__,
        cells=cells,
        rerun=again,
    )


def _rerun(
    submission: Submission,
    tasks: TaskSet,
    cells: tuple[VerifiedCell, ...],
    settings: RerunSettings,
    progress: Progress,
) -> Rerun:
    from fsvi_bench.leaderboard.rerun import rerun  # imported by nobody who only scores

    return rerun(submission, tasks, cells, settings, progress)


def verify_all(
    root: Path, tasks: TaskSet, settings: RerunSettings | None, workers: int, progress: Progress, *, again: bool = False
) -> Iterator[Verified | Refused]:
    """Every folder of `root/submissions`, sorted; what holds is written to `root/verified` as soon as it is known.

    A verification that is there is kept if it is of these files and this version and has as many re-runs as are asked
    for, unless `again`. One of a submission that is refused is removed. A submission without a source is scored alone.

    Raises:
        InputError: there is no such folder, or `verified` cannot be written.
    """
    if not is_directory(root / SUBMISSIONS):
        raise InputError(f"there is no folder {root / SUBMISSIONS}; name the leaderboard's folder, which holds it")
    for folder in sorted(path for path in (root / SUBMISSIONS).iterdir() if _may_be_a_submission(path)):
        place = verification_path(root, folder.name)
        try:
            submission = read_submission(folder, tasks)
            wanted = None if submission.manifest.source is None else settings
            earlier = None if again else _still_good(place, submission, wanted)
            verification = earlier or verify_submission(submission, tasks, wanted, workers, progress)
        except (InputError, TaskRefused) as error:
            with suppress(OSError):  # a name too long for one, say
                place.unlink(missing_ok=True)
            yield Refused(folder, str(error))
            continue
        if earlier is None:
            write_verification(place, verification)
        yield Verified(submission, verification, kept=earlier is not None)


def keep(verification: Verification, place: Path) -> str:
    """Writes a verification, unless a re-run of these very files is there and this is none; says what became of it.

    Raises:
        InputError: the place is not writable.
    """
    try:
        earlier = read_verification(place)
    except InputError:  # it is written anew
        earlier = None
    same = earlier is not None and earlier.submission_sha256 == verification.submission_sha256
    if same and earlier is not None and earlier.rerun is not None and verification.rerun is None:
        return f"{place} stays as it is: it is of the same files, and has a re-run"
    write_verification(place, verification)
    return f"verification written to {place}"


def _may_be_a_submission(path: Path) -> bool:
    """Not what is hidden, nor a plain file, such as a README."""
    return not _HIDDEN.fullmatch(path.name) and (path.is_symlink() or not path.is_file())


def _still_good(place: Path, submission: Submission, settings: RerunSettings | None) -> Verification | None:
    try:
        found = read_verification(place)
    except InputError:  # it is written anew
        return None
    if found is None or (found.submission_sha256, found.fsvi_bench) != (submission.sha256, fsvi_bench.__version__):
        return None
    wanted = 0 if settings is None else min(settings.count, len(found.cells))
    return found if wanted <= (0 if found.rerun is None else len(found.rerun.official)) else None


def score_name(track: Track) -> str:
    """The score that a track is ranked by, before an ffg's floor is taken off."""
    return "predictive_kl_box" if track == "singular" else "kl"


def dataset_means(verification: Verification, track: Track) -> dict[str, float]:
    """Mean over the splits of a track's score, by data set; infinite where a cell has no score."""
    scores: dict[str, list[float]] = {}
    for cell in verification.cells:
        value = None if cell.scores is None else getattr(cell.scores, score_name(track))
        scores.setdefault(cell.dataset, []).append(math.inf if value is None else value)
    return {dataset: math.fsum(each) / len(each) for dataset, each in scores.items()}
