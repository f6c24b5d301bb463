"""What W&B is told: final scores, and how KL and NLPD went along the way."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

from fsvi_bench.reporting import wandb_log
from fsvi_bench.reporting.cell_files import folder_of, load_posterior, load_traces
from fsvi_bench.reporting.summary import Row
from fsvi_bench.reporting.wandb_log import TRACED, log_records, mean_trace
from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources, run
from fsvi_bench.running.store import Store
from fsvi_bench.scoring.scores import score
from fsvi_bench.tasks.build import load_cached
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.problem import load_problem
from fsvi_bench.training.trace import Trace, TracePoint


class Run:
    """Remembers what it is told."""

    def __init__(self):
        self.logged, self.metrics, self.summary = [], [], {}

    def log(self, row):
        self.logged.append(row)

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))


@pytest.fixture
def runs(monkeypatch):
    """W&B's runs, in the order of `init`, none of them real."""
    import wandb

    started = []

    @contextmanager
    def init(**_):
        started.append(Run())
        yield started[-1]

    monkeypatch.setattr(wandb, "init", init)
    return started


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Five steps of RANDA and EXACT on two splits, seeds 0 and 1."""
    store = Store(tmp_path_factory.mktemp("store"))
    request = Request(
        datasets=["toy"], splits="0-1", seeds="0-1", methods=["exact", "mean-field-vi"], families=["ffg"], max_steps=5, options={"minibatch": "full"}
    )  # fmt: skip
    return run(make_plan(request), store, Resources(), Silent()).records, store


def test_a_records_files_are_found_again(finished):
    records, store = finished
    for record in records:
        assert (store.root / folder_of(record) / "record.json").is_file()
        problem = load_problem(load_cached(load_card("toy"), record.split).task)
        assert score(load_posterior(record, store, problem.task), problem).kl == record.scores.kl
    traces = load_traces(records, store)
    assert set(traces) == {record.cell for record in records if record.method == "mean-field-vi"}


def test_traces_are_logged_against_steps_and_cell_by_cell(finished, runs):
    records, store = finished
    traces = load_traces(records, store)
    assert log_records(records, "offline", Path(), traces) == []
    exact, trained = runs
    assert exact.metrics == []
    assert all("traces" not in row for row in exact.logged)
    assert trained.metrics == [("trace/steps", None), ("trace/*", "trace/steps")]
    curve = [row for row in trained.logged if "trace/steps" in row]
    assert [row["trace/steps"] for row in curve] == [point.steps for point in next(iter(traces.values())).points]
    last = [record for record in records if record.method == "mean-field-vi"]
    assert curve[-1]["trace/kl"] == pytest.approx(sum(r.scores.kl for r in last) / 4, rel=1e-12)
    assert curve[-1]["trace/nlpd"] == pytest.approx(sum(r.scores.nlpd for r in last) / 4, rel=1e-12)
    (table,) = [row["traces"] for row in trained.logged if "traces" in row]
    assert table.columns == ["split", "seed", "steps", "seconds", *TRACED]
    expected = {(r.split, r.seed, p.steps, p.kl, p.nlpd) for r in last for p in traces[r.cell].points}
    assert {(row[0], row[1], row[2], row[4], row[5]) for row in table.data} == expected
    assert trained.summary["kl"] == pytest.approx(curve[-1]["trace/kl"], rel=1e-12)


def test_without_traces_the_scores_are_logged(finished, runs):
    records, _ = finished
    assert log_records(records, "offline", Path()) == []
    assert [list(run.logged[0]) for run in runs] == [["scores"], ["scores"]]
    assert all(len(run.logged) == 1 for run in runs)


def point(steps, kl, nlpd):
    """The scores of the moments are those of q and 1."""
    return TracePoint(steps, 0, kl, nlpd, kl + 1, 0.0 if nlpd is None else nlpd + 1)


def test_a_method_that_ended_early_keeps_its_last_point(finished):
    first, second = [record for record in finished[0] if record.method == "exact"]
    early = Trace([point(0, 8.0, 4.0), point(2, 6.0, 3.0)])
    late = Trace([point(0, 4.0, 2.0), point(2, 2.0, 1.0), point(5, 1.0, 0.0)])
    assert mean_trace([(first, early), (second, late)]) == [
        (0, {"kl": 6.0, "nlpd": 3.0, "kl_moment_matched": 7.0, "nlpd_moment_matched": 4.0}),
        (2, {"kl": 4.0, "nlpd": 2.0, "kl_moment_matched": 5.0, "nlpd_moment_matched": 3.0}),
        (5, {"kl": 3.5, "nlpd": 1.5, "kl_moment_matched": 4.5, "nlpd_moment_matched": 2.5}),
    ]


def test_a_mixtures_nlpd_is_left_out_until_every_trace_has_it(finished):
    first, second = [record for record in finished[0] if record.method == "exact"]
    traces = [Trace([point(0, 1.0, None), point(end, 1.0, 5.0)]) for end in (2, 4)]
    steps = mean_trace([(first, traces[0]), (second, traces[1])])
    assert [(step, "nlpd" in scores) for step, scores in steps] == [(0, False), (2, False), (4, True)]


def test_each_split_weighs_the_same(finished):
    zero, one = [record for record in finished[0] if record.method == "exact"]
    points = [Trace([point(0, kl, 0.0)]) for kl in (1.0, 3.0, 10.0)]
    traced = [(zero, points[0]), (zero.model_copy(update={"seed": 1}), points[1]), (one, points[2])]
    assert mean_trace(traced) == [(0, {"kl": 6.0, "nlpd": 0.0, "kl_moment_matched": 7.0, "nlpd_moment_matched": 1.0})]


def test_a_score_that_some_records_lack_is_left_out(finished, runs, monkeypatch):
    lacking = {"scores": finished[0][0].scores.model_copy(update={"objective_gap": None})}
    records = [record.model_copy(update=lacking) for record in finished[0] if record.method == "exact"]
    monkeypatch.setattr(wandb_log, "SCORES", ("kl", "objective_gap"))
    row = Row("toy", "exact", "ffg", {}, 2, 2, 2, {"objective_gap": None})
    monkeypatch.setattr(wandb_log, "summarise", lambda group: [row])
    assert log_records(records, "offline", Path()) == []
    assert runs[0].summary == {}
    assert [data[3] for data in runs[0].logged[0]["scores"].data] == [None, None]


def test_off_starts_no_run(finished, runs):
    assert log_records(finished[0], "off", Path(), {}) == []
    assert runs == []
