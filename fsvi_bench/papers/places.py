"""A plan's cells by name, task or no task: which of them have a record in a folder, and which have yet to be run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json
from fsvi_bench.posteriors.base import Family
from fsvi_bench.running.archive import read_archive
from fsvi_bench.running.cell import Record
from fsvi_bench.running.plan import Plan


class Place(NamedTuple):
    """What one cell of a plan is called; its task need not be known."""

    dataset: str
    split: int
    method: str
    family: Family
    hyperparameters: Mapping[str, Any]
    seed: int


class Found(NamedTuple):
    """A plan's cells in its order."""

    records: list[Record]
    missing: list[Place]


def places(plan: Plan) -> Iterator[Place]:
    """Every cell of a plan, data set by data set."""
    for dataset in dict.fromkeys(name for name, _ in plan.splits):
        for variant in plan.variants:
            if variant.datasets is None or dataset in variant.datasets:
                settings = variant.options.model_dump(mode="json")
                for split in (number for name, number in plan.splits if name == dataset):
                    for seed in variant.seeds:
                        yield Place(dataset, split, variant.method.name, variant.family, settings, seed)


def find_records(plan: Plan, root: Path) -> Found:
    """What a folder holds of a plan; nothing is computed, and no task, raw data or lock is needed.

    Where code or tasks changed between sittings, the latest plan of the folder says which record counts.

    Raises:
        InputError: the folder holds no records, or something in it is not one.
    """
    return sort_records(plan, read_archive(root).records)


def holds_records(root: Path) -> bool:
    """Whether a folder is a run's."""
    return any((root / name).is_dir() for name in ("cells", "plans"))


def sort_records(plan: Plan, records: Sequence[Record]) -> Found:
    """Those of the records that are of a plan's cells, and the cells that have none.

    Raises:
        InputError: a cell has two records, from two versions of the code or two tasks.
    """
    by_place: dict[str, Record] = {}
    for record in records:
        if by_place.setdefault(_key(record), record) is not record:
            name = f"{record.dataset} split {record.split} {record.method} {record.family} seed {record.seed}"
            raise InputError(
                f"the records hold {name} twice, from two versions of the code or sets of kernels; show their results "
                "apart"
            )
    found = Found([], [])
    for place in places(plan):
        if (kept := by_place.get(_key(place))) is None:
            found.missing.append(place)
        else:
            found.records.append(kept)
    return found


def _key(of: Record | Place) -> str:
    settings = canonical_json(of.hyperparameters)
    return canonical_json([of.dataset, of.split, of.method, of.family, settings, of.seed])
