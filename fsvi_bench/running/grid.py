"""From a plan and its tasks to cells, and from cells to the batches that are trained side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from fsvi_bench.arithmetic import arithmetic
from fsvi_bench.files import sha256_of_json
from fsvi_bench.running.cell import Cell
from fsvi_bench.running.plan import Plan, Variant
from fsvi_bench.running.planfile import PlanFile, PlannedTask, PlannedVariant
from fsvi_bench.running.provenance import provenance
from fsvi_bench.sources import meaning_sha256
from fsvi_bench.tasks.frozen import FrozenTask

#: The module that trains and scores a cell. What else is in its package says when, where and in what form.
TRAINS_AND_SCORES = "fsvi_bench.running.job"


class Planned(NamedTuple):
    """A cell, and what it is computed from."""

    variant: Variant
    task: FrozenTask
    cell: Cell


def code_sha256(variant: Variant) -> str:
    """Hash of all that decides a method's results beside its settings; see `decisive_sha256`."""
    return decisive_sha256(variant.method.code_sha256)


def decisive_sha256(method_sha256: str, kernels: Mapping[str, str] | None = None) -> str:
    """Hash of a method's code, of what trains and scores every method, and of `kernels`, by default those asked for."""
    asked = dict(arithmetic() if kernels is None else kernels)
    shared = meaning_sha256(TRAINS_AND_SCORES, leaving_out=("fsvi_bench.running",))
    return sha256_of_json([method_sha256, shared, *([asked] if asked else [])])


def expand(variants: Sequence[Variant], tasks: Sequence[FrozenTask]) -> Iterator[Planned]:
    """Every cell of the grid, data set by data set, so that few tasks are in use at any time."""
    by_dataset: dict[str, list[FrozenTask]] = defaultdict(list)
    for task in tasks:
        by_dataset[task.dataset].append(task)
    for of_dataset in by_dataset.values():
        for variant in variants:
            if variant.datasets is not None and of_dataset[0].dataset not in variant.datasets:
                continue
            code, options = code_sha256(variant), variant.options.model_dump(mode="json")
            for task in of_dataset:
                for seed in variant.seeds:
                    cell = Cell.model_construct(  # from what is validated already; there may be 100,000
                        task_sha256=task.sha256,
                        dataset=task.dataset,
                        split=task.split,
                        method=variant.method.name,
                        family=variant.family,
                        hyperparameters=options,
                        seed=seed,
                        code_sha256=code,
                    )
                    yield Planned(variant, task, cell)


def batches(planned: Iterable[Planned]) -> list[list[Planned]]:
    """Cells that can be trained side by side: one variant and data set, features of one kind, equal shapes."""
    groups: dict[tuple[object, ...], list[Planned]] = defaultdict(list)
    for item in planned:
        task = item.task
        shape = (len(task.train_index), *task.inducing_points.shape)
        groups[item.cell.dataset, id(item.variant), task.features, shape].append(item)
    return list(groups.values())


def parts(batch: Sequence[Planned], count: int) -> Iterator[list[Planned]]:
    """A batch in `count` parts of nearly equal size."""
    edges = [len(batch) * part // count for part in range(count + 1)]
    yield from (list(batch[start:stop]) for start, stop in pairwise(edges) if stop > start)


def plan_file(plan: Plan, tasks: list[FrozenTask], refusals: Mapping[tuple[str, int], str], device: str) -> PlanFile:
    """What is kept of a plan whose tasks are known."""
    now = datetime.now(UTC)
    return PlanFile(
        written=now,
        tasks=(
            *(PlannedTask(dataset=t.dataset, split=t.split, task_sha256=t.sha256) for t in tasks),
            *(PlannedTask(dataset=d, split=s, task_sha256=None, refused=why) for (d, s), why in refusals.items()),
        ),
        variants=tuple(
            PlannedVariant(
                method=variant.method.name,
                family=variant.family,
                hyperparameters=variant.options.model_dump(mode="json"),
                seeds=variant.seeds,
                code_sha256=code_sha256(variant),
                datasets=variant.datasets,
            )
            for variant in plan.variants
        ),
        provenance=provenance(device, 0, now),
    )
