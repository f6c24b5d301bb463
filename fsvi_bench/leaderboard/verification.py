"""What a verifier found, `fsvi-verification/1`: the only numbers that the site shows as scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fsvi_bench.errors import InputError
from fsvi_bench.files import json_in_lines, write_atomically
from fsvi_bench.leaderboard.submission import Sha256, Slug
from fsvi_bench.scoring.scores import Scores

VERIFIED = "verified"  #: a leaderboard's folder of verifications
TOLERANCE = 1e-4  #: relative, of a re-run's scores: machines round differently, and training may amplify it


class _Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class VerifiedCell(_Plain):
    """One official task: scores computed by the verifier from the posterior's file; none where there is no file."""

    dataset: Slug
    split: int
    task_sha256: Sha256
    status: Literal["ok", "diverged", "failed"]
    reason: str | None
    scores: Scores | None


class Waypoint(_Plain):
    """A re-run on its way: what was done until then, and the scores of q there.

    Seconds and scores are the verifier's. That q is what there was after so many steps, and the counts of steps and
    work, are the word of the submitted code: a verifier sees what it sends and when, not what it computes.
    """

    steps: int  #: as the code says; ascending, and no more than the budget declares
    seconds: float  #: by the verifier's clock, from before the submitted file was imported until q came
    kl: float
    predictive_kl_box: float | None
    work: dict[str, int] | None  #: rows and samples, as the code counts them


class OfficialRerun(_Plain):
    """One official cell trained again, which agreed: KL (of a factorised q, what is above its floor) and the predictive
    KLs in the box and on the test inputs were those of the submitted file within the tolerance.

    The scores are the verifier's, of what the code sent last. The waypoints' order and contents are the code's word.
    """

    dataset: Slug
    split: int
    score: Literal["kl", "predictive_kl_box"]  #: the track's, of the three that were compared
    submitted: float | None  #: from the submitted file; null where a mixture is too dear to integrate over
    rerun: float | None  #: of the posterior that the verifier's run ended with
    waypoints: tuple[Waypoint, ...]


class WithheldRerun(_Plain):
    """One task that nobody could tune to: fresh inducing points, and targets drawn from the model."""

    dataset: Slug  #: whose inputs and kernel it has
    split: int
    draw: int
    status: Literal["ok", "diverged", "failed"]
    reason: str | None
    scores: Scores | None
    ffg_floor: float  #: KL of the exact posterior's best factorised approximation on this task
    seconds: float


class Rerun(_Plain):
    """What came of running the submitted source."""

    seed: int  #: the verifier's, from which the withheld tasks were drawn
    isolated: bool  #: whether a jail kept the submitted code from the verifier's files and from the network
    isolation: str  #: how, in words
    tolerance: float  #: relative
    hardware: str
    official: tuple[OfficialRerun, ...]
    withheld: tuple[WithheldRerun, ...]


class Verification(_Plain):
    """One submission, verified; written only if nothing was refused."""

    format: Literal["fsvi-verification/1"] = "fsvi-verification/1"
    submission: Slug
    submission_sha256: Sha256  #: over all its files; a verification of other files counts for nothing
    fsvi_bench: str  #: version of this package
    cells: Annotated[tuple[VerifiedCell, ...], Field(min_length=1)]  #: in the order of the official tasks
    rerun: Rerun | None = None

    @property
    def label(self) -> Literal["re-run", "re-scored only"]:
        """A re-run is one on official cells and on withheld tasks both."""
        whole = self.rerun is not None and self.rerun.official and self.rerun.withheld
        return "re-run" if whole else "re-scored only"

    @property
    def shortfall(self) -> str | None:
        """Why what was run again earns no rank; None if it does."""
        if self.rerun is None or self.label != "re-run":
            return "re-scored only: its source was not run again"
        if not self.rerun.isolated:
            return "re-run without isolation"
        if not self.rerun.tolerance <= TOLERANCE:
            return f"re-run under a tolerance of {self.rerun.tolerance:g}, wider than {TOLERANCE:g}"
        became = [run.status for run in self.rerun.withheld]
        if "failed" in became or "ok" not in became:
            return f"its source finished {became.count('ok')} of {len(became)} withheld tasks"
        return None


def verification_path(root: Path, name: str) -> Path:
    """Where the verification of a submission lies in a leaderboard's folder."""
    return root / VERIFIED / f"{name}.json"


def write_verification(path: Path, verification: Verification) -> None:
    """Writes a verification atomically.

    Raises:
        InputError: the place is not writable.
    """
    write_atomically(path, json_in_lines(verification.model_dump_json(), 2).encode())


def read_verification(path: Path) -> Verification | None:
    """A verification; None if there is no such file.

    Raises:
        InputError: it is not one.
    """
    try:
        return Verification.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise InputError(
            f"{path} is not a verification ({type(error).__name__}); remove it and verify the submission again"
        ) from error
