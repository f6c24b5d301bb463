"""From records to the study's table, to figures 3 and 4, and to what of a plan is missing."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.maths.blr import mean_field_optimum_scale
from fsvi_bench.methods import functional
from fsvi_bench.papers.burt2020.cells import frame_of
from fsvi_bench.papers.burt2020.study.closeness import closeness, fresh_features
from fsvi_bench.papers.burt2020.study.collect import collect, curve, curves_of
from fsvi_bench.papers.burt2020.study.table import SCORES
from fsvi_bench.papers.workspace import Cells, Workspace, planned_cells, run_or_find, sort_records
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources, run
from fsvi_bench.running.store import Store, load_posterior, load_trace
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import bind_task
from fsvi_bench.training.trace import Trace, TracePoint
from tests.presenting.studies import record

ASKED = {"datasets": ("toy",), "methods": ("exact", "rand-a"), "measurement_points": (10,), "max_steps": 3}


@pytest.fixture(scope="module")
def toy():
    return bind_task(build_task(load_card("toy"), 0).task)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Split 0 of a plan of two splits."""
    root = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        # Three steps in place of a thousand, which no cache may remember.
        patch.setattr(functional, "REFERENCE_STEPS", 3)
        patch.setattr(functional, "_write", lambda path, optimum: None)
        run(make_plan(Request(splits="0", **ASKED)), Store(root), Resources(), Silent())
    return root, make_plan(Request(splits="0-1", **ASKED))


def workspace_in(root):
    return Workspace(root, "paper", Resources(), Silent(), compute=False)


def found_in(root, plan):
    return run_or_find(plan, workspace_in(root), "it")


def test_the_exact_posterior_is_as_close_as_can_be(toy):
    exact = FullGaussian(toy.truth.posterior.mean, toy.truth.covariance_tril)
    assert list(closeness(toy, [exact, exact])) == [(0.0, 0.0, 0.0)] * 2


def test_closeness_is_that_of_slow_sums(toy):
    """Row by row in NumPy; the two differ in the order of sums of a few hundred terms."""
    truth, task = toy.truth, toy.frozen
    q = FactorisedGaussian(truth.posterior.mean * 0.9, mean_field_optimum_scale(truth.posterior.precision_tril) * 0.8)
    Phi, y, noise = toy.Phi.numpy(), toy.y.numpy(), float(task.noise_variance)
    exact_covariance = (truth.covariance_tril @ truth.covariance_tril.mT).numpy()
    covariance = np.diag(q.scale.numpy() ** 2)

    def likelihood(mean, covariance):
        squares = [(t - phi @ mean.numpy()) ** 2 + phi @ covariance @ phi for phi, t in zip(Phi, y, strict=True)]
        return -0.5 * math.fsum(squares) / noise

    def excess(own, exact):
        return likelihood(q.mean, own) - likelihood(truth.posterior.mean, exact)

    logs = [np.log((p @ covariance @ p) / (p @ exact_covariance @ p)) for p in fresh_features(toy).numpy()]
    expected = excess(covariance, exact_covariance), excess(0 * covariance, 0 * covariance), np.mean(logs)
    assert list(closeness(toy, [q])) == [pytest.approx(expected, rel=1e-9)]


def test_fresh_points_lie_in_the_box_and_are_none_of_scorings(toy):
    fresh, box = fresh_features(toy), toy.Phi_box
    assert fresh.shape == box.shape
    assert not any((box == row).all(-1).any() for row in fresh[:20])
    inputs = SimpleNamespace(bounding_box=toy.bounding_box, frozen=toy.frozen, feature_map=lambda x: x)
    low, high = toy.bounding_box
    assert ((low <= fresh_features(inputs)) & (fresh_features(inputs) <= high)).all()


def test_a_plans_records_are_found_and_the_rest_is_missing(ran):
    root, plan = ran
    found = found_in(root, plan)
    assert [(p.split, p.method, p.family) for p in found.missing] == [
        (1, method, family) for method in ("exact", "rand-a") for family in ("full", "ffg")
    ]
    assert {r.split for r in found.records} == {0}
    assert len(found.records) + len(found.missing) == len(list(planned_cells(plan))) == 8
    shown = frame_of(found)
    assert shown["status"].tolist() == ["ok"] * 4 + ["missing"] * 4
    assert shown["kl"].isna().tolist() == [False] * 4 + [True] * 4


def test_records_of_other_settings_are_not_a_plans_and_duplicates_are_refused():
    plan = make_plan(Request(datasets=["boston"], methods=["rand-a"], families=["full"], splits="0-1", max_steps=7))
    (first, _) = planned_cells(plan)
    own = record("rand-a", 0, 5.0, hyperparameters=dict(first.hyperparameters))
    other = record("rand-a", 1, 5.0, hyperparameters={**first.hyperparameters, "max_steps": 8})
    found = sort_records(plan, [own, other])
    assert (found.records, [place.split for place in found.missing]) == ([own], [1])
    twin = record("rand-a", 0, 6.0, hyperparameters=dict(first.hyperparameters), code_sha256="d" * 64)
    with pytest.raises(InputError, match="boston split 0 rand-a full seed 0 twice"):
        sort_records(plan, [own, twin])


def test_the_table_holds_what_the_records_do(ran, toy):
    root, plan = ran
    cells = found_in(root, plan)
    tables = collect(cells, workspace_in(root))
    assert tables.cells["status"].tolist().count("missing") == 4
    by_key = {c.cell: c for c in tables.cells.itertuples() if c.status == "ok"}
    for each in cells.records:
        cell = by_key[each.cell[:24]]
        assert (cell.method, cell.family, cell.split) == (each.method, each.family, each.split)
        for name in SCORES:
            found, score = getattr(cell, name), getattr(each.scores, name)
            assert found == score or (math.isnan(found) and score is None)
        quantiles = each.scores.overconfidence.quantiles
        assert (cell.spectrum_5, cell.spectrum_50, cell.spectrum_95) == (quantiles[1], quantiles[10], quantiles[19])
        (near,) = closeness(toy, [load_posterior(each, root, toy.frozen)])
        assert (cell.log_likelihood_excess, cell.mean_log_likelihood_excess, cell.log_variance_ratio) == near
        assert (cell.code, cell.task) == (each.code_sha256[:12], each.task_sha256[:12])
        made = each.provenance
        assert cell.hardware == f"{made['hardware']} ({made['arithmetic']})"
        if each.method == "rand-a":
            assert (cell.M, cell.kl_jitter, cell.max_steps, cell.gradients) == (10, 0.0, 3, 3)
            points = tables.curves[tables.curves["family"] == each.family][["steps", "kl", "seconds", "cells"]]
            trace = load_trace(each, root).points
            assert points.to_numpy().tolist() == [[t.steps, t.kl, t.seconds, 1] for t in trace]
        else:
            assert cell.M is pd.NA


def trace(steps, grid=(0, 1, 10, 100)):
    return Trace([TracePoint(s, 0.1 * s, 5.0, None, 5.0, 2.0) for s in grid if s <= steps])


def test_a_diverged_cells_curve_is_infinite_from_its_traces_end_on():
    """Median of three; two have diverged, after steps 10 and 1. Seconds are those until a trace stopped."""
    points = curve({"a": trace(100), "b": trace(10), "c": trace(1)}, {"b": 100, "c": 100})
    assert points["kl"].tolist() == [5.0, 5.0, 5.0, math.inf]
    assert points["kl_lower_quartile"].tolist() == [5.0, 5.0, 5.0, math.inf]
    assert points["seconds"].tolist() == pytest.approx([0.0, 0.1, 1.0, 1.0])
    assert curve({"a": trace(100)}, {"a": 100})["kl"].tolist() == [5.0] * 4  # at the end already
    assert curve({"a": trace(100), "b": trace(10)}, {})["kl"].tolist() == [5.0] * 4  # a trace that stopped early


def test_a_curve_of_which_every_cell_diverged_ends_at_infinity(ran, monkeypatch):
    """There is no other trace to say how far it would have gone; the settings do."""
    records = found_in(*ran).records
    last = 1000
    record = next(r for r in records if r.method == "rand-a" and not r.hyperparameters["kl_jitter"])
    settings = {**record.hyperparameters, "max_steps": last}
    monkeypatch.setattr("fsvi_bench.running.store.load_trace", lambda record, root: trace(10))
    points = curves_of([record.model_copy(update={"status": "diverged", "hyperparameters": settings})], ran[0])
    assert dict(zip(points["steps"], points["kl"], strict=True)) == {0: 5.0, 1: 5.0, 10: 5.0, last: math.inf}


def test_a_task_that_is_not_here_is_refused(ran):
    root, plan = ran
    strange = [each.model_copy(update={"task_sha256": "e" * 64}) for each in found_in(root, plan).records]
    with pytest.raises(InputError, match="neither official nor cached"):
        collect(Cells(strange), workspace_in(root))


def test_experiments_that_take_days_start_on_request_only(cli, tmp_path):
    for name in ("burt2020-fig3", "burt2020-fig4", "burt2020-study"):
        status, out, err = cli("reproduce", name, "--out", tmp_path / name)
        assert (status, out) == (2, "")
        assert "--compute" in err
        assert err.count("\n") == 1
        assert not (tmp_path / name / "cells").exists()
    status, _, err = cli("reproduce", "ksw2015-fig2", "--no-compute", "--out", tmp_path)
    assert (status, err.count("\n")) == (2, 1)
    assert "which --no-compute shows; drop it" in err
