"""From records to the study's table, to figures 3 and 4, and to what of a plan is missing."""

from __future__ import annotations

import json
import math
import statistics

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from fsvi_bench.errors import InputError
from fsvi_bench.maths.blr import mean_field_optimum_scale
from fsvi_bench.methods import functional
from fsvi_bench.papers.burt2020.sizes import draw_sizes
from fsvi_bench.papers.burt2020.study.closeness import closeness, fresh_features
from fsvi_bench.papers.burt2020.study.collect import collect, curve, curves_of
from fsvi_bench.papers.places import Place, find_records, places, sort_records
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.presenting.cell_files import load_posterior, load_trace
from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources, run
from fsvi_bench.running.store import Store
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
        total = 0.0
        for phi, target in zip(Phi, y, strict=True):
            expected_square = (target - phi @ mean) ** 2 + phi @ covariance @ phi
            total += -0.5 * np.log(2 * np.pi * noise) - 0.5 * expected_square / noise
        return total

    ((excess, of_mean, ratio),) = closeness(toy, [q])
    expected = likelihood(q.mean.numpy(), covariance) - likelihood(truth.posterior.mean.numpy(), exact_covariance)
    assert excess == pytest.approx(expected, rel=1e-9)
    nothing = np.zeros_like(covariance)
    expected = likelihood(q.mean.numpy(), nothing) - likelihood(truth.posterior.mean.numpy(), nothing)
    assert of_mean == pytest.approx(expected, rel=1e-9)
    logs = [np.log((p @ covariance @ p) / (p @ exact_covariance @ p)) for p in fresh_features(toy).numpy()]
    assert ratio == pytest.approx(np.mean(logs), rel=1e-9)


def test_fresh_points_lie_in_the_box_and_are_none_of_scorings(toy):
    fresh, box = fresh_features(toy), toy.Phi_box
    assert fresh.shape == box.shape
    assert not any((box == row).all(-1).any() for row in fresh[:20])


def test_a_plans_records_are_found_and_the_rest_is_missing(ran):
    root, plan = ran
    found = find_records(plan, root)
    assert [(p.split, p.method, p.family) for p in found.missing] == [
        (1, method, family) for method in ("exact", "rand-a") for family in ("full", "ffg")
    ]
    assert {r.split for r in found.records} == {0}
    assert len(found.records) + len(found.missing) == len(list(places(plan))) == 8


def test_records_of_other_settings_are_not_a_plans_and_twins_are_refused():
    plan = make_plan(Request(datasets=["boston"], methods=["rand-a"], families=["full"], splits="0-1", max_steps=7))
    (first, _) = places(plan)
    own = record("rand-a", 0, 5.0, hyperparameters=dict(first.hyperparameters))
    other = record("rand-a", 1, 5.0, hyperparameters={**first.hyperparameters, "max_steps": 8})
    found = sort_records(plan, [own, other])
    assert (found.records, [place.split for place in found.missing]) == ([own], [1])
    twin = record("rand-a", 0, 6.0, hyperparameters=dict(first.hyperparameters), code_sha256="d" * 64)
    with pytest.raises(InputError, match="boston split 0 rand-a full seed 0 twice"):
        sort_records(plan, [own, twin])


def test_the_table_holds_what_the_records_do(ran, toy):
    root, plan = ran
    records, missing = find_records(plan, root)
    tables = collect(records, missing, root, None, Silent())
    assert tables.cells["status"].tolist().count("missing") == 4
    by_key = {c.cell: c for c in tables.cells.itertuples() if c.status == "ok"}
    for each in records:
        cell = by_key[each.cell[:24]]
        assert (cell.method, cell.family, cell.split) == (each.method, each.family, each.split)
        for name in ("kl", "kl_mean_term", "nlpd", "predictive_kl_box", "objective_gap", "kl_at_objective_optimum"):
            found, score = getattr(cell, name), getattr(each.scores, name)
            assert found == score or (math.isnan(found) and score is None)
        quantiles = each.scores.overconfidence.quantiles
        assert (cell.spectrum_0, cell.spectrum_5, cell.spectrum_50) == (quantiles[0], quantiles[1], quantiles[10])
        assert (cell.spectrum_95, cell.spectrum_100) == (quantiles[19], quantiles[20])
        (near,) = closeness(toy, [load_posterior(each, root, toy.frozen)])
        assert (cell.log_likelihood_excess, cell.mean_log_likelihood_excess, cell.log_variance_ratio) == near
        assert (cell.code, cell.task) == (each.code_sha256[:12], each.task_sha256[:12])
        made = each.provenance
        assert cell.hardware == f"{made['hardware']} ({made['arithmetic']})"
        if each.method == "rand-a":
            assert (cell.M, cell.kl_jitter, cell.max_steps, cell.gradients) == (10, 0.0, 3, 3)
            trace = load_trace(each, root)
            points = [p for p in tables.curves.itertuples() if (p.method, p.family) == (each.method, each.family)]
            assert [(p.steps, p.kl, p.seconds) for p in points] == [(t.steps, t.kl, t.seconds) for t in trace.points]
            assert {p.cells for p in points} == {1}
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
    records, _ = find_records(*reversed(ran))
    last = 1000
    diverged = [
        record.model_copy(
            update={"status": "diverged", "hyperparameters": {**record.hyperparameters, "max_steps": last}}
        )
        for record in records
        if record.method == "rand-a" and not record.hyperparameters["kl_jitter"]
    ]
    monkeypatch.setattr("fsvi_bench.presenting.cell_files.load_trace", lambda record, root: trace(10))
    points = curves_of(diverged, ran[0])
    assert set(points["family"]) == {"full", "ffg"}
    assert set(points.loc[points["steps"] <= 10, "kl"]) == {5.0}
    assert set(points.loc[points["steps"] > 10, ["steps", "kl"]].itertuples(index=False, name=None)) == {
        (last, math.inf)
    }


def test_a_task_that_is_not_here_is_refused(ran):
    root, plan = ran
    records, missing = find_records(plan, root)
    strange = [each.model_copy(update={"task_sha256": "e" * 64}) for each in records]
    with pytest.raises(InputError, match="neither official nor in the cache"):
        collect(strange, missing, root, None, Silent())


def of_sizes(kls, jitter=0.0):
    """Records of RANDA on boston by M and split, with settings as a plan has them."""
    plan = make_plan(Request(protocol="burt2020", datasets=["boston"], methods=["exact", "rand-a"], splits="0-2"))
    chosen, missing = [], []
    for place in places(plan):
        value = kls(place)
        if value is None:
            missing.append(place)
            continue
        settings = {"hyperparameters": dict(place.hyperparameters), "family": place.family}
        chosen.append(record(place.method, place.split, value, nlpd=2.0 + 0.1 * place.split, **settings))
    return chosen, missing


def drawn(records, missing):
    figure, numbers = draw_sizes("burt2020-fig3")(records, None, False, missing)
    figure.draw_without_rendering()
    return figure, json.loads(json.dumps(numbers))


def level(place: Place):
    return 0.0 if place.method == "exact" else 10.0 * (1 + place.split) * 80 / place.hyperparameters["M"]


def test_figures_of_sizes_write_means_over_the_splits_that_are_there():
    records, missing = of_sizes(lambda p: None if p.hyperparameters.get("M") == 160 and p.split == 2 else level(p))
    figure, numbers = drawn(records, missing)
    rows = {
        (r["method"], r["family"], r["hyperparameters"].get("M"), r["hyperparameters"].get("kl_jitter")): r
        for r in numbers["rows"]
    }
    assert len(rows) == 2 + 2 * 5
    whole, part = rows["rand-a", "full", 20, 0.0], rows["rand-a", "full", 160, 0.0]
    assert (whole["cells"], whole["missing"], part["cells"], part["missing"]) == (3, 0, 2, 1)
    assert whole["kl"]["mean"] == pytest.approx(statistics.mean([40.0, 80.0, 120.0]))
    assert part["kl"]["mean"] == pytest.approx(statistics.mean([5.0, 10.0]))
    assert "2 cells still missing" in figure.get_suptitle()


def test_figures_of_sizes_draw_every_mark_where_it_belongs():
    records, missing = of_sizes(level)
    figure, _ = drawn(records, missing)
    of_kl, of_nlpd = figure.axes
    at = {
        (round(float(line.get_xdata()[0]), 6), float(line.get_ydata()[0]))
        for line in of_kl.lines
        if line.get_marker() in ("o", "s") and line.get_transform() == of_kl.transData
    }
    # RANDA's column is the second; full left of its middle, sizes from left to right, then the jittered one.
    steps = (-2, -1, 0, 1, 2)
    full = {(round(1 - 0.24 + 0.085 * s, 6), 20.0 * 80 / m) for s, m in zip(steps, (20, 40, 80, 160, 80), strict=True)}
    assert full <= at
    assert len(at) == 10  # EXACT's KL of 0 is an arrow
    assert len(of_nlpd.collections) == 12  # error bars
    texts = [t for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= 8
    assert {"full, M = 20", "ffg, M = 160", "KL jitter 1e-6", "median, quartiles"} <= {t.get_text() for t in texts}


def test_a_size_that_the_figure_has_no_place_for_is_refused():
    odd = record("rand-a", 0, 5.0, hyperparameters={"M": 30, "kl_jitter": 0.0, "max_steps": 3})
    with pytest.raises(InputError, match="got records with M = 30"):
        drawn([odd], [])


def test_the_two_figures_are_the_protocols_data_sets():
    for name, datasets in (
        ("burt2020-fig3", {"boston", "concrete", "energy", "kin8nm"}),
        ("burt2020-fig4", {"naval", "power", "wine", "yacht"}),
    ):
        figure = REPRODUCTIONS[name]
        assert figure.takes_days
        assert {name for name, _ in figure.plan(False).splits} == datasets
        study = set(map(repr, places(make_plan(Request(protocol="burt2020")))))
        assert set(map(repr, places(figure.plan(False)))) <= study
        assert {split for _, split in figure.plan(True).splits} == {0, 1}


def test_what_takes_days_is_not_begun_unasked(cli, tmp_path):
    for name in ("burt2020-fig3", "burt2020-fig4", "burt2020-study"):
        status, out, err = cli("reproduce", name, "--out", tmp_path / name)
        assert (status, out) == (2, "")
        assert "--compute" in err
        assert err.count("\n") == 1
        assert not (tmp_path / name / "cells").exists()
    status, _, err = cli("reproduce", "ksw2015-fig2", "--no-compute", "--out", tmp_path)
    assert (status, err.count("\n")) == (2, 1)
    assert "leave --no-compute out" in err
