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
    Garbled,
    Job,
    Message,
    Reached,
    Reader,
    Ready,
    Started,
    write_job,
)
from fsvi_bench.posteriors.base import KIND_OF, Posterior
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.tasks.task import Task

START_SECONDS = 180.0  #: until `ready`: to import libraries and read the problem, before the entry's code runs
CONFORMANCE_SECONDS = 300.0
GRACE_SECONDS = 5.0  #: on top of what the budget allows: to import the entry's file and to write posteriors
_TAIL, _PIECE = 2000, 2**16  #: bytes kept of what the process writes to stderr, and read at a time


class RunFailed(Exception):
    """The run came to no posterior that could be scored; `str` says why, in a clause without a full stop."""


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
    allowed = min(limits.patience * entry.manifest.budget.seconds + GRACE_SECONDS, limits.seconds)
    heard = _Heard(entry, task.k, allowed)
    _converse(entry, method, task, seed, jail, limits, heard)
    return heard.run(jail)


def check_entry(entry: Entry, method: Method, jail: Jail, limits: Limits) -> list[Checked]:
    """Holds an entry's method to what every method must do, in the jail.

    Raises:
        RunFailed, InputError: as `run_entry`.
    """
    heard = _Heard(entry, 0, CONFORMANCE_SECONDS)
    _converse(entry, method, None, 0, jail, limits, heard)
    if heard.final is not None and heard.final.reason is not None:
        raise RunFailed(_quotable(heard.final.reason, 300))
    return heard.checked


def _converse(
    entry: Entry, method: Method, task: Task | None, seed: int, jail: Jail, limits: Limits, heard: _Heard
) -> None:
    """Starts the worker on a job and listens until it is done."""
    with contextlib.ExitStack() as stack:
        folder, stage, planted, port = _workshop(stack)
        job = Job(
            conformance=task is None,
            method=method.place,
            family=entry.manifest.family,
            settings=dict(method.settings),
            seed=seed,
            memory=limits.memory,
            cpu_seconds=math.ceil(heard.allowed),
            planted=str(planted),
            port=port,
            jailed=jail.bwrap is not None,
        )
        write_job(folder, job, entry.source, task)
        worker = ["-m", "fsvi_bench.leaderboard.jailed.worker", str(folder)]
        stack.enter_context(_Process.started(jail, folder, worker, limits.memory, stage)).listen(heard)


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
        self.popen, self.messages, self.tail = popen, messages, bytearray()

    @staticmethod
    @contextlib.contextmanager
    def started(jail: Jail, folder: Path, worker: list[str], memory: int, stage: Path) -> Iterator[_Process]:
        """Raises InputError if it cannot be started."""
        reading, writing = os.pipe()
        command = jail.command(folder, [*worker, str(writing)], memory, stage)
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        try:
            popen = subprocess.Popen(
                command, env=environment(), cwd="/", pass_fds=(writing,), start_new_session=True, **quiet  # type: ignore[call-overload]
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

    def listen(self, heard: _Heard) -> None:
        """Reads until the final message, the process's end, or the limit; of stderr only the end is kept."""
        assert self.popen.stderr is not None
        errors, began = self.popen.stderr.fileno(), time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self.messages, selectors.EVENT_READ)
            selector.register(errors, selectors.EVENT_READ)
            while heard.final is None:
                left = heard.seconds_left(began)
                if left <= 0:
                    raise heard.failure(f"it was not done within {heard.allowed:.0f} s{self._last_words()}")
                for key, _ in selector.select(min(1.0, left)):
                    piece = os.read(key.fd, _PIECE)
                    if key.fd == errors:
                        self.tail = (self.tail + piece)[-_TAIL:]
                        if not piece:
                            selector.unregister(errors)
                    elif piece:
                        heard.hear(piece)
                    else:
                        raise heard.failure(f"{self._ending()} before it had sent its posterior{self._last_words()}")

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
        return f"; its last words: '{_quotable(lines[-1], 160)}'" if lines else ""


class _Heard:
    """What the process has said so far, in the only order in which our worker says it."""

    def __init__(self, entry: Entry, k: int, allowed: float) -> None:
        self._kind, self._k, self.allowed = KIND_OF[entry.manifest.family], k, allowed
        self._budget = entry.manifest.budget.steps
        self._reader = Reader(largest_file=8 * (k * k + 3 * k) + 4096)
        self._num_steps: int | None = None
        self._snapshots: list[Snapshot] = []
        self._ready: tuple[float, Ready] | None = None
        self._ended = 0.0
        self.checked: list[Checked] = []
        self.final: Final | None = None

    def seconds_left(self, began: float) -> float:
        start, most = (began, START_SECONDS) if self._ready is None else (self._ready[0], self.allowed)
        return most - (time.monotonic() - start)

    def failure(self, what: str) -> Exception:
        """Of the entry's code, or, while that has not been touched, of this machine."""
        if self._ready is not None:
            return RunFailed(what)
        return InputError(f"the jail did not get ready: {what}; mend bubblewrap, or wait until the machine is less busy")

    def hear(self, piece: bytes) -> None:
        """Takes in a piece.

        Raises:
            RunFailed: it is nothing that our worker would say, or more steps than the budget has.
            InputError: the jail does not hold.
        """
        try:
            for message, file in self._reader.feed(piece):
                if self.final is None:
                    self._take(message, file, time.monotonic())
        except Garbled as error:
            raise RunFailed(f"it sent {error}") from error

    def _take(self, message: Message, file: bytes, now: float) -> None:
        if isinstance(message, Ready) and self._ready is None:
            if message.leaks:
                reached = " and ".join(dict.fromkeys(message.leaks))
                raise InputError(f"the jail does not hold: code in it could reach {_quotable(reached, 200)}; is `bwrap` "
                                 "bubblewrap? Nothing of the entry was run")  # fmt: skip
            self._ready = now, message
        elif self._ready is None or isinstance(message, Ready):
            raise Garbled(f"'{message.event}' out of turn")
        elif isinstance(message, Started):
            self._start(message)
        elif isinstance(message, Checked):
            self.checked.append(message)
        elif self._k == 0 and isinstance(message, Final):
            self.final = message
        else:
            self._add(message, file, now - self._ready[0])

    def _start(self, message: Started) -> None:
        if self._num_steps is not None:
            raise Garbled("'started' twice")
        self._num_steps = message.num_steps
        if message.num_steps > max(1, self._budget):  # a formula is one step
            raise RunFailed(f"it wants {message.num_steps} steps, its declared budget has {self._budget}")

    def _add(self, message: Reached | Final, file: bytes, seconds: float) -> None:
        if isinstance(message, Final):
            self.final, self._ended = message, seconds
            if message.status != "ok":
                return
            # The last look on the way saw the same q, a moment earlier.
            if self._snapshots and self._snapshots[-1].steps == message.steps:
                self._snapshots.pop()
        before = self._snapshots[-1].steps if self._snapshots else -1
        if self._num_steps is None or not before < message.steps <= self._num_steps:
            raise Garbled(f"q after {message.steps} steps, out of turn")
        if len(self._snapshots) == MAX_POSTERIORS:
            raise Garbled(f"more than the {MAX_POSTERIORS} posteriors that it was asked for")
        self._snapshots.append(Snapshot(message.steps, seconds, self._read(file)))

    def _read(self, file: bytes) -> Posterior:
        """A posterior from the bytes of its file, read as any stranger's is."""
        try:
            posterior = read_posterior(Path("posterior"), self._k, content=file)
        except InputError as error:
            raise RunFailed(f"it sent a posterior that cannot be read: {_quotable(str(error), 300)}") from error
        if posterior.kind != self._kind:
            raise RunFailed(f"it sent a posterior of kind {posterior.kind}, its family's is {self._kind}")
        return posterior

    def run(self, jail: Jail) -> Run:
        """How it ended."""
        assert self.final is not None
        assert self._ready is not None
        reason = None if self.final.reason is None else _quotable(self.final.reason, 300)
        isolation = "none" if jail.bwrap is None else f"{jail.words}, {_quotable(self._ready[1].confined, 100)}"
        return Run(self.final.status, reason, self._ended, tuple(self._snapshots), isolation)


def _quotable(text: str, length: int) -> str:
    """A stranger's text on one line, shortened, without control characters, markup or quotes that would end its own."""
    return plain(text, length).translate(str.maketrans("'<>", "’‹›"))
