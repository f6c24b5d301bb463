"""An output folder read again: which cells its plans ask for, what became of them, and what else lies there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json, is_directory
from fsvi_bench.running.cell import Cell, Record
from fsvi_bench.running.planfile import PlanFile
from fsvi_bench.running.store import HOLDER_FILE, RECORD_FILE, not_a_record, read_plans, read_record, read_record_of


@dataclass(frozen=True)
class Archive:
    """The records of a folder's plans; of all that lie there, if it has no plan.

    Where two plans ask for the same cell of different code or tasks, the later plan's counts.
    """

    root: Path
    plans: list[PlanFile]
    records: list[Record]  #: one per cell, in the plans' order; those of refused tasks at the end
    planned: int  #: cells that the plans ask for
    missing: int  #: of these, cells without a record yet
    stale: int  #: records of cells that no plan asks for: of other code, kernels, settings or tasks


class Group(NamedTuple):
    """Cells that make one row of a table."""

    dataset: str
    method: str
    family: str


def read_archive(root: Path) -> Archive:
    """Everything that a folder's records say.

    Raises:
        InputError: there is no such folder, it holds no records and no plan, or a file in it is not what it should be.
    """
    plans, paths = _contents(root)
    if not plans:
        records = [read_record(path) for path in paths]
        return Archive(root, [], records, len(records), 0, 0)
    cells = _wanted(plans)
    by_folder = {path.parent.relative_to(root).as_posix(): path for path in paths}
    found = {key: by_folder[cell.folder] for key, cell in cells.items() if cell.folder in by_folder}
    read = (read_record_of(cells[key], path) for key, path in found.items())
    records = [record for record in read if record is not None]
    refused = _refused(plans)
    planned = len(cells) + len(refused)
    return Archive(root, plans, records + refused, planned, len(cells) - len(records), len(paths) - len(found))


@dataclass(frozen=True)
class Status:
    """Counts of a folder's cells by group and by what became of them (`missing` for not yet)."""

    groups: dict[Group, Counter[str]]
    stale: int

    @property
    def total(self) -> Counter[str]:
        return sum(self.groups.values(), Counter())


def read_status(root: Path) -> Status:
    """The counts alone, without the scores: a hundred thousand cells take seconds.

    Raises:
        InputError: as `read_archive`.
    """
    plans, paths = _contents(root)
    heads = _heads(paths)
    if not plans:
        return Status(_count((Group(h["dataset"], h["method"], h["family"]), h["status"]) for h in heads), 0)
    by_key = {head["cell"]: head["status"] for head in heads}
    cells = _wanted(plans)
    counted = ((_group(cell), by_key.get(key, "missing")) for key, cell in cells.items())
    refused = ((Group(r.dataset, r.method, r.family), r.status) for r in _refused(plans))
    return Status(_count([*counted, *refused]), sum(key not in cells for key in by_key))


def planned_status(plan: PlanFile, unfitted: Sequence[tuple[str, int]], root: Path, rerun: str = "none") -> Status:
    """What a plan would find done in a folder, and what it would compute; nothing can be done of unfitted splits.

    Args:
        rerun: `all`, or the status of those cells that would be computed again.
    """
    fitted = ((_group(cell), status_of(cell, root, rerun)) for cell in plan.cells())
    refused = ((Group(r.dataset, r.method, r.family), r.status) for r in plan.refused_records())
    later = (
        (Group(dataset, variant.method, variant.family), "missing")
        for dataset, _ in unfitted
        for variant in plan.variants
        if variant.is_for(dataset)
        for _ in variant.seeds
    )
    return Status(_count([*fitted, *refused, *later]), 0)


def status_of(cell: Cell, root: Path, rerun: str = "none") -> str:
    """What became of a cell in a folder; `missing` too if it would be computed again, see `planned_status`."""
    head = None if rerun == "all" else _head(root / cell.folder / RECORD_FILE)
    return "missing" if head is None or head["status"] == rerun else head["status"]


def _group(cell: Cell) -> Group:
    return Group(cell.dataset, cell.method, cell.family)


def _count(cells: Any) -> dict[Group, Counter[str]]:
    counts: dict[Group, Counter[str]] = {}
    for group, status in cells:
        counts.setdefault(group, Counter())[status] += 1
    return counts


def _contents(root: Path) -> tuple[list[PlanFile], list[Path]]:
    if not is_directory(root):
        raise InputError(f"there is no folder {root}; name the one that a run was given with --out")
    plans, paths = read_plans(root), list(_record_paths(root))
    if not plans and not paths and (root / HOLDER_FILE).is_file():
        raise InputError(
            f"a run began in {root} and has no record yet: it is fitting tasks, or was killed; look again later, or "
            "run its command again"
        )
    if not plans and not paths:
        raise InputError(f"{root} holds neither records nor a plan; name the folder that a run was given with --out")
    return plans, paths


def _record_paths(root: Path) -> Iterator[Path]:
    """`cells/<data set>/<method>-<family>/<cell>/record.json`, sorted."""
    for folder, inner, names in os.walk(root / "cells"):
        inner.sort()
        if RECORD_FILE in names:
            yield Path(folder) / RECORD_FILE


def _wanted(plans: list[PlanFile]) -> dict[str, Cell]:
    """Cells by key, in the plans' order, each as its latest plan has it."""
    by_name: dict[tuple[object, ...], Cell] = {}
    for plan in plans:
        # A plan's cells share the mappings of its variants.
        settings = {id(v.hyperparameters): canonical_json(v.hyperparameters) for v in plan.variants}
        for cell in plan.cells():
            known = settings[id(cell.hyperparameters)]
            by_name[cell.dataset, cell.split, cell.method, cell.family, known, cell.seed] = cell
    return {cell.key: cell for cell in by_name.values()}


def _refused(plans: list[PlanFile]) -> list[Record]:
    """Cells without a task, each once, by the latest plan."""
    by_name: dict[tuple[object, ...], Record] = {}
    for plan in plans:
        certified = {(task.dataset, task.split) for task in plan.tasks if task.task_sha256 is not None}
        by_name = {name: r for name, r in by_name.items() if name[:2] not in certified}
        for r in plan.refused_records():
            by_name[r.dataset, r.split, r.method, r.family, canonical_json(r.hyperparameters), r.seed] = r
    return list(by_name.values())


def _heads(paths: Iterable[Path]) -> list[dict[str, str]]:
    return [head for path in paths if (head := _head(path)) is not None]


def _head(path: Path) -> dict[str, str] | None:
    """The few words of a record that a count needs, not validated beyond that; None as in `read_record_of`."""
    try:
        record = from_json(path.read_bytes())
        return {name: str(record[name]) for name in ("cell", "dataset", "method", "family", "status")}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise not_a_record(path, error) from error
