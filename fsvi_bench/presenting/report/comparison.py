"""Significance of differences between methods: within a data set over splits, and over data sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from fsvi_bench.errors import InputError
from fsvi_bench.methods.registry import load_installed
from fsvi_bench.posteriors.base import Family
from fsvi_bench.presenting.report.study import FAMILIES, Entry, Study
from fsvi_bench.presenting.summary import format_mean, rounding_of
from fsvi_bench.presenting.tables import in_words
from fsvi_bench.statistics.all_pairs import outranked_by, pairwise_p_values
from fsvi_bench.statistics.bootstrap import RankInterval, bootstrap_ranks
from fsvi_bench.statistics.ranks import dataset_ranks, holm
from fsvi_bench.statistics.resampled_t import (
    corrected_interval,
    corrected_paired_test,
    least_p_value,
    paired_differences,
)
from fsvi_bench.tasks.card import card_names, load_card
from fsvi_bench.tasks.splits import standard_splits

LEVEL = 0.05  #: family-wise error rate of "best"
USUAL_RATIO = 1 / 9  #: for 90/10 splits
RANKED = {
    "kl_moment_matched": "KL (of q’s moments if q has no density)",
    "predictive_kl_test": "predictive KL on test inputs",
}


def held_out_ratio(study: Study, dataset: str) -> float:
    """n_test/n_train of a data set's splits, the largest; 0 if splits are independent draws, as for the toy problem.

    Plans lack these numbers on networks and in earlier versions; the ratio is then the card's, or that of 90/10 splits.
    """
    card = load_card(dataset) if dataset in card_names() else None
    if card is not None and card.source.kind == "toy":
        return 0.0
    planned = [task for plan in study.archive.plans for task in plan.tasks if task.dataset == dataset]
    if ratios := [task.N_test / task.N for task in planned if task.N is not None and task.N_test is not None]:
        return max(ratios)
    if card is None or card.splits.test_masks is not None:  # the file of its ten folds may be absent
        return USUAL_RATIO
    train, test = next(standard_splits(card.n, 1))
    return len(test) / len(train)


def compared(study: Study) -> pd.DataFrame:
    """The summary with two more columns: the mean and its corrected 95% `interval` as text, and whether the entry is
    `best`."""
    lines = study.summary
    places: Any = lines.groupby(["dataset", "family", "score"])["entry"]
    best = places.transform(lambda entries: supported_best(study, *entries.name))
    best = best.where(~lines["score"].str.startswith("variance_ranks"))  # of which higher is better
    ratios = {dataset: held_out_ratio(study, dataset) for dataset in study.datasets}
    intervals = [_interval(study, line, ratios[line["dataset"]]) for _, line in lines.iterrows()]
    return lines.assign(interval=intervals, best=lines["entry"] == best)


def _interval(study: Study, line: pd.Series, ratio: float) -> str:
    """The mean ± its standard error over the splits that finished, and Nadeau and Bengio's interval.

    There is no interval if a seed of such a split is missing, and no text for a single split.
    """
    if line["splits"] < 2 or math.isnan(line["mean"]):
        return ""
    mean, values = format_mean(line), study.splits.loc[(line["dataset"], line["entry"]), line["score"]].dropna()
    if len(values) < line["splits"]:
        return mean
    _, low, high = corrected_interval(values, ratio)
    return mean if low is None or high is None else f"{mean}\n{_end(low, line)} to {_end(high, line)}"


def _end(value: float, line: pd.Series) -> str:
    return "0" if abs(value) < rounding_of(line["score"]) else in_words(value)


def supported_best(study: Study, dataset: str, family: Family, score: str) -> Entry | None:
    """The entry of a family that is significantly better than each of its rivals, or None.

    It finished on all splits, has the lowest mean, and beats each rival in the corrected paired test over the splits
    on which neither failed, after Holm's correction over the rivals. The exact posterior is not a rival.
    """
    scores: Any = study.judged_splits.loc[dataset, score]
    rivals = scores.index.get_level_values("entry").isin(study.rivals(dataset, family))
    by_split: pd.DataFrame = scores[rivals].unstack("entry").dropna(axis=1, how="all")
    means = by_split.dropna(axis=1).mean()
    if by_split.shape[1] < 2 or means.empty:
        return None
    best: Any = means.idxmin()
    ratio = held_out_ratio(study, dataset)
    p_values = [_p_better(by_split[[best, rival]].dropna(), ratio) for rival in by_split if rival != best]
    return best if holm(p_values).max() <= LEVEL else None


def _p_better(pairs: pd.DataFrame, ratio: float) -> float:
    """The p-value that the first column is lower, but no less than any sign test of them could give; 1 if its mean is
    not lower."""
    a, b = pairs.to_numpy().T
    if not len(a) or not a.mean() < b.mean():
        return 1.0
    return max(corrected_paired_test(a, b, ratio), least_p_value(paired_differences(a, b)))


class AgainstFirst(NamedTuple):
    """An entry compared with the first of its ranking."""

    better: int  #: number of data sets on which its score is lower
    worse: int
    tied: int
    p_value: float | None  #: adjusted for all pairs of the ranking; None for an entry that is not ranked


class Standing(NamedTuple):
    """The mean rank of an entry over data sets; without interval and p-value if a cell is missing."""

    entry: Entry
    interval: RankInterval | None
    outranked_by: list[Entry] | None  #: the entries that are significantly better; None if not tested
    against_first: AgainstFirst | None  #: None for the first itself, and if no entry is ranked


class Ranking(NamedTuple):
    """The entries of a family by mean rank, unranked ones last; the others are compared with the first."""

    family: Family
    score: str
    datasets: list[str]
    standings: list[Standing]


def rankings(study: Study) -> list[Ranking]:
    """One ranking per family and score, if there are at least two entries and two data sets."""
    found = []
    for family, score in product(FAMILIES, RANKED):
        rivals = {dataset: own for dataset in study.datasets if (own := study.rivals(dataset, family))}
        entries = sorted({entry for own in rivals.values() for entry in own})
        if len(entries) > 1 and len(rivals) > 1:
            tables = {dataset: _scores(study, dataset, entries, score) for dataset in rivals}
            found.append(Ranking(family, score, [*rivals], _standings(entries, tables)))
    return found


def _standings(entries: list[Entry], tables: Mapping[str, Float[np.ndarray, "M _ _"]]) -> list[Standing]:
    ranks = bootstrap_ranks(tables, np.random.default_rng(0))
    means = np.stack([table.mean((1, 2)) for table in tables.values()], 1)
    of_datasets = dataset_ranks(means)
    p_values = pairwise_p_values(of_datasets)
    against_first: list[AgainstFirst | None] = [None] * len(entries)
    if np.isfinite(ranks.mean_rank).any():
        first = int(np.nanargmin(ranks.mean_rank))  # the first of tied ones
        differences = paired_differences(means, means[first])
        against_first = [
            AgainstFirst(
                int((row < 0).sum()), int((row > 0).sum()), int((row == 0).sum()), None if np.isnan(p) else float(p)
            )
            for row, p in zip(differences, p_values[first], strict=True)
        ]
        against_first[first] = None
    better = [
        None if those is None else [entries[each] for each in those] for those in outranked_by(of_datasets, p_values)
    ]
    columns = (entries, ranks.intervals(), better, against_first)
    standings = [Standing(*each) for each in zip(*columns, strict=True)]
    return [standings[place] for place in np.argsort(ranks.mean_rank, kind="stable")]  # NaN last


def _scores(
    study: Study, dataset: str, entries: Sequence[Entry], score: str
) -> Float[np.ndarray, "entries splits seeds"]:
    """Scores, lower is better; NaN if a cell failed or lacks the score, or an entry lacks a split that another one has.

    If all random entries have the same seeds, seeds are columns, which are resampled jointly for all entries, and
    deterministic entries repeat their score. Otherwise there is one column with the mean over the entry's seeds, so
    that an entry with fewer seeds than another does not count as incomplete.
    """
    cells = study.judged[(study.judged["dataset"] == dataset) & study.judged["entry"].isin(entries)]
    splits = sorted(cells["split"].unique())
    tables = [cells[cells["entry"] == entry].pivot(index="split", columns="seed", values=score) for entry in entries]
    seeds = {tuple(own) for entry, own in zip(entries, tables, strict=True) if len(own) and not _repeats(entry, own)}
    columns = len(min(seeds)) if len(seeds) == 1 else 1
    none = np.full((len(splits), 1), np.nan)
    scores = [table.reindex(splits).to_numpy(float) if len(table) else none for table in tables]
    # A mean over seeds is missing if one of them is.
    means = [np.repeat(each.mean(1, keepdims=True), columns, axis=1) for each in scores]
    return np.stack([each if each.shape == mean.shape else mean for each, mean in zip(scores, means, strict=True)])


def _repeats(entry: Entry, scores: pd.DataFrame) -> bool:
    """Whether an entry is deterministic, so a run gives it a single seed whatever the request.

    This is unknown for methods that are not installed, or no longer support these settings; with a single seed, these
    count as deterministic.
    """
    try:
        found = load_installed(entry.method)
        deterministic = found.is_deterministic(found.options(entry.hyperparameters))
    except InputError:
        deterministic = True
    return deterministic and scores.shape[1] == 1
