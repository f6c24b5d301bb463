"""When W&B fails: a note, in bounded time, and never more than that; what failed is logged by the next run."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.presenting import wandb_log, wandb_process
from fsvi_bench.presenting.cell_files import folder_of, load_posterior, load_traces
from fsvi_bench.presenting.wandb_content import artifact_name, config, run_content
from fsvi_bench.presenting.wandb_log import WandbLogger, choose_mode
from fsvi_bench.scoring.scores import score
from fsvi_bench.tasks.build import load_cached
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import bind_task
from tests.presenting.wandb_calls import by_group, log_records
from tests.presenting.wandb_cells import loader, of, trained
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
    assert choose_mode("auto") == "offline"
    no_key.write_text("machine api.wandb.ai login user password key\n")
    assert choose_mode("auto") == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8080")
    assert choose_mode("auto") == "offline"
    no_key.write_text("machine wandb.example.org login user password key\n")
    assert choose_mode("auto") == "online"
    no_key.write_text("machine a b c d e f g")
    assert choose_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "key")
    assert choose_mode("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert choose_mode("auto") == "off"
    assert choose_mode("offline") == "offline"
    with pytest.raises(InputError, match="--wandb is 'loud', expected auto, online, offline or off"):
        choose_mode("loud")


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


@pytest.mark.parametrize("method", ["my file.py:Class", "x" * 300, "größe/π", "..."])
def test_names_are_wandbs(finished, method):
    import wandb

    records, store = finished
    record = of(records, "exact")[0].model_copy(update={"method": method})
    name = f"{artifact_name(record)}-posterior"
    wandb.Artifact(name, "posterior")
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name)
    assert artifact_name(record) != artifact_name(record.model_copy(update={"hyperparameters": {"lr": 1}}))
    init = run_content([record], {}, store.root, "offline", Path())["init"]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", tag) for tag in init["tags"])
    assert init["name"] == f"toy-{method}-ffg"[:128]
    assert max(len(init["group"]), len(init["job_type"])) <= 128


# --- Exceptions of W&B's ----------------------------------------------------------------------------------------------


class Run:
    """As much of a run as `log_run` needs."""

    def __init__(self, folder, refuse):
        self.dir, self.refuse = str(folder / "files"), refuse

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.refuse == "finish":
            raise TimeoutError("finish")

    def define_metric(self, *_, **__):
        if self.refuse == "log":
            raise RuntimeError("log\nwas refused")


@pytest.fixture
def content(tmp_path):
    (tmp_path / "out").mkdir()
    steps = {"step_metrics": {"a/*": "steps"}, "rows": [], "tables": {}, "images": {}, "artifacts": [], "summary": {}}
    return {"mode": "offline", "init": {"dir": str(tmp_path / "out")}, **steps}


def reply(content, tmp_path):
    import json

    path = tmp_path / "content.json"
    path.write_text(json.dumps(content))
    return wandb_process.Reporter().reply(str(path))


def test_an_init_that_raises_is_an_error(monkeypatch, content, tmp_path):
    import wandb

    def init(**_):
        raise wandb.errors.UsageError("no")

    monkeypatch.setattr(wandb, "init", init)
    assert reply(content, tmp_path) == {"error": "UsageError: no"}


@pytest.mark.parametrize(
    ("refuse", "said"), [("log", "RuntimeError: log was refused"), ("finish", "TimeoutError: finish")]
)
def test_a_run_that_raises_is_an_error_and_leaves_no_half_of_itself(monkeypatch, content, tmp_path, refuse, said):
    import wandb

    folder = tmp_path / "out" / "wandb" / "offline-run-1"
    (folder / "files").mkdir(parents=True)
    monkeypatch.setattr(wandb, "init", lambda **_: Run(folder, refuse))
    assert reply(content, tmp_path) == {"error": said}
    assert not folder.exists()


def test_a_run_in_the_systems_temporary_folder_is_an_error(monkeypatch, content, tmp_path):
    """Where W&B cannot write it goes there, and says so nowhere."""
    import wandb

    folder = tmp_path / "elsewhere" / "offline-run-1"
    (folder / "files").mkdir(parents=True)
    monkeypatch.setattr(wandb, "init", lambda **_: Run(folder, None))
    assert reply(content, tmp_path) == {"error": f"OSError: {tmp_path / 'out' / 'wandb'} is not writable"}


# --- Processes that hang, die or talk nonsense ------------------------------------------------------------------------

HANGS = "import sys, time\nsys.stdin.readline()\ntime.sleep(600)"
DIES = "import sys\nsys.stdin.readline()\nsys.exit(3)"
BABBLES = "import sys\nfor line in sys.stdin: print('wandb: hello', flush=True)"
#: Kills W&B's service, its only child, before the first value is logged.
SERVICE_DIES = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(Path(wandb_process.__file__).parent)!r})
import wandb_process
fill = wandb_process.fill
def killing(run, content):
    for stat in Path('/proc').glob('[0-9]*/stat'):
        try: name, ppid = stat.read_text().rpartition(')')[0], int(stat.read_text().rpartition(')')[2].split()[1])
        except OSError: continue
        if ppid == os.getpid() and 'wandb-core' in name: os.kill(int(stat.parent.name), signal.SIGKILL)
    fill(run, content)
wandb_process.fill = killing
wandb_process.main()
"""


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (HANGS, "TimeoutError: no answer in 2 s"),
        (DIES, "ConnectionError: its process ended with status 3"),
        (BABBLES, "JSONDecodeError"),
        pytest.param(SERVICE_DIES, "", marks=pytest.mark.slow),
    ],
    ids=["hangs", "dies", "babbles", "service dies"],
)
def test_whatever_its_process_does_ends_in_a_note(tmp_path, finished, monkeypatch, script, reason):
    path = tmp_path / "process.py"
    path.write_text(script)
    monkeypatch.setattr(wandb_log, "PROCESS", path)
    limit = 30.0 if script is SERVICE_DIES else 2.0
    out, began = tmp_path / "out", time.monotonic()
    with WandbLogger("offline", out, limit) as logger:
        for group in by_group(finished[0]):
            logger.log(group, {})
        assert time.monotonic() - began < 1.5  # handing over waits for nothing
    assert time.monotonic() - began < 2 * limit + 20
    (note,) = logger.notes
    assert note.startswith(f"W&B logging stopped ({reason}")
    assert note.endswith(f"the records are complete in {out}, and the same command again logs what is missing")
    assert "\n" not in note
    assert not (out / "wandb" / "logged").exists()
    # A whole process logs what is missing.
    monkeypatch.setattr(wandb_log, "PROCESS", Path(wandb_process.__file__))
    if script is SERVICE_DIES:
        assert log_records(finished[0], "offline", out, loader(finished[1])) == []
        assert len(list((out / "wandb" / "logged").iterdir())) == 3


def test_what_cannot_be_loaded_ends_in_a_note(tmp_path, finished):
    def load(_):
        raise InputError("trace.csv is not a trace")

    (note,) = log_records(finished[0], "offline", tmp_path, load)
    assert note.startswith("W&B logging stopped (InputError: trace.csv is not a trace)")


def test_an_exception_outside_waits_for_nothing(tmp_path, finished, monkeypatch):
    """Ctrl-C, say: what is not logged yet is left to the next run."""
    path = tmp_path / "process.py"
    path.write_text(HANGS)
    monkeypatch.setattr(wandb_log, "PROCESS", path)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), WandbLogger("offline", tmp_path / "out") as logger:  # noqa: PT012
        logger.log(finished[0][:1], {})
        time.sleep(0.5)
        raise KeyboardInterrupt
    assert time.monotonic() - began < 10
    assert not (tmp_path / "out" / "wandb" / "logged").exists()


# --- The file system and the network ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_ends_in_a_note(tmp_path, finished):
    """Not even by root: a file lies there."""
    (tmp_path / "wandb").write_text("")
    (note,) = log_records(finished[0], "offline", tmp_path, loader(finished[1]))
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
@pytest.mark.parametrize("left", [150, 450])
def test_a_full_disk_ends_in_a_note_and_with_space_all_is_logged(tmp_path, finished, left):
    """Room for W&B's folders at most, or for a run but for its last part."""
    groups = of(finished[0], "mean-field-vi"), of(finished[0], "exact")
    with tiny_disk(tmp_path / "disk") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(1024 * (1024 - left)))
        notes = log_records([*groups[0], *groups[1]], "offline", disk, loader(finished[1]))
        assert len(notes) == 1
        assert notes[0].startswith("W&B logging stopped (")
        whole = len(list((disk / "wandb").glob("logged/*")))
        assert whole < 2
        ballast.unlink()
        assert log_records([*groups[0], *groups[1]], "offline", disk, loader(finished[1])) == []
        assert len(list((disk / "wandb" / "logged").iterdir())) == 2
        for path in (disk / "wandb").glob("offline-run-*"):
            assert read_run(path).exit_code == 0


@pytest.mark.slow
def test_a_server_out_of_reach_means_offline_and_a_note(tmp_path, finished, monkeypatch):
    """A port of this machine on which nobody listens. W&B tries for `INIT_TIMEOUT` seconds, once for all runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    began = time.monotonic()
    (note,) = log_records(finished[0], "online", tmp_path, loader(finished[1]))
    assert time.monotonic() - began < wandb_process.INIT_TIMEOUT + 60
    assert note.startswith("W&B did not go online (")
    assert note.endswith(f"its runs are kept in {tmp_path / 'wandb'}, and `wandb sync` sends them")
    assert "\n" not in note
    runs = [read_run(path) for path in (tmp_path / "wandb").glob("offline-run-*")]
    assert sorted(run.exit_code for run in runs) == [0, 0, 0]
    assert os.environ["WANDB_BASE_URL"].endswith(str(port))
