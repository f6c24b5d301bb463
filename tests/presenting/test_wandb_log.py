"""When W&B fails: a note, in bounded time, and never more than that; what failed is logged by the next run."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from unittest import mock

import pytest

from fsvi_bench.cli.options import wandb_mode
from fsvi_bench.errors import InputError
from fsvi_bench.presenting import wandb_upload
from fsvi_bench.presenting.cell_files import folder_of, load_posterior, load_traces
from fsvi_bench.presenting.wandb_content import artifact_of, config, content_of
from fsvi_bench.presenting.wandb_upload import SETTINGS, WandbUploads, log_once
from fsvi_bench.scoring.scores import score
from fsvi_bench.tasks.build import load_cached
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import bind_task
from tests.presenting import wandb_processes
from tests.presenting.wandb_calls import by_group, log_records
from tests.presenting.wandb_cells import of, trained
from tests.presenting.wandb_file import read_run
from tests.requirements import skip_or_fail


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("store"))


@pytest.mark.slow
def test_a_records_files_are_found_again(finished):
    records, store = finished
    for record in of(records, "exact") + of(records, "mean-field-vi"):
        assert (store.root / folder_of(record) / "record.json").is_file()
        problem = bind_task(load_cached(load_card("toy"), record.split).task)
        assert score(load_posterior(record, store.root, problem.frozen), problem).kl == record.scores.kl
    traces = load_traces(records, store.root)
    assert set(traces) == {record.cell for record in records if record.method != "exact"}


# --- Which mode -------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_key(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    netrc = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    return netrc


def test_auto_is_online_with_a_key_and_else_offline(no_key, monkeypatch):
    assert wandb_mode("auto") == "offline"
    no_key.write_text("machine api.wandb.ai login user password key\n")
    assert wandb_mode("auto") == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8080")
    assert wandb_mode("auto") == "offline"
    no_key.write_text("machine wandb.example.org login user password key\n")
    assert wandb_mode("auto") == "online"
    no_key.write_text("machine a b c d e f g")
    assert wandb_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "key")
    assert wandb_mode("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode("auto") == "off"
    assert wandb_mode("offline") == "offline"
    with pytest.raises(InputError, match="--wandb is 'loud', expected auto, online, offline or off"):
        wandb_mode("loud")


# --- What a run says, where a user's own method could trip it ---------------------------------------------------------


def test_a_setting_cannot_hide_a_fact(finished):
    record = of(finished[0], "exact")[0].model_copy(update={"hyperparameters": {"dataset": "mine", "lr": 0.1}})
    found = config([record])
    assert (found["dataset"], found["option_dataset"], found["lr"]) == ("toy", "mine", 0.1)


def test_facts_on_which_cells_differ_are_lists(finished):
    first, second = of(finished[0], "exact")
    elsewhere = second.model_copy(update={"provenance": {**second.provenance, "device": "cuda"}})
    found = config([first, elsewhere])["provenance"]
    assert found["device"] == ["cpu", "cuda"]
    assert found["torch"] == first.provenance["torch"]
    assert not {"seeds", "started"} & set(found)


@pytest.fixture
def in_this_process(monkeypatch):
    """W&B's process makes the environment its own."""
    monkeypatch.setattr(wandb_upload, "unreachable", [])
    with mock.patch.dict(os.environ):
        yield


@pytest.mark.parametrize("method", ["my file.py:Class", "x" * 300, "größe/π", "..."])
def test_names_are_wandbs(finished, method, tmp_path):
    record = of(finished[0], "exact")[0].model_copy(update={"method": method})
    names = [
        artifact_of("posterior", [record.model_copy(update={"hyperparameters": settings})], tmp_path).name
        for settings in ({}, {"lr": 1})
    ]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name) for name in names)
    assert names[0] != names[1]
    asked = content_of([record], tmp_path).init
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", tag) for tag in asked["tags"])
    assert asked["name"] == f"toy-{method}-ffg"[:128]
    assert max(len(asked["group"]), len(asked["job_type"])) <= 128


def test_all_settings_are_wandbs():
    import wandb

    assert set(SETTINGS) <= set(wandb.Settings.model_fields)


# --- Exceptions of W&B's ----------------------------------------------------------------------------------------------


class Run:
    """As much of a run as `upload` needs."""

    def __init__(self, folder, refuse):
        self.dir, self.refuse = str(folder / "files"), refuse

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.refuse == "finish" and kind is None:
            raise TimeoutError("finish")

    def define_metric(self, *_, **__):
        if self.refuse == "log":
            raise RuntimeError("log\nwas refused")

    def log(self, *_):
        pass

    log_artifact = log
    summary: dict = {}


@pytest.fixture
def note(finished, tmp_path, in_this_process):
    """The only note on one record, logged in this process."""

    def noted():
        marker = tmp_path / "out" / "wandb" / "logged" / "marker"
        ((kind, reason),) = log_once(of(finished[0], "exact")[:1], tmp_path / "out", "offline", marker, 1.0)
        assert not marker.exists()
        return kind.format(reason, tmp_path / "out")

    return noted


def stopped(reason, out):
    return (
        f"W&B logging stopped ({reason}); the records are complete in {out}, and the same command again logs what is "
        "missing"
    )


def test_an_init_that_raises_is_noted(monkeypatch, note, tmp_path):
    import wandb

    monkeypatch.setattr(wandb, "init", mock.Mock(side_effect=wandb.errors.UsageError("no")))
    assert note() == stopped("UsageError: no", tmp_path / "out")


@pytest.mark.parametrize(
    ("refuse", "said"), [("log", "RuntimeError: log was refused"), ("finish", "TimeoutError: finish")]
)
def test_a_run_that_raises_is_noted_and_leaves_no_half_of_itself(monkeypatch, note, tmp_path, refuse, said):
    import wandb

    folder = tmp_path / "out" / "wandb" / "offline-run-1"
    (folder / "files").mkdir(parents=True)
    monkeypatch.setattr(wandb, "init", lambda **_: Run(folder, refuse))
    assert note() == stopped(said, tmp_path / "out")
    assert not folder.exists()


def test_a_run_in_the_systems_temporary_folder_is_an_error(monkeypatch, note, tmp_path):
    """Where W&B cannot write it goes there, and says so nowhere."""
    import wandb

    folder = tmp_path / "elsewhere" / "offline-run-1"
    (folder / "files").mkdir(parents=True)
    monkeypatch.setattr(wandb, "init", lambda **_: Run(folder, None))
    assert note() == stopped(f"OSError: {tmp_path / 'out' / 'wandb'} is not writable", tmp_path / "out")


def test_what_cannot_be_loaded_ends_in_a_note(tmp_path, finished, note, monkeypatch):
    import wandb

    folder = tmp_path / "out" / "wandb" / "offline-run-1"
    (folder / "files").mkdir(parents=True)
    monkeypatch.setattr(wandb, "init", lambda **_: Run(folder, None))
    trace = tmp_path / "out" / folder_of(of(finished[0], "exact")[0]) / "trace.csv"
    trace.parent.mkdir(parents=True)
    trace.write_text("nonsense")
    assert note().startswith(f"W&B logging stopped (InputError: {trace} is not a trace"[:100])


# --- Processes that hang or die ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "limit", "reason"),
    [
        ("hang", 2.0, "TimeoutError: no answer in 2 s"),
        ("die", 90.0, "BrokenProcessPool: A process in the process pool was terminated abruptly"),
        ("log_without_service", 90.0, ""),
    ],
)
def test_whatever_its_process_does_ends_in_a_note(tmp_path, finished, monkeypatch, function, limit, reason):
    out, began = tmp_path / "out", time.monotonic()
    with monkeypatch.context() as patch, WandbUploads("offline", out, limit) as uploads:
        patch.setattr(wandb_upload, "log_once", getattr(wandb_processes, function))
        for group in by_group(finished[0]):
            uploads.log(group)
        assert time.monotonic() - began < 1.5  # handing over waits for nothing
    assert time.monotonic() - began < limit + 10
    (note,) = uploads.notes
    assert note.startswith(f"W&B logging stopped ({reason}")
    assert note.endswith(f"the records are complete in {out}, and the same command again logs what is missing")
    assert "\n" not in note
    assert not (out / "wandb" / "logged").exists()
    # A whole process logs what is missing.
    if function == "log_without_service":
        assert log_records(finished[0], "offline", out) == []
        assert len(list((out / "wandb" / "logged").iterdir())) == 3


def test_an_exception_outside_waits_for_nothing(tmp_path, finished, monkeypatch):
    """Ctrl-C, say: what is not logged yet is left to the next run."""
    monkeypatch.setattr(wandb_upload, "log_once", wandb_processes.hang)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), WandbUploads("offline", tmp_path / "out") as uploads:  # noqa: PT012
        uploads.log(finished[0][:1])
        time.sleep(0.5)
        raise KeyboardInterrupt
    assert time.monotonic() - began < 10
    assert not (tmp_path / "out" / "wandb" / "logged").exists()


@pytest.mark.slow
def test_two_failures_are_all_that_is_waited_for(tmp_path, finished, monkeypatch):
    with monkeypatch.context() as patch, WandbUploads("offline", tmp_path / "out") as uploads:
        patch.setattr(wandb_upload, "log_once", wandb_processes.fail_slowly)
        for split in range(20):
            uploads.log([finished[0][0].model_copy(update={"split": split})])
    assert 2 <= len(list((tmp_path / "out").iterdir())) <= 3
    assert len(uploads.notes) == 1
    assert "(ConnectionError: planted)" in uploads.notes[0]


@pytest.mark.slow
def test_a_group_that_kills_wandbs_process_costs_itself_only(tmp_path, finished, monkeypatch):
    groups = [[finished[0][0].model_copy(update={"split": split})] for split in range(3)]
    with monkeypatch.context() as patch, WandbUploads("offline", tmp_path) as uploads:
        patch.setattr(wandb_upload, "log_once", wandb_processes.die_of_split_0)
        for group in groups:
            uploads.log(group)
    assert uploads.kept == 2
    (note,) = uploads.notes
    assert note.startswith("W&B logging stopped (BrokenProcessPool: ")


# --- The file system and the network ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_ends_in_a_note(tmp_path, finished):
    """Not even by root: a file lies there."""
    (tmp_path / "wandb").write_text("")
    (note,) = log_records(finished[0], "offline", tmp_path)
    assert note.startswith("W&B logging stopped (")
    assert (tmp_path / "wandb").read_text() == ""


@contextmanager
def tiny_disk(folder):
    """1 MiB of a file system of its own."""
    if sys.platform != "linux":
        skip_or_fail("a tmpfs can be mounted on Linux only")
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        skip_or_fail("no file system can be mounted here: " + mounted.stderr.decode().strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("left", [150, 300])
def test_a_full_disk_ends_in_a_note_and_with_space_all_is_logged(tmp_path, finished, left):
    """Room for W&B's folders at most, or for a run but for its last part."""
    groups = of(finished[0], "mean-field-vi"), of(finished[0], "exact")
    with tiny_disk(tmp_path / "disk") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(1024 * (1024 - left)))
        notes = log_records([*groups[0], *groups[1]], "offline", disk)
        assert len(notes) == 1
        assert notes[0].startswith("W&B logging stopped (")
        whole = len(list((disk / "wandb").glob("logged/*")))
        assert whole < 2
        ballast.unlink()
        assert log_records([*groups[0], *groups[1]], "offline", disk) == []
        assert len(list((disk / "wandb" / "logged").iterdir())) == 2
        for path in (disk / "wandb").glob("offline-run-*"):
            assert read_run(path).exit_code == 0


@pytest.mark.slow
def test_a_server_out_of_reach_means_offline_and_a_note(tmp_path, finished, monkeypatch):
    """A port of this machine on which nobody listens. W&B tries for `init_timeout` seconds, once for all runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    began = time.monotonic()
    (note,) = log_records(finished[0], "online", tmp_path)
    assert time.monotonic() - began < SETTINGS["init_timeout"] + 90
    assert note.startswith("W&B did not go online (")
    assert note.endswith(f"its runs are kept in {tmp_path}/wandb, and `wandb sync` sends them")
    assert "\n" not in note
    runs = [read_run(path) for path in (tmp_path / "wandb").glob("offline-run-*")]
    assert sorted(run.exit_code for run in runs) == [0, 0, 0]
    assert os.environ["WANDB_BASE_URL"].endswith(str(port))
