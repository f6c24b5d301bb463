"""When W&B fails: a note, in bounded time, and never more than that; what failed is logged by the next run."""

from __future__ import annotations

import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from fsvi_bench.errors import InputError, in_one_line
from fsvi_bench.presenting import wandb_runs
from fsvi_bench.presenting.parquet import record_frame
from fsvi_bench.presenting.summary import shared
from fsvi_bench.presenting.wandb_runs import SETTINGS, WandbUploads, log_once, wandb_mode
from fsvi_bench.running.store import folder_of
from tests.presenting import wandb_processes
from tests.presenting.wandb_calls import by_group, log_records
from tests.presenting.wandb_cells import of, trained
from tests.presenting.wandb_file import read_run
from tests.requirements import skip_or_fail


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("store"))


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


def test_facts_on_which_cells_differ_are_lists(finished):
    first, second = of(finished[0], "exact")
    elsewhere = second.model_copy(update={"provenance": {**second.provenance, "device": "cuda"}})
    found = shared(record_frame([first, elsewhere]))
    assert found["provenance_device"] == ["cpu", "cuda"]
    assert found["provenance_torch"] == first.provenance["torch"]


class Run:
    """As much of a run as `upload` needs."""

    def __init__(self, folder, refuse=None, **told):
        self.dir, self.refuse, self.name, self.artifacts = str(folder / "files"), refuse, told.get("name"), []
        self.config, self.summary = {}, {}

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

    def log_artifact(self, artifact):
        self.artifacts.append(artifact)


@pytest.mark.parametrize("method", ["my file.py:Class", "x" * 200, "größe", "..."])
def test_names_are_wandbs(finished, method, tmp_path, monkeypatch):
    import wandb

    asked, runs = [], []
    monkeypatch.setattr(
        wandb, "init", lambda **told: (asked.append(told), runs.append(Run(tmp_path, **told)))[0] or runs[-1]
    )
    for settings in ({}, {"lr": 1}):
        record = of(finished[0], "exact")[0].model_copy(update={"method": method, "hyperparameters": settings})
        path = tmp_path / folder_of(record) / "posterior.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
        wandb_runs.upload([record], tmp_path, "offline")
    names = [artifact.name for run in runs for artifact in run.artifacts]
    assert len(set(names)) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name) for name in names)
    assert all(1 <= len(tag) <= 64 for tag in asked[0]["tags"])
    assert asked[0]["name"] == f"toy-{method}-ffg"[:128]
    assert max(len(asked[0]["group"]), len(asked[0]["job_type"])) <= 128


# --- Exceptions of W&B's ----------------------------------------------------------------------------------------------


@pytest.fixture
def error(finished, tmp_path, monkeypatch):
    """What logging one record in this process raises, when `init` returns this or raises it."""
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")

    def raised(**init):
        monkeypatch.setattr(wandb, "init", mock.Mock(**init))
        marker = tmp_path / "out" / "wandb" / "logged" / "marker"
        with pytest.raises(Exception) as found:  # noqa: PT011
            log_once(of(finished[0], "exact")[:1], tmp_path / "out", marker, 1.0)
        assert not marker.exists()
        return found.value

    return raised


def test_an_init_that_raises_is_raised(error):
    from wandb.errors import UsageError

    refusal = UsageError("no")
    assert error(side_effect=refusal) is refusal


@pytest.mark.parametrize(
    ("refuse", "said"), [("log", "RuntimeError: log was refused"), ("finish", "TimeoutError: finish")]
)
def test_a_run_that_raises_leaves_no_half_of_itself(error, tmp_path, refuse, said):
    folder = tmp_path / "out" / "wandb" / "offline-run-1"
    (folder / "files").mkdir(parents=True)
    assert in_one_line(error(return_value=Run(folder, refuse, name="run"))) == said
    assert not folder.exists()


def test_what_cannot_be_loaded_is_raised(tmp_path, finished, error):
    trace = tmp_path / "out" / folder_of(of(finished[0], "exact")[0]) / "trace.csv"
    trace.parent.mkdir(parents=True)
    trace.write_text("nonsense")
    assert str(error(return_value=Run(tmp_path / "run", name="run"))).startswith(f"{trace} is not a trace")


# --- Processes that hang or die ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "limit", "reason"),
    [
        ("hang", 2.0, "no answer in 2 s"),
        ("die", 90.0, "BrokenProcessPool: A process in the process pool was terminated abruptly"),
        ("log_without_service", 90.0, ""),
    ],
)
def test_whatever_its_process_does_ends_in_a_note(tmp_path, finished, monkeypatch, function, limit, reason):
    out, temporary, began = tmp_path / "out", tmp_path / "temporary", time.monotonic()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with monkeypatch.context() as patch, WandbUploads("offline", out, limit) as uploads:
        patch.setattr(wandb_runs, "log_once", getattr(wandb_processes, function))
        for group in by_group(finished[0]):
            uploads.log(group)
        assert time.monotonic() - began < 1.5  # handing over waits for nothing
    assert time.monotonic() - began < limit + 10
    assert set(uploads.notes) == {"stopped"}
    assert uploads.notes["stopped"].startswith(reason)
    assert not (out / "wandb" / "logged").exists()
    assert list(temporary.iterdir()) == []
    # A whole process logs what is missing.
    if function == "log_without_service":
        assert log_records(finished[0], "offline", out) == []
        assert len(list((out / "wandb" / "logged").iterdir())) == 3


def test_an_exception_outside_waits_for_nothing(tmp_path, finished, monkeypatch):
    """Ctrl-C, say: what is not logged yet is left to the next run."""
    monkeypatch.setattr(wandb_runs, "log_once", wandb_processes.hang)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), WandbUploads("offline", tmp_path / "out") as uploads:  # noqa: PT012
        uploads.log(finished[0][:1])
        time.sleep(0.5)
        raise KeyboardInterrupt
    assert time.monotonic() - began < 10
    assert not (tmp_path / "out" / "wandb" / "logged").exists()


SCRIPT = """
import os, pathlib, pickle, signal, time
from fsvi_bench.presenting import wandb_runs
from tests.presenting import wandb_processes
if __name__ == "__main__":
    out = pathlib.Path("out")
    wandb_runs.log_once = wandb_processes.{function}
    with wandb_runs.WandbUploads("offline", out) as uploads:
        uploads.log(pickle.loads(pathlib.Path("records").read_bytes()))
        {then}
    print(uploads.notes, os.environ.get("PYTHONSAFEPATH"))
"""


def run_script(folder, records, function, then="pass"):
    """Among modules that must not be taken for libraries."""
    (folder / "temporary").mkdir()
    (folder / "records").write_bytes(pickle.dumps(records))
    for name in ("queue", "socket"):
        (folder / f"{name}.py").write_text("raise RuntimeError")
    script = folder / "scripts" / "script.py"
    script.parent.mkdir()
    script.write_text(SCRIPT.format(function=function, then=then))
    own = {"PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(folder / "temporary")}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"} | own
    return subprocess.run([sys.executable, str(script)], cwd=folder, env=environment, stdout=subprocess.PIPE,
                          text=True, timeout=120, check=False)  # fmt: skip


@pytest.mark.slow
def test_its_process_is_deaf_to_ctrl_c_and_to_modules_in_the_current_folder(tmp_path, finished):
    done = run_script(tmp_path, finished[0][:1], "hear_ctrl_c")
    assert done.stdout == "{} None\n"
    assert len(list((tmp_path / "out").glob("alive-*"))) == 1


@pytest.mark.slow
def test_nothing_stays_behind_where_its_parent_was_killed(tmp_path, finished):
    wait = "while not list(out.glob('alive-*')): time.sleep(0.1)"
    run_script(
        tmp_path, finished[0][:1], "hear_ctrl_c_and_hang", f"{wait}\n        os.kill(os.getpid(), signal.SIGKILL)"
    )
    ((*_, number),) = (path.name.split("-") for path in (tmp_path / "out").glob("alive-*"))
    deadline = time.monotonic() + 20
    while list((tmp_path / "temporary").glob("fsvi-*")) or alive(int(number)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def alive(number):
    """Whether there is such a process that has not ended; one that nobody has reaped has."""
    stat = Path(f"/proc/{number}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


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
    assert time.monotonic() - began < float(SETTINGS["WANDB_INIT_TIMEOUT"]) + 90
    assert note.startswith("W&B did not go online (")
    assert note.endswith(f"its runs are kept in {tmp_path}/wandb, and `wandb sync` sends them")
    assert "\n" not in note
    runs = [read_run(path) for path in (tmp_path / "wandb").glob("offline-run-*")]
    assert sorted(run.exit_code for run in runs) == [0, 0, 0]
    assert os.environ["WANDB_BASE_URL"].endswith(str(port))
