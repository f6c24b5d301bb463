"""What a worker does: trains a batch of cells side by side, scores each, and makes an outcome of whatever happens."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any, NamedTuple

from fsvi_bench.arithmetic import KERNELS_VARIABLE
from fsvi_bench.errors import InputError
from fsvi_bench.methods.base import Method, MethodOptions, Optimum
from fsvi_bench.methods.registry import MethodEntry
from fsvi_bench.posteriors.base import Family, Posterior, defect, divergence, unstack
from fsvi_bench.posteriors.samples import MINIMUM_SAMPLES, SamplesPosterior
from fsvi_bench.running.cell import Cell, Record, Seconds
from fsvi_bench.running.provenance import decisive_sha256, provenance
from fsvi_bench.running.quiet import no_word_of_unused_gpus
from fsvi_bench.scoring.scores import Scores, not_a_number, score
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.task import Task
from fsvi_bench.training.trace import Trace, Tracer, trace_steps
from fsvi_bench.training.trainer import Device, train


@dataclass(frozen=True)
class Job:
    """Cells that one process trains side by side: of one row of the table, on tasks of equal shapes."""

    method: MethodEntry
    batch: Sequence[tuple[Task, Cell]]
    device: Device


class Outcome(NamedTuple):
    """What became of one cell."""

    cell: Cell
    record: Record
    posterior: Posterior | None
    trace: Trace | None
    traceback: str | None = None  #: of what a method raised, for whoever wrote it


class _Trained(NamedTuple):
    """What a method made of a batch; everything but `seconds` problem by problem."""

    posteriors: Sequence[Posterior]
    reasons: Sequence[str | None]
    optima: Sequence[Optimum | None]
    work: Sequence[Mapping[str, int] | None]
    details: Sequence[Mapping[str, float] | None]
    traces: Sequence[Trace | None]
    method: Method
    no_optima: str | None  #: why what the objective asks for is not known
    seconds: float


def run_job(job: Job) -> list[Outcome]:
    """Trains one batch and scores each of its cells; whatever a method raises fails its own cells and no others.

    Raises:
        InputError: the sources here are not those that the cells are named after.
    """
    started = datetime.now(UTC)
    _require_same_sources(job)
    try:
        with no_word_of_unused_gpus():
            trained = _train(job)
        return [_outcome(job, place, trained, started) for place in range(len(job.batch))]
    except Exception as error:
        return failed(job, started, error, "".join(format_exception(error)))


def failed(job: Job, started: datetime, error: Exception, lines: str | None = None) -> list[Outcome]:
    """Every cell of a job as failed for one reason."""
    reason = {"status": "failed", "reason": _reason(error)}
    return [Outcome(cell, _record(cell, job.device, started, **reason), None, None, lines) for _, cell in job.batch]


def _require_same_sources(job: Job) -> None:
    """A worker imports the sources when it starts, here or on another machine: they may not be the command's."""
    here, planned = decisive_sha256(job.method.code_sha256), job.batch[0][1].code_sha256
    if here != planned:
        raise InputError(
            f"the sources of fsvi-bench or of {job.method.name}, or the kernels asked for, are not those that "
            f"the run began with (hash {here[:12]}, expected {planned[:12]}): files were changed while it ran, or a "
            f"worker's machine has another version or another {KERNELS_VARIABLE}; make them the same everywhere and "
            "run again"
        )


def make_method(
    entry: MethodEntry, family: Family, options: MethodOptions, tasks: Sequence[Task], seeds: Sequence[int]
) -> Method:
    """A method on tasks; what it draws depends on the task, the method, its family and the cell's seed."""
    streams = [
        derive_seed(task.frozen.sha256, entry.name, family, seed) for task, seed in zip(tasks, seeds, strict=True)
    ]
    return entry.cls(tasks, family, streams, options)


def method_of(job: Job) -> Method:
    """The job's method on its problems."""
    problems, cells = zip(*job.batch, strict=True)
    options = job.method.options(cells[0].hyperparameters)
    return make_method(job.method, cells[0].family, options, problems, [cell.seed for cell in cells])


def _train(job: Job) -> _Trained:
    problems, cells = [problem for problem, _ in job.batch], [cell for _, cell in job.batch]
    method = method_of(job)
    tracer = Tracer(method, problems) if method.trains else None
    seconds = train(method, job.device, tracer, () if tracer is None else trace_steps(method.num_steps))
    method.cpu()
    optima, no_optima = _optima(method, problems)
    trained = _Trained(
        posteriors=unstack(method.posterior()),
        reasons=method.divergences(),
        optima=optima,
        work=method.work(),
        details=method.details(),
        traces=[None] * len(cells) if tracer is None else tracer.traces,
        method=method,
        no_optima=no_optima,
        seconds=seconds,
    )
    if any(len(each) != len(cells) for each in trained[:-3]):
        raise ValueError(f"the method returned {len(trained.posteriors)} posteriors for {len(cells)} problems")
    return trained


def _optima(method: Method, problems: Sequence[Task]) -> tuple[Sequence[Optimum | None], str | None]:
    """What the objective asks for, all problems at once; the other scores stand where it cannot be computed."""
    try:
        return method.optima(problems), None
    except Exception as error:
        return [None] * len(problems), f"no score of the objective: {_reason(error)}"


def _outcome(job: Job, place: int, trained: _Trained, started: datetime) -> Outcome:
    problem, cell = job.batch[place]
    begun = time.perf_counter()
    result = _score_cell(trained.posteriors[place], problem, trained.reasons[place])
    if result.get("scores") is not None:
        result = _with_objective(result["scores"], place, problem, trained)
    size = len(job.batch)
    seconds = Seconds(
        train=trained.seconds / size,
        batch_train=trained.seconds,
        batch_size=size,
        score=time.perf_counter() - begun,
    )
    own = {"work": trained.work[place], "details": trained.details[place], "seconds": seconds}
    record = _record(cell, job.device, started, **result, **own)
    return Outcome(cell, record, trained.posteriors[place] if record.status == "ok" else None, trained.traces[place])


def _score_cell(posterior: Posterior, problem: Task, diverged: str | None) -> dict[str, Any]:
    """Scores, or a status and the reason for having none."""
    if diverged is not None:
        return {"status": "diverged", "reason": diverged}
    try:
        if (reason := defect(posterior, problem.frozen.k)) is not None:
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
    if names := not_a_number(scores):
        return {"status": "diverged", "reason": f"these scores are not numbers: {', '.join(names)}"}
    return {"scores": scores, "reason": None}


def _with_objective(scores: Scores, place: int, problem: Task, trained: _Trained) -> dict[str, Any]:
    """KL(q* ‖ P_D) at the objective's own optimum q*, and how far above its least known value q leaves it."""
    optimum = trained.optima[place]
    if optimum is None:
        return {"scores": scores, "reason": trained.no_optima}
    try:
        gap = trained.method.objective(place, problem) - optimum.value
    except Exception as error:
        return {"scores": scores, "reason": f"no score of the objective: {_reason(error)}"}
    known = {"kl_at_objective_optimum": optimum.kl, "objective_gap": None if math.isnan(gap) else gap}
    return {"scores": scores.model_copy(update=known), "reason": None}


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
