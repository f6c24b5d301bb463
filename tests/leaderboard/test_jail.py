"""The jail by itself, with commands of any kind in it; and what a process gives up before it runs submitted code."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fsvi_bench
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.rerun.confinement import closed_to_its_user
from fsvi_bench.leaderboard.rerun.jail import SCRATCH, Jail, environment, find_jail
from fsvi_bench.resources import resource_dir
from fsvi_bench.tasks.raw import DATA_VARIABLE
from tests.leaderboard.rerunning import jail

#: Each attempt leaves its name if it comes to something.
ATTEMPTS = """
import json, os, pathlib, socket, sys
wanted = json.loads(sys.argv[1])

def reads(path):
    path = pathlib.Path(path)
    return bool(os.listdir(path)) if path.is_dir() else bool(path.read_bytes())

def writes(folder):
    pathlib.Path(folder, "mine").write_text("mine")
    return True

def connects(port):
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True

def sees(pid):
    return os.path.exists(f"/proc/{pid}/cmdline")

def knows(name):
    return name in os.environ or any(name in environ_of(pid) for pid in os.listdir("/proc") if pid.isdigit())

def environ_of(pid):
    try:
        return pathlib.Path("/proc", pid, "environ").read_text()
    except OSError:
        return ""

done = []
for name, value in wanted:
    try:
        if globals()[name](value):
            done.append([name, value])
    except OSError:
        pass
print(json.dumps(done))
"""


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def python(within: Jail, folder: Path, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = within.command(folder, arguments)
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, **options)


def test_nothing_of_the_machine_is_in_reach(tmp_path, monkeypatch, listener):
    """Every attempt comes to something outside; inside, only what a method needs."""
    home, data, folder, other = (tmp_path / name for name in ("home", "data", "job", "other-submission"))
    for each in (home, data, folder, other):
        each.mkdir()
        (each / "file").write_text("words")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv(DATA_VARIABLE, str(data))
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    tasks, package = resource_dir("datasets"), Path(fsvi_bench.__file__).parent
    closed = [
        *(["reads", str(path)] for path in (home / "file", data / "file", other / "file", tasks, Path(__file__))),
        *(["reads", str(path)] for path in (home, data, Path.cwd() / "tests", "/etc/passwd")),
        *(["writes", str(path)] for path in (folder, other)),
        ["connects", listener],
        ["sees", os.getpid()],
        ["knows", "WANDB_API_KEY"],
    ]
    # What lies above the job's folder is there in name only, in memory; what is written to it goes nowhere.
    open_ = [["reads", str(folder / "file")], ["reads", str(package / "errors.py")], ["writes", str(tmp_path)]]
    arguments = ["-c", ATTEMPTS, json.dumps(closed + open_)]
    outside = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    assert json.loads(outside.stdout) == closed + open_
    (tmp_path / "mine").unlink()
    (folder / "mine").unlink()
    sealed = [["writes", str(path)] for path in (package, sys.prefix, "/", "/dev", "/usr")]
    inside = python(jail(), folder, "-c", ATTEMPTS, json.dumps(closed + sealed + open_))
    assert inside.returncode == 0, inside.stderr
    assert json.loads(inside.stdout) == open_
    assert not (tmp_path / "mine").exists()


def test_what_is_hidden_is_empty_though_all_around_it_is_shown(tmp_path):
    package = Path(fsvi_bench.__file__).parent
    within = Jail(jail().bwrap, hidden=(package / "presenting", Path("/usr/share"), Path("/"), tmp_path / "absent"))
    look = "import os,sys;print([sorted(os.listdir(p)) for p in sys.argv[1:]]);open(sys.argv[1]+'/x','w')"
    seen = python(within, tmp_path, "-c", look, str(package / "presenting"), "/usr/share")
    assert seen.stdout.strip() == "[[], []]"
    assert "Read-only file system" in seen.stderr


def test_a_folder_that_python_needs_cannot_be_hidden(tmp_path):
    within = Jail("/usr/bin/bwrap", hidden=(Path(sys.prefix),))
    with pytest.raises(InputError, match="holds both Python and what submitted code must not see"):
        within.command(tmp_path, ["-c", "pass"])


def test_what_may_be_written_is_little(tmp_path):
    fill = "import os\ntry:\n for i in range(99): open(f'/tmp/{i}','wb').write(bytes(2**20))\nexcept OSError as e: print(i, e.strerror)"
    written, words = python(jail(), tmp_path, "-c", fill).stdout.split(maxsplit=1)
    assert int(written) <= SCRATCH / 2**20
    assert words.strip() == "No space left on device"


def running(marker: str) -> bool:
    """Whether any process has this word in its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker in path.read_text(errors="replace"):
                return True
        except OSError:
            continue
    return False


def until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("killed", ["bubblewrap", "verifier"])
def test_what_it_started_ends_with_it(tmp_path, killed):
    """A grandchild in a session of its own, which only the end of the namespace ends."""
    marker = f"{os.getpid()}.{time.time_ns()}"
    code = f"import subprocess,time;subprocess.Popen(['sleep','{marker}'],start_new_session=True);time.sleep(600)"
    command = jail().command(tmp_path, ["-c", code])
    if killed == "verifier":
        starts = f"import subprocess,time;subprocess.Popen({command!r});time.sleep(600)"
        command = [sys.executable, "-c", starts]
    # The marker stands in the command lines of those who start the sleeper, too, with a comma or a quote behind it.
    process = subprocess.Popen(command, env=environment(), start_new_session=True)
    try:
        until(lambda: running(f"sleep\0{marker}\0"))
    finally:
        process.kill()
        process.wait()
    until(lambda: not running(marker))


def test_the_environment_is_made_from_nothing(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    made = environment()
    assert "a secret" not in made.values()
    assert made["MKL_CBWR"] == "COMPATIBLE"  # how libraries round is not a secret
    assert made["OMP_NUM_THREADS"] == "1"


def test_without_bubblewrap_there_is_no_jail_and_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_jail()
    assert found.bwrap is None
    assert found.words == "no jail: this user's files were in the submitted code's reach"
    assert found.command(tmp_path, ["-V"])[0] == sys.executable


def test_a_bubblewrap_that_does_not_work_is_not_used(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_jail().bwrap is None


CONFINED = """
import ctypes, json, mmap, os, signal, socket, sys, threading
from fsvi_bench.leaderboard.rerun.confinement import confine
closed = confine(memory=256 * 2**20, cpu_seconds=2) if sys.argv[1] == "confined" else None
libc = ctypes.CDLL(None, use_errno=True)

def fork():
    if os.fork() == 0:
        os._exit(0)

def fork_by_clone():
    pid = libc.syscall(56 if os.uname().machine == "x86_64" else 220, signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid < 0:
        raise OSError

attempts = {
    "fork": fork,
    "clone": fork_by_clone,
    "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "socket": lambda: socket.socket().close(),
    "unix": lambda: socket.socket(socket.AF_UNIX).close(),
    "memfd": lambda: os.memfd_create("x"),
    "kill": lambda: os.kill(os.getpid(), 0),
    "allocate": lambda: bytearray(512 * 2**20),
    "share": lambda: mmap.mmap(-1, 512 * 2**20),
    "large file": lambda: os.truncate("large", 128 * 2**20),
    "thread": lambda: threading.Thread(target=int).start(),
    "small": lambda: bytearray(64 * 2**20),
}
open("large", "w").close()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
done = []
for name, attempt in attempts.items():
    try:
        attempt()
        done.append(name)
    except (OSError, MemoryError):
        pass
print(json.dumps([closed, done]), flush=True)
if closed:
    while True:
        pass
"""


def test_a_verifier_is_closed_to_its_user_only_while_it_wants_to_be():
    dumpable = lambda: ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)  # noqa: E731 (PR_GET_DUMPABLE)
    assert dumpable() == 1
    with closed_to_its_user():
        assert dumpable() == 0
    assert dumpable() == 1


@pytest.mark.slow
def test_a_confined_process_has_given_up_memory_time_sockets_and_other_processes(tmp_path):
    """Outside a jail: none of it rests on bubblewrap. All that is tried works in a process that is not confined."""
    environ = {**os.environ, "PYTHONPATH": str(Path(fsvi_bench.__file__).parents[1])}

    def attempts(how):
        command = [sys.executable, "-c", CONFINED, how]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)

    free, confined = attempts("free"), attempts("confined")
    assert free.returncode == 0, free.stderr
    assert json.loads(free.stdout)[1][-2:] == ["thread", "small"]
    assert len(json.loads(free.stdout)[1]) == 12
    assert json.loads(confined.stdout) == [True, ["thread", "small"]], confined.stderr
    assert -confined.returncode in (signal.SIGXCPU, signal.SIGKILL)
