"""Logarithmic axes of the small drawings in a page."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

LARGEST = 1e12


@dataclass(frozen=True)
class LogScale:
    """From numbers to places; what lies beyond an end is put there."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        share = math.log(inside / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """Powers of ten, at most so many; within less than two decades 1, 2, 5 times them, or 1 and 3."""
        lowest, highest = math.ceil(_log10(self.low)), math.floor(_log10(self.high))
        step = max(1, math.ceil((highest - lowest + 1) / most))
        decades = [10.0**power for power in range(lowest, highest + 1) if power % step == 0]
        if len(decades) >= 3:
            return decades
        for leading in ((1, 2, 5), (1, 3)):
            finer = [a * 10.0**power for power in range(lowest - 1, highest + 1) for a in leading]
            inside = [value for value in finer if self.low <= value <= self.high]
            if 2 <= len(inside) <= most:
                return inside
        return decades


def _log10(value: float) -> float:
    return round(math.log10(value), 9)  # a limit of exactly 0.001 has its tick


def fit(values: Iterable[float], start: float, end: float, smallest: float = 1e-6) -> LogScale:
    """A scale that shows all values from `smallest` to `LARGEST`, with some room at both ends.

    A method that blew up may have a KL of 1e251; it would press all others into a point.
    """
    shown = [value for value in values if smallest <= value <= LARGEST] or [1.0]
    low, high = min(shown) / 1.4, max(shown) * 1.4
    if high / low < 10:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(10), middle * math.sqrt(10)
    return LogScale(low, high, start, end)
