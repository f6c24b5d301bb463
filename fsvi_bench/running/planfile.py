"""What a run set out to do, kept beside its records, `fsvi-plan/1`: the grid, without its product spelled out.

With it a folder can tell what is still missing, and which of its records are of earlier code, settings or tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import product
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from fsvi_bench.files import sha256_of_json
from fsvi_bench.posteriors.base import Family
from fsvi_bench.running.cell import Cell, Record


class _Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlannedTask(_Plain):
    """A split and its task, or why it has none."""

    dataset: str
    split: int
    task_sha256: str | None = None
    refused: str | None = None


class Variant(_Plain):
    """A method with its family, settings and seeds: one row of the result table per data set."""

    method: str
    family: Family
    hyperparameters: dict[str, Any]
    seeds: tuple[int, ...]
    code_sha256: str
    datasets: tuple[str, ...] | None = None  #: on which it is run; None for all of the plan's

    def is_for(self, dataset: str) -> bool:
        """Whether the plan has it on a data set."""
        return self.datasets is None or dataset in self.datasets

    def asked(self) -> dict[str, Any]:
        """What was asked for, apart from the code; without `datasets` where these are all, as in older plans."""
        left_out = {"code_sha256"} | ({"datasets"} if self.datasets is None else set())
        return self.model_dump(mode="json", exclude=left_out)


class PlanFile(_Plain):
    """All cells of one command: each variant on each task with each of its seeds."""

    format: Literal["fsvi-plan/1"] = "fsvi-plan/1"
    written: datetime
    tasks: tuple[PlannedTask, ...]
    variants: tuple[Variant, ...]
    provenance: dict[str, Any]

    @property
    def name(self) -> str:
        """The same for the same command: neither the code nor what its tasks turned out to be is part of it."""
        asked = sorted([t.dataset, t.split] for t in self.tasks)
        return sha256_of_json([asked, [variant.asked() for variant in self.variants]])[:16]

    def of_each(self) -> Iterator[tuple[PlannedTask, Variant, int]]:
        """All that makes a cell, data set by data set, so that few tasks are in use at any time."""
        for dataset in dict.fromkeys(task.dataset for task in self.tasks):
            for variant in self.variants:
                if variant.is_for(dataset):
                    yield from product([t for t in self.tasks if t.dataset == dataset], [variant], variant.seeds)

    def cells(self) -> Iterator[Cell]:
        """Every cell that has a task."""
        for task, variant, seed in self.of_each():
            if task.task_sha256 is not None:  # all of it is validated already, and there may be 100,000
                yield Cell.model_construct(task_sha256=task.task_sha256, **_of_cell(task, variant, seed))

    def refused_records(self) -> list[Record]:
        """A failed record for every cell whose task was refused; without a task it has no key and is not stored."""
        return [
            Record(
                **_of_cell(task, variant, seed), cell="", task_sha256=None, status="failed", reason=task.refused,
                scores=None, seconds=None, provenance={**self.provenance, "seeds": [seed]},
            )
            for task, variant, seed in self.of_each()
            if task.refused is not None
        ]  # fmt: skip


def _of_cell(task: PlannedTask, variant: Variant, seed: int) -> dict[str, Any]:
    """What cells and records have of a plan."""
    own = {name: getattr(variant, name) for name in ("method", "family", "hyperparameters", "code_sha256")}
    return {"dataset": task.dataset, "split": task.split, "seed": seed, **own}
