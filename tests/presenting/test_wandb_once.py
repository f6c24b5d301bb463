"""Nothing is logged twice, by commands one after the other or at once. What would make a run is only counted here."""

from __future__ import annotations

import threading
import time

import pytest
from filelock import FileLock

from fsvi_bench.presenting import wandb_runs
from fsvi_bench.presenting.wandb_runs import WandbUploads, log_once
from fsvi_bench.running.cell import Record
from fsvi_bench.running.executors import answer


def record(split, started="2026-01-01T00:00:00+00:00", task="a" * 64, reason="it was not to be", method="exact"):
    return Record(
        cell="" if task is None else f"{split:064x}", dataset="toy", split=split, method=method, family="ffg", seed=0,
        hyperparameters={}, task_sha256=task, code_sha256="c" * 64, status="failed", reason=reason, scores=None,
        seconds=None, provenance={"started": started},
    )  # fmt: skip


class Here:
    """Makes the process's calls at once, in this one."""

    def __init__(self, *_, **__):
        pass

    def call(self, call):
        return answer(call)

    def kill(self):
        pass


@pytest.fixture
def made(monkeypatch):
    """(split, mode) of the runs that were made; what `refuse` raises for either is not."""
    runs = []

    def upload(group, _, mode):
        error = refuse.get(mode) or refuse.get(group[0].split)
        if error:
            raise error
        runs.append((group[0].split, mode))

    refuse = upload.refuse = {}
    monkeypatch.setattr(wandb_runs, "Worker", Here)
    monkeypatch.setattr(wandb_runs, "upload", upload)
    monkeypatch.setenv("WANDB_MODE", "offline")
    return runs


@pytest.fixture
def refuse(made):
    return wandb_runs.upload.refuse


def log(folder, *groups, mode="offline"):
    with WandbUploads(mode, folder) as uploads:
        for group in groups:
            uploads.log(group)
    return uploads


@pytest.mark.parametrize(
    ("groups", "counts"),
    [
        ([(record(0, "now", None),), (record(0, "later", None),), (record(0, "later", None, "another"),)], [1, 1, 2]),
        # `--splits 0`, `--splits 1`, both, and each of them again.
        (
            [(record(0),), (record(1),), (record(0), record(1)), (record(1), record(0)), (record(0),), (record(1),)],
            [1, 2, 3, 3, 3, 3],
        ),
    ],
)
def test_a_group_is_logged_once(made, tmp_path, groups, counts):
    for group, count in zip(groups, counts, strict=True):
        assert log(tmp_path, group).notes == {}
        assert len(made) == count


def test_what_failed_is_logged_by_the_next_run(made, refuse, tmp_path):
    refuse["offline"] = RuntimeError("not\nnow")
    failed = log(tmp_path, [record(0)], [record(1)])
    assert (failed.notes, failed.kept, made) == ({"stopped": "RuntimeError: not now"}, 0, [])
    refuse.clear()
    assert log(tmp_path, [record(0)], [record(1)]).kept == 2
    assert log(tmp_path, [record(0)]).kept == 0
    assert made == [(0, "offline"), (1, "offline")]


def test_two_commands_at_once_log_one_run(made, tmp_path, monkeypatch):
    monkeypatch.setattr(wandb_runs, "upload", lambda *_: (time.sleep(0.3), made.append(None)))
    arguments = [record(0)], tmp_path, tmp_path / "wandb" / "logged" / "marker", 20.0
    threads = [threading.Thread(target=log_once, args=arguments) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_a_command_that_waits_in_vain_for_another_says_so(made, tmp_path):
    (tmp_path / "wandb").mkdir()
    with FileLock(tmp_path / "wandb" / "logged.lock"), WandbUploads("offline", tmp_path, 1.0) as uploads:
        began = time.monotonic()
        uploads.log([record(0)])
    assert 0.5 <= time.monotonic() - began < 5
    assert uploads.notes["stopped"].startswith("Timeout: The file lock ")
    assert log(tmp_path, [record(0)]).kept == 1


@pytest.fixture
def online(made, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")


def log_three(folder):
    return log(folder, *([record(split)] for split in range(3)), mode="online").notes


def test_once_the_server_is_out_of_reach_all_is_kept_offline(online, made, refuse, tmp_path):
    refuse["online"] = TimeoutError("no\nserver")
    notes = log_three(tmp_path)
    assert notes == {"offline": "TimeoutError: no server"}
    assert made == [(0, "offline"), (1, "offline"), (2, "offline")]


def test_both_a_server_out_of_reach_and_a_failure_are_told(online, made, refuse, tmp_path):
    refuse |= {"online": TimeoutError("no server"), 1: ValueError("no trace")}
    assert log_three(tmp_path) == {"offline": "TimeoutError: no server", "stopped": "ValueError: no trace"}


def test_handing_over_raises_nothing(made, monkeypatch, tmp_path):
    def call(*_):
        raise RuntimeError("cannot schedule new futures")

    monkeypatch.setattr(Here, "call", call)
    uploads = log(tmp_path, [record(0)], [])
    assert (uploads.notes, uploads.kept) == ({"stopped": "RuntimeError: cannot schedule new futures"}, 0)
