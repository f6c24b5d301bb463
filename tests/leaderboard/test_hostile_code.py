"""Submitted code that does not want to be re-run fairly: each attempt ends in one plain sentence, and reaches nothing."""

from __future__ import annotations

import socket
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsvi_bench.leaderboard.rerun.child import Limits, RunFailed, printable
from fsvi_bench.leaderboard.rerun.protocol import Final, Garbled, Reached, Reader, Ready, Started
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.io import posterior_file
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
attempt("truth", lambda: any(type(each).__name__ in ("Task", "Problem", "Truth") for each in gc.get_objects()))
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


def test_it_does_what_it_should():
    """The same file without an attack trains: the tests below fail for what they name."""
    result = trained(method_that("pass"))
    assert (result.status, result.reason) == ("ok", None)
    assert [snapshot.steps for snapshot in result.snapshots] == [0, 1]
    assert torch.equal(result.snapshots[-1].posterior.mean, torch.zeros(5, dtype=torch.float64))
    assert 0 < result.snapshots[0].seconds <= result.snapshots[1].seconds <= result.seconds


CRASHES = {
    "exit": ("os._exit(3)", "it ended with status 3 before it had sent its posterior"),
    "silent exit": ("os._exit(0)", "it ended with status 0 before"),
    "segmentation fault": ("__import__('ctypes').string_at(0)", "it was ended by signal SIGSEGV"),
    "closed pipe": ("os.close(int(sys.argv[2])); os.read(os.pipe()[0], 1)", "it fell silent before"),
    "last words": (
        "sys.stderr.write('bye \\x1b[31m\\x07\\u202e' + 'x' * 10**6); sys.stderr.flush(); os._exit(3)",
        "; its last words: 'x",
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
        with pytest.raises(RunFailed, match="it was not done within 3 s"):
            trained(method_that(code), Limits(steps=10, seconds=3.0, memory=LIMITS.memory))
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("code", ["bytearray(10**11)", "torch.ones(10**11 // 8, dtype=torch.float64)"])
def test_it_asks_for_a_hundred_gigabytes(code):
    result = trained(method_that(code))
    assert result.status == "failed"
    assert result.reason is not None
    assert "memory" in result.reason.lower()


def test_it_fills_its_disk():
    result = trained(method_that("for i in range(10**6): open(f'/tmp/{i}', 'wb').write(bytes(2**24))"))
    assert (result.status, result.reason) == ("failed", "OSError: [Errno 28] No space left on device")


def test_it_wants_more_steps_than_were_declared():
    source = method_that("pass").replace(b"num_steps = 1\n", b"num_steps = 11\n")
    with pytest.raises(RunFailed, match="it wants 11 steps, its declared budget has 10"):
        trained(source)


SENDS = """
from fsvi_bench.leaderboard.rerun import protocol
from fsvi_bench.posteriors.io import posterior_file
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
pipe, q = int(sys.argv[2]), self.posterior()[0]
{}
os.read(os.pipe()[0], 1)
"""
FORGED = {
    "words": ("os.write(pipe, b'not a message' * 9)", "it sent a message of"),
    "a huge message": ("os.write(pipe, b'\\xff' * 8)", "it sent a message of 4294967295 and 4294967295 bytes"),
    "no message of ours": ("os.write(pipe, bytes([0, 0, 0, 2, 0, 0, 0, 0]) + b'{{}}')", "that no worker of ours sends"),
    "nested": (
        "os.write(pipe, bytes([0, 0, 64, 0, 0, 0, 0, 0]) + b'[' * 2**14)",
        "a message that no worker of ours sends",
    ),
    "ready again": ("protocol.send(pipe, protocol.Ready(confined=True))", "it sent 'ready' twice"),
    "started again": ("protocol.send(pipe, protocol.Started(num_steps=5))", "it sent 'started' twice"),
    "a step too many": (
        "protocol.send(pipe, protocol.Reached(steps=9, work=None), posterior_file(q))",
        "it sent q after 9 steps, out of turn",
    ),
    "no posterior": (
        "protocol.send(pipe, protocol.Final(status='ok', reason=None, steps=1, work=None))",
        "it sent a posterior that cannot be read: posterior.safetensors",
    ),
    "a pickle": (
        "protocol.send(pipe, protocol.Final(status='ok', reason=None, steps=1, work=None), b'\\x80\\x04K\\x01.')",
        "posterior.safetensors is not a safetensors file",
    ),
    "another family": (
        "protocol.send(pipe, protocol.Final(status='ok', reason=None, steps=1, work=None), "
        "posterior_file(FactorisedGaussian(q.mean, torch.ones_like(q.mean))))",
        "it sent a posterior of kind gaussian-ffg, its family's is gaussian-full",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_it_speaks_for_the_worker(name):
    """It holds the pipe, and may write to it what it likes."""
    code, words = FORGED[name]
    with pytest.raises(RunFailed) as caught:
        trained(method_that(*SENDS.format(code.replace("{{}}", "{}")).strip().splitlines()))
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_posterior_that_it_sends_early_is_scored_like_any_other():
    """It may send the end before the end: that is its training, then, and the verifier's clock has timed it."""
    code = "protocol.send(pipe, protocol.Final(status='ok', reason=None, steps=1, work=None), posterior_file(q))"
    result = trained(method_that(*SENDS.format(code).strip().splitlines()))
    assert result.status == "ok"
    assert result.seconds > 0


@pytest.mark.parametrize("what", ["nan", "shape"])
def test_a_posterior_that_is_none_is_told_by_the_worker(what):
    q = {"nan": "mean * float('nan')", "shape": "mean[:, :3]"}[what]
    source = method_that("pass").replace(b"FullGaussian(mean,", f"FullGaussian({q},".encode())
    result = trained(source)
    assert (result.status, result.reason) == {
        "nan": ("diverged", "the posterior holds NaN or infinity"),
        "shape": ("failed", "the posterior is not one over the weights: its mean has shape [3], expected [5]"),
    }[what]
    assert result.snapshots == ()


def test_a_file_that_is_no_method_is_a_failure():
    for source, words in ((b"class Mine: pass", "is not a complete"), (b"\xff", "cannot be imported")):
        result = trained(source)
        assert result.status == "failed"
        assert words in str(result.reason)


def test_the_diagonal_family_has_its_own_kind():
    source = method_that("pass").replace(b"FullGaussian(mean, torch.diag_embed(torch.ones_like(mean)))",
                                         b"FactorisedGaussian(mean, torch.ones_like(mean))")  # fmt: skip
    source = source.replace(b"import FullGaussian", b"import FactorisedGaussian")
    assert isinstance(trained(source, family="ffg").snapshots[-1].posterior, FactorisedGaussian)


# What follows needs no process.

Q = posterior_file(FullGaussian(torch.zeros(5, dtype=torch.float64), torch.eye(5, dtype=torch.float64)))


def frame(message, file=b""):
    words = message.model_dump_json().encode()
    return struct.pack(">II", len(words), len(file)) + words + file


def test_messages_are_put_together_from_pieces_of_any_size():
    sent = [
        (Ready(confined=True), b""),
        (Started(num_steps=3), b""),
        (Reached(steps=0, work={"gradients": 2}), Q),
        (Final(status="diverged", reason="why", steps=3, work=None), b""),
    ]
    whole = b"".join(frame(*each) for each in sent)
    for size in (1, 7, len(whole)):
        reader = Reader(len(Q))
        pieces = (whole[start : start + size] for start in range(0, len(whole), size))
        assert [got for piece in pieces for got in reader.feed(piece)] == sent


@given(st.binary(max_size=200), st.integers(0, 40), st.integers(0, 255))
@settings(max_examples=500, deadline=None)
def test_no_bytes_upset_the_reader(noise, place, value):
    """Noise, and a good message with one byte changed: messages or `Garbled`, and nothing is kept beyond the bound."""
    changed = bytearray(frame(Reached(steps=1, work=None), b"abc"))
    changed[place % len(changed)] = value
    for content in (noise, bytes(changed), bytes(changed) + noise):
        reader = Reader(16)
        try:
            for message, file in reader.feed(content):
                assert isinstance(message, Ready | Started | Reached | Final)
                assert len(file) <= 16
        except Garbled:
            pass


def test_text_of_strangers_is_made_printable():
    assert printable("a\x1b[2J\nb\u202e\u2028'c'", 60) == "a [2J b ’c’"
    assert printable("x" * 100, 10) == "x" * 7 + "..."
