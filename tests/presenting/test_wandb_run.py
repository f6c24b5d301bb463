"""Offline runs read back from W&B's own files: what was logged is there, once, and W&B knows the files for its own."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fsvi_bench.presenting.summary import cells_of, summary_of
from fsvi_bench.presenting.traces import TRACED
from fsvi_bench.presenting.wandb_runs import WandbUploads
from fsvi_bench.running.store import folder_of, load_traces
from fsvi_bench.training.trace import Trace
from tests.presenting.wandb_calls import by_group, log_records
from tests.presenting.wandb_cells import diverging, failed, of, point, trained
from tests.presenting.wandb_file import read_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def records(finished):
    """With a failed and a diverged cell beside mean-field VI's, and a group of which nothing finished."""
    done = finished[0]
    lost = [failed(of(done, "mean-field-vi")[0]), failed(of(done, "mean-field-vi")[1], "diverged", "NaN at step 3")]
    hopeless = [failed(record).model_copy(update={"method": "hopeless", "task_sha256": None}) for record in done[:2]]
    return [*done, *lost, *hopeless]


def logged_in(folder):
    """The runs in a folder, by name."""
    runs = [read_run(path) for path in sorted((folder / "wandb").glob("offline-run-*"))]
    return {run.name: run for run in runs}, len(runs)


@pytest.fixture(scope="module")
def runs(finished, records):
    store = finished[1]
    assert log_records(records, "offline", store.root) == []
    found, count = logged_in(store.root)
    assert count == 4
    assert set(found) == {
        "toy-exact-ffg", "toy-mean-field-vi-ffg", "toy-bernoulli-dropout-bernoulli", "toy-hopeless-ffg"
    }  # fmt: skip
    return found


@pytest.fixture(scope="module")
def run(runs):
    return runs["toy-mean-field-vi-ffg"]


@pytest.fixture(scope="module")
def traced(finished, runs):
    """(record, trace) of mean-field VI."""
    group = of(finished[0], "mean-field-vi")
    traces = load_traces(group, finished[1].root)
    return [(record, traces[record.cell]) for record in group]


def same(one, other):
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def test_a_run_has_ended_and_says_what_it_is(run, finished):
    first = of(finished[0], "mean-field-vi")[0]
    assert (run.project, run.group, run.exit_code) == ("fsvi-bench", "toy", 0)
    assert run.tags == ["ffg", "mean-field-vi", "toy"]
    for name, value in first.hyperparameters.items():
        assert run.config[f"option_{name}"] == value
    assert run.config["option_max_steps"] == 12
    assert (run.config["dataset"], run.config["method"], run.config["family"]) == ("toy", "mean-field-vi", "ffg")
    assert (run.config["split"], sorted(run.config["seed"])) == ([0, 1], [0, 1, 7, 8])
    assert set(run.config["task_sha256"]) == {r.task_sha256 for r in of(finished[0], "mean-field-vi")}
    assert run.config["code_sha256"] == first.code_sha256
    assert run.config["provenance_torch"] == first.provenance["torch"]
    assert run.config["provenance_hardware"] == first.provenance["hardware"]
    assert not {"kl", "provenance_started", "provenance_seeds", "seconds_train"} & set(run.config)


@pytest.mark.parametrize("score", TRACED)
def test_every_problems_own_curve_is_there(run, traced, score):
    for record, trace in traced:
        key = f"problem/split-{record.split:02d}-seed-{record.seed}/{score}"
        assert run.curve("steps", key) == [(p.steps, getattr(p, score)) for p in trace.points]
        assert len(trace.points) > 5


@pytest.mark.parametrize("score", TRACED)
def test_mean_and_spread_are_there_against_steps(run, traced, score):
    """By the statistics module, from the traces: all have the same steps."""
    points = [[getattr(p, score) for p in trace.points] for _, trace in traced]
    steps = [p.steps for p in traced[0][1].points]
    at = list(zip(*points, strict=True))
    by = {
        "mean": statistics.fmean, "sd": statistics.stdev, "min": min, "max": max, "median": statistics.median,
        "q25": lambda v: statistics.quantiles(v, method="inclusive")[0],
        "q75": lambda v: statistics.quantiles(v, method="inclusive")[2],
    }  # fmt: skip
    for name, function in by.items():
        curve = run.curve("steps", f"by_steps/{score}/{name}")
        assert [x for x, _ in curve] == steps
        # At the start all are at the prior, where two cells of one problem have equal scores.
        assert [y for _, y in curve] == pytest.approx([function(v) for v in at], rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("score", TRACED)
def test_and_against_seconds(run, traced, score):
    """All cells were trained in one batch, so that their seconds are the same, too."""
    expected = [
        (same_place[0].seconds, statistics.fmean(getattr(p, score) for p in same_place))
        for same_place in zip(*(trace.points for _, trace in traced), strict=True)
    ]
    curve = run.curve("seconds", f"by_seconds/{score}/mean")
    assert [x for x, _ in curve] == [x for x, _ in expected]
    assert [y for _, y in curve] == pytest.approx([y for _, y in expected], rel=1e-12)


def test_the_table_of_cells_has_every_cell(run, records):
    table = run.table("cells")
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    group = {(r.split, r.seed): r for r in records if r.method == "mean-field-vi"}
    assert [(row["split"], row["seed"]) for row in rows] == sorted(group)
    for row in rows:
        record = group[row["split"], row["seed"]]
        for name in ("cell", "status", "reason", "task_sha256"):
            assert row[name] == getattr(record, name)
        if record.scores is None:
            assert row["reason"]
            assert (row["kl"], row["seconds_train"], row["overconfidence_quantiles"]) == (None, None, None)
            continue
        assert row["seconds_train"] == record.seconds.train
        for name in ("kl", "nlpd", "rmse", "reverse_kl", "objective_gap", "elbo"):
            assert row[name] == getattr(record.scores, name)
        assert row["kl_marginals_5"] == record.scores.kl_marginals["5"]
        assert row["overconfidence_median"] == record.scores.overconfidence.median
    assert {row["status"] for row in rows} == {"ok", "failed", "diverged"}


def test_the_summary_is_the_table_rows(run, records):
    lines = summary_of(cells_of([r for r in records if r.method == "mean-field-vi"])).dropna(subset="mean")
    for line in lines.itertuples():
        assert run.summary[line.score] == pytest.approx(line.mean, rel=1e-15)
        assert run.summary[f"{line.score}_standard_error"] == pytest.approx(line.standard_error, rel=1e-15)
    counts = {name: run.summary[name] for name in ("cells", "cells_ok", "cells_diverged", "cells_failed")}
    assert counts == {"cells": 6, "cells_ok": 4, "cells_diverged": 1, "cells_failed": 1}


def test_artifacts_are_the_cells_own_files(run, finished):
    store, group = finished[1], of(finished[0], "mean-field-vi")
    by_kind = {kind: (name, files) for (kind, name), files in run.artifacts.items() if kind in ("posterior", "result")}
    folders = [store.root / folder_of(record) for record in group]
    posteriors, results = (
        {path: Path(local) for path, local in by_kind[k][1].items()} for k in ("posterior", "result")
    )
    assert posteriors == {f"{f.name}/posterior.safetensors": f.resolve() / "posterior.safetensors" for f in folders}
    assert set(results) == {f"{f.name}/{file}" for f in folders for file in ("record.json", "trace.csv")}
    assert all(local.is_file() for local in [*posteriors.values(), *results.values()])
    assert all(name.replace("-", "").replace(".", "").replace("_", "").isalnum() for name, _ in by_kind.values())


def test_infinite_scores_stay_infinite(runs):
    run = runs["toy-bernoulli-dropout-bernoulli"]
    assert {y for _, y in run.curve("steps", "by_steps/kl/mean")} == {math.inf}
    assert run.curve("steps", "by_steps/kl/sd") == []
    # At the start all of q's mass is at 0, and its moments, too, have no density.
    (_, start), *rest = run.curve("steps", "by_steps/kl_moment_matched/mean")
    assert start == math.inf
    assert len(rest) > 5
    assert all(math.isfinite(y) for _, y in rest)
    # A mixture's NLPD is computed at the end only.
    assert [x for x, _ in run.curve("steps", "by_steps/nlpd/mean")] == [12]
    assert len(run.curve("steps", "by_steps/loss/mean")) > 5
    table = run.table("cells")
    assert {row[table["columns"].index("kl")] for row in table["data"]} == {math.inf}
    assert run.summary["kl"] == math.inf
    assert run.image("curves")


def test_wandb_sync_recognises_the_runs(runs, finished):
    command = [sys.executable, "-m", "wandb", "sync", "--dry-run", *(str(run.folder) for run in runs.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=finished[1].root, check=True)
    assert "Would sync 4 run(s)" in done.stdout + done.stderr
    for run in runs.values():
        assert run.folder.name in done.stdout + done.stderr


# --- Once, and only what is new ---------------------------------------------------------------------------------------


def test_nothing_is_logged_twice_and_what_changed_is_logged_again(tmp_path, records):
    def log(some):
        before = logged_in(tmp_path)[1]
        assert log_records(some, "offline", tmp_path) == []
        return logged_in(tmp_path)[1] - before

    exact, others = of(records, "exact"), of(records, "hopeless")
    assert log([*exact, *others]) == 2
    assert log([*exact, *others]) == 0
    # A split less, and a cell computed again.
    assert log([exact[0], *others]) == 1
    again = exact[0].model_copy(update={"provenance": {**exact[0].provenance, "started": "later"}})
    assert log([again, *others]) == 1
    # A refused task is refused anew, by the moment of the run; nothing was computed.
    others = [r.model_copy(update={"provenance": {**r.provenance, "started": "later"}}) for r in others]
    assert log([again, *others]) == log([exact[0], *others]) == 0
    for marker in (tmp_path / "wandb" / "logged").iterdir():
        marker.unlink()
    assert log([again, *others]) == 2


def test_groups_are_logged_as_they_finish(tmp_path, finished):
    """Handing one over takes no time; a trace may be there already."""
    groups = by_group(finished[0])
    assert [group[0].method for group in groups] == ["exact", "mean-field-vi", "bernoulli-dropout"]
    for record, trace in zip(groups[1], (diverging(), Trace([point(0), point(12)])), strict=False):
        path = tmp_path / folder_of(record) / "trace.csv"
        path.parent.mkdir(parents=True)
        path.write_text(trace.to_csv())
    with WandbUploads("offline", tmp_path) as uploads:
        began = time.monotonic()
        uploads.log(groups[1])
        uploads.log(groups[0])
        assert time.monotonic() - began < 1
    assert uploads.notes == {}
    runs, count = logged_in(tmp_path)
    assert count == uploads.kept == 2
    # NaN is what it is in the cell's own curve, and the worst of all in a spread.
    record = groups[1][0]
    own = runs["toy-mean-field-vi-ffg"].curve("steps", f"problem/split-{record.split:02d}-seed-{record.seed}/kl")
    assert all(same(one, other) for one, other in zip([y for _, y in own], [1.0, math.inf, math.nan], strict=True))
    worst = runs["toy-mean-field-vi-ffg"].curve("steps", "by_steps/kl/max")
    assert worst == [(0, 1.0), (1, math.inf), (12, math.inf)]


def test_nothing_is_printed_and_no_home_is_written_to(tmp_path, finished, capfd, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert log_records(of(finished[0], "exact"), "offline", tmp_path / "out") == []
    assert capfd.readouterr() == ("", "")
    assert not list((home).rglob("*.wandb"))
    assert not (home / ".local").exists()


def test_off_leaves_no_trace(tmp_path, finished):
    assert log_records(finished[0], "off", tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_users_own_run_is_not_written_into(tmp_path, finished, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "theirs")
    monkeypatch.setenv("WANDB_PROJECT", "my-project")
    with WandbUploads("offline", tmp_path) as uploads:
        for group in by_group(finished[0])[:2]:
            uploads.log(group)
    runs, count = logged_in(tmp_path)
    assert count == 2
    assert {run.project for run in runs.values()} == {"my-project"}
    assert not any(run.folder.name.endswith("theirs") for run in runs.values())
    assert os.environ["WANDB_RUN_ID"] == "theirs"
