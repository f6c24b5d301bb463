"""How far each method's KL depends on when it is stopped, from the study's curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fsvi_bench.reporting.figures import NO_LOGARITHM
from fsvi_bench.reproductions.base import ResultTable
from fsvi_bench.reproductions.burt2020_numbers import title_of
from fsvi_bench.reproductions.study.collect import entry_order
from fsvi_bench.reproductions.study.summary import Cells, at_the_papers_setting, number, words_of
from fsvi_bench.reproductions.study.table import CurvePoint, Entry, of_entry

RISEN = 2.0  #: a KL that ends so many times above its least is named
FALLING = 1.25  #: a KL that was so many times its last one at two thirds of the steps is named


class Course(NamedTuple):
    """A line's least and last point after the first step, and the last one of two thirds of the steps, by the median
    over splits."""

    dataset: str
    entry: Entry
    least: CurvePoint
    before: CurvePoint
    last: CurvePoint

    @property
    def rise(self) -> float | None:
        """How many times the least KL the last one is; None of a least that is 0 but for rounding."""
        return self.last.kl / self.least.kl if self.least.kl > NO_LOGARITHM else None

    @property
    def fall(self) -> float | None:
        """How many times the last KL the one at two thirds of the steps is; None of a last one that is all but 0."""
        return self.before.kl / self.last.kl if self.last.kl > NO_LOGARITHM else None


def courses_of(curves: Sequence[CurvePoint]) -> list[Course]:
    """Of every line that has a curve, by data set in the page's order."""
    lines: dict[tuple[str, Entry], list[CurvePoint]] = {}
    for point in curves:
        if point.steps > 0:
            lines.setdefault((point.dataset, point.entry), []).append(point)
    return [_course(*line, lines[line]) for line in sorted(lines, key=lambda line: (line[0], entry_order(line[1])))]


def _course(dataset: str, entry: Entry, points: Sequence[CurvePoint]) -> Course:
    def steps(point: CurvePoint) -> int:
        return point.steps

    last = max(points, key=steps)
    earlier = [point for point in points if 3 * point.steps <= 2 * last.steps]
    least = min(points, key=lambda point: (point.kl, point.steps))
    return Course(dataset, entry, least, max(earlier, key=steps, default=last), last)


def drift_table(
    cells: Cells, curves: Sequence[CurvePoint], keep: Callable[[Entry], bool] = at_the_papers_setting
) -> ResultTable:
    """Every method's KL at its least and at the end, of the median over splits."""
    rows = []
    for course in courses_of(curves):
        dataset, entry, least, _, last = course
        if keep(entry):
            grown = number(course.rise) if course.rise is not None else "–"
            counted = f"{last.cells} of {len(of_entry(cells, dataset, entry))}"
            here = (number(least.kl), f"{least.steps:,}", number(last.kl), f"{last.steps:,}", grown, counted)
            rows.append((dataset, *words_of(entry)[:2], *here))
    columns = ("data set", "method", "M", "least KL", "at step", "last KL", "last step", "last / least", "splits")
    return ResultTable(title="KL along the way, median over splits", columns=columns, rows=tuple(rows))


def risen_words(curves: Sequence[CurvePoint]) -> list[str]:
    """The lines at the paper's setting whose KL ends at least twice as high as its least, each with where."""

    def risen(course: Course) -> bool:
        return course.last.kl > NO_LOGARITHM if course.rise is None else course.rise >= RISEN

    return _named(curves, risen, lambda course: "∞" if course.rise is None else number(course.rise))


def falling_words(curves: Sequence[CurvePoint]) -> list[str]:
    """The lines at the paper's setting whose KL fell by a fifth or more in the last third of the steps, and where."""
    return _named(curves, lambda course: (course.fall or 0) >= FALLING, lambda course: number(course.fall or 0))


def _named(curves: Sequence[CurvePoint], keep: Callable[[Course], bool], times: Callable[[Course], str]) -> list[str]:
    places: dict[str, list[str]] = {}
    for course in courses_of(curves):
        if at_the_papers_setting(course.entry) and keep(course):
            name = f"{title_of(course.entry.method)} {course.entry.family}"
            places.setdefault(name, []).append(f"{course.dataset} {times(course)}")
    return [f"{name} ({', '.join(where)})" for name, where in places.items()]
