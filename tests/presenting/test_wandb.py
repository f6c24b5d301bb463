"""W&B beside a run: nothing is logged twice; whatever fails ends in a note, in bounded time, and is logged by the next
run. What would make a run is only counted here, or refuses."""

import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
from filelock import FileLock

from fsvi_bench.errors import InputError, in_one_line
from fsvi_bench.presenting import wandb_runs
from fsvi_bench.presenting.parquet import record_frame
from fsvi_bench.presenting.summary import shared
from fsvi_bench.presenting.wandb_runs import NOTES, WandbUploads, log_once, wandb_mode
from fsvi_bench.running.executors import answer
from tests.presenting import studies, wandb_processes


def record(split=0, method="exact", **changes):
    return studies.record(method, split, **({"dataset": "toy", "family": "ffg"} | changes))


def log(folder, *groups, mode="offline", **settings):
    with WandbUploads(mode, folder, **settings) as uploads:
        for group in groups:
            uploads.log(group)
    return uploads


def test_auto_is_online_with_a_key_and_else_offline(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    netrc = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    assert wandb_mode("auto") == "offline"
    netrc.write_text("machine api.wandb.ai login user password key\n")
    assert wandb_mode("auto") == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8080")
    assert wandb_mode("auto") == "offline"
    netrc.write_text("machine wandb.example.org login user password key\n")
    assert wandb_mode("auto") == "online"
    netrc.write_text("machine a b c d e f g")
    assert wandb_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "key")
    assert wandb_mode("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode("auto") == "off"
    assert wandb_mode("offline") == "offline"
    with pytest.raises(InputError, match="--wandb is 'loud', expected auto, online, offline or off"):
        wandb_mode("loud")


# --- Once, by commands one after the other or at once -----------------------------------------------------------------


class Here:
    """Makes the process's calls at once, in this one."""

    def __init__(self, *_, **__):
        pass

    def call(self, call):
        return answer(call)

    def kill(self):
        pass


@pytest.fixture
def refuse(monkeypatch):
    """What is raised in place of making a run, by mode or split."""
    monkeypatch.setattr(wandb_runs, "Worker", Here)
    monkeypatch.setenv("WANDB_MODE", "offline")
    return {}


@pytest.fixture
def made(refuse, monkeypatch):
    """(split, mode) of the runs that were made."""
    runs = []

    def upload(group, _, mode):
        error = refuse.get(mode) or refuse.get(group[0].split)
        if error:
            raise error
        runs.append((group[0].split, mode))

    monkeypatch.setattr(wandb_runs, "upload", upload)
    return runs


def test_a_group_is_logged_once_and_anew_when_it_has_changed(made, tmp_path):
    def refused(started, reason="no data"):  # by the moment of the run; nothing was computed
        told = {"task_sha256": None, "cell": "", "reason": reason, "provenance": {"started": started}}
        return record(4).model_copy(update=told)

    again = record(0, provenance={"started": "later"})
    groups = [[record(0)], [record(1)], [record(0), record(1)], [record(1), record(0)], [record(0)], [again]]
    groups += [[refused("now")], [refused("later")], [refused("later", "another")]]
    for group, count in zip(groups, [1, 2, 3, 3, 3, 4, 5, 5, 6], strict=True):
        assert log(tmp_path, group).notes == {}
        assert len(made) == count


def test_what_failed_is_logged_by_the_next_run(made, refuse, tmp_path):
    refuse["offline"] = RuntimeError("not\nnow")
    failed = log(tmp_path, [record(0)], [record(1)])
    assert (failed.notes, failed.kept, made) == ({"stopped": "RuntimeError: not now"}, 0, [])
    refuse.clear()
    assert [log(tmp_path, [record(0)], [record(1)]).kept, log(tmp_path, [record(0)]).kept] == [2, 0]
    assert made == [(0, "offline"), (1, "offline")]


def test_two_commands_at_once_log_one_run(made, tmp_path, monkeypatch):
    monkeypatch.setattr(wandb_runs, "upload", lambda *_: (time.sleep(0.2), made.append(None)))
    arguments = [record(0)], tmp_path, tmp_path / "wandb" / "logged" / "marker", 20.0
    threads = [threading.Thread(target=log_once, args=arguments) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_a_command_that_times_out_waiting_for_another_says_so(made, tmp_path):
    (tmp_path / "wandb").mkdir()
    began = time.monotonic()
    with FileLock(tmp_path / "wandb" / "logged.lock"):
        notes = log(tmp_path, [record(0)], seconds=1.0).notes
    assert 0.5 <= time.monotonic() - began < 5
    assert notes["stopped"].startswith("Timeout: The file lock ")
    assert log(tmp_path, [record(0)]).kept == 1


def test_without_a_server_all_runs_are_stored_offline_and_failures_are_reported(made, refuse, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    refuse |= {"online": TimeoutError("no\nserver"), 1: ValueError("no trace")}
    notes = log(tmp_path, *([record(split)] for split in range(3)), mode="online").notes
    assert notes == {"offline": "TimeoutError: no server", "stopped": "ValueError: no trace"}
    assert made == [(0, "offline"), (2, "offline")]


def test_handing_over_raises_nothing(made, monkeypatch, tmp_path):
    monkeypatch.setattr(Here, "call", mock.Mock(side_effect=RuntimeError("cannot schedule new futures")))
    uploads = log(tmp_path, [record(0)], [])
    assert set(uploads.notes) == {"stopped"}
    assert uploads.kept == 0


# --- What a run says, where a user's own method could trip it, and exceptions of W&B's --------------------------------


def test_facts_on_which_cells_differ_are_lists():
    cells = [record(split, provenance={"torch": "2.11", "device": d}) for split, d in enumerate(("cpu", "cuda"))]
    found = shared(record_frame(cells))
    assert (found["provenance_device"], found["provenance_torch"]) == (["cpu", "cuda"], "2.11")


def run_in(folder, name="run", **attributes):
    """As much of a run as `upload` needs."""
    run = mock.MagicMock(dir=str(folder / "files"), **attributes)
    run.name = name
    return run


@pytest.mark.parametrize("method", ["my file.py:Class", "x" * 200, "größe", "..."])
def test_names_are_wandbs(method, tmp_path, monkeypatch):
    import wandb

    names = []
    for settings in ({}, {"lr": 1}):
        run = run_in(tmp_path, f"toy-{method}-ffg"[:128])
        init = mock.Mock(return_value=run)
        monkeypatch.setattr(wandb, "init", init)
        cell = record(0, method, hyperparameters=settings)
        path = tmp_path / cell.folder / "posterior.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
        wandb_runs.upload([cell], tmp_path, "offline")
        told = init.call_args.kwargs
        assert told["name"] == run.name
        assert all(1 <= len(tag) <= 64 for tag in told["tags"])
        assert max(len(told["group"]), len(told["job_type"])) <= 128
        names += [call.args[0].name for call in run.log_artifact.call_args_list]
    assert len(set(names)) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name) for name in names)


@pytest.mark.parametrize(
    ("init", "run", "said"),
    [
        ({"side_effect": ValueError("no")}, {}, "ValueError: no"),
        ({}, {"define_metric": mock.Mock(side_effect=RuntimeError("log\nrefused"))}, "RuntimeError: log refused"),
        ({}, {"__exit__": mock.Mock(side_effect=TimeoutError("finish"))}, "TimeoutError: finish"),
        ({}, {"trace": "nonsense"}, "is not a trace"),
    ],
)
def test_what_raises_is_raised_and_leaves_no_half_of_a_run(init, run, said, tmp_path, monkeypatch):
    import wandb

    folder, marker = tmp_path / "wandb" / "offline-run-1", tmp_path / "wandb" / "logged" / "marker"
    (folder / "files").mkdir(parents=True)
    if "trace" in run:
        trace = tmp_path / record().folder / "trace.csv"
        trace.parent.mkdir(parents=True)
        trace.write_text(run.pop("trace"))
    found = run_in(folder, **run)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb, "init", mock.Mock(**({"return_value": found} | init)))
    with pytest.raises((ValueError, RuntimeError, TimeoutError, InputError)) as error:
        log_once([record()], tmp_path, marker, 1.0)
    assert said in in_one_line(error.value)
    assert not marker.exists()
    assert folder.exists() == ("side_effect" in init)


def test_a_long_reason_is_cut_between_words():
    words = ["process"] * 40
    told = in_one_line(RuntimeError("\n".join(words)))
    assert told == " ".join(["RuntimeError:", *words[:23], "…"])
    assert len(told) <= 200
    assert in_one_line(TimeoutError()) == "TimeoutError"


# --- Processes that hang or die ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "limit", "reason"),
    [("hang", 2.0, "no answer in 2 s"), ("die", 90.0, ""), ("log_without_service", 90.0, "")],
)
def test_whatever_its_process_does_ends_in_a_note(tmp_path, monkeypatch, function, limit, reason):
    out, temporary, began = tmp_path / "out", tmp_path / "temporary", time.monotonic()
    groups = [[record(0)], [record(0, "ssge")], [record(0, "rand-a")]]
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with monkeypatch.context() as patch, WandbUploads("offline", out, limit) as uploads:
        patch.setattr(wandb_runs, "log_once", getattr(wandb_processes, function))
        for group in groups:
            uploads.log(group)
        assert time.monotonic() - began < 1.5  # handing over waits for nothing
    assert time.monotonic() - began < limit + 10
    assert set(uploads.notes) == {"stopped"}
    assert uploads.notes["stopped"].startswith(reason)
    assert not (out / "wandb" / "logged").exists()
    assert list(temporary.iterdir()) == []
    if function == "log_without_service":  # a whole process logs what is missing
        assert log(out, *groups).notes == {}
        assert len(list((out / "wandb" / "logged").iterdir())) == 3


def test_an_exception_outside_waits_for_nothing(tmp_path, monkeypatch):
    """Ctrl-C, say: what is not logged yet is left to the next run."""
    monkeypatch.setattr(wandb_runs, "log_once", wandb_processes.hang)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), WandbUploads("offline", tmp_path / "out") as uploads:  # noqa: PT012
        uploads.log([record()])
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


def run_script(folder, function, then="pass"):
    """Among modules that must not be taken for libraries."""
    (folder / "temporary").mkdir()
    (folder / "records").write_bytes(pickle.dumps([record()]))
    for name in ("queue", "socket"):
        (folder / f"{name}.py").write_text("raise RuntimeError")
    script = folder / "scripts" / "script.py"
    script.parent.mkdir()
    script.write_text(SCRIPT.format(function=function, then=then))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(folder / "temporary")}
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.run([sys.executable, str(script)], cwd=folder, env=environment, stdout=subprocess.PIPE,
                          text=True, timeout=120, check=False)  # fmt: skip


@pytest.mark.slow
def test_its_process_ignores_ctrl_c_and_modules_in_the_current_folder(tmp_path):
    assert run_script(tmp_path, "hear_ctrl_c").stdout == "{} None\n"
    assert len(list((tmp_path / "out").glob("alive-*"))) == 1


@pytest.mark.slow
def test_nothing_stays_behind_where_its_parent_was_killed(tmp_path):
    wait = "while not list(out.glob('alive-*')): time.sleep(0.1)"
    run_script(tmp_path, "hear_ctrl_c_and_hang", f"{wait}\n        os.kill(os.getpid(), signal.SIGKILL)")
    ((*_, number),) = (path.name.split("-") for path in (tmp_path / "out").glob("alive-*"))
    deadline = time.monotonic() + 20
    while list((tmp_path / "temporary").glob("fsvi-*")) or alive(int(number)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def alive(number):
    """Whether there is such a process that has not ended; one that nobody has reaped has."""
    stat = Path(f"/proc/{number}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_ends_in_a_note(tmp_path):
    """Not even by root: a file lies there."""
    (tmp_path / "wandb").write_text("")
    assert set(log(tmp_path, [record()]).notes) == {"stopped"}
    assert (tmp_path / "wandb").read_text() == ""
    assert all(str(tmp_path) in note.format("it failed", tmp_path) for note in NOTES.values())
