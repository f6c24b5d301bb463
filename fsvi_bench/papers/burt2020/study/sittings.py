"""A study made in several sittings, or on several machines: what is missing here stays as an earlier table has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from fsvi_bench.papers.burt2020.study.summary import require_one_cell_each
from fsvi_bench.papers.burt2020.study.table import CurvePoint, Entry, StudyCell, Tables


def continued(found: Tables, earlier: Tables) -> Tables:
    """What was found, and from the earlier tables the cells that are missing there.

    A cell found here is taken from here, whatever the earlier table has. A curve is a median over cells and cannot be
    put together from two: of each line that keeps cells the one of more cells is taken, of equal ones that found here.

    Raises:
        InputError: the two are not of the same tasks, or the earlier one has a cell twice.
    """
    require_one_cell_each(earlier.cells)
    known = {_place(cell): cell for cell in earlier.cells}
    cells = [known.get(_place(cell), cell) if cell.status == "missing" else cell for cell in found.cells]
    require_one_cell_each(cells)
    own, others = _by_line(found.curves), _by_line(earlier.curves)
    lines = {(new.dataset, new.entry) for new, old in zip(cells, found.cells, strict=True) if new is not old}
    kept = {line: others[line] for line in lines if _size(others.get(line)) > _size(own.get(line))}
    return Tables(cells, list(_in_order({**own, **kept}, cells)))


def kept_words(found: Tables, both: Tables, earlier: Tables) -> str | None:
    """How many lines of the earlier table stay, and how many do not fit anywhere; None if it had none."""
    stay = sum(new is not old for new, old in zip(both.cells, found.cells, strict=True))
    planned = {_place(cell) for cell in found.cells}
    strange = sum(cell.status != "missing" and _place(cell) not in planned for cell in earlier.cells)
    told = [f"{stay:,} cells without a record here keep their lines"] if stay else []
    told += [f"{strange:,} lines are of no planned cell and are left out"] if strange else []
    return "; ".join(told) or None


def _place(cell: StudyCell) -> tuple[Any, ...]:
    """What was planned: all but what became of it."""
    return cell.dataset, cell.split, cell.entry, cell.max_steps, cell.seed


Line = tuple[str, Entry]


def _by_line(points: Iterable[CurvePoint]) -> dict[Line, list[CurvePoint]]:
    lines: dict[Line, list[CurvePoint]] = {}
    for point in points:
        lines.setdefault((point.dataset, point.entry), []).append(point)
    return lines


def _size(points: Sequence[CurvePoint] | None) -> int:
    return max((point.cells for point in points or ()), default=0)


def _in_order(curves: dict[Line, list[CurvePoint]], cells: Iterable[StudyCell]) -> Iterator[CurvePoint]:
    """As the cells stand, which are sorted."""
    for line, _ in groupby((cell.dataset, cell.entry) for cell in cells):
        yield from curves.get(line, ())
