"""Whether runs that are made again come to the numbers of an earlier result, and results to those of others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fsvi_bench.errors import InputError
from fsvi_bench.files import is_file, read_bounded
from fsvi_bench.leaderboard.result import RESULT_BYTES, Cell, Result
from fsvi_bench.strict import parse_json

#: The largest relative difference of numbers at which runs agree, and the number below which differences are relative
#: to it: what is 0 up to rounding differs between processors.
AGREE, LEAST = 1e-6, 1e-2


class Version(NamedTuple):
    """What a result is of."""

    entry_sha256: str
    edition_sha256: str


class Comparison(NamedTuple):
    """A run and the same run of an earlier result."""

    kept: Cell
    again: Cell
    difference: float  #: the largest relative one of any number; infinite if the task, status or kinds of scores differ

    @property
    def agrees(self) -> bool:
        return self.difference <= AGREE


def read_kept(path: Path, of: Version | Result) -> Result:
    """An earlier result of the same entry in the same edition; its signature is not checked.

    Raises:
        InputError: there is none, or it is of another version of the entry or edition.
    """
    if not is_file(path):
        raise InputError(f"{path} does not exist, so there is nothing to compare with; verify without --check")
    kept = parse_json(Result, read_bounded(path, RESULT_BYTES), path)
    if (kept.entry_sha256, kept.edition_sha256) != (of.entry_sha256, of.edition_sha256):
        raise InputError(f"{path} is of another version of the entry or edition; verify without --check")
    return kept


def compare(kept: Result, again: Result) -> list[Comparison]:
    """The runs that both results have."""
    earlier = {(cell.place, cell.seed): cell for cell in kept.cells}
    pairs = [(earlier[key], cell) for cell in again.cells if (key := (cell.place, cell.seed)) in earlier]
    return [Comparison(*pair, _difference(*pair)) for pair in pairs]


def _difference(kept: Cell, again: Cell) -> float:
    if (kept.task.sha256, kept.status) != (again.task.sha256, again.status):
        return math.inf
    waypoints = largest_difference(_at_waypoints(kept), _at_waypoints(again))
    return max(waypoints, largest_difference(*({**facts(cell), **dict(cell.scores or {})} for cell in (kept, again))))


def facts(cell: Cell) -> dict[str, float | None]:
    """The numbers among the facts of a run's task: its size and reference scores."""
    return {name: value for name, value in cell.task if not isinstance(value, str)}


def _at_waypoints(cell: Cell) -> dict[tuple[int, str], float | None]:
    """Scores by the number of steps; verifiers' clocks choose other moments."""
    return {
        (waypoint.steps, name): score
        for waypoint in cell.waypoints
        for name, score in waypoint
        if name not in ("steps", "seconds")
    }


def largest_difference(one: Mapping[Any, float | None], other: Mapping[Any, float | None]) -> float:
    """The largest relative difference of numbers that both have."""
    return max((_apart(number, other[name]) for name, number in one.items() if name in other), default=0.0)


def _apart(one: float | None, other: float | None) -> float:
    if one == other:
        return 0.0
    if one is None or other is None or math.isinf(one) or math.isinf(other):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other), LEAST)


def agreement(found: list[Comparison]) -> str:
    """How many runs agree, in words, and the largest difference among those that do."""
    apart = [each for each in found if not each.agrees]
    closest = max((each.difference for each in found if each.agrees), default=0.0)
    agree = f"{len(found) - len(apart)} of {len(found)} runs agree with the earlier result"
    if not apart:
        return f"{agree} (largest relative difference of a number: {closest:.1g})"
    worst = sorted(apart, key=lambda each: each.difference, reverse=True)[:3]
    named = ", ".join(f"{each.again.place.name} ({each.difference:.1g})" for each in worst)
    return f"{agree} to {AGREE:g}; the largest relative differences are those of {named}"
