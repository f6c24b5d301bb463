"""The verifier's side: starts the process that runs an entry's code, times it, hears it out, and ends it.

Nothing that the process says is taken for granted: messages are bounded and typed, posteriors are read as any
stranger's, the clock is the verifier's own. Its count of steps alone is taken on its word.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fsvi_bench.errors import InputError, plain
from fsvi_bench.leaderboard.entry import Entry
from fsvi_bench.leaderboard.jailed.jail import Jail, environment
from fsvi_bench.leaderboard.jailed.messages import (
    MAX_POSTERIORS,
    Checked,
    Final,
    Job,
    Message,
    Reached,
    Reader,
    Ready,
    RunFailed,
    Started,
    write_job,
)
from fsvi_bench.posteriors.base import KIND_OF, Family, Posterior
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.tasks.task import Task

START_SECONDS = 180.0  #: until `ready`: to import libraries and read the problem, before the entry's code runs
CONFORMANCE_SECONDS, MOST_CHECKS = 300.0, 100
GRACE_SECONDS = 5.0  #: on top of what the budget allows: to import the entry's file and to write posteriors
_TAIL, _PIECE = 2000, 2**16  #: bytes kept of what the process writes to stderr, and read at a time


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
    budget = entry.manifest.budget
    allowed = min(limits.patience * budget.seconds + GRACE_SECONDS, limits.seconds)
    largest_file = 8 * (task.k**2 + 3 * task.k) + 4096
    isolation, num_steps, snapshots = "", -1, list[Snapshot]()
    for seconds, message, file in _conversation(entry, method, task, seed, jail, limits, allowed, largest_file):
        if isinstance(message, Ready):
            isolation = "none" if jail.bwrap is None else f"{jail.words}, {quotable(message.confined, 100)}"
        elif isinstance(message, Started) and num_steps < 0:
            num_steps = message.num_steps
            if num_steps > max(1, budget.steps):  # a formula is one step
                raise RunFailed(f"it wants {num_steps} steps, its declared budget has {budget.steps}")
        elif isinstance(message, Final) and message.status != "ok":
            return Run(message.status, quotable(message.reason or "", 300), seconds, tuple(snapshots), isolation)
        elif isinstance(message, Reached | Final):
            if isinstance(message, Final) and snapshots and snapshots[-1].steps == message.steps:
                snapshots.pop()  # the last look on the way saw the same q, a moment earlier
            if not (snapshots[-1].steps if snapshots else -1) < message.steps <= num_steps:
                raise RunFailed(f"it sent a posterior after {message.steps} steps, out of turn")
            snapshots.append(Snapshot(message.steps, seconds, _posterior(file, task.k, entry.manifest.family)))
            if isinstance(message, Final):
                return Run("ok", None, seconds, tuple(snapshots), isolation)
            if len(snapshots) > MAX_POSTERIORS:
                raise RunFailed(f"it sent more than the {MAX_POSTERIORS} posteriors that it was asked for")
        else:
            raise RunFailed(f"it sent '{message.event}' out of turn")
    raise AssertionError("a conversation ends with its final message or an exception")


def _posterior(file: bytes, k: int, family: Family) -> Posterior:
    """A posterior from the bytes of its file, read as any stranger's is."""
    try:
        posterior = read_posterior(Path("posterior"), k, content=file)
    except InputError as error:
        raise RunFailed(f"it sent a posterior that cannot be read: {quotable(str(error), 300)}") from error
    if posterior.kind != KIND_OF[family]:
        raise RunFailed(f"it sent a posterior of kind {posterior.kind}, its family's is {KIND_OF[family]}")
    return posterior


def check_entry(entry: Entry, method: Method, jail: Jail, limits: Limits) -> list[Checked]:
    """Holds an entry's method to what every method must do, in the jail.

    Raises:
        RunFailed, InputError: as `run_entry`.
    """
    found: list[Checked] = []
    for _, message, _ in _conversation(entry, method, None, 0, jail, limits, CONFORMANCE_SECONDS, 0):
        if isinstance(message, Checked) and len(found) < MOST_CHECKS:
            found.append(message)
        elif isinstance(message, Final) and message.reason is not None:
            raise RunFailed(quotable(message.reason, 300))
        elif not isinstance(message, Ready | Final):
            raise RunFailed(f"it sent '{message.event}' out of turn")
    return found


def _conversation(
    entry: Entry, method: Method, task: Task | None, seed: int, jail: Jail, limits: Limits, allowed: float, largest: int
) -> Iterator[tuple[float, Message, bytes]]:
    """Starts the worker on a job; what it says up to its final message, with the seconds since it was ready.

    Raises:
        RunFailed, InputError: as `run_entry`.
    """
    with contextlib.ExitStack() as stack:
        folder, stage, planted, port = _workshop(stack)
        job = Job(
            conformance=task is None,
            method=method.place,
            family=entry.manifest.family,
            settings=dict(method.settings),
            seed=seed,
            memory=limits.memory,
            cpu_seconds=math.ceil(allowed),
            planted=str(planted),
            port=port,
            jailed=jail.bwrap is not None,
        )
        write_job(folder, job, entry.source, task)
        arguments = ["-m", "fsvi_bench.leaderboard.jailed.worker", str(folder)]
        process = stack.enter_context(_Process.started(jail, folder, arguments, limits.memory, stage))
        ready: float | None = None
        for now, message, file in process.messages(Reader(largest), allowed):
            if (ready is None) != isinstance(message, Ready):
                raise RunFailed(f"it sent '{message.event}' out of turn")
            if isinstance(message, Ready) and message.leaks:
                reached = quotable(" and ".join(dict.fromkeys(message.leaks)), 200)
                raise InputError(f"the jail does not hold: code in it could reach {reached}; is `bwrap` bubblewrap? "
                                 "Nothing of the entry was run")  # fmt: skip
            ready = now if ready is None else ready
            yield now - ready, message, file
            if isinstance(message, Final):
                return


def _workshop(stack: contextlib.ExitStack) -> tuple[Path, Path, Path, int]:
    """The job's folder, one for mounts, a planted file, and a port that is listened on."""
    top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fsvi-bench-")))
    top.chmod(0o755)
    folders = [top / name for name in ("job", "stage", "planted")]
    for folder in folders:
        folder.mkdir()
    (planted := folders[2] / "planted").write_text("planted")
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return folders[0], folders[1], planted, listener.getsockname()[1]


class _Process:
    """The jailed process, gone for good afterwards, with whatever it started."""

    def __init__(self, popen: subprocess.Popen[bytes], messages: int) -> None:
        self.popen, self.messages_fd, self.tail = popen, messages, bytearray()

    @staticmethod
    @contextlib.contextmanager
    def started(jail: Jail, folder: Path, worker: list[str], memory: int, stage: Path) -> Iterator[_Process]:
        """Raises InputError if it cannot be started."""
        reading, writing = os.pipe()
        command = jail.command(folder, [*worker, str(writing)], memory, stage)
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        try:
            popen = subprocess.Popen(
                command,
                env=environment(),
                cwd="/",
                pass_fds=(writing,),
                start_new_session=True,
                **quiet,  # type: ignore[call-overload]
            )
        except OSError as error:
            os.close(reading)
            raise InputError(f"cannot start {command[0]}: {error.strerror}; no code of entries was run") from error
        finally:
            os.close(writing)
        try:
            with popen.stderr:
                yield _Process(popen, reading)
        finally:
            os.close(reading)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()

    def messages(self, reader: Reader, allowed: float) -> Iterator[tuple[float, Message, bytes]]:
        """What comes through the pipe, with the time; the first message may take longer than `allowed` seconds.

        Raises:
            RunFailed: after the first message: the limit, the process's end, or what no worker of ours would say.
            InputError: the limit or the process's end before it.
        """
        assert self.popen.stderr is not None
        errors, deadline, started = self.popen.stderr.fileno(), time.monotonic() + START_SECONDS, False
        with selectors.DefaultSelector() as selector:
            selector.register(self.messages_fd, selectors.EVENT_READ)
            selector.register(errors, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(min(1.0, left)):
                    piece = os.read(key.fd, _PIECE)
                    if key.fd == errors:
                        self.tail = (self.tail + piece)[-_TAIL:]
                        if not piece:
                            selector.unregister(errors)
                    elif not piece:
                        raise self._failure(started, f"{self._ending()} before it had sent its posterior")
                    for message, file in reader.feed(piece) if key.fd == self.messages_fd else ():
                        now = time.monotonic()
                        deadline, started = (deadline if started else now + allowed), True
                        yield now, message, file
        raise self._failure(started, f"it was not done within {allowed:.0f} s")

    def _failure(self, started: bool, what: str) -> Exception:
        """Of the entry's code, or, while that has not been touched, of this machine."""
        told = f"{what}{self._last_words()}"
        if started:
            return RunFailed(told)
        return InputError(f"the jail did not get ready: {told}; mend bubblewrap, or wait for a less busy machine")

    def _ending(self) -> str:
        """How a process ended that has closed its pipe."""
        try:
            status = self.popen.wait(timeout=2)
        except subprocess.TimeoutExpired:
            return "it fell silent"
        number = -status if status < 0 else status - 128  # bubblewrap's status for a signal is 128 + its number
        if number > 0 and number in signal.valid_signals():
            return f"it was ended by signal {signal.Signals(number).name}"
        return f"it ended with status {status}"

    def _last_words(self) -> str:
        """The end of its stderr, fit to be quoted; empty if it said nothing."""
        with contextlib.suppress(BlockingIOError, ValueError):
            assert self.popen.stderr is not None
            os.set_blocking(self.popen.stderr.fileno(), False)
            self.tail = (self.tail + os.read(self.popen.stderr.fileno(), _PIECE))[-_TAIL:]
        lines = [line for line in self.tail.decode(errors="replace").splitlines() if line.strip()]
        return f"; its last words: '{quotable(lines[-1], 160)}'" if lines else ""


def quotable(text: str, length: int) -> str:
    """A stranger's text on one line, shortened, without control characters, markup or quotes that would end its own."""
    return plain(text, length).translate(str.maketrans("'<>", "’‹›"))
