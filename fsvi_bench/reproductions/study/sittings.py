"""A study made in several sittings, or on several machines: what is missing here stays as an earlier table has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from fsvi_bench.reproductions.study.table import CurvePoint, Entry, StudyCell, Tables


def continued(found: Tables, earlier: Tables) -> Tables:
    """What was found, and from the earlier tables the cells that are missing there.

    A cell found here is taken from here, whatever the earlier table has. A curve is a median over cells and cannot be
    put together from two: of each line the one of more cells is taken, of equal ones that found here.
    """
    known = {_place(cell): cell for cell in earlier.cells}
    cells = [known.get(_place(cell), cell) if cell.status == "missing" else cell for cell in found.cells]
    planned = {(cell.dataset, cell.entry) for cell in cells}
    own, others = _by_line(found.curves), _by_line(earlier.curves)
    kept = {line: points for line, points in others.items() if line in planned and _size(points) > _size(own.get(line))}
    return Tables(cells, list(_in_order({**own, **kept}, cells)))


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
