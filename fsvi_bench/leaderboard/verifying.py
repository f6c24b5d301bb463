"""`fsvi-bench verify`: runs an entry on every task of an edition, in the sandbox, and scores its posteriors.

No number of the board comes from the entry: tasks and seeds come from the edition's secret, and scores and seconds are
measured here. Finished runs are stored in the leaderboard's `.verifying/`, so a rerun of the command resumes;
failed runs are repeated.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fsvi_bench.errors import InputError, TaskRefused, in_one_line
from fsvi_bench.files import locked_directory, read_bounded, sha256_of_json, write_atomically
from fsvi_bench.leaderboard.edition import Edition, Place, Secret
from fsvi_bench.leaderboard.entry import BuiltIn, Entry
from fsvi_bench.leaderboard.jailed.jail import Jail
from fsvi_bench.leaderboard.jailed.run import Limits, Run, Snapshot, find_method, quotable, run_entry
from fsvi_bench.leaderboard.jailed.sandbox import closed_sandbox
from fsvi_bench.leaderboard.network_tasks import make_network
from fsvi_bench.leaderboard.ranked_tasks import make_task, runs, training_seed
from fsvi_bench.leaderboard.result import (
    JOINT,
    RESULT_BYTES,
    SCORING_VERSION,
    Cell,
    NetworkFacts,
    Result,
    ShortNetworkScores,
    ShortScores,
    TaskFacts,
    Waypoint,
)
from fsvi_bench.maths.blr import mean_field_optimum_kl
from fsvi_bench.methods.networks import CollapsedData, Linearised, NetworkData
from fsvi_bench.networks.official import CertifiedNetwork
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.posteriors.samples import DrawnPosterior
from fsvi_bench.running.executors import Executor
from fsvi_bench.running.progress import Progress
from fsvi_bench.running.provenance import provenance
from fsvi_bench.scoring.functions import functions_of
from fsvi_bench.scoring.joint import joint_predictive_kl
from fsvi_bench.scoring.points import points_mmd2
from fsvi_bench.scoring.scores import not_a_number, score, trace_scores
from fsvi_bench.sources import package_sha256
from fsvi_bench.strict import Strict, parse_json
from fsvi_bench.tasks.task import Task

VERIFYING = ".verifying"  #: unfinished verifications, in the leaderboard's folder
SCORING_SECONDS = 3600  #: limit for one posterior; a mixture's integrals at the inputs of naval take 20 minutes
OBJECTIVE_SECONDS = 900  #: limit for its objective gap, which is unknown beyond


@dataclass(frozen=True)
class Verification:
    """What a verification needs in addition to the entry; it is sent to the processes that do the runs."""

    edition: Edition
    secret: Secret | None  #: not needed for official tasks
    jail: Jail
    limits: Limits = field(default_factory=Limits)
    data_dir: Path | None = None
    networks: Path = Path()  #: folder of the references of an edition of networks


class _Done(Strict):
    """A finished run."""

    cell: Cell
    isolation: str
    provenance: dict[str, Any]  #: of the process that ran it, perhaps on another machine


def verify(entry: Entry, verification: Verification, root: Path, executor: Executor, progress: Progress,
           only: Sequence[Place] | None = None) -> Result:  # fmt: skip
    """Runs an entry on every task of an edition, or on the tasks in `only`, and returns the result.

    A built-in method that draws nothing runs once per linear task, and its cells for all seeds are the same.

    Raises:
        InputError: the method does not exist, or does not support the settings; the jail is not tight; raw data are
            missing; a worker died or failed outside the jail; or another process is verifying the entry.
        TaskRefused: a task of the edition cannot be certified.
    """
    edition = verification.edition
    find_method(entry, edition.is_networks)
    trials = [each for each in runs(edition) if only is None or each[0] in only] or [(place, 0) for place in only or ()]
    references = _references(verification, trials)  # before hours of work, rather than after
    folder = root / VERIFYING / edition.name / f"{entry.name}-{_identity(entry, verification, references)}"
    once = _draws_nothing(entry, edition.is_networks)
    of_trial = {trial: (trial[0], 0) if once else trial for trial in trials}
    needed = dict.fromkeys(of_trial.values())
    with locked_directory(folder, "folder of finished runs"), closed_sandbox():
        done = {trial: kept for trial in needed if (kept := _kept(folder / _file(*trial)))}
        missing = [trial for trial in needed if trial not in done]
        progress.start(entry.name, len(missing))
        for trial, outcome in executor.map(partial(_attempt, entry, verification), missing):
            if isinstance(outcome, TaskRefused):
                raise outcome
            if isinstance(outcome, Exception):  # of scoring, which happens outside the jail
                problem = in_one_line(outcome)
                raise InputError(f"{trial[0].name}: {problem}; run the command again, which keeps finished runs")
            write_atomically(folder / _file(*trial), outcome.model_dump_json().encode())
            done[trial] = outcome
            progress.advance(entry.name, trial[0].name, status=outcome.cell.status)
    return Result(
        edition=edition.name,
        edition_sha256=edition.sha256,
        edition_status=edition.status,
        entry=entry.name,
        entry_sha256=entry.sha256,
        scoring_version=SCORING_VERSION,
        isolation=" and ".join(sorted({each.isolation for each in done.values()})),
        provenance=_of_all([each.provenance for each in done.values()]),
        cells=tuple(done[of_trial[place, seed]].cell.model_copy(update={"seed": seed}) for place, seed in trials),
    )


def _draws_nothing(entry: Entry, networks: bool) -> bool:
    """Whether the method is known to be deterministic. On networks, training starts at a draw from the prior."""
    from fsvi_bench.methods.registry import load_installed  # imports methods, which errors do not need

    method, settings = entry.manifest.method, entry.manifest.settings
    if networks or not isinstance(method, BuiltIn):
        return False
    found = load_installed(method.name)
    return found.is_deterministic(found.options(settings))


def _here() -> dict[str, Any]:
    """Provenance of this process."""
    facts = dict(provenance("cpu", 0, datetime.now(UTC)))
    del facts["device"], facts["seeds"]
    return facts


def _of_all(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The provenance of several runs: different values are listed, and the start is that of the first run."""
    found = {name: sorted({each[name] for each in facts}, key=str) for name in facts[0]}
    found["started"] = found["started"][:1]
    return {name: " and ".join(map(str, values)) if values[1:] else values[0] for name, values in found.items()}


def _references(verification: Verification, trials: Sequence[tuple[Place, int]]) -> list[str]:
    """The hashes of the references of an edition of networks; none of other editions."""
    its = verification
    places = dict.fromkeys(place for place, _ in trials) if its.edition.is_networks else ()
    found = [make_network(place, its.edition, its.secret, its.networks, its.data_dir) for place in places]
    return [network.certificate.reference_sha256 for network in found]


def _identity(entry: Entry, verification: Verification, references: Sequence[str]) -> str:
    """Identifies everything that determines the numbers of a cell, so that no other verification reuses it.

    It is derived from the secret, if there is one, so nobody else can forge finished runs.
    """
    # Not the commit: a result that is written makes the checkout dirty, and a rerun would repeat the runs of others.
    limits, versions = vars(verification.limits), _here() | {"started": None, "git": None}
    own = [
        entry.sha256,
        find_method(entry, verification.edition.is_networks),
        verification.edition.sha256,
        SCORING_VERSION,
        package_sha256(),
        verification.jail.words,
        limits,
        versions,
        references,
    ]
    secret = verification.secret or Secret(b"")
    return f"{secret.seed('kept', sha256_of_json(own)):016x}"


def _file(place: Place, seed: int) -> str:
    """The file of a finished run."""
    return f"{place.kind}-{place.dataset}-{place.number:02d}-seed-{seed:02d}.json"


def _kept(path: Path) -> _Done | None:
    """A finished run of an earlier verification; None if there is none, or if it failed, so that it is repeated."""
    try:
        kept = parse_json(_Done, read_bounded(path, RESULT_BYTES), path)
    except InputError:
        return None
    return None if kept.cell.status == "failed" else kept


def _attempt(entry: Entry, its: Verification, trial: tuple[Place, int]) -> _Done:
    """Makes the task, runs the entry on it with the seed, and scores the posterior. A failure is also a result."""
    place, number = trial
    before = package_sha256.__wrapped__()
    task, facts, scored = _network(place, its) if its.edition.is_networks else _linear(entry, place, its)
    seed = training_seed(place, facts.sha256, number, its.edition, its.secret)
    run = run_entry(entry, task, seed, its.jail, its.limits)
    if not package_sha256() == before == package_sha256.__wrapped__():  # a sandbox imports what it finds
        raise InputError("the code of fsvi-bench was changed during the verification")
    cell = Cell(**vars(place), seed=number, task=facts, seconds=run.seconds, **_judged(run, seed, scored))
    return _Done(cell=cell, isolation=run.isolation, provenance=_here())


Scored = Callable[[Sequence[Snapshot], int], dict[str, Any]]  #: snapshots of a run and its seed -> fields of a cell


def _linear(entry: Entry, place: Place, its: Verification) -> tuple[Task, TaskFacts, Scored]:
    """A task, its facts, and how its runs are scored."""
    task, redrawn = make_task(place, its.edition, its.secret, its.data_dir)
    return task, _facts(task, redrawn), partial(_scored, entry, task)


def _network(place: Place, its: Verification) -> tuple[NetworkData, NetworkFacts, Scored]:
    """The same of a network."""
    network = make_network(place, its.edition, its.secret, its.networks, its.data_dir)
    task, certificate = network.task, network.certificate
    data = NetworkData.of(task.network, [(*task.training(its.data_dir), task.noise_variance)])
    facts = NetworkFacts(
        sha256=network.sha256,
        reference_sha256=certificate.reference_sha256,
        N=data.N,
        k=data.k,
        level=certificate.level,
        log_z=certificate.log_z.value,
    )
    return data, facts, partial(_network_scored, network, data)


def _facts(task: Task, redrawn: int) -> TaskFacts:
    point = FactorisedGaussian(task.truth.posterior.mean, torch.zeros_like(task.truth.posterior.mean))
    return TaskFacts(
        sha256=task.sha256,
        redrawn=redrawn,
        N=task.N,
        N_test=len(task.y_test),
        k=task.k,
        ffg_floor=float(mean_field_optimum_kl(task.truth.posterior.precision_tril)),
        map_joint_predictive_kl_test=_joint_kl(point, task, "test"),
        map_joint_predictive_kl_box=_joint_kl(point, task, "box"),
    )


def _judged(run: Run, seed: int, scored: Scored) -> dict[str, Any]:
    """Status, reason, steps, scores and waypoints of a run, as fields of a cell."""
    own = {"status": run.status, "reason": run.reason, "steps": run.snapshots[-1].steps if run.snapshots else None}
    if run.status != "ok":
        return own
    try:
        return own | scored(run.snapshots, seed)
    except InputError as error:  # for example, numbers that overflow
        return own | {"status": "diverged", "reason": quotable(str(error), 300)}
    except Exception as error:
        return own | {"status": "failed", "reason": f"its posterior cannot be scored: {type(error).__name__}"}


def _scored(entry: Entry, task: Task, snapshots: Sequence[Snapshot], seed: int) -> dict[str, Any]:
    """Scores and waypoints, or why there are none."""
    with _time_limit(SCORING_SECONDS):
        scores = score(q := snapshots[-1].posterior, task)
        mmd2 = points_mmd2(functions_of(q, task).f_test, task) if isinstance(q, ParticlesPosterior) else None
        waypoints = tuple(_waypoint(each, task) for each in snapshots)
    if names := not_a_number(scores):
        return {"status": "diverged", "reason": f"these scores are not numbers: {', '.join(names)}"}
    return {"scores": ShortScores.of(scores, mmd2, _objective_gap(entry, q, task, seed)), "waypoints": waypoints}


def _network_scored(
    network: CertifiedNetwork, data: NetworkData, snapshots: Sequence[Snapshot], seed: int
) -> dict[str, Any]:
    """The scores of functions that the verifier draws from q."""
    from fsvi_bench.running.network_job import score_network  # imports methods, which errors do not need

    last = snapshots[-1]
    space: NetworkData | Linearised = data
    if last.over == "hidden":
        space = CollapsedData.collapse(data, data.N)
    elif last.over == "tangent":
        space = Linearised.at(data, torch.tensor([last.mode], dtype=torch.float64))
    with _time_limit(SCORING_SECONDS):
        scores, functions = score_network(last.posterior, space, network)
    return {"scores": ShortNetworkScores.of(scores, functions if isinstance(last.posterior, DrawnPosterior) else None)}


def _objective_gap(entry: Entry, q: Posterior, task: Task, seed: int) -> float | None:
    """The objective's gap at q; None if it is unknown or takes too long."""
    from fsvi_bench.leaderboard.converging import objective_gap  # imports methods, which errors do not need

    try:
        with _time_limit(OBJECTIVE_SECONDS):
            return objective_gap(entry, q, task, seed)
    except Exception:  # other scores do not depend on it
        return None


def _waypoint(reached: Snapshot, task: Task) -> Waypoint:
    q = reached.posterior
    return Waypoint(
        steps=reached.steps,
        seconds=reached.seconds,
        kl=trace_scores(q, task, mixtures=False).kl,
        joint_predictive_kl_test=_joint_kl(q, task, "test"),
        joint_predictive_kl_box=_joint_kl(q, task, "box"),
    )


def _joint_kl(q: Posterior, task: Task, place: str) -> float | None:
    """The joint predictive KL; None if the task has too few inputs there, or if it cannot be computed for q."""
    if len(task.Phi_test if place == "test" else task.Phi_box) < int(JOINT):
        return None
    functions = functions_of(q, task) if isinstance(q, ParticlesPosterior) else q  # not those of their moments
    return joint_predictive_kl(functions, task, place, int(JOINT)).value


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raises TimeoutError if a block takes longer. The processes that do runs use no other alarm."""

    def end(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
