"""Ranks over data sets: which seeds enter them, and how the others do beside the first."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import wilcoxon

from fsvi_bench.methods.registry import load_method
from fsvi_bench.presenting.report.comparison import rankings
from fsvi_bench.statistics.bootstrap import bootstrap_ranks
from tests.presenting.studies import record, study_of

DATASETS = ["boston", "concrete", "energy", "kin8nm", "naval", "yacht"]


def ranking_of(records):
    return next(found for found in rankings(study_of(records)) if found.score == "kl_moment_matched")


def mean_ranks_of(records):
    return {s.entry.method: s.interval and s.interval.mean_rank for s in ranking_of(records).standings}


def scored(scores):
    """Method -> KL on each data set."""
    return [
        record(method, 0, kl, dataset=dataset)
        for method, row in scores.items()
        for dataset, kl in zip(DATASETS, row, strict=False)
    ]


THREE = {
    "rand-a": [1.0, 1.0, 1.0, 1.0, 1.0, 4.0],
    "fixed-a": [1.3, 1.5, 1.4, 1.2, 1.7, 3.9],
    "ssge": [2.0, 1.0, 3.0, 4.0, 5.0, 3.5],
}


def test_the_others_are_compared_with_the_best_mean_rank():
    standings = ranking_of(scored(THREE)).standings
    assert [s.entry.method for s in standings] == ["rand-a", "fixed-a", "ssge"]
    first, fixed_a, ssge = (s.beside_first for s in standings)
    assert first is None
    assert (fixed_a.better, fixed_a.worse, fixed_a.tied) == (1, 5, 0)
    assert (ssge.better, ssge.worse, ssge.tied) == (1, 4, 1)
    # fixed-a's only gain is the smallest difference: 2 · 2/2⁶. Of the coin flips of ssge's ranks 2 (the gain, 0.5)
    # to 6, those with a sum of at most 2 are "none" and "the 2": 2 · 2/2⁵.
    assert fixed_a.p_value == pytest.approx(4 / 64, rel=1e-14)
    differences = np.subtract(THREE["fixed-a"], THREE["rand-a"])
    assert fixed_a.p_value == pytest.approx(wilcoxon(differences, method="exact").pvalue, rel=1e-14)
    assert ssge.p_value == pytest.approx(4 / 32, rel=1e-14)
    # Holm over two tests: twice the smaller, then the larger itself.
    assert (fixed_a.adjusted, ssge.adjusted) == pytest.approx((8 / 64, 4 / 32), rel=1e-14)


def test_what_is_not_ranked_is_counted_and_not_tested():
    scores = {"rand-a": [1.0, 1.0, 1.0], "fixed-a": [2.0, 2.0, math.inf], "ssge": [0.5, 3.0, None]}
    unranked = ranking_of(scored(scores)).standings[-1]
    assert (unranked.entry.method, unranked.interval) == ("ssge", None)
    assert unranked.beside_first == (1, 1, 0, None, None)


def test_fewer_seeds_than_another_method_has_are_not_missing_cells():
    """Seeds 0-1 beside 0-4: a split's score is the mean over the seeds that an entry has."""
    generator, records, means = np.random.default_rng(2), [], {}
    for dataset in DATASETS[:3]:
        values = {"rand-a": generator.random((4, 5)), "ssge": generator.random((4, 2)), "fixed-a": np.ones((4, 1))}
        means[dataset] = np.stack([values[name].mean(1, keepdims=True) for name in ("fixed-a", "rand-a", "ssge")])
        records += [
            record(name, split, float(table[split, seed]), seed=seed, dataset=dataset)
            for name, table in values.items()
            for split in range(4)
            for seed in range(table.shape[1])
        ]
    by_name = {s.entry.method: s.interval for s in ranking_of(records).standings}
    expected = bootstrap_ranks(means, np.random.default_rng(0)).intervals()
    assert [by_name[name] for name in ("fixed-a", "rand-a", "ssge")] == expected
    # A seed that an entry has elsewhere on the data set and lacks here is missing all the same.
    lost = ("ssge", "concrete", 2, 1)
    found = mean_ranks_of([r for r in records if (r.method, r.dataset, r.split, r.seed) != lost])
    assert [name for name, rank in found.items() if rank is None] == ["ssge"]


@pytest.mark.parametrize("method", ["exact-like", "spike-and-slab", "bernoulli-dropout"])
def test_one_seed_is_repeated_where_the_method_has_no_randomness_or_is_not_here(method):
    """The others' seeds stay columns, so that the bootstrap draws them; else they would be averaged first."""
    options = {}
    if method == "bernoulli-dropout":
        entry = load_method(method)
        options = entry.options({"training": "closed-form"}).model_dump(mode="json")
        assert entry.cls.is_deterministic(entry.options(options))
    generator, records, tables = np.random.default_rng(3), [], {}
    for dataset in DATASETS[:3]:
        tables[dataset] = generator.random((2, 3, 2))
        tables[dataset][1, :, 1] = tables[dataset][1, :, 0]
        records += [
            record(name, split, float(tables[dataset][place, split, seed]), seed=seed, dataset=dataset, **changes)
            for place, (name, seeds, changes) in enumerate(
                [("rand-a", (0, 1), {}), (method, (0,), {"hyperparameters": options})]
            )
            for split in range(3)
            for seed in seeds
        ]
    by_name = {s.entry.method: s.interval for s in ranking_of(records).standings}
    assert [by_name[name] for name in ("rand-a", method)] == bootstrap_ranks(
        tables, np.random.default_rng(0)
    ).intervals()


def test_different_single_seeds_of_methods_with_randomness_are_ranked():
    records = [
        record(method, 0, kl, seed=seed, dataset=dataset)
        for method, seed, kl in (("rand-a", 0, 1.0), ("ssge", 3, 2.0))
        for dataset in DATASETS
    ]
    assert mean_ranks_of(records) == {"rand-a": 1.0, "ssge": 2.0}
