"""Runs a plan: tasks from the cache or a fit, batches of cells through training, scores into records."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsvi_bench.files import sha256_of_json
from fsvi_bench.methods.base import TrainingProblems
from fsvi_bench.posteriors.gaussian import GaussianPosterior, unstack
from fsvi_bench.running.cell import Cell, Record, Seconds, is_finite
from fsvi_bench.running.plan import Plan, Variant
from fsvi_bench.running.prepare import prepare
from fsvi_bench.running.progress import Progress
from fsvi_bench.running.provenance import provenance
from fsvi_bench.running.store import Store
from fsvi_bench.scoring.scores import score
from fsvi_bench.seeds import derive_seed
from fsvi_bench.sources import source_sha256
from fsvi_bench.tasks.problem import Problem
from fsvi_bench.training.trainer import Device, train

#: Sources that decide a result besides the method's own file.
DECISIVE_SOURCES = ("maths", "methods/base.py", "posteriors", "scoring", "tasks", "training", "seeds.py")


@dataclass(frozen=True)
class Resources:
    """Where a run works: device, processes for fitting, folder of raw data."""

    device: Device = "cpu"
    workers: int = 1
    data_dir: Path | None = None


@dataclass(frozen=True)
class RunResult:
    """Records in the plan's order, and those among them that were computed now rather than found finished."""

    records: list[Record]
    computed: list[Record]


def run(plan: Plan, store: Store, resources: Resources, progress: Progress) -> RunResult:
    """Computes whatever the store does not hold yet and returns every record of the plan.

    Raises:
        InputError: raw data are missing or wrong, or the store holds something that is not a record.
    """
    problems, refusals = prepare(plan, resources.workers, resources.data_dir, progress)
    cells = [(variant, problem, cell) for variant in plan.variants for problem in problems
             for cell in _cells(variant, problem)]  # fmt: skip
    found = {cell.key: store.load(cell) for _, _, cell in cells}
    missing = [item for item in cells if found[item[2].key] is None]
    progress.start("cells", len(missing))
    computed: dict[str, Record] = {}
    for variant, batch in _batches(missing):
        for cell, record, posterior in _run_batch(variant, batch, resources.device):
            store.save(cell, record, posterior)
            computed[cell.key] = record
            progress.advance("cells", f"{cell.dataset} split {cell.split} {cell.method} {cell.family}: {record.status}")
    records = [computed.get(cell.key) or found[cell.key] for _, _, cell in cells]
    refused = _refused_records(plan, refusals, resources.device)
    return RunResult([record for record in records if record is not None] + refused, list(computed.values()))


def _cells(variant: Variant, problem: Problem) -> Iterator[Cell]:
    method = variant.method
    for seed in variant.seeds:
        yield Cell(
            task_sha256=problem.task.sha256,
            dataset=problem.task.dataset,
            split=problem.task.split,
            method=method.name,
            family=variant.family,
            hyperparameters=variant.options.model_dump(mode="json"),
            seed=seed,
            code_sha256=sha256_of_json([method.code_sha256, source_sha256(*DECISIVE_SOURCES)]),
        )


def _batches(
    items: Sequence[tuple[Variant, Problem, Cell]],
) -> Iterator[tuple[Variant, list[tuple[Problem, Cell]]]]:
    """Cells that can be trained side by side: one variant and data set, equal shapes."""
    groups: dict[tuple[int, str, tuple[int, ...]], list[tuple[Problem, Cell]]] = defaultdict(list)
    variants: dict[int, Variant] = {}
    for variant, problem, cell in items:
        variants[id(variant)] = variant
        groups[id(variant), cell.dataset, (*problem.X.shape, problem.task.k)].append((problem, cell))
    for (variant_id, _, _), batch in groups.items():
        yield variants[variant_id], batch


def _run_batch(
    variant: Variant, batch: Sequence[tuple[Problem, Cell]], device: Device
) -> Iterator[tuple[Cell, Record, GaussianPosterior | None]]:
    """Trains one batch and scores each of its cells; an exception fails the batch's cells with its reason."""
    try:
        data = TrainingProblems.of([problem for problem, _ in batch])
        seeds = [derive_seed(c.task_sha256, c.method, c.family, c.seed) for _, c in batch]
        method = variant.method.cls(data, variant.family, variant.options, seeds)
        seconds = train(method, device)
        posteriors = unstack(method.posterior().cpu())
    except Exception as error:  # whatever a method raises is a result, and the other batches go on
        reason = f"{type(error).__name__}: {error}"
        for _, cell in batch:
            yield cell, _record(cell, device, status="failed", reason=reason), None
        return
    for (problem, cell), posterior in zip(batch, posteriors, strict=True):
        started = time.perf_counter()
        scores = score(posterior, problem)
        timing = Seconds(
            train=seconds / len(batch),
            batch_train=seconds,
            batch_size=len(batch),
            score=time.perf_counter() - started,
        )
        if is_finite(scores):
            yield cell, _record(cell, device, scores=scores, seconds=timing), posterior
        else:
            reason = "the posterior holds NaN"
            yield cell, _record(cell, device, status="diverged", reason=reason, seconds=timing), None


def _record(cell: Cell, device: str, **outcome: object) -> Record:
    defaults: dict[str, object] = {"status": "ok", "reason": None, "scores": None, "seconds": None}
    shared = cell.model_dump(include={"dataset", "split", "method", "family", "seed", "hyperparameters", "task_sha256"})
    return Record.model_validate(
        {**shared, **defaults, **outcome, "cell": cell.key, "provenance": provenance(device, cell.seed)}
    )


def _refused_records(plan: Plan, refusals: dict[tuple[str, int], str], device: str) -> list[Record]:
    """A failed record for every cell whose task was refused; it has no task hash and is not stored."""
    return [
        Record(
            cell="", dataset=name, split=split, method=variant.method.name, family=variant.family, seed=seed,
            hyperparameters=variant.options.model_dump(mode="json"), task_sha256=None, status="failed",
            reason=reason, scores=None, seconds=None, provenance=provenance(device, seed),
        )
        for variant in plan.variants for (name, split), reason in refusals.items() for seed in variant.seeds
    ]  # fmt: skip
