"""The verifier's side: starts the process that runs an entry's code, times it, hears it out, and ends it.

Nothing that the process says is taken for granted: messages are bounded and typed, posteriors are read as any
stranger's, the clock is the verifier's own. Its count of steps alone is taken on its word.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from fsvi_bench.errors import InputError, plain
from fsvi_bench.leaderboard.entry import Entry
from fsvi_bench.leaderboard.jailed.jail import Jail, environment
from fsvi_bench.leaderboard.jailed.messages import (
    MAX_POSTERIORS,
    MAX_REASON,
    Job,
    Message,
    Reached,
    Ready,
    RunFailed,
    take_messages,
    write_job,
)
from fsvi_bench.posteriors.base import KIND_OF, Family, Posterior
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.tasks.task import Task

START_SECONDS = 180.0  #: until `ready`: to import libraries and read the problem, before the entry's code runs
CONFORMANCE_SECONDS = 300.0
GRACE_SECONDS = 5.0  #: on top of what the budget allows: to import the entry's file and to write posteriors
_TAIL, _PIECE = 2000, 2**16  #: bytes that are looked at of its stderr, and read at a time of its messages


@dataclass(frozen=True)
class Limits:
    """What a run may take beside its entry's budget.

    `patience` times the declared seconds allows for hardware that is slower than the entry's; `seconds` is the most.
    """

    patience: float = 10.0
    seconds: float = 3600.0
    memory: int = 4 * 2**30  #: bytes, beyond what Python and its libraries take


@dataclass(frozen=True)
class Method:
    """Where the jailed process finds the entry's class, `module:Class` or `:Class` in its source, and the settings."""

    place: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """q after so many steps, and the seconds since the entry's file was about to be imported."""

    steps: int
    seconds: float
    posterior: Posterior


@dataclass(frozen=True, eq=False)
class Run:
    """How a run ended. The last snapshot is the final posterior if the status is ok."""

    status: Literal["ok", "diverged", "failed"]
    reason: str | None
    seconds: float
    snapshots: tuple[Snapshot, ...]
    isolation: str


def run_entry(entry: Entry, method: Method, task: Task, seed: int, jail: Jail, limits: Limits) -> Run:
    """Trains an entry's method on one task, in a process of its own.

    Raises:
        RunFailed: it exceeded a limit, ended before its time, or sent what no method may.
        InputError: the jail does not hold, or the process ends before it has touched the entry's code.
    """
    isolation, last, snapshots = "", -1, list[Snapshot]()
    with _conversation(entry, method, task, seed, jail, limits) as heard:
        while True:
            seconds, message, file = next(heard)
            if isinstance(message, Ready):
                isolation = "none" if jail.bwrap is None else f"{jail.words}, {quotable(message.confined, 100)}"
                continue
            if message.status == "diverged" or message.status == "failed":
                return Run(message.status, quotable(message.reason or "", 300), seconds, tuple(snapshots), isolation)
            if message.status == "ok" and last == message.steps:
                snapshots.pop()  # the last look on the way saw the same q, a moment earlier
            elif not last < message.steps <= max(1, entry.manifest.budget.steps):  # a formula is one step
                raise RunFailed(f"it sent a posterior after {message.steps} steps, out of turn")
            last = message.steps
            snapshots.append(Snapshot(last, seconds, _posterior(file, task.k, entry.manifest.family)))
            if message.status == "ok":
                return Run("ok", None, seconds, tuple(snapshots), isolation)
            if len(snapshots) > MAX_POSTERIORS:
                raise RunFailed(f"it sent more than the {MAX_POSTERIORS} posteriors that it was asked for")


def _posterior(file: bytes, k: int, family: Family) -> Posterior:
    """A posterior from the bytes of its file, read as any stranger's is."""
    try:
        posterior = read_posterior(Path("posterior"), k, content=file)
    except InputError as error:
        raise RunFailed(f"it sent a posterior that cannot be read: {quotable(str(error), 300)}") from error
    if posterior.kind != KIND_OF[family]:
        raise RunFailed(f"it sent a posterior of kind {posterior.kind}, its family's is {KIND_OF[family]}")
    return posterior


def check_entry(entry: Entry, method: Method, jail: Jail, limits: Limits) -> int:
    """Holds an entry's method to what every method must do, in the jail; returns how many rules it kept.

    Raises:
        RunFailed: it broke one, or as `run_entry`.
        InputError: as `run_entry`.
    """
    with _conversation(entry, method, None, 0, jail, limits) as heard:
        next(heard)
        _, message, _ = next(heard)
    assert isinstance(message, Reached)  # only the first message is `Ready`
    if message.status == "ok":
        return message.steps
    raise RunFailed(quotable(message.reason or "", MAX_REASON))


@contextlib.contextmanager
def _conversation(
    entry: Entry, method: Method, task: Task | None, seed: int, jail: Jail, limits: Limits
) -> Iterator[Iterator[tuple[float, Message, bytes]]]:
    """Starts the worker on a job, without a task that of conformance; it is gone for good afterwards."""
    budget = entry.manifest.budget
    allowed = min(limits.patience * budget.seconds + GRACE_SECONDS, limits.seconds) if task else CONFORMANCE_SECONDS
    with contextlib.ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fsvi-bench-")))
        folder, stage, planted = top / "job", top / "stage", top / "planted"
        for path in (folder, stage):
            path.mkdir()
        planted.write_text("planted")
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        job = Job(
            method=method.place,
            family=entry.manifest.family,
            settings=dict(method.settings),
            steps=budget.steps,
            seed=seed,
            memory=limits.memory,
            cpu_seconds=math.ceil(allowed),
            planted=str(planted) if jail.bwrap else None,
            port=listener.getsockname()[1],
        )
        write_job(folder, job, entry.source, task)
        for path in (top, *top.rglob("*")):  # for `nobody`, whatever the umask
            path.chmod(0o755 if path.is_dir() else 0o644)
        arguments = ["-m", "fsvi_bench.leaderboard.jailed.worker", str(folder)]
        errors = stack.enter_context(tempfile.TemporaryFile())
        process, pipe = _start(jail.command(folder, arguments, limits.memory, stage), errors, stack)
        largest_file = 8 * (task.k**2 + 3 * task.k) + 4096 if task else 0
        yield _messages(process, pipe, errors, largest_file, allowed)


def _start(command: list[str], errors: IO[bytes], stack: contextlib.ExitStack) -> tuple[subprocess.Popen[bytes], int]:
    """The process, which is told the number of a pipe to write to, and this pipe's other end.

    Raises:
        InputError: it cannot be started.
    """
    reading, writing = os.pipe()
    stack.callback(os.close, reading)
    try:
        process = subprocess.Popen(
            [*command, str(writing)],
            env=environment(),
            cwd="/",
            pass_fds=(writing,),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    except OSError as error:
        raise InputError(f"cannot start {command[0]}: {error.strerror}; no code of entries was run") from error
    finally:
        os.close(writing)
    stack.callback(_end, process)
    return process, reading


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _messages(
    process: subprocess.Popen[bytes], pipe: int, errors: IO[bytes], largest_file: int, allowed: float
) -> Iterator[tuple[float, Message, bytes]]:
    """What comes through the pipe, from `ready` on and with the seconds since then.

    Raises:
        RunFailed: after `ready`: the limit, the process's end, or what no worker of ours would say.
        InputError: the limit or the process's end before it; the jail does not hold.
    """
    ready: float | None = None
    received = bytearray()
    deadline, what = time.monotonic() + START_SECONDS, f"it was not done within {allowed:.0f} s"
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if not poller.poll(1000 * left):
            continue
        if not (piece := os.read(pipe, _PIECE)):
            what = f"{_ending(process)} before it had sent its posterior"
            break
        received += piece
        for message, file in take_messages(received, largest_file):
            now = time.monotonic()
            if (ready is None) != isinstance(message, Ready):
                raise RunFailed(f"it sent '{message.event}' out of turn")
            if isinstance(message, Ready):
                _require_no_leaks(message.leaks)
                ready, deadline = now, now + allowed
            yield now - (ready or now), message, file
    if ready is not None:
        raise RunFailed(what + _last_words(errors))
    raise InputError(f"the jail did not get ready: {what}{_last_words(errors)}; "
                     "mend bubblewrap, or wait for a less busy machine")  # fmt: skip


def _require_no_leaks(leaks: list[str]) -> None:
    if leaks:
        reached = quotable(" and ".join(dict.fromkeys(leaks)), 200)
        raise InputError(f"the jail does not hold: code in it could reach {reached}; is `bwrap` bubblewrap? "
                         "Nothing of the entry was run")  # fmt: skip


def _ending(process: subprocess.Popen[bytes]) -> str:
    """How a process ended that has closed its pipe."""
    try:
        status = process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        return "it fell silent"
    number = -status if status < 0 else status - 128  # bubblewrap's status for a signal is 128 + its number
    if number > 0 and number in signal.valid_signals():
        return f"it was ended by signal {signal.Signals(number).name}"
    return f"it ended with status {status}"


def _last_words(errors: IO[bytes]) -> str:
    """The end of what the process wrote to stderr, fit to be quoted; empty if it said nothing."""
    size = os.fstat(errors.fileno()).st_size
    tail = os.pread(errors.fileno(), _TAIL, max(0, size - _TAIL)).decode(errors="replace")
    lines = [line for line in tail.splitlines() if line.strip()]
    return f"; its last words: '{quotable(lines[-1], 160)}'" if lines else ""


def quotable(text: str, length: int) -> str:
    """A stranger's text on one line, shortened, without control characters, markup or quotes that would end its own."""
    return plain(text, length).translate(str.maketrans("'<>", "’‹›"))
