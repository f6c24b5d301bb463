"""The work of a worker: trains a batch of cells together, scores each one, and returns an outcome in every case."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any, NamedTuple

from fsvi_bench.arithmetic import KERNELS_VARIABLE
from fsvi_bench.errors import InputError, place_in, printable
from fsvi_bench.methods.base import Method, MethodOptions, Optimum
from fsvi_bench.methods.registry import MethodEntry
from fsvi_bench.networks.reference import Functions
from fsvi_bench.posteriors.base import KIND_OF, Family, Posterior, defect, divergence, unstack
from fsvi_bench.running.cell import Cell, Record, Seconds, record_of
from fsvi_bench.running.network_job import NetworkProblem, network_data, score_network
from fsvi_bench.running.provenance import decisive_sha256, provenance
from fsvi_bench.scoring.scores import Scores, not_a_number, score
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.task import Task
from fsvi_bench.training.trace import Trace, Tracer, trace_steps
from fsvi_bench.training.trainer import Device, train


@dataclass(frozen=True)
class Job:
    """Cells that one process trains together: one row of the table, on tasks of equal shapes."""

    method: MethodEntry
    batch: Sequence[tuple[Task | NetworkProblem, Cell]]
    device: Device


class Outcome(NamedTuple):
    """The outcome of one cell."""

    record: Record
    posterior: Posterior | Functions | None  #: of a network, the functions that were scored
    trace: Trace | None
    traceback: str | None = None  #: of an exception in the method's code, for its author


def run_job(job: Job) -> list[Outcome]:
    """Trains one batch and scores each of its cells. An exception in the method, even `sys.exit`, fails the cells of
    this batch only.

    Raises:
        InputError: the sources differ from those of the plan.
    """
    started = datetime.now(UTC)
    _require_same_sources(job)
    try:
        return _train(job, started)
    except (Exception, SystemExit) as error:
        return failed(job, started, error, "".join(format_exception(error)))


def failed(job: Job, started: datetime, error: BaseException, lines: str | None = None) -> list[Outcome]:
    """Failed outcomes for all cells of a job, with one reason."""
    reason = {"status": "failed", "reason": _reason(error) + _place(job.method, error)}
    return [Outcome(_record(job, cell, started, reason), None, None, lines) for _, cell in job.batch]


def _record(
    job: Job, cell: Cell, started: datetime, outcome: Mapping[str, Any], device: Device | None = None
) -> Record:
    """The record of a cell; `device` is the one it used, by default the job's."""
    source = {"method_file": job.method.file} if job.method.file else {}
    if reason := outcome.get("reason"):
        outcome = {**outcome, "reason": printable(reason)}
    return record_of(cell, provenance(device or job.device, cell.seed, started) | source, **outcome)


def _require_same_sources(job: Job) -> None:
    """Compares hashes: a worker imports the sources when it starts, perhaps on another machine, and they may differ."""
    here, planned = decisive_sha256(job.method.code_sha256), job.batch[0][1].code_sha256
    if here != planned:
        raise InputError(
            f"the code of fsvi-bench or of {job.method.name}, or the kernels, differ from those at the start of the "
            f"run (hash {here[:12]}, expected {planned[:12]}): files were changed during the run, or a worker's "
            f"machine has a different version or a different {KERNELS_VARIABLE}; make them equal and rerun the command"
        )


def make_method(
    entry: MethodEntry,
    family: Family,
    options: MethodOptions,
    tasks: Sequence[Any],
    seeds: Sequence[int],
) -> Method:
    """A method on `Task`s or `NetworkProblem`s.

    Its random numbers depend on the task, the method, the family and the cell's seed.
    """
    named = [task.frozen.sha256 for task in tasks]
    streams = [derive_seed(sha256, entry.name, family, seed) for sha256, seed in zip(named, seeds, strict=True)]
    return entry.make(network_data(tasks) if _are_networks(tasks) else tasks, family, streams, options)


def _are_networks(tasks: Sequence[Any]) -> bool:
    return isinstance(tasks[0], NetworkProblem)


def _train(job: Job, started: datetime) -> list[Outcome]:
    tasks, cells = zip(*job.batch, strict=True)
    options = job.method.options(cells[0].hyperparameters)
    begun = time.perf_counter()
    method = make_method(job.method, cells[0].family, options, tasks, [cell.seed for cell in cells])
    making = time.perf_counter() - begun
    tracer = None if not method.trains or _are_networks(tasks) else Tracer(method, tasks)
    seconds = train(method, job.device, tracer, () if tracer is None else trace_steps(method.num_steps))
    seconds += making * _are_networks(tasks)  # some methods search for a mode when they are made
    method.cpu()
    posteriors, (optima, no_optima) = unstack(method.posterior()), _optima(method, tasks)
    traces = [None] * len(tasks) if tracer is None else tracer.traces
    returned = (posteriors, method.divergences(), optima, method.work(), method.details(), traces)
    if any(len(each) != len(tasks) for each in returned):
        raise ValueError(
            f"the method returned {', '.join(str(len(each)) for each in returned)} results for {len(tasks)} problems"
        )
    outcomes = []
    for place, (q, diverged, optimum, work, details, trace) in enumerate(zip(*returned, strict=True)):
        (task, cell), begun = job.batch[place], time.perf_counter()
        if (unfit := _unfit(q, cell.family, method.problems.k, diverged)) is not None:
            result, kept = unfit, None
        elif isinstance(task, NetworkProblem):
            result, kept = _score_network(method, place, q, task)
        else:
            result, kept = _score_cell(q, task), q
            if "scores" in result:
                result["reason"] = no_optima
                if optimum is not None:
                    result |= _objective(result["scores"], optimum, method, place, task)
        size, scoring = len(tasks), time.perf_counter() - begun
        spent = Seconds(train=seconds / size, batch_train=seconds, batch_size=size, score=scoring)
        result |= {"work": work, "details": details, "seconds": spent}
        record = _record(job, cell, started, result, job.device if method.trains else "cpu")
        outcomes.append(Outcome(record, kept if record.status == "ok" else None, trace))
    return outcomes


def _optima(method: Method, tasks: Sequence[Any]) -> tuple[Sequence[Optimum | None], str | None]:
    """The optima of the objective on all problems, or why they are unknown; other scores do not depend on them.

    Networks' optima are unknown to every method.
    """
    if _are_networks(tasks):
        return [None] * len(tasks), None
    try:
        return [None if each is None else Optimum(*each) for each in method.optima(tasks)], None
    except Exception as error:
        return [None] * len(tasks), f"the scores of the objective are missing: {_reason(error)}"


def _unfit(posterior: Posterior, family: Family, k: int, diverged: str | None) -> dict[str, Any] | None:
    """A status and the reason why a posterior over k weights cannot be scored, or None."""
    if diverged is not None:
        return {"status": "diverged", "reason": diverged}
    if (kind := getattr(posterior, "kind", type(posterior).__name__)) != KIND_OF[family]:
        return {"status": "failed", "reason": f"the posterior is {kind}, expected {KIND_OF[family]} for its family"}
    try:
        if (reason := defect(posterior, k)) is not None:
            return {"status": "failed", "reason": f"this is not a posterior over the weights: {reason}"}
        reason = divergence(posterior)
    except Exception as error:
        return _without_scores(error)
    return None if reason is None else {"status": "diverged", "reason": reason}


def _without_scores(error: Exception) -> dict[str, Any]:
    return {"status": "diverged" if isinstance(error, InputError) else "failed", "reason": _reason(error)}


def _score_network(
    method: Method, place: int, q: Posterior, problem: NetworkProblem
) -> tuple[dict[str, Any], Functions | None]:
    """Scores and the functions behind them, or a status and the reason why there are none."""
    try:
        scores, functions = score_network(q, method.problems.only(place), problem.frozen)
    except Exception as error:
        return _without_scores(error), None
    return {"network_scores": scores}, functions


def _score_cell(posterior: Posterior, problem: Task) -> dict[str, Any]:
    """Scores, or a status and the reason why there are none."""
    try:
        scores = score(posterior, problem)
    except Exception as error:
        return _without_scores(error)
    if names := not_a_number(scores):
        return {"status": "diverged", "reason": f"these scores are not numbers: {', '.join(names)}"}
    return {"scores": scores}


def _objective(scores: Scores, optimum: Optimum, method: Method, place: int, task: Task) -> dict[str, Any]:
    """KL(q* ‖ P_D) at the objective's optimum q*, and the gap between its value at q and its lowest known value."""
    try:
        gap = method.objective(place, task) - optimum.value
    except Exception as error:
        return {"reason": f"the scores of the objective are missing: {_reason(error)}"}
    own = {"kl_at_objective_optimum": optimum.kl, "objective_gap": gap}
    known = {name: None if value is None or math.isnan(value) else value for name, value in own.items()}
    return {"scores": scores.model_copy(update=known)}


def _place(method: MethodEntry, error: BaseException) -> str:
    """Where in a method's own file an exception arose, for a method from a file."""
    if method.file is None:
        return ""
    path = inspect.getfile(method.cls)
    return place_in(error, path).replace(path, method.file, 1)


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
