"""Verifies submissions: one, or every one in a leaderboard's folder."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import fsvi_bench
from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.files import is_directory, require_writable_directory
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.rescoring import rescore
from fsvi_bench.leaderboard.submission import Submission, SubmissionRefused, Track
from fsvi_bench.leaderboard.verification import (
    VERIFIED,
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


@dataclass(frozen=True)
class Unverified:
    """A submission that was neither found to hold nor found out, and why: this machine lacks what it takes, say."""

    folder: Path
    reason: str


def verify_submission(
    submission: Submission,
    tasks: TaskSet,
    settings: RerunSettings | None,
    workers: int,
    progress: Progress,
    *,
    hidden: Sequence[Path] = (),
) -> Verification:
    """Scores every cell again and, with settings for it, runs the submitted source.

    Args:
        hidden: folders that submitted code must not see, such as the raw data's.

    Raises:
        SubmissionRefused: a claim differs from its score, or what the source makes from the submitted files.
        InputError: this machine lacks what it takes.
    """
    cells = rescore(submission, tasks, workers)
    again = None if settings is None else _rerun(submission, tasks, cells, settings, progress, hidden)
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
    hidden: Sequence[Path],
) -> Rerun:
    from fsvi_bench.leaderboard.rerun import rerun  # imported by nobody who only scores

    return rerun(submission, tasks, cells, settings, progress, hidden=hidden)


def require_isolation_works(settings: RerunSettings) -> None:
    """Before any submission is looked at: that this machine has no jail is no fault of theirs.

    Raises:
        InputError: a jail is wanted, and there is none.
    """
    from fsvi_bench.leaderboard.rerun.jail import find_jail

    if settings.require_isolation and find_jail().bwrap is None:
        raise InputError(
            "submitted code is run in a jail alone, and bubblewrap, which makes it, does not work here; install it "
            "(apt-get install bubblewrap) and allow user namespaces (docs/submitting.md), or give --without-isolation "
            "if you trust the code: what is run so has no rank"
        )


def verify_all(
    root: Path,
    tasks: TaskSet,
    settings: RerunSettings | None,
    workers: int,
    progress: Progress,
    *,
    again: bool = False,
    hidden: Sequence[Path] = (),
) -> Iterator[Verified | Refused | Unverified]:
    """Every folder of `root/submissions`, sorted; what holds is written to `root/verified` as soon as it is known.

    A verification that is there is kept if it is of these files and this version and came about as strictly as is asked
    for, unless `again`; a stricter one of these files is kept in any case. One of a submission that is refused is
    removed, be it that a re-run ended elsewhere, which another processor may do to an honest one; where nothing was
    found out, it stays. A submission without a source, or without a cell that is ok, is scored alone.

    Raises:
        InputError: there is no such folder, or `verified` cannot be written.
    """
    if not is_directory(root / SUBMISSIONS):
        raise InputError(f"there is no folder {root / SUBMISSIONS}; name the leaderboard's folder, which holds it")
    require_writable_shelf(root / VERIFIED, "mend its permissions, or name another leaderboard")
    for folder in sorted(path for path in (root / SUBMISSIONS).iterdir() if _may_be_a_submission(path)):
        place = verification_path(root, folder.name)
        try:
            submission = read(folder, tasks)
            wanted = settings if _can_run_again(submission) else None
            earlier = None if again else _still_good(place, submission, wanted)
            found = earlier or verify_submission(submission, tasks, wanted, workers, progress, hidden=hidden)
        except SubmissionRefused as error:
            with suppress(OSError):  # a name too long for one, say
                place.unlink(missing_ok=True)
            yield Refused(folder, str(error))
            continue
        except (InputError, TaskRefused) as error:
            yield Unverified(folder, str(error))
            continue
        stands = found if earlier else keep(found, place)[0]
        yield Verified(submission, stands, kept=stands is not found or earlier is not None)


def _can_run_again(submission: Submission) -> bool:
    return submission.manifest.source is not None and any(cell.status == "ok" for cell in submission.claims.cells)


def require_writable_shelf(folder: Path, mend: str = "choose another with --save, or mend its permissions") -> None:
    """Before hours of re-runs.

    Raises:
        InputError: no verification could be written there.
    """
    require_writable_directory(folder, "folder of verifications", mend)


def read(folder: Path, tasks: TaskSet) -> Submission:
    """A submission.

    Raises:
        SubmissionRefused: whatever is wrong with its files is its own fault.
        InputError: the system does not give one of them out.
    """
    try:
        return read_submission(folder, tasks)
    except InputError as error:
        if isinstance(error.__cause__, OSError):
            raise
        raise SubmissionRefused(str(error)) from error


def keep(verification: Verification, place: Path) -> tuple[Verification, str]:
    """Writes a verification, unless one of these very files is there that came about more strictly.

    Returns:
        The one that lies there now, and what became of the new one, in words.

    Raises:
        InputError: the place is not writable.
    """
    earlier = _found(place)
    if earlier is not None and earlier.submission_sha256 == verification.submission_sha256:
        if earlier.rerun is not None and verification.rerun is None:
            return earlier, f"{place} stays as it is: it is of the same files, and has a re-run"
        if (short := _falls_short(verification.rerun, earlier.rerun)) is not None:
            said = f"{place} stays as it is: it is of the same files, and the new one has {short}"
            return earlier, f"{said}; save that elsewhere with --save, or remove {place.name} first"
    write_verification(place, verification)
    return verification, f"verification written to {place}"


def _falls_short(rerun: Rerun | None, of: Rerun | None) -> str | None:
    """In what a re-run is less strict than another; None if in nothing."""
    if of is None:
        return None
    if rerun is None:
        return "no re-run"
    if rerun.tolerance > of.tolerance:
        return f"a wider tolerance ({rerun.tolerance:g}, not {of.tolerance:g})"
    if of.isolated and not rerun.isolated:
        return "no isolation"
    if len(rerun.official) < len(of.official):
        return f"fewer official cells ({len(rerun.official)}, not {len(of.official)})"
    if len(rerun.withheld) < len(of.withheld):
        return f"fewer withheld tasks ({len(rerun.withheld)}, not {len(of.withheld)})"
    return None


def _may_be_a_submission(path: Path) -> bool:
    """Not what is hidden, nor a plain file, such as a README."""
    return not _HIDDEN.fullmatch(path.name) and (path.is_symlink() or not path.is_file())


def _found(place: Path) -> Verification | None:
    try:
        return read_verification(place)
    except InputError:  # it is written anew
        return None


def _still_good(place: Path, submission: Submission, settings: RerunSettings | None) -> Verification | None:
    """What is there, if it is of these files and this version and no less strict than the settings would make it."""
    found = _found(place)
    if found is None or (found.submission_sha256, found.fsvi_bench) != (submission.sha256, fsvi_bench.__version__):
        return None
    if settings is None:
        return found
    if (ran := found.rerun) is None or ran.tolerance > settings.tolerance:
        return None
    official = min(settings.count, sum(cell.status == "ok" for cell in found.cells))  # there may be no more
    enough = len(ran.official) >= official and len(ran.withheld) >= settings.count
    return found if enough and (ran.isolated or not settings.require_isolation) else None


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
