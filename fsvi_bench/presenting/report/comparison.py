"""Which differences between methods the splits support: within a data set, and over data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from fsvi_bench.errors import InputError
from fsvi_bench.methods.registry import load_installed
from fsvi_bench.posteriors.base import Family
from fsvi_bench.presenting.report.study import FAMILIES, Entry, Study
from fsvi_bench.statistics.bootstrap import RankInterval, bootstrap_ranks, tie_groups
from fsvi_bench.statistics.multiple import holm
from fsvi_bench.statistics.ranks import critical_difference
from fsvi_bench.statistics.resampled_t import corrected_paired_test, least_p_value, paired_differences
from fsvi_bench.statistics.wilcoxon import Comparison, wilcoxon_over_datasets
from fsvi_bench.tasks.build import split_indices
from fsvi_bench.tasks.card import load_card

LEVEL = 0.05  #: family-wise error rate of "best"
USUAL_RATIO = 1 / 9  #: of 90/10 splits
RANKED = {
    "kl_moment_matched": "KL (of q’s moments where q has no density)",
    "predictive_kl_test": "predictive KL on test inputs",
}


def held_out_ratio(dataset: str) -> float:
    """n_test/n_train of a data set's splits; 0 where each split is a draw of its own, as the toy problem's."""
    try:
        card = load_card(dataset)
    except InputError:  # from a task file of some other data set
        return USUAL_RATIO
    if card.source.kind == "toy":
        return 0.0
    train, test = split_indices(card, 0)
    return len(test) / len(train)


def supported_best(study: Study, dataset: str, family: Family, score: str) -> Entry | None:
    """The entry of a family that is better than each of its rivals, or None if the splits do not bear that out.

    It finished everywhere, has the lowest mean, and beats each rival in the corrected paired test over the splits that
    both finished, after Holm's correction over the rivals. The exact posterior is no rival.
    """
    found = {entry: study.splits[dataset, entry][score] for entry in study.rivals(dataset, family)}
    by_split = pd.DataFrame({entry: values for entry, values in found.items() if values.notna().any()})
    means = by_split.dropna(axis=1).mean()
    if by_split.shape[1] < 2 or means.empty:
        return None
    best = min(means.index, key=lambda entry: (means[entry], entry))
    ratio = held_out_ratio(dataset)
    p_values = [_p_better(by_split[[best, rival]].dropna(), ratio) for rival in by_split if rival != best]
    return best if holm(p_values).max() <= LEVEL else None


def _p_better(pairs: pd.DataFrame, ratio: float) -> float:
    """p-value that the first column is lower, no less than signs could give; 1 if its mean is not."""
    a, b = pairs.to_numpy().T
    if not len(a) or not a.mean() < b.mean():
        return 1.0
    return max(corrected_paired_test(a, b, ratio), least_p_value(paired_differences(a, b)))


@dataclass(frozen=True)
class Standing:
    """One entry's mean rank over data sets; no interval, group and p-value if it misses a cell somewhere."""

    entry: Entry
    interval: RankInterval | None
    group: int | None
    beside_first: Comparison | None  #: over data sets; None for the first itself, and where nothing is ranked


@dataclass(frozen=True)
class Ranking:
    """A family's entries by mean rank, unranked ones last; the first ranked one is what others are compared with."""

    family: Family
    score: str
    datasets: list[str]
    standings: list[Standing]


def rankings(study: Study) -> list[Ranking]:
    """One per family and score that has at least two entries and two data sets."""
    found = []
    for family in FAMILIES:
        datasets = [dataset for dataset in study.datasets if study.rivals(dataset, family)]
        rivals = {entry for dataset in datasets for entry in study.rivals(dataset, family)}
        if len(rivals) > 1 and len(datasets) > 1:
            found += [_ranking(study, family, score, datasets, sorted(rivals)) for score in RANKED]
    return found


def _ranking(study: Study, family: Family, score: str, datasets: list[str], entries: Sequence[Entry]) -> Ranking:
    tables = {dataset: _score_table(study, dataset, entries, score) for dataset in datasets}
    ranks = bootstrap_ranks(tables, np.random.default_rng(0))
    compared = _beside_best(np.stack([table.mean((1, 2)) for table in tables.values()], 1), ranks.mean_rank)
    ranked = int((~np.isnan(ranks.mean_rank)).sum())
    groups = tie_groups(ranks, least=critical_difference(ranked, len(datasets)))
    standings = map(Standing, entries, ranks.intervals(), groups, compared)
    in_order = sorted(standings, key=lambda s: (s.interval is None, s.interval and s.interval.mean_rank, s.entry))
    return Ranking(family, score, datasets, in_order)


def _beside_best(scores: Float[np.ndarray, "M D"], mean_rank: Float[np.ndarray, " M"]) -> list[Comparison | None]:
    """Each entry in Wilcoxon's test against the one of the best mean rank, the first of those that tie."""
    if np.isnan(mean_rank).all():
        return [None] * len(scores)
    best = int(np.nanargmin(mean_rank))
    compared = enumerate(wilcoxon_over_datasets(scores, best))
    return [None if place == best else comparison for place, comparison in compared]


def _score_table(
    study: Study, dataset: str, entries: Sequence[Entry], score: str
) -> Float[np.ndarray, "entries splits seeds"]:
    """Scores, lower is better; NaN where a cell lacks the score, or an entry a split that another one has.

    Seeds stand in columns, to be drawn alike for all, where all entries with randomness have the same ones; an entry
    without repeats its one score. Otherwise there is one column: a split's mean over the seeds that the entry has on
    this data set. To have been run with fewer seeds than another is not to miss a cell.
    """
    here = {e: study.cells[dataset, e].pivot(index="split", columns="seed", values=score)
            for e in entries if (dataset, e) in study.cells}  # fmt: skip
    splits = sorted({split for table in here.values() for split in table.index})
    seeds = {tuple(table.columns) for entry, table in here.items() if not _repeats(entry, table)}
    shape = (len(splits), len(next(iter(seeds))) if len(seeds) == 1 else 1)
    missing = pd.DataFrame(np.nan, splits, [0])
    tables = [here.get(entry, missing).reindex(splits).to_numpy(float) for entry in entries]
    # A mean over seeds of which one is missing is missing.
    return np.stack([t if t.shape == shape else np.broadcast_to(t.mean(1, keepdims=True), shape) for t in tables])


def _repeats(entry: Entry, scores: pd.DataFrame) -> bool:
    """Whether an entry's one seed stands for any: a run gives the method one seed whatever seeds are asked for.

    Of a method that is not installed here, or no longer takes these settings, that is not known; it is asked for one
    that has one seed, and that is then taken for a sign of it.
    """
    try:
        found = load_installed(entry.method)
        deterministic = found.cls.is_deterministic(found.options(entry.hyperparameters))
    except InputError:
        deterministic = True
    return deterministic and scores.shape[1] == 1
