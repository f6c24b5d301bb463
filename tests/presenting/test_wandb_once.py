"""Nothing is logged twice, by commands one after the other or at once. What would make a run is only counted here."""

from __future__ import annotations

import threading
import time

import pytest
from filelock import FileLock

from fsvi_bench.presenting import wandb_upload
from fsvi_bench.presenting.wandb_upload import WandbUploads, content_sha256, log_once
from fsvi_bench.running.cell import Record


def record(split, started="2026-01-01T00:00:00+00:00", task="a" * 64, reason="it was not to be"):
    return Record(
        cell="" if task is None else f"{split:064x}", dataset="toy", split=split, method="exact", family="ffg", seed=0,
        hyperparameters={}, task_sha256=task, code_sha256="c" * 64, status="failed", reason=reason, scores=None,
        seconds=None, provenance={"started": started},
    )  # fmt: skip


class Here:
    """Makes a background's calls at once, in this process."""

    def __init__(self):
        self._returned = []

    def submit(self, function, *arguments):
        self._returned.append(function(*arguments))

    def results(self, _):
        return self._returned

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def made(monkeypatch):
    """The groups of which runs were made."""
    groups = []
    monkeypatch.setattr(wandb_upload, "Background", Here)
    monkeypatch.setattr(wandb_upload, "content_of", lambda group, _: group)
    monkeypatch.setattr(wandb_upload, "upload", lambda group, *_: groups.append(group))
    return groups


@pytest.fixture
def log(tmp_path, made):
    """Logs one group and returns how many runs there are by now."""

    def count(*group):
        with WandbUploads("offline", tmp_path / "out") as uploads:
            uploads.log(group)
        assert uploads.notes == []
        return len(made)

    return count


def test_a_computed_cell_is_told_by_when_and_a_refused_one_by_why():
    hashes = [content_sha256([record(0, started)]) for started in ("now", "now", "later")]
    assert hashes[0] == hashes[1] != hashes[2]
    refused = [content_sha256([record(0, *each)]) for each in (("now", None), ("later", None), ("now", None, "other"))]
    assert refused[0] == refused[1] != refused[2]
    assert refused[0] != hashes[0]


def test_refused_groups_of_two_methods_are_two():
    other = record(0, "now", None).model_copy(update={"method": "other"})
    assert content_sha256([record(0, "now", None)]) != content_sha256([other])


def test_a_refused_task_is_logged_once(log):
    assert log(record(0, "now", None)) == 1
    assert log(record(0, "later", None)) == 1
    assert log(record(0, "later", None, "another reason")) == 2


def test_what_was_logged_before_something_else_is_not_logged_again(log):
    """`--splits 0`, `--splits 1`, both, and each of them again."""
    asked = [(record(0),), (record(1),), (record(0), record(1)), (record(1), record(0)), (record(0),), (record(1),)]
    assert [log(*group) for group in asked] == [1, 2, 3, 3, 3, 3]


def test_what_failed_is_logged_by_the_next_run(log, made, monkeypatch, tmp_path):
    def refuse(*_):
        raise RuntimeError("not now")

    with monkeypatch.context() as patch, WandbUploads("offline", tmp_path / "out") as uploads:
        patch.setattr(wandb_upload, "upload", refuse)
        uploads.log([record(0)])
        uploads.log([record(1)])
    (note,) = uploads.notes
    assert note.startswith("W&B logging stopped (RuntimeError: not now); the records are complete in ")
    assert uploads.kept == 0
    assert [log(record(0)), log(record(1)), log(record(0))] == [1, 2, 2]


def test_two_commands_at_once_log_one_run(made, tmp_path, monkeypatch):
    def slowly(group, *_):
        time.sleep(0.3)
        made.append(group)

    monkeypatch.setattr(wandb_upload, "upload", slowly)
    arguments = [record(0)], tmp_path, "offline", tmp_path / "wandb" / "logged" / "marker", 20.0
    threads = [threading.Thread(target=log_once, args=arguments) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_a_command_that_waits_in_vain_for_another_says_so(log, tmp_path):
    out = tmp_path / "out"
    began = time.monotonic()
    (out / "wandb").mkdir(parents=True)
    with FileLock(out / "wandb" / "logged.lock"), WandbUploads("offline", out, 1.0) as uploads:
        uploads.log([record(0)])
    assert 0.5 <= time.monotonic() - began < 5
    assert uploads.notes == [
        "W&B logging stopped (another command has been logging here for more than 0.5 s); the records are complete "
        f"in {out}, and the same command again logs what is missing"
    ]
    assert log(record(0)) == 1


@pytest.fixture
def tried(made, monkeypatch):
    """The modes in which runs were tried; online, none is made."""
    modes = []

    def upload(group, folder, mode):
        modes.append(mode)
        if mode == "online":
            raise TimeoutError("no\nserver")

    monkeypatch.setattr(wandb_upload, "upload", upload)
    monkeypatch.setattr(wandb_upload, "unreachable", [])
    return modes


def log_three(folder):
    with WandbUploads("online", folder) as uploads:
        for split in range(3):
            uploads.log([record(split)])
    return uploads.notes


def test_once_the_server_is_out_of_reach_all_is_kept_offline(tried, tmp_path):
    assert log_three(tmp_path) == [
        f"W&B did not go online (TimeoutError: no server); its runs are kept in {tmp_path}/wandb, and `wandb sync` "
        "sends them"
    ]
    assert tried == ["online", "offline", "offline", "offline"]


def unreadable(group, _):
    if group[0].split == 0:
        raise ValueError("no trace")
    return group


def test_what_cannot_be_read_here_is_not_the_servers_fault(tried, monkeypatch, tmp_path):
    monkeypatch.setattr(wandb_upload, "content_of", unreadable)
    monkeypatch.setattr(wandb_upload, "upload", lambda group, folder, mode: tried.append(mode))
    (note,) = log_three(tmp_path)
    assert note.startswith("W&B logging stopped (ValueError: no trace)")
    assert tried == ["online", "online"]
    assert wandb_upload.unreachable == []


def test_what_fails_offline_too_is_not_the_servers_fault(tried, monkeypatch, tmp_path):
    def upload(group, folder, mode):
        tried.append(mode)
        raise OSError("disk full")

    monkeypatch.setattr(wandb_upload, "upload", upload)
    (note,) = log_three(tmp_path)
    assert note.startswith("W&B logging stopped (OSError: disk full)")
    assert tried == ["online", "offline"] * 3  # here, all calls are made at once
    assert wandb_upload.unreachable == []


def test_both_a_server_out_of_reach_and_a_failure_are_told(tried, monkeypatch, tmp_path):
    monkeypatch.setattr(wandb_upload, "content_of", lambda group, _: unreadable([record(2 - group[0].split)], _))
    offline, stopped = log_three(tmp_path)
    assert offline.startswith("W&B did not go online (TimeoutError: no server)")
    assert stopped.startswith("W&B logging stopped (ValueError: no trace)")


def test_an_offline_note_outlives_a_process_that_fails(tried, monkeypatch, tmp_path):
    def results(self, _):
        yield from self._returned
        raise OSError("no process")

    monkeypatch.setattr(Here, "results", results)
    offline, stopped = log_three(tmp_path)
    assert offline.startswith("W&B did not go online (TimeoutError: no server)")
    assert stopped.startswith("W&B logging stopped (OSError: no process)")


def test_handing_over_raises_nothing(monkeypatch, tmp_path):
    def submit(*_):
        raise RuntimeError("cannot schedule new futures")

    monkeypatch.setattr(wandb_upload.Background, "submit", submit)
    with WandbUploads("offline", tmp_path) as uploads:
        uploads.log([record(0)])
        uploads.log([])
    (note,) = uploads.notes
    assert note.startswith("W&B logging stopped (RuntimeError: cannot schedule new futures)")
    assert uploads.kept == 0
