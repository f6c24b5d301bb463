"""What sections are made of: comparisons, ranks, groups of failures, provenance and commands."""

import math
import shlex
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from scipy.stats import t as student_t

from fsvi_bench.cli.app import app
from fsvi_bench.methods.registry import load_method
from fsvi_bench.presenting.report.comparison import compared, held_out_ratio, rankings, supported_best
from fsvi_bench.presenting.report.sections import (
    commands,
    counts,
    failures,
    method_files,
    method_summary,
    origin,
    sections,
)
from fsvi_bench.presenting.tables import in_words
from fsvi_bench.running.cell import PlannedTask
from fsvi_bench.running.options import RunOptions
from fsvi_bench.running.plan import make_plan
from fsvi_bench.statistics.all_pairs import pairwise_p_values
from fsvi_bench.statistics.bootstrap import bootstrap_ranks
from fsvi_bench.statistics.resampled_t import corrected_interval
from fsvi_bench.tasks.official import read_official
from tests.presenting.studies import cells, record, study_of

NOISE = np.random.default_rng(1).standard_normal((4, 20))
A = 5 + 0.01 * NOISE[0]
DATASETS = ["boston", "concrete", "energy", "kin8nm", "naval", "yacht"]


def best(*records):
    found = supported_best(study_of(records), "boston", "full", "kl")
    return None if found is None else found.name


def p_value(a, b, ratio=51 / 455):
    """Nadeau and Bengio's corrected paired t test, written out."""
    difference = np.asarray(a) - np.asarray(b)
    J = len(difference)
    statistic = difference.mean() / math.sqrt(difference.var(ddof=1) * (1 / J + ratio))
    return 2 * student_t.sf(abs(statistic), J - 1)


def test_ratios_are_those_of_the_splits():
    """Those of the plan; without one, of the card, or of 90/10 splits."""
    no_plan = study_of([record("rand-a", 0, 1.0)])
    assert held_out_ratio(no_plan, "boston") == 51 / 455
    assert held_out_ratio(no_plan, "toy") == 0  # each split is a draw of its own: nothing overlaps
    assert held_out_ratio(no_plan, "airfoil") == 1 / 9  # ten folds
    assert held_out_ratio(no_plan, "somebody's") == 1 / 9
    tasks = [
        PlannedTask(dataset=dataset, split=split, N=N, N_test=N_test)
        for dataset, split, N, N_test in [
            ("somebody's", 0, 60, 60), ("somebody's", 1, 90, 30), ("else", 0, 100, 300), ("toy", 0, 75, 75),
        ]
    ]  # fmt: skip
    of_networks = [PlannedTask(dataset="yacht", split=0)]
    planned = study_of(no_plan.archive.records, plans=[SimpleNamespace(tasks=part) for part in (tasks, of_networks)])
    assert [held_out_ratio(planned, name) for name in ("somebody's", "else", "toy")] == [1, 3, 0]
    assert held_out_ratio(planned, "yacht") == 31 / 277


def test_intervals_and_tests_take_the_plans_ratio():
    """Half of the rows are held out: the interval is wider than that of 90/10 splits, and the same p-value is larger."""
    b = A + 0.5 + 0.4 * NOISE[1]
    assert p_value(A, b) < 0.05 < p_value(A, b, 1.0)
    records = [*cells("rand-a", A), *cells("ssge", b)]
    half = [SimpleNamespace(tasks=[PlannedTask(dataset="boston", split=0, N=253, N_test=253)])]
    assert best(*records) == "rand-a full"
    planned = study_of(records, plans=half)
    assert supported_best(planned, "boston", "full", "kl") is None
    _, low, high = corrected_interval(A, 1.0)
    summary = compared(planned).set_index("score").loc["kl"]
    assert summary["interval"].iloc[0].endswith(f"{in_words(low)} to {in_words(high)}")


def test_holm_decides_with_the_number_of_rivals():
    """The same difference, p between 0.025 and 0.05, is enough against one rival and not against two alike."""
    a = 5 + NOISE[0]
    b = next(b for gap in np.linspace(0.3, 1.5, 400) if p_value(a, b := a + gap + NOISE[1]) < 0.04)
    assert 0.025 < p_value(a, b) < 0.05
    assert p_value(a, b, 0.0) < 0.01  # a plain t test would have been far surer
    one = [*cells("rand-a", a), *cells("ssge", b)]
    assert best(*one) == "rand-a full"
    assert best(*one, *cells("fixed-a", b)) is None


def test_splits_that_no_rival_has_do_not_count():
    """EXACT, and another family, may have run on more splits."""
    rivals = [*cells("rand-a", A[:8]), *cells("ssge", A[:8] + 1)]
    assert best(*rivals, *cells("exact", A), *cells("ssge", A, family="ffg")) == "rand-a full"
    assert best(*rivals, *cells("fixed-a", A + 2)) is None  # which has splits that the best one lacks


@pytest.mark.parametrize(("splits", "found"), [(5, None), (6, "rand-a full")])
def test_no_test_of_few_splits_says_more_than_their_signs_could(splits, found):
    """Five differences that happen to agree: t would be sure of them, and five signs give 2/2^5 = 0.0625 at least."""
    a, b = A[:splits], (A + 1 + 0.001 * NOISE[1])[:splits]
    assert p_value(a, b) < 1e-6
    assert best(*cells("rand-a", a), *cells("ssge", b)) == found


@pytest.mark.parametrize(
    ("rivals", "found"),
    [
        ([("exact", [0.0] * 20, {})], None),  # no rival
        ([("exact", [0.0] * 20, {}), ("rand-a", A + 1, {"M": 80})], "rand-a full"),  # settings are
        ([("ssge", [math.inf] * 20, {})], "rand-a full"),
        ([("ssge", [*(A - 1)[:19], math.inf], {})], None),  # once does not decide
        ([("ssge", [*(A - 1)[:18], None, None], {})], None),  # unfinished: not best, and still a rival
        ([("ssge", [*(A + 1)[:18], None, None], {})], "rand-a full"),
    ],
)
def test_who_is_a_rival(rivals, found):
    records = [each for method, values, changes in rivals for each in cells(method, values, **changes)]
    assert best(*cells("rand-a", A), *records) == found


def test_failures_that_differ_only_in_numbers_are_grouped():
    reasons = ["CUDA out of memory: 3.5 GiB", "CUDA out of memory: 12 GiB", "CUDA error 3.5"]
    records = [record("ssge", split, None, reason=reason) for split, reason in enumerate(reasons)]
    records.append(record("ssge", 3, None, reason="CUDA out of memory: 1 GiB", status="diverged"))
    records.append(record("ssge", 4, None, reason="x" * 5000, dataset="yacht"))
    told = ("status", "cells", "of", "where", "numbers_differ")
    assert [tuple(t[name] for name in told) for t in failures(study_of(records))] == [
        ("failed", 2, 4, ["boston 0-1"], True),
        ("diverged", 1, 4, ["boston 3"], False),
        ("failed", 1, 4, ["boston 2"], False),
        ("failed", 1, 1, ["yacht 4"], False),
    ]


def test_provenance_counts_what_differs():
    records = cells("rand-a", [1.0, 2.0])
    records += [record("ssge", 0, 1.0, code_sha256="a" * 64, provenance={"torch": "2.11"}), record("ssge", 1, 1.0)]
    found = origin(study_of(records))
    assert found["facts"]["hardware"] == [("a machine", 3), ("not recorded", 1)]
    assert found["facts"]["PyTorch"] == [("not recorded", 3), ("2.11", 1)]
    assert {method: len(hashes) for method, hashes in found["code"].items()} == {"rand-a": 1, "ssge": 2}
    assert found["training"] == 8.0  # 2 s a cell
    tasks = {dataset: rows.to_numpy().tolist() for dataset, rows in found["tasks"]}
    assert tasks == {"boston": [[0, f"{0:064x}"], [1, f"{1:064x}"]]}


def test_methods_from_elsewhere_come_last_and_missing_and_stale_cells_are_counted():
    assert method_summary("Mine") == "from a file, or from a package that is not installed here"
    assert method_summary("Mine", "mine.py") == "from the file mine.py"
    records = [record("Mine", 0, 1.0), record("ssge", 1), record("ssge", 2, None, status="diverged")]
    study = study_of(records, planned=9, missing=6, stale=2)
    assert [entry.method for entry in study.entries] == ["ssge", "Mine"]
    assert counts(study) == {"planned": 9, "ok": 1, "diverged": 1, "failed": 1, "missing": 6, "stale": 2}


OFFICIAL = {split: read_official("boston", split).task.sha256 for split in (0, 1, 4)}


def test_commands_ask_for_tasks_from_files_by_file():
    """One that has the name of an official task but is another, and one of the user's own data. The command of energy
    must not ask for boston's split 1 as well."""
    energy = [read_official("energy", split).task.sha256 for split in (0, 1)]
    records = [record("exact", 0, 1.0, task_sha256=OFFICIAL[0]), record("exact", 1, 1.0, task_sha256=OFFICIAL[0])]
    records += [
        record("exact", split, 1.0, dataset="energy", task_sha256=sha256) for split, sha256 in enumerate(energy)
    ]
    first, second = commands(study_of([*records, record("exact", 0, 1.0, dataset="mine")]))
    files = "--task boston-1.safetensors --task mine-0.safetensors"
    assert first.endswith(f"--family full {files} --dataset boston --splits 0")
    assert second.endswith("--family full --dataset energy --splits 0-1")


def test_data_sets_with_other_splits_have_another_command():
    places = {"boston": (0, 1, 4), "energy": (0, 1)}
    records = [
        record("exact", split, 1.0, dataset=name, task_sha256=read_official(name, split).task.sha256)
        for name, splits in places.items()
        for split in splits
    ]
    lines = commands(study_of(records))
    assert [line.partition("--dataset ")[2] for line in lines] == ["boston --splits 0-1,4", "energy --splits 0-1"]


def test_commands_ask_for_the_records_cells():
    """Parsed and planned as `run` does it, they give the records' methods, families, settings, splits and seeds."""
    wanted = [("exact", "full", {}, 0), ("exact", "ffg", {}, 0), ("ssge", "ffg", {"lr": 0.05, "minibatch": "full"}, 0)]
    wanted += [("rand-a", "full", {"M": M, "max_steps": 7}, seed) for M in (20, 80) for seed in (0, 1)]
    records = []
    for method, family, changes, seed in wanted:
        options = load_method(method).options(changes).model_dump(mode="json")
        same = {"family": family, "hyperparameters": options, "seed": seed}
        records += [record(method, split, 1.0, task_sha256=OFFICIAL[split], **same) for split in OFFICIAL]
    planned = [cell for line in commands(study_of(records)) for cell in planned_cells(line)]
    expected = [(r.dataset, r.split, r.method, r.family, str(r.hyperparameters), r.seed) for r in records]
    assert sorted(planned) == sorted(expected)


def test_commands_ask_for_the_device_and_the_kernels_if_all_records_agree():
    portable = {"device": "cpu", "arithmetic": "ATen DEFAULT, MKL COMPATIBLE"}
    own = {"device": "cpu", "arithmetic": "ATen AVX512, MKL own"}

    def command(*provenance):
        records = [record("exact", split, 1.0, provenance=each) for split, each in enumerate(provenance)]
        return commands(study_of(records))[0]

    assert command(portable, portable).startswith("FSVI_BENCH_KERNELS=portable fsvi-bench run ")
    assert command(portable, portable).endswith(" --device cpu")
    assert command(own, portable).startswith("fsvi-bench run ")
    assert command({"device": "cpu", "arithmetic": "ATen DEFAULT"}).startswith("fsvi-bench run ")  # ARM, without MKL
    assert command({"device": "cuda", "arithmetic": None}).endswith(" --device cuda")
    assert "--device" not in command({"device": "cuda"}, own)


def test_a_method_from_a_file_is_named_with_its_file():
    study = study_of([record("Mine", 0, 1.0, provenance={"method_file": "mine.py"}), record("Other", 0, 1.0)])
    assert method_files(study) == {"Mine": "mine.py"}
    assert sections(study)["methods"]["Mine"] == "from the file mine.py"
    lines = "\n".join(commands(study))
    assert "--method mine.py:Mine" in lines
    assert "--method FILE.py:Other" in lines


def planned_cells(line):
    program, name, *arguments = shlex.split(line)
    assert (program, name) == ("fsvi-bench", "run")
    given = typer.main.get_command(app).commands["run"].make_context("run", arguments).params
    plan = make_plan(RunOptions(**{name: value for name, value in given.items() if name in RunOptions.model_fields}))
    for variant in plan.variants:
        for dataset, split in plan.splits:
            for seed in variant.seeds:
                yield dataset, split, variant.method, variant.family, str(variant.hyperparameters), seed


# --- Ranks over data sets ---------------------------------------------------------------------------------------------


def standings_of(records):
    return next(found for found in rankings(study_of(records)) if found.score == "kl_moment_matched").standings


def intervals_of(records):
    return {standing.entry.method: standing.interval for standing in standings_of(records)}


def scored(scores):
    """Method -> KL on each data set."""
    pairs = [(method, pair) for method, row in scores.items() for pair in zip(DATASETS, row, strict=False)]
    return [record(method, 0, kl, dataset=dataset) for method, (dataset, kl) in pairs]


def tables_of(tables, methods):
    """Records of a table [methods, splits, seeds] of each data set; NaN is no cell."""
    return [
        record(method, split, float(kl), seed=seed, dataset=dataset, **changes)
        for dataset, table in tables.items()
        for (method, changes), rows in zip(methods.items(), table, strict=True)
        for (split, seed), kl in np.ndenumerate(rows)
        if not math.isnan(kl)
    ]


def test_the_others_are_compared_with_the_best_mean_rank():
    rand_a, fixed_a = [1.0, 1.0, 1.0, 1.0, 1.0, 4.0], [1.3, 1.5, 1.4, 1.2, 1.7, 3.9]
    scores = {"rand-a": rand_a, "fixed-a": fixed_a, "ssge": [2.0, 1.5, 3.0, 4.0, 5.0, 4.5]}
    standings = standings_of(scored(scores))
    assert [s.entry.method for s in standings] == ["rand-a", "fixed-a", "ssge"]
    ranks = np.array([[1, 1, 1, 1, 1, 2], [2, 2.5, 2, 2, 2, 1], [3, 2.5, 3, 3, 3, 3]])
    p = pairwise_p_values(ranks)[0]
    assert [s.against_first for s in standings] == [None, (1, 5, 0, p[1]), (0, 6, 0, p[2])]
    # With the last sign flipped, fixed-a's t against rand-a is larger than ssge's.
    assert p[2] == 4 / 2**6 < p[1]
    assert [s.outranked_by for s in standings] == [[], [], []]
    scores["fixed-a"][0] = rand_a[0]
    assert standings_of(scored(scores))[1].against_first[:3] == (1, 4, 1)


@pytest.mark.parametrize(("datasets", "outranked"), [(5, [None, None]), (6, [[], ["rand-a"]])])
def test_six_data_sets_are_the_fewest_that_tell_two_methods_apart(datasets, outranked):
    standings = standings_of(scored({"rand-a": [1.0] * datasets, "fixed-a": [2.0] * datasets}))
    found = [s.outranked_by and [each.method for each in s.outranked_by] for s in standings]
    assert found == outranked
    assert standings[1].against_first == (0, datasets, 0, 2 / 2**datasets)


def test_what_is_not_ranked_is_counted_and_not_tested():
    scores = {"rand-a": [1.0, 1.0, 1.0], "fixed-a": [2.0, 2.0, math.inf], "ssge": [0.5, 3.0, None]}
    unranked = standings_of(scored(scores))[-1]
    assert (unranked.entry.method, unranked.interval) == ("ssge", None)
    assert unranked.against_first == (1, 1, 0, None)


@pytest.mark.parametrize(
    ("status", "ranks"), [("diverged", {"rand-a": 5 / 3, "fixed-a": 8 / 3, "ssge": 5 / 3}), ("failed", None)]
)
def test_what_diverged_is_last_and_what_failed_is_not_ranked(status, ranks):
    first, *others = scored({"ssge": [0.5, 0.5, 0.5], "rand-a": [1.0, 2.0, 3.0], "fixed-a": [2.0, 3.0, 4.0]})
    lost = record("ssge", 0, None, dataset=first.dataset, status=status, reason="NaN at step 3")
    found = {name: each and each.mean_rank for name, each in intervals_of([lost, *others]).items()}
    assert found == pytest.approx(ranks or {"rand-a": 1.0, "fixed-a": 2.0, "ssge": None})


def test_scores_that_tables_show_as_zero_tie():
    """Rounding errors of two exact methods always have the same order."""
    rounding = {"rand-a": [1e-13] * 6, "fixed-a": [-1e-16] * 6}
    assert standings_of(scored(rounding))[1].against_first == (0, 0, 6, 1.0)


def test_what_diverged_is_infinite_on_its_own_data_set_whatever_other_data_sets_lack():
    """Networks have no KL of the moments, linear tasks have."""
    lost = record("rand-a", 1, None, status="diverged", reason="NaN at step 3")
    study = study_of([record("rand-a", 0, 1.0), lost, record("rand-a", 0, 1.0, dataset="toy")])
    study.cells.loc[study.cells["dataset"] == "toy", "kl_moment_matched"] = math.nan
    judged = study.judged.set_index(["dataset", "split"])["kl_moment_matched"]
    assert judged.drop("toy").tolist() == [1.0, math.inf]
    assert math.isnan(judged["toy", 0])


def test_an_rmse_may_be_small_without_being_a_rounding_error():
    """It has the unit of the target."""
    judged = study_of([record("rand-a", 0, 1e-10, rmse=1e-10), record("fixed-a", 0, 2e-10, rmse=2e-10)]).judged
    assert judged["kl"].tolist() == [0, 0]
    assert judged["rmse"].tolist() == [1e-10, 2e-10]


def test_fewer_seeds_than_another_method_has_are_not_missing_cells():
    """Seeds 0-1 beside 0-4: a split's score is the mean over the seeds that an entry has."""
    generator = np.random.default_rng(2)
    tables = {dataset: generator.random((3, 4, 5)) for dataset in DATASETS[:3]}
    for table in tables.values():
        table[0, :, 1:] = table[2, :, 2:] = math.nan
    records = tables_of(tables, {"fixed-a": {}, "rand-a": {}, "ssge": {}})
    means = {name: np.nanmean(table, axis=2, keepdims=True) for name, table in tables.items()}
    expected = bootstrap_ranks(means, np.random.default_rng(0)).intervals()
    found = intervals_of(records)
    assert [found[name] for name in ("fixed-a", "rand-a", "ssge")] == expected
    # A seed that an entry has elsewhere on the data set and lacks here is missing all the same.
    lost = ("ssge", "concrete", 2, 1)
    found = intervals_of([r for r in records if (r.method, r.dataset, r.split, r.seed) != lost])
    assert [name for name, interval in found.items() if interval is None] == ["ssge"]


@pytest.mark.parametrize("method", ["exact-like", "spike-and-slab", "bernoulli-dropout"])
def test_one_seed_is_repeated_where_the_method_has_no_randomness_or_is_not_here(method):
    """The others' seeds stay columns, so that the bootstrap draws them; else they would be averaged first."""
    options = {}
    if method == "bernoulli-dropout":
        entry = load_method(method)
        assert entry.cls.is_deterministic(entry.options({"training": "closed-form"}))
        options = entry.options({"training": "closed-form"}).model_dump(mode="json")
    generator = np.random.default_rng(3)
    tables = {dataset: generator.random((2, 3, 2)) for dataset in DATASETS[:3]}
    one_seed = {name: np.where([[[True, True]], [[True, False]]], table, math.nan) for name, table in tables.items()}
    found = intervals_of(tables_of(one_seed, {"rand-a": {}, method: {"hyperparameters": options}}))
    for table in tables.values():
        table[1, :, 1] = table[1, :, 0]
    expected = bootstrap_ranks(tables, np.random.default_rng(0)).intervals()
    assert [found[name] for name in ("rand-a", method)] == expected


def test_different_single_seeds_of_methods_with_randomness_are_ranked():
    tables = {dataset: np.array([[[1.0, math.nan]], [[math.nan, 2.0]]]) for dataset in DATASETS}
    found = intervals_of(tables_of(tables, {"rand-a": {}, "ssge": {}}))
    assert {name: interval.mean_rank for name, interval in found.items()} == {"rand-a": 1.0, "ssge": 2.0}
