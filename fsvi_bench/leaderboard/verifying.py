"""`fsvi-bench verify`: runs an entry on every task of an edition, in the jail, and scores what it comes to.

Nothing that the entry says is a number of the board: tasks and seeds come from the edition's secret, posteriors are
scored here, seconds are measured here. Each finished run is kept beneath the leaderboard's `.verifying/` until the
result is whole, so that the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.version import Version
from pydantic import ValidationError

import fsvi_bench
from fsvi_bench.errors import InputError
from fsvi_bench.files import is_file, sha256_of_json, write_atomically
from fsvi_bench.leaderboard.edition import Edition, Secret
from fsvi_bench.leaderboard.entry import BuiltIn, Entry
from fsvi_bench.leaderboard.jailed.jail import Jail
from fsvi_bench.leaderboard.jailed.messages import RunFailed
from fsvi_bench.leaderboard.jailed.run import Limits, Method, Run, Snapshot, run_entry
from fsvi_bench.leaderboard.ranked_tasks import Place, make_task, places, training_seed
from fsvi_bench.leaderboard.result import SCORING_VERSION, Cell, Result, ShortScores, TaskFacts, Waypoint
from fsvi_bench.maths.blr import mean_field_optimum_kl
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.methods.registry import load_installed
from fsvi_bench.running.executors.base import Executor
from fsvi_bench.running.progress import Progress
from fsvi_bench.running.provenance import provenance
from fsvi_bench.scoring.predictive import map_predictive_kl, predictive_kl
from fsvi_bench.scoring.scores import not_a_number, score
from fsvi_bench.tasks.task import Task

VERIFYING = ".verifying"  #: unfinished verifications, beneath the leaderboard's folder
SCORING_SECONDS = 900  #: for one posterior, whatever it is


@dataclass(frozen=True)
class Verification:
    """What a verification needs beside the entry; all of it travels to the processes that do the runs."""

    edition: Edition
    secret: Secret | None  #: official tasks need none
    jail: Jail
    limits: Limits = field(default_factory=Limits)
    data_dir: Path | None = None


@dataclass(frozen=True)
class _Trial:
    """One run: an entry on one task, with one seed."""

    verification: Verification
    entry: Entry
    method: Method
    place: Place
    seed: int  #: its number

    @property
    def key(self) -> tuple[Place, int]:
        return self.place, self.seed


def verify(entry: Entry, verification: Verification, root: Path, executor: Executor, progress: Progress,
           only: Sequence[Place] | None = None) -> Result:  # fmt: skip
    """Runs an entry on every task of an edition, or on some, and returns what came of it.

    Raises:
        InputError: the method is not here, or does not take the settings; the jail does not hold; raw data are missing.
        TaskRefused: a task of the edition cannot be made.
    """
    method, edition = find_method(entry), verification.edition
    trials = [
        _Trial(verification, entry, method, place, seed)
        for place in (places(edition) if only is None else only)
        for seed in range(edition.seeds if place.kind == "ranked" else 1)
    ]
    kept = _Kept(root / VERIFYING / edition.name / f"{entry.name}-{_identity(entry, verification)}")
    found = {trial.key: cell for trial in trials if (cell := kept.read(trial)) is not None}
    missing = [trial for trial in trials if trial.key not in found]
    progress.start(entry.name, len(missing))
    for trial, outcome in executor.map(_attempt, missing):
        if isinstance(outcome, Exception):
            raise outcome
        cell, isolation = outcome
        found[trial.key] = cell
        kept.write(trial, cell, isolation)
        progress.advance(entry.name, trial.place.name, status=cell.status)
    facts = provenance("cpu", 0, datetime.now(UTC))
    return Result(
        edition=edition.name,
        edition_sha256=edition.sha256,
        edition_status=edition.status,
        entry=entry.name,
        entry_sha256=entry.sha256,
        scoring_version=SCORING_VERSION,
        isolation=kept.isolation(),
        provenance={name: value for name, value in facts.items() if name not in ("seeds", "device")},
        cells=tuple(found[trial.key] for trial in trials),
    )


def find_method(entry: Entry) -> Method:
    """Where the entry's class is found in the jail, and its settings there; all of a built-in method's, as checked.

    Raises:
        InputError: the built-in method is not here, or does not take the family or the settings.
    """
    method = entry.manifest.method
    if not isinstance(method, BuiltIn):
        return Method(f":{method.class_}", entry.manifest.settings)
    if Version(method.version) > Version(fsvi_bench.__version__):
        raise InputError(
            f"{entry.name} is of fsvi-bench {method.version}, this is {fsvi_bench.__version__}; install that version"
        )
    found = load_installed(method.name)
    if entry.manifest.family not in found.cls.families:
        known = " or ".join(found.cls.families)
        raise InputError(f"{entry.name}: family is {entry.manifest.family}, which {method.name} has not; give {known}")
    options = found.options(entry.manifest.settings).model_dump(mode="json")
    return Method(f"{found.cls.__module__}:{found.cls.__qualname__}", options)


def _identity(entry: Entry, verification: Verification) -> str:
    """Names everything that decides a cell's numbers, so that none is taken up by another verification."""
    versions = provenance("cpu", 0, datetime.now(UTC))
    decisive = {name: versions[name] for name in versions if name not in ("started", "seeds")}
    own = [entry.sha256, verification.edition.sha256, SCORING_VERSION, verification.jail.words]
    return sha256_of_json([*own, decisive])[:16]


@dataclass(frozen=True)
class _Kept:
    """The finished runs of an unfinished verification."""

    folder: Path

    def _path(self, trial: _Trial) -> Path:
        place = trial.place
        return self.folder / f"{place.kind}-{place.dataset}-{place.number:02d}-seed-{trial.seed:02d}.json"

    def read(self, trial: _Trial) -> Cell | None:
        path = self._path(trial)
        try:
            return Cell.model_validate_json(path.read_bytes()) if is_file(path) else None
        except (OSError, ValidationError):
            return None

    def write(self, trial: _Trial, cell: Cell, isolation: str) -> None:
        write_atomically(self.folder / "isolation", isolation.encode())
        write_atomically(self._path(trial), cell.model_dump_json().encode())

    def isolation(self) -> str:
        return (self.folder / "isolation").read_text()


def _attempt(trial: _Trial) -> tuple[Cell, str]:
    """Makes the task, runs the entry on it, and scores the end; to fail is a result."""
    its = trial.verification
    made = make_task(trial.place, its.edition, its.secret, its.data_dir)
    seed = training_seed(made, trial.seed, its.edition, its.secret)
    cell = Cell(
        kind=trial.place.kind,
        dataset=trial.place.dataset,
        number=trial.place.number,
        seed=trial.seed,
        task=_facts(made.task, made.redrawn),
        status="failed",
        seconds=0.0,
    )
    try:
        run = run_entry(trial.entry, trial.method, made.task, seed, its.jail, its.limits)
    except RunFailed as error:
        return cell.model_copy(update={"reason": str(error)}), its.jail.words
    return cell.model_copy(update=_judged(run, made.task)), run.isolation


def _facts(task: Task, redrawn: int) -> TaskFacts:
    return TaskFacts(
        sha256=task.sha256,
        redrawn=redrawn,
        N=task.N,
        N_test=len(task.y_test),
        k=task.k,
        ffg_floor=float(mean_field_optimum_kl(task.truth.posterior.precision_tril)),
        map_predictive_kl_test=map_predictive_kl(task, task.Phi_test),
        map_predictive_kl_box=map_predictive_kl(task, task.Phi_box),
    )


def _judged(run: Run, task: Task) -> dict[str, Any]:
    """Status, reason, scores, seconds and waypoints of a run, as fields of its cell."""
    own: dict[str, Any] = {"status": run.status, "reason": run.reason, "seconds": run.seconds}
    own["steps"] = run.snapshots[-1].steps if run.snapshots else None
    if run.status != "ok":
        return own
    try:
        with _time_limit(SCORING_SECONDS):
            scores = score(run.snapshots[-1].posterior, task)
            waypoints = tuple(_waypoint(each, task) for each in run.snapshots)
    except InputError as error:  # numbers so large that they overflow
        return own | {"status": "diverged", "reason": str(error)}
    except Exception as error:
        return own | {"status": "failed", "reason": f"its posterior cannot be scored: {type(error).__name__}"}
    if names := not_a_number(scores):
        return own | {"status": "diverged", "reason": f"these scores are not numbers: {', '.join(names)}"}
    return own | {"scores": ShortScores.of(scores), "waypoints": waypoints}


def _waypoint(reached: Snapshot, task: Task) -> Waypoint:
    q = reached.posterior
    kl = gaussian_kl_to_precision(q.mean, q.covariance_tril(), *task.truth.posterior).total
    box = predictive_kl(q, task, task.Phi_box)
    return Waypoint(
        steps=reached.steps,
        seconds=reached.seconds,
        kl=math.inf if q.singular else float(kl),
        predictive_kl_box=None if box is None else float(box.mean()),
    )


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in the middle of what takes longer. Processes that do runs have nothing else to time."""

    def end(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
