"""Ranks of entries within a track and across tracks: mean ranks over data sets, the data set being the unit.

What is ranked, what is only shown and why is said in `leaderboard.rows`; the statistics are `fsvi_bench.statistics`.
Nothing here depends on the order in which entries come: they are sorted by name, and resamples are drawn by the table's
own seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.references import References
from fsvi_bench.leaderboard.rows import (
    CLOSED_FORM,
    EXACT,
    MAP,
    Row,
    by_dataset,
    exact_row,
    log_ratio,
    map_row,
    mean_over_datasets,
    missing_datasets,
    row_of,
)
from fsvi_bench.leaderboard.submission import DEVELOPMENT_DATASETS, Track
from fsvi_bench.leaderboard.tables import HEADLINES, BudgetPoint, Label, Line, Score, Spectrum, TrackTable
from fsvi_bench.seeds import derived_generator
from fsvi_bench.statistics.bootstrap import bootstrap_ranks, tie_groups
from fsvi_bench.statistics.ranks import critical_difference, dataset_ranks
from fsvi_bench.statistics.resampled_t import corrected_interval

__all__ = [
    "EXACT", "HEADLINES", "MAP", "BudgetPoint", "Label", "Line", "Score", "Spectrum", "TrackTable", "rank_across",
    "rank_track",
]  # fmt: skip

RESAMPLES = 1000
#: Fewer have next to no resamples that differ: one data set has 1, two have 3, three have 10.
FEWEST_DATASETS = 3


class _Rank(NamedTuple):
    """What a ranked row has more than the others."""

    place: int
    mean_rank: float
    interval: tuple[float, float] | None
    group: int | None
    ranks: dict[str, float]


def rank_track(entries: Iterable[Entry], references: References, track: Track) -> TrackTable:
    """The table of one track, by its headline; the full one shows the exact posterior, too, the singular one the MAP.

    Raises:
        InputError: a score is one that no score can be.
    """
    own = [entry for entry in entries if entry.manifest.track == track]
    return _table(_rows(own, references, track), references, track, HEADLINES[track])


def rank_across(
    entries: Iterable[Entry], references: References, score: Literal["predictive_kl_box", "predictive_kl_test"]
) -> TrackTable:
    """All tracks together, by a score that posteriors of every kind have.

    Raises:
        InputError: a score is one that no score can be.
    """
    return _table(_rows(entries, references, None), references, None, score)


def _rows(entries: Iterable[Entry], references: References, track: Track | None) -> list[Row]:
    """By name, with the references' own rows of a track, or of all."""
    own = [row for row in (exact_row(references), map_row(references)) if track in (None, row.track)]
    return sorted([row_of(entry, references) for entry in entries] + own, key=lambda row: row.name)


@np.errstate(over="ignore", invalid="ignore")  # a method that blew up may have a KL of 1e251
def _table(rows: Sequence[Row], references: References, track: Track | None, score: Score) -> TrackTable:
    ranked = [row for row in rows if row.unranked is None]
    ranks = _ranks(ranked, references, track, score)
    ratios = {dataset: references.test_train_ratio(dataset) for dataset in references.datasets}
    lines = [_line(row, rank, references, score, ratios) for row, rank in zip(ranked, ranks, strict=True)]
    lines.sort(key=lambda line: (line.mean_rank, line.name))
    others = sorted((row for row in rows if row.unranked is not None), key=lambda row: (row.order, row.name))
    lines += [_line(row, None, references, score, ratios) for row in others]
    counted = list(references.counted)
    return TrackTable(track, score, list(references.datasets), counted, lines, _note(len(counted)))


def _note(datasets: int) -> str:
    if datasets < FEWEST_DATASETS:
        have = "there is 1" if datasets == 1 else f"there are {datasets}"
        return f"No intervals and no groups: they need at least {FEWEST_DATASETS} data sets, and {have} that count."
    return (
        f"Intervals from {datasets} data sets are narrow: of nominal 95 %, 86 to 93 % covered in simulations with "
        "eight, less with fewer. Groups differ only where a test for all pairs at once (Nemenyi's) tells them apart."
    )


def _ranks(rows: Sequence[Row], references: References, track: Track | None, score: Score) -> list[_Rank]:
    """Of rows without a missing cell. Scores that are 0 to rounding tie: their order would be the rounding's."""
    if not rows:
        return []
    columns = np.maximum(np.stack([row.columns[score] for row in rows]), CLOSED_FORM)
    scores = {dataset: columns[:, places] for dataset, places in references.counted.items()}
    ranks = dataset_ranks(np.stack([table.mean(1) for table in scores.values()], 1))
    mean_rank = ranks.mean(1)
    intervals, groups = _intervals(scores, f"{references.protocol} {track or 'across tracks'} {score}")
    return [
        _Rank(
            place=1 + int((mean_rank < mean_rank[m]).sum()),
            mean_rank=float(mean_rank[m]),
            interval=intervals[m],
            group=groups[m],
            ranks=dict(zip(scores, ranks[m].tolist(), strict=True)),
        )
        for m in range(len(rows))
    ]


def _intervals(
    scores: dict[str, Float[np.ndarray, "M J"]], seed: str
) -> tuple[list[tuple[float, float] | None], list[int | None]]:
    M = len(next(iter(scores.values())))
    if len(scores) < FEWEST_DATASETS:
        return [None] * M, [None] * M
    one_seed = {dataset: table[:, :, None] for dataset, table in scores.items()}
    bootstrap = bootstrap_ranks(one_seed, derived_generator("ranks", seed), RESAMPLES)
    return [found and (found.low, found.high) for found in bootstrap.intervals()], tie_groups(
        bootstrap, least=critical_difference(M, len(scores))
    )


def _line(row: Row, rank: _Rank | None, references: References, score: Score, ratios: Mapping[str, float]) -> Line:
    own = by_dataset(row.columns[score], references)
    covered = [dataset for dataset, values in own.items() if not np.isnan(values).all()]
    return Line(
        entry=row.entry,
        name=row.name,
        title=row.title,
        track=row.track,
        label=row.label,
        unranked=row.unranked,
        place=rank and rank.place,
        mean_rank=rank and rank.mean_rank,
        interval=rank and rank.interval,
        group=rank and rank.group,
        ranks={} if rank is None else rank.ranks,
        scores={dataset: None if np.isnan(values).any() else float(values.mean()) for dataset, values in own.items()},
        spread={dataset: _spread(values, ratios[dataset]) for dataset, values in own.items()},
        missing=missing_datasets(row.columns, references),
        log_ratio=log_ratio(row, references),
        predictive_kl_test=mean_over_datasets(row.columns["predictive_kl_test"], references),
        predictive_kl_box=mean_over_datasets(row.columns["predictive_kl_box"], references),
        nlpd_gap=mean_over_datasets(row.columns["nlpd_gap"], references),
        overconfidence=row.spectrum,
        budgets=row.budgets,
        development_only=bool(covered) and set(covered) <= set(DEVELOPMENT_DATASETS),
    )


def _spread(values: Float[np.ndarray, " J"], ratio: float) -> tuple[float, float] | None:
    """None where a split is missing, infinite or too large to be squared, or there is only one."""
    if bool(np.isnan(values).any()):
        return None
    _, low, high = corrected_interval(values, ratio)
    return None if low is None or high is None or not math.isfinite(high - low) else (low, high)
