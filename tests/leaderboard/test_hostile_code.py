"""Submitted code that does not want to be re-run fairly: each attempt ends in one plain sentence, and reaches nothing."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.rerun import child
from fsvi_bench.leaderboard.rerun.child import Limits, RunFailed
from fsvi_bench.leaderboard.rerun.jail import Jail
from tests.leaderboard.rerunning import LIMITS, method_that, trained

pytestmark = pytest.mark.slow

#: Whatever of this comes to something is named in the exception that ends the training.
REACH = """
import gc, socket
done = []

def attempt(name, action):
    try:
        if action() is not False:
            done.append(name)
    except Exception:
        pass

attempt("socket", lambda: socket.socket())
attempt("connect", lambda: socket.create_connection(("127.0.0.1", {port}), timeout=2))
attempt("fork", os.fork)
attempt("program", lambda: os.posix_spawn("/bin/true", ["true"], dict()))
attempt("signal", lambda: os.kill(os.getppid(), 0))
attempt("home", lambda: open("{home}"))
attempt("tests", lambda: os.listdir("{tests}"))
attempt("job folder", lambda: open(sys.argv[1] + "/mine", "w"))
attempt("link", lambda: os.symlink("/etc/passwd", sys.argv[1] + "/final.safetensors"))
attempt("source", lambda: open(__file__, "a"))
attempt("package", lambda: open(torch.__file__, "a"))
attempt("secrets", lambda: any("secret" in value for value in os.environ.values()))
attempt("tasks", lambda: bool(__import__("fsvi_bench.tasks.official").tasks.official.official_splits("boston")))
attempt("truth", lambda: any(type(each).__name__ in ("FrozenTask", "Task", "Truth") for each in gc.get_objects()))
attempt("scratch", lambda: open("/tmp/mine", "w"))
raise RuntimeError(f"reached: {{', '.join(done)}}")
"""


def test_it_reaches_nothing(tmp_path, monkeypatch):
    """A file of its own in memory is all that it gets."""
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    monkeypatch.setenv("HOME", str(tmp_path))
    key = tmp_path / "key"
    key.write_text("a secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        lines = REACH.format(port=server.getsockname()[1], home=key, tests=Path(__file__).parent)
        result = trained(method_that(*lines.splitlines()))
    assert result.status == "failed"
    assert result.reason == "RuntimeError: reached: scratch"
    assert result.confined


#: What a process may do to others of its user, `{other}` and its parent among them; each takes nothing but one call.
MEDDLE = """
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
done, parent, other = [], os.getppid(), {other}

def attempt(name, action):
    try:
        result = action()
    except Exception:
        return
    if not (isinstance(result, int) and result < 0):
        done.append(name)

word, info = (ctypes.c_char * 8)(), (ctypes.c_int * 32)(0, 0, -1)  # SI_QUEUE
piece = (ctypes.c_void_p * 2)(ctypes.addressof(word), 8)
attempt("kill", lambda: os.kill(other, 0))
attempt("tkill", lambda: libc.syscall({tkill}, other, 0))
attempt("tgkill", lambda: libc.syscall({tgkill}, other, other, 0))
attempt("rt_sigqueueinfo", lambda: libc.syscall({rt_sigqueueinfo}, other, 0, info))
attempt("rt_tgsigqueueinfo", lambda: libc.syscall({rt_tgsigqueueinfo}, other, other, 0, info))
attempt("pidfd_open", lambda: libc.syscall(434, other, 0))
attempt("prlimit of the parent", lambda: resource.prlimit(parent, resource.RLIMIT_CORE))
attempt("environ of the parent", lambda: open(f"/proc/{{parent}}/environ").read())
attempt("memory of the parent", lambda: open(f"/proc/{{parent}}/mem", "r+b").close())
attempt("own limits", lambda: resource.prlimit(0, resource.RLIMIT_CORE))
raise RuntimeError(f"reached: {{', '.join(done)}}")
"""
_NUMBERS = {
    "x86_64": {"tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297},
    "aarch64": {"tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240},
}


def test_without_a_jail_it_meddles_with_no_other_process():
    """A second wall behind the jail; that user's files it can reach. Free, it comes through with all of it but the
    memory of its parent, which some systems close to everybody."""
    with subprocess.Popen(["sleep", "300"]) as other:
        try:
            lines = MEDDLE.format(other=other.pid, **_NUMBERS[platform.machine()])
            free = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)
            result = trained(method_that(*lines.splitlines()), within=Jail(None))
        finally:
            other.kill()
    for name in ("kill", "tgkill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "prlimit", "environ"):
        assert name in free.stderr.splitlines()[-1]
    assert (result.status, result.reason) == ("failed", "RuntimeError: reached: own limits")
    assert result.confined


def test_it_does_what_it_should():
    """The same file without an attack trains: the tests below fail for what they name."""
    result = trained(method_that("pass"))
    assert (result.status, result.reason) == ("ok", None)
    assert [snapshot.steps for snapshot in result.snapshots] == [1]  # one step: a formula, with nothing before it
    assert torch.equal(result.snapshots[-1].posterior.mean, torch.zeros(5, dtype=torch.float64))
    assert 0 < result.snapshots[0].seconds <= result.seconds


CRASHES = {
    "segmentation fault": ("__import__('ctypes').string_at(0)", "it was ended by signal SIGSEGV before it had sent"),
    "closed pipe": ("os.close(int(sys.argv[2])); os.read(os.pipe()[0], 1)", "it fell silent before"),
    "last words": (
        "sys.stderr.write('bye \\x1b[31m\\x07\\u202e' + 'x' * 10**6); sys.stderr.flush(); os._exit(3)",
        "it ended with status 3 before it had sent its posterior; its last words: 'x",
    ),
}


@pytest.mark.parametrize("name", CRASHES)
def test_it_ends_before_its_time(name):
    code, words = CRASHES[name]
    with pytest.raises(RunFailed) as caught:
        trained(method_that(code))
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_before_it_is_read_nothing_is_its_failure(monkeypatch):
    """A machine with too much to do is no reason to refuse a submission."""
    monkeypatch.setattr(child, "START_SECONDS", 0.0)
    with pytest.raises(InputError, match="did not come so far as to read it: it did not get ready within 0 s"):
        trained(method_that("pass"))


def test_what_it_raises_is_its_failure_on_one_printable_line():
    result = trained(method_that("raise ValueError('a\\x1b[31m\\nb <b>\\'' + 'c' * 10000)"))
    assert result.status == "failed"
    assert result.reason is not None
    assert result.reason.startswith("ValueError: a [31m b <b>’ccc")
    assert len(result.reason) <= 300
    assert result.reason.isprintable()


@pytest.mark.parametrize("code", ["while True: pass", "while True: os.write(2, b'x' * 2**20)"])
def test_it_goes_on_for_ever(code):
    """Busy, or flooding stderr meanwhile: it is ended, and the verifier has kept none of it."""
    tracemalloc.start()
    began = time.monotonic()
    try:
        with pytest.raises(RunFailed, match=r"it was not done within 3 s \(why\)"):
            trained(method_that(code), Limits(steps=10, seconds=3.0, memory=LIMITS.memory, seconds_are="why"))
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < 60


def test_a_verifier_that_waits_less_than_the_budget_allows_does_not_refuse():
    short = Limits(steps=10, seconds=1.0, memory=LIMITS.memory, seconds_are="mine", within_budget=True)
    with pytest.raises(InputError, match=r"it was not done within 1 s \(mine\).*; give a larger --max-seconds"):
        trained(method_that("while True: pass"), short)


def test_it_asks_for_a_hundred_gigabytes():
    lines = ["try:", "    bytearray(10**11)", "except MemoryError:", "    torch.ones(10**11 // 8, dtype=torch.float64)"]
    result = trained(method_that(*lines))
    assert result.status == "failed"
    assert "tried to allocate 100000000000 bytes" in str(result.reason)


def test_it_fills_its_disk():
    result = trained(method_that("for i in range(10**6): open(f'/tmp/{i}', 'wb').write(bytes(2**24))"))
    assert (result.status, result.reason) == ("failed", "OSError: [Errno 28] No space left on device")


def test_it_speaks_for_the_worker():
    """It holds the pipe and may write to it what it likes; `test_rerun_protocol` has what else it might like."""
    with pytest.raises(RunFailed, match="it sent a message of 4294967295 and 4294967295 bytes, expected at most 16384"):
        trained(method_that("os.write(int(sys.argv[2]), b'\\xff' * 8)", "os.read(os.pipe()[0], 1)"))
