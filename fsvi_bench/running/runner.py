"""Runs a plan: tasks from the cache or a fit, batches of cells through training, scores into records."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fsvi_bench.errors import InputError
from fsvi_bench.files import sha256_of_json
from fsvi_bench.posteriors.base import Posterior, defect, divergence, unstack
from fsvi_bench.posteriors.samples import MINIMUM_SAMPLES, SamplesPosterior
from fsvi_bench.running.cell import Cell, Record, Seconds, not_a_number
from fsvi_bench.running.executors import Executor, LocalExecutor
from fsvi_bench.running.plan import Plan, Variant
from fsvi_bench.running.prepare import prepare
from fsvi_bench.running.progress import Progress
from fsvi_bench.running.provenance import provenance
from fsvi_bench.running.store import Store
from fsvi_bench.scoring.objective import Objective
from fsvi_bench.scoring.scores import score
from fsvi_bench.seeds import derive_seed
from fsvi_bench.sources import source_sha256
from fsvi_bench.tasks.problem import Problem
from fsvi_bench.tasks.training_problems import TrainingProblems
from fsvi_bench.training.trace import Trace, Tracer, trace_steps
from fsvi_bench.training.trainer import Device, train

#: Sources that decide a result besides the method's own file.
DECISIVE_SOURCES = (
    "maths", "methods/base.py", "methods/descending.py", "methods/dropping.py", "posteriors", "scoring", "tasks",
    "training", "variational", "seeds.py",
)  # fmt: skip


@dataclass(frozen=True)
class Resources:
    """Where a run works: device, executor for fitting and training, folder of raw data."""

    device: Device = "cpu"
    executor: Executor = field(default_factory=LocalExecutor)
    data_dir: Path | None = None


@dataclass(frozen=True)
class RunResult:
    """All records of the plan; those among them that were computed now; those that had no certified task."""

    records: list[Record]
    computed: list[Record]
    refused: list[Record]


def run(plan: Plan, store: Store, resources: Resources, progress: Progress) -> RunResult:
    """Computes whatever the store does not hold yet and returns every record of the plan.

    Raises:
        InputError: raw data are missing or wrong, settings do not fit a data set, or the store holds something that is
            not a record.
    """
    problems, refusals = prepare(plan, resources.executor, resources.data_dir, progress)
    cells = [
        (variant, problem, cell)
        for variant in plan.variants
        for problem in problems
        for cell in _cells(variant, problem)
    ]
    found = {cell.key: store.load(cell) for _, _, cell in cells}
    missing = [item for item in cells if found[item[2].key] is None]
    progress.start("cells", len(missing))
    computed: dict[str, Record] = {}
    _check(missing)
    for outcomes in _train_all(missing, resources):
        for outcome in outcomes:
            store.save(outcome.cell, outcome.record, outcome.posterior, outcome.trace)
            computed[outcome.cell.key] = outcome.record
            progress.advance("cells", f"{outcome.cell.name}: {outcome.record.status}")
    by_key = {**found, **computed}
    records = [done for _, _, cell in cells if (done := by_key[cell.key]) is not None]
    refused = _refused_records(plan, refusals, resources.device)
    return RunResult(records + refused, list(computed.values()), refused)


def _check(items: Sequence[tuple[Variant, Problem, Cell]]) -> None:
    """Lets every method look at its settings beside every problem, once for all seeds."""
    seen = set()
    for variant, problem, cell in items:
        if (pair := (id(variant), cell.task_sha256)) not in seen:
            seen.add(pair)
            variant.method.cls.check(variant.options, TrainingProblems.of([problem]))


def _code_sha256(variant: Variant) -> str:
    return sha256_of_json([variant.method.code_sha256, source_sha256(*DECISIVE_SOURCES)])


def _cells(variant: Variant, problem: Problem) -> Iterator[Cell]:
    for seed in variant.seeds:
        yield Cell(
            task_sha256=problem.task.sha256,
            dataset=problem.task.dataset,
            split=problem.task.split,
            method=variant.method.name,
            family=variant.family,
            hyperparameters=variant.options.model_dump(mode="json"),
            seed=seed,
            code_sha256=_code_sha256(variant),
        )


def _batches(
    items: Sequence[tuple[Variant, Problem, Cell]],
) -> Iterator[tuple[Variant, list[tuple[Problem, Cell]]]]:
    """Cells that can be trained side by side: one variant and data set, features of one kind, equal shapes."""
    groups: dict[tuple[object, ...], list[tuple[Problem, Cell]]] = defaultdict(list)
    variants: dict[int, Variant] = {}
    for variant, problem, cell in items:
        variants[id(variant)] = variant
        shape = (*problem.X.shape, problem.task.k)
        groups[id(variant), cell.dataset, problem.task.features, shape].append((problem, cell))
    for (variant_id, *_), batch in groups.items():
        yield variants[variant_id], batch  # type: ignore[index]


@dataclass(frozen=True)
class _Job:
    """Cells that one process trains side by side."""

    variant: Variant
    batch: list[tuple[Problem, Cell]]
    device: Device


class _Outcome(NamedTuple):
    cell: Cell
    record: Record
    posterior: Posterior | None
    trace: Trace | None


def _train_all(missing: Sequence[tuple[Variant, Problem, Cell]], resources: Resources) -> Iterator[list[_Outcome]]:
    """Outcomes job by job. Every batch is split over the workers, which moves no result on a CPU."""
    trains = any(not variant.deterministic for variant, _, _ in missing)
    here = resources.device == "cpu" and not trains  # what does not train costs less than to send it anywhere
    executor = LocalExecutor() if here else resources.executor.on(resources.device)
    jobs = [
        _Job(variant, part, resources.device)
        for variant, batch in _batches(missing)
        for part in _parts(batch, 1 if variant.deterministic else executor.workers)
    ]
    for job, outcome in executor.map(_run_job, jobs):
        yield _failed(job, datetime.now(UTC), outcome) if isinstance(outcome, Exception) else outcome


def _parts(batch: Sequence[tuple[Problem, Cell]], count: int) -> Iterator[list[tuple[Problem, Cell]]]:
    """The batch in `count` parts of nearly equal size."""
    edges = [len(batch) * part // count for part in range(count + 1)]
    yield from (list(batch[start:stop]) for start, stop in pairwise(edges) if stop > start)


class _Trained(NamedTuple):
    """What a method made of a batch; everything but `seconds` problem by problem."""

    posteriors: Sequence[Posterior]
    reasons: Sequence[str | None]
    objectives: Sequence[Objective | None]
    work: Sequence[Mapping[str, int] | None]
    details: Sequence[Mapping[str, float] | None]
    traces: Sequence[Trace | None]
    seconds: float


def _run_job(job: _Job) -> list[_Outcome]:
    """Trains one batch and scores each of its cells; whatever a method raises fails its own cells and no others."""
    started = datetime.now(UTC)
    try:
        trained = _train(job)
        return [_outcome(job, place, trained, started) for place in range(len(job.batch))]
    except Exception as error:
        return _failed(job, started, error)


def _train(job: _Job) -> _Trained:
    problems, cells = [problem for problem, _ in job.batch], [cell for _, cell in job.batch]
    seeds = [derive_seed(c.task_sha256, c.method, c.family, c.seed) for c in cells]
    method = job.variant.method.cls(TrainingProblems.of(problems), job.variant.family, job.variant.options, seeds)
    tracer = None if job.variant.deterministic else Tracer(method, problems)
    seconds = train(method, job.device, tracer, () if tracer is None else trace_steps(method.num_steps))
    trained = _Trained(
        posteriors=unstack(method.posterior().cpu()),
        reasons=method.divergences(),
        objectives=method.objectives(),
        work=method.work(),
        details=method.details(),
        traces=[None] * len(cells) if tracer is None else tracer.traces,
        seconds=seconds,
    )
    if any(len(each) != len(cells) for each in trained[:-1]):
        raise ValueError(f"the method returned {len(trained.posteriors)} posteriors for {len(cells)} problems")
    return trained


def _outcome(job: _Job, place: int, trained: _Trained, started: datetime) -> _Outcome:
    problem, cell = job.batch[place]
    begun = time.perf_counter()
    result = _score_cell(trained.posteriors[place], problem, trained.reasons[place], trained.objectives[place])
    size = len(job.batch)
    seconds = Seconds(
        train=trained.seconds / size,
        batch_train=trained.seconds,
        batch_size=size,
        score=time.perf_counter() - begun,
    )
    own = {"work": trained.work[place], "details": trained.details[place], "seconds": seconds}
    record = _record(cell, job.device, started, **result, **own)
    return _Outcome(cell, record, trained.posteriors[place] if record.status == "ok" else None, trained.traces[place])


def _failed(job: _Job, started: datetime, error: Exception) -> list[_Outcome]:
    reason = {"status": "failed", "reason": _reason(error)}
    return [_Outcome(cell, _record(cell, job.device, started, **reason), None, None) for _, cell in job.batch]


def _score_cell(
    posterior: Posterior, problem: Problem, diverged: str | None, objective: Objective | None
) -> dict[str, Any]:
    """Scores, or a status and the reason for having none."""
    if diverged is not None:
        return {"status": "diverged", "reason": diverged}
    try:
        if (reason := defect(posterior, problem.task.k)) is not None:
            return {"status": "failed", "reason": f"the posterior is not one over the weights: {reason}"}
        if isinstance(posterior, SamplesPosterior) and posterior.S < MINIMUM_SAMPLES:
            return {
                "status": "failed",
                "reason": f"{posterior.S} samples, expected {MINIMUM_SAMPLES} at least; draw more",
            }
        if (reason := divergence(posterior)) is not None:
            return {"status": "diverged", "reason": reason}
        scores = score(posterior, problem)
    except Exception as error:
        return {"status": "diverged" if isinstance(error, InputError) else "failed", "reason": _reason(error)}
    reason = None
    try:
        if objective is not None:
            scores = scores.model_copy(update=objective.scores(posterior, problem)._asdict())
    except Exception as error:
        # The other scores stand all the same.
        reason = f"no score of the objective: {_reason(error)}"
    if names := not_a_number(scores):
        return {"status": "diverged", "reason": f"these scores are not numbers: {', '.join(names)}"}
    return {"scores": scores, "reason": reason}


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


def _record(cell: Cell, device: str, started: datetime, **outcome: Any) -> Record:
    defaults: dict[str, Any] = {"status": "ok", "reason": None, "scores": None, "seconds": None}
    return Record.model_validate(
        {
            **cell.model_dump(),
            **defaults,
            **outcome,
            "cell": cell.key,
            "provenance": provenance(device, cell.seed, started),
        }
    )


def _refused_records(plan: Plan, refusals: dict[tuple[str, int], str], device: str) -> list[Record]:
    """A failed record for every cell whose task was refused; without a task it has no key and is not stored."""
    started = datetime.now(UTC)
    return [
        Record(
            cell="",
            dataset=name,
            split=split,
            method=variant.method.name,
            family=variant.family,
            seed=seed,
            hyperparameters=variant.options.model_dump(mode="json"),
            task_sha256=None,
            code_sha256=_code_sha256(variant),
            status="failed",
            reason=reason,
            scores=None,
            seconds=None,
            provenance=provenance(device, seed, started),
        )
        for variant in plan.variants
        for (name, split), reason in refusals.items()
        for seed in variant.seeds
    ]
