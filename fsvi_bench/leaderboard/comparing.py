"""Two entries side by side: per data set, paired over splits."""

from __future__ import annotations

from dataclasses import dataclass

from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.ranking import Score
from fsvi_bench.leaderboard.references import References


@dataclass(frozen=True)
class Difference:
    """Scores of a and b on one data set, means over its splits; None where a cell of one of them is missing."""

    dataset: str
    a: float | None
    b: float | None
    difference: float | None  #: a − b; 0 where both are infinite
    interval: tuple[float, float] | None  #: Nadeau and Bengio's 95 % interval; None where a difference is infinite
    p_value: float | None  #: two-sided, of the corrected resampled paired t test
    adjusted: float | None  #: Holm's, over the data sets that both have


@dataclass(frozen=True)
class Comparison:
    """a beside b; lower is better."""

    score: Score
    differences: tuple[Difference, ...]


def comparison(a: Entry, b: Entry, references: References, score: Score | None = None) -> Comparison:
    """By the headline of the track that both are in, across tracks by `predictive_kl_box`, or by a score given."""
    raise NotImplementedError
