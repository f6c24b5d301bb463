"""What sections are made of: comparisons, ranks, groups of failures, provenance and commands."""

from __future__ import annotations

import math
import shlex

import numpy as np
import pytest
import typer
from scipy.stats import t as student_t

from fsvi_bench.cli.app import app
from fsvi_bench.errors import InputError
from fsvi_bench.methods.registry import load_method
from fsvi_bench.presenting.report.comparison import held_out_ratio, supported_best
from fsvi_bench.presenting.report.sections import commands, counts, method_summary, origin, troubles
from fsvi_bench.running.plan import Request, make_plan
from tests.presenting.studies import record, study_of

RNG = np.random.default_rng(1)
NOISE = RNG.standard_normal((4, 20))


def cells(method, values, **changes):
    return [record(method, split, value, **changes) for split, value in enumerate(values)]


def best(records, score="kl", family="full", dataset="boston"):
    found = supported_best(study_of(records), dataset, family, score)
    return None if found is None else found.name


def p_value(a, b, ratio):
    """Nadeau and Bengio's corrected paired t test, written out."""
    difference = np.asarray(a) - np.asarray(b)
    J = len(difference)
    statistic = difference.mean() / math.sqrt(difference.var(ddof=1) * (1 / J + ratio))
    return 2 * student_t.sf(abs(statistic), J - 1)


def test_ratios_are_those_of_the_splits():
    assert held_out_ratio("boston") == 51 / 455
    assert held_out_ratio("toy") == 0  # each split is a draw of its own: nothing overlaps
    assert held_out_ratio("somebody's") == 1 / 9


def test_holm_decides_with_the_number_of_rivals():
    """The same difference, p between 0.025 and 0.05, is enough against one rival and not against two alike."""
    a = 5 + NOISE[0]
    shift = NOISE[1]
    gaps = np.linspace(0.3, 1.5, 400)
    gap = next(gap for gap in gaps if p_value(a, a + gap + shift, 51 / 455) < 0.04)
    assert 0.025 < p_value(a, a + gap + shift, 51 / 455) < 0.05
    one = [*cells("rand-a", a), *cells("ssge", a + gap + shift)]
    assert best(one) == "rand-a full"
    assert best([*one, *cells("fixed-a", a + gap + shift)]) is None
    uncorrected = 2 * student_t.sf(abs((gap + shift).mean()) / (shift.std(ddof=1) / math.sqrt(20)), 19)
    assert uncorrected < 0.01  # a plain t test would have been far surer


def test_no_test_of_few_splits_says_more_than_their_signs_could():
    """Five differences that happen to agree: t would be sure of them, and five signs give 2/2^5 = 0.0625 at least."""
    a = 5 + 0.01 * NOISE[0]
    for splits, found in ((5, None), (6, "rand-a full")):
        records = [*cells("rand-a", a[:splits]), *cells("ssge", a[:splits] + 1 + 0.001 * NOISE[1][:splits])]
        assert p_value(a[:splits], a[:splits] + 1 + 0.001 * NOISE[1][:splits], 51 / 455) < 1e-6
        assert best(records) == found


def test_the_exact_posterior_is_no_rival_and_settings_are():
    a = 5 + 0.01 * NOISE[0]
    records = [*cells("exact", [0.0] * 20), *cells("rand-a", a, M=20), *cells("rand-a", a + 1, M=80)]
    assert best(records) == "rand-a full M=20"
    assert best([*cells("exact", [0.0] * 20), *cells("rand-a", a)]) is None


def test_a_rival_that_is_infinite_everywhere_loses_and_one_that_is_so_once_does_not_decide():
    a = 5 + 0.01 * NOISE[0]
    infinite = [*cells("ssge", [math.inf] * 20)]
    assert best([*cells("rand-a", a), *infinite]) == "rand-a full"
    once = [*(a - 1)[:19], math.inf]
    assert best([*cells("rand-a", a), *cells("ssge", once)]) is None


def test_what_did_not_finish_everywhere_cannot_be_best_but_is_still_a_rival():
    a = 5 + 0.01 * NOISE[0]
    records = cells("rand-a", a)
    assert best([*records, *cells("ssge", [*(a - 1)[:18], None, None])]) is None
    assert best([*records, *cells("ssge", [*(a + 1)[:18], None, None])]) == "rand-a full"


def test_failures_alike_but_for_numbers_stand_together():
    reasons = ["CUDA out of memory: 3.5 GiB", "CUDA out of memory: 12 GiB", "CUDA error 3.5"]
    records = [record("ssge", split, None, reason=reason) for split, reason in enumerate(reasons)]
    records.append(record("ssge", 3, None, reason="CUDA out of memory: 1 GiB", status="diverged"))
    records.append(record("ssge", 4, None, reason="x" * 5000, dataset="yacht"))
    found = list(troubles(study_of(records)))
    told = ("status", "cells", "of", "where", "numbers_differ")
    assert [tuple(t[name] for name in told) for t in found] == [
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
    assert len(found["facts"]["git revision"]) == 1
    assert {method: len(hashes) for method, hashes in found["code"].items()} == {"rand-a": 1, "ssge": 2}
    assert found["training"] == 8.0  # 2 s a cell
    tasks = {dataset: rows.to_numpy().tolist() for dataset, rows in found["tasks"]}
    assert tasks == {"boston": [[0, f"{0:064x}"], [1, f"{1:064x}"]]}


def test_a_method_from_elsewhere_is_named_and_not_looked_for():
    assert method_summary("Mine") == "not among the installed methods"
    assert method_summary("ssge") == load_method("ssge").defaults.summary
    assert [entry.method for entry in study_of([record("Mine", 0, 1.0), record("ssge", 0, 2.0)]).entries] == [
        "ssge",
        "Mine",
    ]


def test_commands_ask_for_the_records_cells():
    """Parsed and planned as `run` does it, they give the records' methods, families, settings, splits and seeds."""

    def settings(method, **changes):
        return load_method(method).options(changes).model_dump(mode="json")

    wanted = [("exact", "full", settings("exact"), 0), ("exact", "ffg", settings("exact"), 0)]
    wanted += [
        ("rand-a", f, settings("rand-a", M=M, max_steps=7), s) for f in ("full",) for M in (20, 80) for s in (0, 1)
    ]
    wanted += [("ssge", "ffg", settings("ssge", lr=0.05, minibatch="full"), 0)]
    records = [
        record(method, split, 1.0, family=family, hyperparameters=options, seed=seed)
        for method, family, options, seed in wanted
        for split in (0, 1, 4)
    ]
    planned = [cell for line in commands(study_of(records)) for cell in planned_cells(line)]
    expected = {(r.dataset, r.split, r.method, r.family, str(r.hyperparameters), r.seed) for r in records}
    assert set(planned) == expected
    assert len(planned) == len(expected)


def planned_cells(line):
    program, name, *arguments = shlex.split(line)
    assert (program, name) == ("fsvi-bench", "run")
    given = typer.main.get_command(app).commands["run"].make_context("run", arguments).params
    plan = make_plan(Request(**{option: given[option] for option in Request.model_fields if given[option] is not None}))
    for variant in plan.variants:
        for dataset, split in plan.splits:
            for seed in variant.seeds:
                options = variant.hyperparameters
                yield dataset, split, variant.method, variant.family, str(options), seed


def test_two_tasks_of_one_split_are_refused():
    with pytest.raises(InputError, match="two tasks"):
        study_of([record("ssge", 0, 1.0), record("rand-a", 0, 1.0, task_sha256="f" * 64)])


def test_missing_and_stale_cells_are_counted_beside_the_records():
    records = [record("ssge", 0, 1.0), record("ssge", 1), record("ssge", 2, None, status="diverged")]
    found = counts(study_of(records, planned=9, missing=6, stale=2))
    assert found == {"planned": 9, "ok": 1, "diverged": 1, "failed": 1, "missing": 6, "stale": 2}
