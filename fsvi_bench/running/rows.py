"""Rows of the result table while a run fills them: who watches is told of each as soon as its last cell is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from fsvi_bench.files import sha256_of_json
from fsvi_bench.running.cell import Cell, Record

Watcher = Callable[[Sequence[Record]], None]  #: gets all records of a data set, method, family and settings


class Rows:
    """Groups a plan's cells by data set, method, family and settings.

    Args:
        cells: all that the plan asks for.
        refused: records of cells without a task; they belong to their row too.
        found: records that are there already, by cell key.
    """

    def __init__(
        self, cells: Iterable[Cell], refused: Iterable[Record], found: Mapping[str, Record], watcher: Watcher
    ) -> None:
        self._watcher, self._left = watcher, Counter[str]()
        self._cells: dict[str, list[str]] = {}
        self._row_of: dict[str, str] = {}
        self._records = dict(found)
        self._refused: dict[str, list[Record]] = {}
        for cell in cells:
            row = self._row_of[cell.key] = row_sha256(cell)
            self._cells.setdefault(row, []).append(cell.key)
            self._left[row] += cell.key not in found
        for record in refused:
            self._refused.setdefault(row_sha256(record), []).append(record)

    def tell_of_finished(self) -> None:
        """The rows of which nothing is missing from the start."""
        for row in dict.fromkeys([*self._cells, *self._refused]):
            if not self._left[row]:
                self._tell(row)

    def add(self, cell: Cell, record: Record) -> None:
        """One more cell is stored."""
        row = self._row_of[cell.key]
        self._records[cell.key] = record
        self._left[row] -= 1
        if not self._left[row]:
            self._tell(row)

    def _tell(self, row: str) -> None:
        stored = [self._records[key] for key in self._cells.get(row, ())]
        self._watcher(stored + self._refused.get(row, []))


def row_sha256(of: Cell | Record) -> str:
    """Names the row that a cell or a record belongs to."""
    return sha256_of_json([of.dataset, of.method, of.family, of.hyperparameters])


def content_sha256(row: Sequence[Record]) -> str:
    """Changes with a row's cells, and whenever one is computed again; a refused task is known by its reason."""
    when = [str(r.provenance.get("started") if r.task_sha256 else r.reason) for r in row]
    cells = [[r.cell, r.split, r.seed, r.status, time] for r, time in zip(row, when, strict=True)]
    return sha256_of_json([row_sha256(row[0]), sorted(cells)])
