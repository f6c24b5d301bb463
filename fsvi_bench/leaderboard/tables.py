"""What a table of the leaderboard says, line by line; `leaderboard.ranking` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.submission import Track

Label = Literal["re-run", "re-scored only", "not verified", "closed form"]
#: What a table is ranked by: `kl`, `kl_above_floor` = kl − ffg_floor, or a predictive KL.
Score = Literal["kl", "kl_above_floor", "predictive_kl_box", "predictive_kl_test"]
HEADLINES: dict[Track, Score] = {"full": "kl", "ffg": "kl_above_floor", "singular": "predictive_kl_box"}


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of S*^(-1/2) S S*^(-1/2): medians over cells of the smallest, the median and the largest one."""

    smallest: float
    median: float
    largest: float
    cells: int  #: those that have a posterior
    of: int  #: all cells that count


@dataclass(frozen=True)
class BudgetPoint:
    """Where the verifier's own re-runs stood after a part of their steps; means over the re-run cells.

    Each entry's cells were drawn by its own hash: a description of one method, no comparison of two.
    """

    fraction: float  #: of the steps
    steps: float
    seconds: float
    score: float  #: the track's; Infinity where a re-run had diverged
    work: dict[str, float] | None  #: rows and samples, where the method counts them


@dataclass(frozen=True)
class Line:
    """One entry of a table, ranked or not, or (entry None) a row that the references give.

    Numbers over data sets are of those that count, and None where a cell of theirs is missing: what is missing is never
    averaged away. A cell that diverged or failed counts as Infinity.
    """

    entry: Entry | None
    name: str  #: unique, while titles need not be
    title: str
    track: Track
    label: Label
    unranked: str | None  #: why it has no rank
    place: int | None  #: 1 is the best; equal mean ranks share one
    mean_rank: float | None
    interval: tuple[float, float] | None  #: 95 %, see TrackTable.note
    group: int | None  #: of ties, 1 the leading one; a family-wise test sets each apart from one before it
    ranks: dict[str, float]  #: by data set that counts; empty without a rank
    scores: dict[str, float | None]  #: by data set: mean over splits of the table's score
    spread: dict[str, tuple[float, float] | None]  #: Nadeau and Bengio's 95 % interval of that mean
    missing: list[str]  #: data sets of which a cell is missing
    log_ratio: float | None  #: median over cells of log10((score + 1e-3)/(RANDA's + 1e-3))
    predictive_kl_test: float | None  #: mean over data sets of the mean over splits, as the next two
    predictive_kl_box: float | None
    nlpd_gap: float | None  #: descriptive: the exact posterior has 0, and a test set may reward leaving it
    overconfidence: Spectrum | None
    budgets: tuple[BudgetPoint, ...]
    development_only: bool  #: it covers data sets that are for tuning, and no others


@dataclass(frozen=True)
class TrackTable:
    """Ranked lines by mean rank, then the others: references first, then by how near they are to a rank."""

    track: Track | None  #: None: all tracks together
    score: Score
    datasets: list[str]
    ranked: list[str]  #: the data sets that ranks, means and medians are made of: not those to tune on
    lines: list[Line]
    note: str | None  #: what intervals and groups cannot say, or why there are none
