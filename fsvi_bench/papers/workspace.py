"""A reproduction's output folder, and a plan's cells there: those with a record, and those still missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json
from fsvi_bench.posteriors.base import Family
from fsvi_bench.running.cell import Plan, Record
from fsvi_bench.running.progress import Progress
from fsvi_bench.running.runner import Resources, run
from fsvi_bench.running.store import Store

#: A preview in minutes, one for an evening on two cores, and the paper's own.
Scale = Literal["quick", "medium", "paper"]


@dataclass(frozen=True)
class Workspace:
    """A reproduction's output folder, scale and resources."""

    root: Path
    scale: Scale
    resources: Resources
    progress: Progress
    compute: bool = True  #: if False, only the folder's records are shown

    def stem(self, name: str) -> Path:
        """Path of the output files, without a suffix; a scale never overwrites another's results."""
        return self.root / stem_of(name, self.scale)


def stem_of(name: str, scale: Scale) -> str:
    """Name of a reproduction's output files at this scale, without a suffix."""
    return name if scale == "paper" else f"{name}-{scale}"


class PlannedCell(NamedTuple):
    """A planned cell, whose task need not be known; it has the attributes of a record without scores."""

    dataset: str
    split: int
    method: str
    family: Family
    hyperparameters: Mapping[str, Any]
    seed: int
    cell: str = ""
    status: str = "missing"
    reason: str | None = None
    task_sha256: str | None = None
    scores: None = None
    network_scores: None = None
    seconds: None = None


@dataclass(frozen=True)
class Cells:
    """A plan's cells, in the plan's order."""

    records: list[Record] = field(default_factory=list)
    missing: list[PlannedCell] = field(default_factory=list)  #: cells without a record
    computed: int = 0
    refused: int = 0  #: number of records that give a reason for a missing task

    @property
    def reused(self) -> int:
        return len(self.records) - self.computed - self.refused


def planned_cells(plan: Plan) -> Iterator[PlannedCell]:
    """Every cell of a plan, in its order."""
    for c in plan.cells():
        yield PlannedCell(c.dataset, c.split, c.method, c.family, c.hyperparameters, c.seed)


def run_or_find(plan: Plan, workspace: Workspace, name: str) -> Cells:
    """Runs the missing cells of a plan, or only finds the records; finding needs no task, raw data or lock.

    If code or tasks changed between runs, the folder's latest plan determines which records count.

    Raises:
        InputError: nothing is to be computed, and the folder contains no record of the plan, or an invalid one.
    """
    if workspace.compute:
        records, computed = run(plan, Store(workspace.root), workspace.resources, workspace.progress)
        return Cells(records, [], len(computed), sum(record.task_sha256 is None for record in records))
    found = sort_records(plan, Store(workspace.root).records if holds_records(workspace.root) else [])
    if not found.records:
        raise InputError(
            f"{workspace.root} contains no record of {name}; name the folder of its runs with --out, or compute them "
            "with --compute"
        )
    return found


def holds_records(root: Path) -> bool:
    """Whether a folder is a run's output folder."""
    return any((root / name).is_dir() for name in ("cells", "plans"))


def sort_records(plan: Plan, records: Sequence[Record]) -> Cells:
    """The records of a plan's cells, and the cells without a record.

    Raises:
        InputError: a cell has two records, from two versions of the code, tasks or sets of CPU kernels.
    """
    by_place: dict[str, Record] = {}
    for record in records:
        if by_place.setdefault(_key(record), record) is not record:
            name = f"{record.dataset} split {record.split} {record.method} {record.family} seed {record.seed}"
            raise InputError(
                f"the records contain {name} twice, from different versions of the code, tasks or sets of CPU kernels; "
                "use a separate output folder for each"
            )
    found = Cells()
    for place in planned_cells(plan):
        if (kept := by_place.get(_key(place))) is None:
            found.missing.append(place)
        else:
            found.records.append(kept)
    return found


def _key(of: Record | PlannedCell) -> str:
    return canonical_json([of.dataset, of.split, of.method, of.family, of.hyperparameters, of.seed])
