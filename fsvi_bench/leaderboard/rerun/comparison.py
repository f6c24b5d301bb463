"""Trains submitted code again, on official cells and on withheld tasks, and compares.

Re-scoring proves what a posterior file is worth, not where it came from: anybody can write down the closed form. So the
source itself is trained, with its own hyperparameters within its declared budget, and must arrive where its files are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.leaderboard.rerun.child import Limits, RunFailed, Snapshot, Trained, train_apart
from fsvi_bench.leaderboard.rerun.jail import Jail, find_jail
from fsvi_bench.leaderboard.rerun.withheld import Withheld, ffg_floor, first_certified
from fsvi_bench.leaderboard.submission import Budget, Submission, SubmissionRefused, Track
from fsvi_bench.leaderboard.verification import (
    TOLERANCE,
    VERIFIED,
    OfficialRerun,
    Rerun,
    VerifiedCell,
    Waypoint,
    WithheldRerun,
)
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.running.progress import Progress
from fsvi_bench.running.provenance import machine_words, provenance
from fsvi_bench.scoring.predictive import predictive_kl
from fsvi_bench.scoring.scores import Scores, not_a_number, score
from fsvi_bench.seeds import derive_seed, derived_generator
from fsvi_bench.tasks.official import Place, TaskSet
from fsvi_bench.tasks.task import Task

ABSOLUTE_TOLERANCE = 1e-6  #: nats, beside the relative one: a closed form's KL is rounding alone
SPARE_SECONDS = 5.0  #: on top of what the budget allows: to import the submitted file and to write posteriors
#: One score alone can be kept while another is made better: q stretched where the box does not look, say.
COMPARED = ("kl", "predictive_kl_box", "predictive_kl_test")
STAGE = "re-runs"


@dataclass(frozen=True)
class RerunSettings:
    """How a submission is run again.

    `tolerance` allows for other versions of libraries and for the last digits of another processor's kernels. Where
    15,000 steps amplify these (`benchmarks/rerun_tolerance.py`: by L-BFGS, or with full covariances) the files have to
    be made in portable arithmetic (`fsvi_bench.arithmetic`), or re-runs on the same kind of processor.

    `patience` allows for slower hardware than was declared: from the moment when the submitted file is about to be
    imported, a run may take `patience` times the declared seconds and `SPARE_SECONDS` more, but no more than
    `max_seconds`. Until then it has `child.START_SECONDS`.
    """

    count: int  #: official cells, and as many withheld tasks
    seed: int  #: the verifier's, made known afterwards only
    tolerance: float = TOLERANCE  #: relative, of each score in `COMPARED`; under a wider one nothing is ranked
    memory: int = 4 * 2**30  #: bytes, beyond what Python and its libraries take
    patience: float = 10.0  #: times the declared seconds
    require_isolation: bool = True  #: refuse to run where nothing keeps submitted code from the rest
    max_seconds: float = 3600.0  #: of one run, whatever was declared

    def __post_init__(self) -> None:
        for name in ("count", "memory", "patience", "max_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} of a re-run is {getattr(self, name)}, expected a finite number above 0")
        if not 0 <= self.tolerance < 1:
            raise InputError(f"tolerance of a re-run is {self.tolerance}, expected 0 or more and less than 1")


def rerun(
    submission: Submission,
    tasks: TaskSet,
    cells: Sequence[VerifiedCell],
    settings: RerunSettings,
    progress: Progress,
    *,
    hidden: Sequence[Path] = (),
) -> Rerun:
    """Trains the submitted source on official cells and withheld tasks, one at a time (so that the clock is right).

    Args:
        cells: the submission's cells as scored by the verifier.
        hidden: folders that submitted code must not see, beside those that it never does: where the raw data lie, say.

    Raises:
        SubmissionRefused: an official cell could not be trained within its budget, or did not end where the submitted
            file is (with both numbers).
        InputError: there is no source, or no cell that is ok; no jail works though one is asked for; or a run takes
            longer than `max_seconds`, which its budget would allow.
    """
    jail = _jail(submission, settings, hidden)
    runner = _Runner(submission, settings, jail)
    drawn = draw_cells(cells, submission.sha256, settings)
    if not drawn:
        raise InputError(
            f"submission {submission.manifest.name} has no cell that is 'ok', so a re-run has nothing to be compared "
            "with; verify it without --rerun"
        )
    progress.note(f"{submission.manifest.name} is run again: {jail.words}")
    progress.start(STAGE, len(drawn) + settings.count)
    official = []
    for cell in drawn:
        official.append(runner.official(cell, tasks.problem((cell.dataset, cell.split))))
        progress.advance(STAGE, f"{cell.dataset} split {cell.split}", status=cell.status)
    withheld = []
    for place, fresh in _withheld(cells, tasks, submission, settings, progress):
        withheld.append(runner.withheld(place, fresh))
        progress.advance(STAGE, f"{place[0]} withheld {fresh.draw}", status=withheld[-1].status)
    return Rerun(
        seed=settings.seed,
        isolated=jail.bwrap is not None,
        isolation=runner.isolation,
        tolerance=settings.tolerance,
        hardware=runner.machine,
        official=tuple(official),
        withheld=tuple(withheld),
    )


def draw_cells(cells: Sequence[VerifiedCell], sha256: str, settings: RerunSettings) -> list[VerifiedCell]:
    """`count` distinct cells of those that are ok, or all of them; one of each data set before a second of any.

    Drawn from the submission's hash and the verifier's seed: the hash, so that a verifier cannot choose the cells to
    suit; the seed, since a hash alone would let the submitter try spellings until the cells suit him.
    """
    stream = derived_generator("rerun", sha256, settings.seed, "official")
    by_dataset: dict[str, list[VerifiedCell]] = {}
    for cell in cells:
        if cell.status == "ok":
            by_dataset.setdefault(cell.dataset, []).append(cell)
    datasets = [list(by_dataset.values())[place] for place in stream.permutation(len(by_dataset))]
    shuffled = [[each[place] for place in stream.permutation(len(each))] for each in datasets]
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*shuffled))
    return list(itertools.islice((cell for cell in rounds if cell is not None), settings.count))


def _jail(submission: Submission, settings: RerunSettings, hidden: Iterable[Path]) -> Jail:
    manifest = submission.manifest
    if manifest.source is None or submission.source is None:
        raise InputError(
            f"submission {manifest.name} names no source file, so nothing can be run again; add 'source' to its "
            "submission.yaml, or verify it without --rerun"
        )
    root = submission.folder.absolute().parent
    jail = find_jail([root, root.parent / VERIFIED, *hidden])
    if settings.require_isolation and jail.bwrap is None:
        raise InputError(
            f"submission {manifest.name} is not run: bubblewrap, which would keep its code from this user's files and "
            "from the network, does not work here; install `bwrap` and allow user namespaces"
        )
    return jail


def _withheld(
    cells: Sequence[VerifiedCell], tasks: TaskSet, submission: Submission, settings: RerunSettings, progress: Progress
) -> Iterator[tuple[Place, Withheld]]:
    """`count` withheld tasks like the official ones of cells that are ok, the data sets in turn; no number of a draw
    is used twice.

    Raises:
        InputError: no withheld task like an official one can be certified.
    """
    stream = derived_generator("rerun", submission.sha256, settings.seed, "withheld")
    cells = [cell for cell in cells if cell.status == "ok"]
    datasets = list(dict.fromkeys(cell.dataset for cell in cells))
    datasets = [datasets[place] for place in stream.permutation(len(datasets))]
    draws = itertools.count()

    def pass_over(draw: int, reason: str) -> None:
        progress.note(f"draw {draw} of the withheld tasks is passed over: {reason}")

    for dataset in itertools.islice(itertools.cycle(datasets), settings.count):
        splits = [cell.split for cell in cells if cell.dataset == dataset]
        place = (dataset, splits[int(stream.integers(len(splits)))])
        try:
            yield place, first_certified(tasks.problem(place), settings.seed, draws, pass_over)
        except TaskRefused as error:
            raise InputError(f"{error}; choose another seed") from error


class _Runner:
    """Runs one submission's source; keeps what is the same for all its runs."""

    def __init__(self, submission: Submission, settings: RerunSettings, jail: Jail) -> None:
        self._submission, self._settings, self._jail = submission, settings, jail
        self._limits = _limits(submission.manifest.budget, settings)
        self._confined = True
        self.machine = machine_words(provenance("cpu", 0, datetime.now(UTC)))

    @property
    def isolation(self) -> str:
        """How the code was kept from the rest, once it has run."""
        calls = "seccomp: no sockets, no forks, no programs" if self._confined else "no seccomp"
        return f"{self._jail.words}; {calls}; {self._settings.memory / 2**30:.3g} GiB of memory"

    @property
    def _machines(self) -> str:
        """What a refusal adds: another processor, or other kernels, may be all that differs."""
        return (
            f" (it is said to have run on '{self._submission.manifest.hardware}', and here is '{self.machine}': where "
            "these differ, a last digit that is rounded otherwise may grow to more than the tolerance in 15,000 steps; "
            "docs/submitting.md says how to choose kernels)"
        )

    def _train(self, problem: Task) -> Trained:
        manifest, source = self._submission.manifest, self._submission.source
        assert source is not None
        seed = derive_seed(problem.frozen.sha256, manifest.method, manifest.family, 0)
        trained = train_apart(manifest, source, problem, seed, self._limits, self._jail)
        self._confined = self._confined and trained.confined
        return trained

    def official(self, cell: VerifiedCell, problem: Task) -> OfficialRerun:
        """One official cell again.

        Raises:
            SubmissionRefused: it could not be trained, or ended elsewhere than the submitted file.
        """
        manifest = self._submission.manifest
        where = f"submission {manifest.name}, {cell.dataset} split {cell.split}"
        score_name: ScoreName = "predictive_kl_box" if manifest.track == "singular" else "kl"
        assert cell.scores is not None
        try:
            trained = self._train(problem)
            ended = _judged(trained, problem)
        except RunFailed as error:
            raise SubmissionRefused(f"{where}: the submitted code was run again, and {error}") from error
        offsets = _offsets(manifest.track, problem)
        again = _require_same(where, cell.scores, ended, offsets, self._settings.tolerance, self._machines)
        return OfficialRerun(
            dataset=cell.dataset,
            split=cell.split,
            score=score_name,
            submitted=getattr(cell.scores, score_name),
            rerun=getattr(again, score_name),
            waypoints=_waypoints(trained, problem),
        )

    def withheld(self, place: Place, fresh: Withheld) -> WithheldRerun:
        """One withheld task; to fail on it is a result."""
        shared: dict[str, Any] = {
            "dataset": place[0],
            "split": place[1],
            "draw": fresh.draw,
            "ffg_floor": ffg_floor(fresh.problem),
        }
        try:
            trained = self._train(fresh.problem)
            ended = _judged(trained, fresh.problem)
            return WithheldRerun(**shared, **ended._asdict(), seconds=trained.seconds)
        except RunFailed as error:
            return WithheldRerun(**shared, status="failed", reason=str(error), scores=None, seconds=0.0)


ScoreName = Literal["kl", "predictive_kl_box"]


class _Ended(NamedTuple):
    status: Literal["ok", "diverged", "failed"]
    reason: str | None
    scores: Scores | None


def _judged(trained: Trained, problem: Task) -> _Ended:
    """Status, reason and scores of what a run ended with, by the rules that a run of the benchmark has."""
    if trained.status != "ok":
        return _Ended(trained.status, trained.reason, None)
    try:
        scores = score(trained.snapshots[-1].posterior, problem)
    except InputError as error:
        return _Ended("diverged", str(error), None)
    except Exception as error:
        raise RunFailed(f"its posterior cannot be scored: {type(error).__name__}") from error
    if names := not_a_number(scores):
        return _Ended("diverged", f"these scores are not numbers: {', '.join(names)}", None)
    return _Ended("ok", None, scores)


def _limits(budget: Budget, settings: RerunSettings) -> Limits:
    """What the budget allows on this machine, unless it is more than the verifier has to give."""
    allowed = settings.patience * budget.seconds + SPARE_SECONDS
    if allowed > settings.max_seconds:
        words = "the verifier's limit for one run"
        return Limits(budget.steps, settings.max_seconds, settings.memory, words, within_budget=True)
    words = f"{settings.patience:g} times the declared {budget.seconds:g} s, and {SPARE_SECONDS:g} s"
    return Limits(budget.steps, allowed, settings.memory, words)


def _offsets(track: Track, problem: Task) -> dict[str, float]:
    """What is taken off a score before it is compared: of a factorised q's KL, what no such q can go below. That floor
    is most of it, and a share of it would be far more than methods differ by."""
    return {"kl": ffg_floor(problem)} if track == "ffg" else {}


def _require_same(
    where: str, submitted: Scores, ended: _Ended, offsets: Mapping[str, float], tolerance: float, machines: str
) -> Scores:
    """The run's scores, if they are those of the submitted file within the tolerance.

    Raises:
        SubmissionRefused: they are not, or there are none.
    """
    if ended.scores is None:
        reason = "" if ended.reason is None else f" ({ended.reason})"
        hint = machines if ended.status == "diverged" else ""  # an exception of the code is not a matter of last digits
        raise SubmissionRefused(
            f"{where}: the submitted cell stands with kl {_number(submitted.kl)}, but its code run again "
            f"{ended.status}{reason}{hint}"
        )
    for name in COMPARED:
        floor = offsets.get(name, 0.0)
        of_file, of_code = (_above(floor, getattr(scores, name)) for scores in (submitted, ended.scores))
        if not _agree(of_code, of_file, tolerance):
            words = f"{name} above the factorised floor of {floor:.6g}" if name in offsets else name
            raise SubmissionRefused(
                f"{where}: {words} of the submitted file is {_number(of_file)}, of its code run again "
                f"{_number(of_code)}, which differ by more than {tolerance:g} relative; submit what the source "
                f"computes with these hyperparameters{machines}"
            )
    return ended.scores


def _above(floor: float, value: float | None) -> float | None:
    return None if value is None else value - floor


def _waypoints(trained: Trained, problem: Task) -> tuple[Waypoint, ...]:
    """Scores on the way; a q that could not be scored has none."""
    found = (_waypoint(snapshot, problem) for snapshot in trained.snapshots)
    return tuple(waypoint for waypoint in found if waypoint is not None)


def _waypoint(snapshot: Snapshot, problem: Task) -> Waypoint | None:
    try:
        kl, predictive = _kl(snapshot.posterior, problem), _predictive_kl_box(snapshot.posterior, problem)
    except Exception:
        return None
    if math.isnan(kl) or (predictive is not None and math.isnan(predictive)):
        return None
    return Waypoint(
        steps=snapshot.steps, seconds=snapshot.seconds, kl=kl, predictive_kl_box=predictive, work=snapshot.work
    )


def _kl(q: Posterior, problem: Task) -> float:
    if q.singular:
        return math.inf
    return float(gaussian_kl_to_precision(q.mean, q.covariance_tril(), *problem.truth.posterior).total)


def _predictive_kl_box(q: Posterior, problem: Task) -> float | None:
    values = predictive_kl(q, problem, problem.Phi_box)
    return None if values is None else float(values.mean())


def _agree(again: float | None, submitted: float | None, tolerance: float) -> bool:
    if again is None or submitted is None or math.isinf(submitted):
        return again == submitted
    return abs(again - submitted) <= ABSOLUTE_TOLERANCE + tolerance * abs(submitted)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"
