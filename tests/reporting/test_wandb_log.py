"""What W&B is told: final scores, and how KL and NLPD went along the way."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

from fsvi_bench.reporting import wandb_log
from fsvi_bench.reporting.cell_files import folder_of, load_posterior, load_traces
from fsvi_bench.reporting.summary import Row
from fsvi_bench.reporting.traces import TRACED
from fsvi_bench.reporting.wandb_log import log_records
from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources, run
from fsvi_bench.running.store import Store
from fsvi_bench.scoring.scores import score
from fsvi_bench.tasks.build import load_cached
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.problem import load_problem


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
