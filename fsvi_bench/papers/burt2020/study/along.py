"""How far each method's KL depends on when it is stopped, from the study's curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from fsvi_bench.papers.burt2020.numbers import title_of
from fsvi_bench.papers.burt2020.study.collect import entry_order
from fsvi_bench.papers.burt2020.study.summary import Cells, at_the_papers_setting, number, words_of
from fsvi_bench.papers.burt2020.study.table import CurvePoint, Entry, of_entry
from fsvi_bench.presenting.figures import NO_LOGARITHM
from fsvi_bench.presenting.tables import Table

RISEN = 2.0  #: a KL that ends so many times above its least is named
STALLED = 20.0  #: seconds a step, over the line's median, of a stretch in which the machine did something else
FALLING = 1.25  #: a KL that was so many times its last one at two thirds of the steps is named


class Course(NamedTuple):
    """A line's least and last point after the first step, by the median over splits; and the last one that is finite,
    the one before that, and the last of two thirds of its steps."""

    dataset: str
    entry: Entry
    least: CurvePoint
    before: CurvePoint
    previous: CurvePoint
    finite: CurvePoint
    last: CurvePoint

    @property
    def rise(self) -> float | None:
        """How many times the least KL the last one is; None of a least that is 0 but for rounding."""
        return self.last.kl / self.least.kl if self.least.kl > NO_LOGARITHM else None

    @property
    def fall(self) -> float | None:
        """How many times the last finite KL the one at two thirds of its steps is; None of one that is all but 0, and
        of one that does not fall any more."""
        end = self.finite.kl
        return self.before.kl / end if NO_LOGARITHM < end < min(self.previous.kl, math.inf) else None


def courses_of(curves: Sequence[CurvePoint]) -> list[Course]:
    """Of every line that has a curve, by data set in the page's order."""
    return [_course(*line, points) for line, points in _lines_of(curves).items()]


def _lines_of(curves: Sequence[CurvePoint]) -> dict[tuple[str, Entry], list[CurvePoint]]:
    """Each line's points after step 0, by steps."""
    lines: dict[tuple[str, Entry], list[CurvePoint]] = {}
    for point in sorted(curves, key=lambda point: (point.dataset, entry_order(point.entry), point.steps)):
        if point.steps > 0:
            lines.setdefault((point.dataset, point.entry), []).append(point)
    return lines


def _course(dataset: str, entry: Entry, points: Sequence[CurvePoint]) -> Course:
    last, finite = points[-1], [point for point in points if math.isfinite(point.kl)] or points
    end = finite[-1]
    earlier = [point for point in finite if 3 * point.steps <= 2 * end.steps] or [end]
    least = min(points, key=lambda point: (point.kl, point.steps))
    return Course(dataset, entry, least, earlier[-1], finite[-2:][0], end, last)


def drift_table(
    cells: Cells, curves: Sequence[CurvePoint], keep: Callable[[Entry], bool] = at_the_papers_setting
) -> Table:
    """Every method's KL at its least and at the end, of the median over splits."""
    rows = []
    for course in courses_of(curves):
        dataset, entry, least, last = course.dataset, course.entry, course.least, course.last
        if keep(entry):
            grown = number(course.rise) if course.rise is not None else "–"
            counted = f"{last.cells} of {len(of_entry(cells, dataset, entry))}"
            here = (number(least.kl), f"{least.steps:,}", number(last.kl), f"{last.steps:,}", grown, counted)
            rows.append((dataset, *words_of(entry)[:2], *here))
    columns = ("data set", "method", "M", "least KL", "at step", "last KL", "last step", "last / least", "splits")
    return Table(title="KL along the way, median over splits", columns=columns, rows=tuple(rows))


def risen_words(curves: Sequence[CurvePoint]) -> list[str]:
    """The lines at the paper's setting whose KL ends at least twice as high as its least, each with where."""

    def risen(course: Course) -> bool:
        return course.last.kl > NO_LOGARITHM if course.rise is None else course.rise >= RISEN

    return _named(curves, risen, lambda course: "∞" if course.rise is None else number(course.rise))


def falling_words(curves: Sequence[CurvePoint]) -> list[str]:
    """The lines at the paper's setting whose KL fell by a fifth or more in the last third of the steps and had not
    turned, and where; of one that diverged, up to there."""

    def words(course: Course) -> str:
        return number(course.fall or 0) + (", then diverged" if course.finite is not course.last else "")

    return _named(curves, lambda course: (course.fall or 0) >= FALLING, words)


def _named(curves: Sequence[CurvePoint], keep: Callable[[Course], bool], times: Callable[[Course], str]) -> list[str]:
    places: dict[str, list[str]] = {}
    for course in courses_of(curves):
        if at_the_papers_setting(course.entry) and keep(course):
            name = f"{title_of(course.entry.method)} {course.entry.family}"
            places.setdefault(name, []).append(f"{course.dataset} {times(course)}")
    return [f"{name} ({', '.join(where)})" for name, where in places.items()]


def stall_words(curves: Sequence[CurvePoint]) -> list[str]:
    """The lines at the paper's setting of whose seconds half went by in one stretch, far slower than the others."""
    told = []
    for (dataset, entry), points in _lines_of(curves).items():
        stretches = [(b.seconds - a.seconds, a, b) for a, b in pairwise(points)]
        if not at_the_papers_setting(entry) or len(stretches) < 3:
            continue
        usual = median([seconds / (b.steps - a.steps) for seconds, a, b in stretches])
        seconds, a, b = max(stretches, key=lambda stretch: stretch[0])
        if 2 * seconds > points[-1].seconds and seconds > STALLED * usual * (b.steps - a.steps):
            where = f"{number(seconds)} of {number(points[-1].seconds)} s from step {a.steps:,} to {b.steps:,}"
            told.append(f"{words_of(entry)[0]} on {dataset}, {where}")
    return told
