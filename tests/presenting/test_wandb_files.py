"""Offline runs read back from W&B's own files: what was logged is there, once, and W&B knows the files for its own."""

import math
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fsvi_bench.presenting.summary import cells_of, summary_of
from fsvi_bench.presenting.traces import TRACED
from fsvi_bench.presenting.wandb_runs import SETTINGS
from fsvi_bench.training.trace import Trace, TracePoint
from tests.presenting import studies
from tests.presenting.test_wandb import log, record
from tests.presenting.wandb_file import read_run
from tests.requirements import skip_or_fail

pytestmark = pytest.mark.slow

VI = "mean-field-vi"
OPTIONS = {"lr": 0.1, "max_steps": 4}
SOLVED = [
    record(split, VI, kl=split + seed + 1.0, seed=seed, hyperparameters=OPTIONS) for split in (0, 1) for seed in (0, 1)
]
LOST = [
    record(0, VI, seed=7, hyperparameters=OPTIONS),
    record(1, VI, seed=8, hyperparameters=OPTIONS, status="diverged", reason="NaN at step 3"),
]
SINGULAR = [record(split, "bernoulli-dropout", kl=math.inf, family="bernoulli") for split in (0, 1)]
HOPELESS = [record(0, "hopeless").model_copy(update={"task_sha256": None})]


def trace_of(kls, **changes):
    """A trace of these KLs after 0, 1, 2, ... steps; NLPD and loss follow it."""
    own = {"nlpd": lambda kl: kl + 1, "kl_moment_matched": lambda kl: kl, "nlpd_moment_matched": lambda kl: kl + 2}
    own |= {"loss": lambda kl: kl + 3, **changes}
    return Trace([TracePoint(s, s / 2, kl, **{name: of(kl) for name, of in own.items()}) for s, kl in enumerate(kls)])


TRACES = {r.cell: trace_of([9.0 + r.seed, 4.0 + r.split, r.scores.kl]) for r in SOLVED}
TRACES |= {r.cell: trace_of([math.inf] * 3, kl_moment_matched=lambda _: 50.0) for r in SINGULAR}


def logged_in(folder):
    """The runs in a folder, by name."""
    return {run.name: run for run in map(read_run, sorted((folder / "wandb").glob("offline-run-*")))}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = studies.save(tmp_path_factory.mktemp("store"), [*SOLVED, *LOST, *SINGULAR], TRACES)
    for each in SOLVED:
        (root / each.folder / "posterior.safetensors").write_bytes(b"1")
    uploads = log(root, [*SOLVED, *LOST], SINGULAR, HOPELESS)
    assert (uploads.notes, uploads.kept) == ({}, 3)
    return root


@pytest.fixture(scope="module")
def runs(root):
    found = logged_in(root)
    assert set(found) == {"toy-mean-field-vi-ffg", "toy-bernoulli-dropout-bernoulli", "toy-hopeless-ffg"}
    return found


@pytest.fixture(scope="module")
def run(runs):
    return runs["toy-mean-field-vi-ffg"]


def test_a_run_has_ended_and_says_what_it_is(run):
    assert (run.project, run.group, run.exit_code) == ("fsvi-bench", "toy", 0)
    assert run.tags == ["ffg", VI, "toy"]
    expected = {"option_lr": 0.1, "option_max_steps": 4, "dataset": "toy", "method": VI, "family": "ffg"}
    expected |= {"split": [0, 1], "code_sha256": SOLVED[0].code_sha256, "provenance_hardware": "a machine"}
    assert expected.items() <= {name: value for name, value in run.config.items() if name in expected}.items()
    assert sorted(run.config["seed"]) == [0, 1, 7, 8]
    assert set(run.config["task_sha256"]) == {each.task_sha256 for each in SOLVED}
    assert not {"kl", "provenance_started", "provenance_seeds", "seconds_train"} & set(run.config)


def test_every_problems_own_curve_is_there_and_their_mean_and_spread(run):
    """By the statistics module, from the traces: all have the same steps and seconds."""
    by = {
        "mean": statistics.fmean, "sd": statistics.stdev, "min": min, "max": max, "median": statistics.median,
        "q25": lambda v: statistics.quantiles(v, method="inclusive")[0],
        "q75": lambda v: statistics.quantiles(v, method="inclusive")[2],
    }  # fmt: skip
    for score in TRACED:
        for each in SOLVED:
            key = f"problem/split-{each.split:02d}-seed-{each.seed}/{score}"
            assert run.curve("steps", key) == [(p.steps, getattr(p, score)) for p in TRACES[each.cell].points]
        places = [*zip(*(TRACES[each.cell].points for each in SOLVED), strict=True)]
        values = [[getattr(point, score) for point in place] for place in places]
        for name, function in by.items():
            for axis in ("steps", "seconds"):
                curve = run.curve(axis, f"by_{axis}/{score}/{name}")
                assert [x for x, _ in curve] == [getattr(place[0], axis) for place in places]
                assert [y for _, y in curve] == pytest.approx([function(v) for v in values], rel=1e-12)
    assert run.step_metrics == {"by_steps/*": "steps", "problem/*": "steps", "by_seconds/*": "seconds"}


def test_the_table_of_cells_has_every_cell(run):
    table = run.table("cells")
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    group = {(r.split, r.seed): r for r in (*SOLVED, *LOST)}
    assert [(row["split"], row["seed"]) for row in rows] == sorted(group)
    for row in rows:
        each = group[row["split"], row["seed"]]
        assert all(row[name] == getattr(each, name) for name in ("cell", "status", "reason", "task_sha256"))
        scored = row["kl"], row["rmse"], row["overconfidence_median"], row["seconds_train"]
        expected = each.scores and (each.scores.kl, each.scores.rmse, each.scores.overconfidence.median, 2.0)
        assert scored == (expected or (None, None, None, 2.0))


def test_the_summary_is_the_table_rows(run):
    for line in summary_of(cells_of([*SOLVED, *LOST])).dropna(subset="mean").itertuples():
        assert run.summary[line.score] == pytest.approx(line.mean, rel=1e-15)
        assert run.summary[f"{line.score}_standard_error"] == pytest.approx(line.standard_error, rel=1e-15)
    counts = {name: run.summary[name] for name in ("cells", "cells_ok", "cells_diverged", "cells_failed")}
    assert counts == {"cells": 6, "cells_ok": 4, "cells_diverged": 1, "cells_failed": 1}


def test_artifacts_are_the_cells_own_files(run, root):
    by_kind = {kind: (name, files) for (kind, name), files in run.artifacts.items() if kind in ("posterior", "result")}
    for kind, names, cells in (
        ("posterior", ["posterior.safetensors"], SOLVED), ("result", ["record.json", "trace.csv"], [*SOLVED, *LOST])
    ):  # fmt: skip
        paths = [(root / each.folder / name).resolve() for each in cells for name in names]
        files = {f"{path.parent.name}/{path.name}": path for path in paths if path.is_file()}
        assert {path: Path(local) for path, local in by_kind[kind][1].items()} == files
        assert by_kind[kind][0].replace("-", "").replace(".", "").replace("_", "").isalnum()


def test_infinite_scores_stay_infinite(runs):
    run = runs["toy-bernoulli-dropout-bernoulli"]
    assert {y for _, y in run.curve("steps", "by_steps/kl/mean")} == {math.inf}
    assert run.curve("steps", "by_steps/kl/sd") == []
    assert run.curve("steps", "by_steps/kl_moment_matched/mean") == [(0, 50.0), (1, 50.0), (2, 50.0)]
    table = run.table("cells")
    assert {row[table["columns"].index("kl")] for row in table["data"]} == {math.inf}
    assert run.summary["kl"] == math.inf
    assert run.image("curves")


def test_wandb_sync_recognises_the_runs(runs, root):
    command = [sys.executable, "-m", "wandb", "sync", "--dry-run", *(str(run.folder) for run in runs.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=root, check=True)
    assert "Would sync 3 run(s)" in done.stdout + done.stderr
    assert all(run.folder.name in done.stdout + done.stderr for run in runs.values())


def test_users_project_is_kept_their_run_and_home_are_not_written_to_and_nothing_is_printed(
    tmp_path, capfd, monkeypatch
):
    (tmp_path / "home").mkdir()
    own = {"HOME": str(tmp_path / "home"), "WANDB_RUN_ID": "theirs", "WANDB_PROJECT": "my-project"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    # NaN is what it is in the cell's own curve, and the worst of all in a spread.
    root = studies.save(tmp_path / "out", SOLVED[:1], {SOLVED[0].cell: trace_of([1.0, math.inf, math.nan])})
    assert log(root, SOLVED[:1], SINGULAR).notes == {}
    assert capfd.readouterr() == ("", "")
    runs = logged_in(tmp_path / "out")
    assert len(runs) == 2
    assert {run.project for run in runs.values()} == {"my-project"}
    assert not any(run.folder.name.endswith("theirs") for run in runs.values())
    assert os.environ["WANDB_RUN_ID"] == "theirs"
    assert not list((tmp_path / "home").rglob("*.wandb"))
    assert not (tmp_path / "home" / ".local").exists()
    own = runs["toy-mean-field-vi-ffg"].curve("steps", "problem/split-00-seed-0/kl")
    assert [str(float(y)) for _, y in own] == ["1.0", "inf", "nan"]
    worst = runs["toy-mean-field-vi-ffg"].curve("steps", "by_steps/kl/max")
    assert worst == [(0, 1.0), (1, math.inf), (2, math.inf)]


def test_off_leaves_no_trace(tmp_path):
    assert log(tmp_path, SOLVED, mode="off").notes == {}
    assert list(tmp_path.iterdir()) == []


# --- The file system and the network ----------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    """1 MiB of a file system of its own."""
    if sys.platform != "linux":
        skip_or_fail("a tmpfs can be mounted on Linux only")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        skip_or_fail("no file system can be mounted here: " + mounted.stderr.decode().strip())
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("left", [150, 300])
def test_a_full_disk_ends_in_a_note_and_with_space_all_is_logged(disk, left):
    """Room for W&B's folders at most, or for a run but for its last part."""
    (disk / "ballast").write_bytes(bytes(1024 * (1024 - left)))
    assert set(log(disk, SOLVED, SINGULAR).notes) == {"stopped"}
    assert len(list((disk / "wandb").glob("logged/*"))) < 2
    (disk / "ballast").unlink()
    assert log(disk, SOLVED, SINGULAR).notes == {}
    assert len(list((disk / "wandb" / "logged").iterdir())) == 2
    assert {run.exit_code for run in logged_in(disk).values()} == {0}


def test_a_server_out_of_reach_means_offline_and_a_note(tmp_path, monkeypatch):
    """A port of this machine on which nobody listens. W&B tries for `init_timeout` seconds, once for all runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    began = time.monotonic()
    notes = log(tmp_path, SOLVED, SINGULAR, mode="online").notes
    assert time.monotonic() - began < float(SETTINGS["WANDB_INIT_TIMEOUT"]) + 90
    assert set(notes) == {"offline"}
    assert "\n" not in notes["offline"]
    assert sorted(run.exit_code for run in logged_in(tmp_path).values()) == [0, 0]
    assert os.environ["WANDB_BASE_URL"].endswith(str(port))
