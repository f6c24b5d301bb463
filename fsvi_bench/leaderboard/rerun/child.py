"""The verifier's side of the process that runs submitted code: starts it, times it, hears it out, and ends it.

Nothing that the process says is taken for granted: messages are bounded and typed, posteriors are read as any
stranger's, the clock is the verifier's own. Of what it says of itself, the counts of steps and work alone are taken on
its word; nothing here could check them.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.rerun.confinement import closed_to_its_user
from fsvi_bench.leaderboard.rerun.jail import Jail, environment
from fsvi_bench.leaderboard.rerun.protocol import (
    MAX_WAYPOINTS,
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
from fsvi_bench.leaderboard.submission import Manifest
from fsvi_bench.posteriors.base import KIND_OF, Posterior
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.tasks.task import Task

START_SECONDS = 120.0  #: until `ready`: to import libraries and read the problem, before anything submitted runs
_TAIL = 2000  #: bytes kept of what the process writes to stderr
_PIECE = 2**16


class RunFailed(Exception):
    """The run came to no posterior that could be scored; `str` says why, in a clause without a full stop."""


@dataclass(frozen=True)
class Limits:
    """What one run may take: steps and seconds by the budget, memory beyond what Python and its libraries take."""

    steps: int
    seconds: float  #: from `ready` on
    memory: int
    seconds_are: str = ""  #: where `seconds` come from, for who exceeds them
    within_budget: bool = False  #: they are less than the submission's budget allows, so who exceeds them may be honest


@dataclass(frozen=True, eq=False)
class Snapshot:
    """q after so many steps, and the seconds since the submitted file was about to be imported."""

    steps: int
    seconds: float
    posterior: Posterior
    work: dict[str, int] | None


@dataclass(frozen=True, eq=False)
class Trained:
    """How a run ended. The last snapshot is the final posterior if the status is ok."""

    status: Literal["ok", "diverged", "failed"]
    reason: str | None
    seconds: float
    snapshots: tuple[Snapshot, ...]
    confined: bool  #: the process had given up sockets and other processes


def train_apart(manifest: Manifest, source: bytes, problem: Task, seed: int, limits: Limits, jail: Jail) -> Trained:
    """Trains the submitted method on one problem in a process of its own.

    Raises:
        RunFailed: it exceeded a limit, ended before its time, or sent what no method may.
        InputError: the process cannot be started, ends before it has touched what was submitted, or takes more seconds
            than the verifier gives, though not more than its budget allows.
    """
    assert manifest.source is not None
    job = Job(
        source=manifest.source.file,
        class_=manifest.source.class_,
        family=manifest.family,
        hyperparameters=manifest.hyperparameters,
        seed=seed,
        memory=limits.memory,
        cpu_seconds=math.ceil(limits.seconds),
    )
    with tempfile.TemporaryDirectory(prefix="fsvi-rerun-") as name:
        folder, scratch = Path(name) / "job", Path(name) / "read"
        folder.mkdir()
        scratch.mkdir()
        write_job(folder, job, source, problem)
        heard = _Heard(manifest, problem.frozen.k, limits, scratch)
        # In a jail there is no other process to look into.
        apart = closed_to_its_user() if jail.bwrap is None else contextlib.nullcontext()
        with apart, _process(folder, jail) as process:
            _listen(process, heard, limits)
        return heard.outcome()


@dataclass
class _Process:
    popen: subprocess.Popen[bytes]
    messages: int
    errors: int
    tail: bytearray = field(default_factory=bytearray)

    def last_words(self) -> str:
        """The end of its stderr, fit to be quoted; empty if it said nothing."""
        lines = [line for line in self.tail.decode(errors="replace").splitlines() if line.strip()]
        return f"; its last words: '{printable(lines[-1], 160)}'" if lines else ""


@contextlib.contextmanager
def _process(folder: Path, jail: Jail) -> Iterator[_Process]:
    """The child, gone for good afterwards; with it, in a jail, whatever it started."""
    reading, writing = os.pipe()
    command = jail.command(folder, ["-m", "fsvi_bench.leaderboard.rerun.worker", str(folder), str(writing)])
    try:
        popen = subprocess.Popen(
            command,
            env=environment(),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(writing,),
            start_new_session=True,
        )
    except OSError as error:
        os.close(reading)
        raise InputError(f"cannot start {command[0]}: {error.strerror}; submitted code is not run") from error
    finally:
        os.close(writing)
    assert popen.stderr is not None
    try:
        with popen.stderr:
            yield _Process(popen, reading, popen.stderr.fileno())
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(popen.pid, signal.SIGKILL)
        popen.wait()


def _listen(process: _Process, heard: _Heard, limits: Limits) -> None:
    """Reads until the final message, the end of the process, or the limit. What it writes to stderr is thrown away but
    for the end, so that it can fill nothing."""
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(process.messages, selectors.EVENT_READ)
        selector.register(process.errors, selectors.EVENT_READ)
        while heard.final is None:
            now = time.monotonic()
            start, allowed = (began, START_SECONDS) if heard.ready is None else (heard.ready, limits.seconds)
            if now - start > allowed:
                source = f" ({limits.seconds_are})" if heard.ready is not None and limits.seconds_are else ""
                what = "did not get ready" if heard.ready is None else "was not done"
                late = f"it {what} within {allowed:.0f} s{source}{process.last_words()}"
                if heard.ready is not None and limits.within_budget:
                    raise InputError(f"the submitted code was run again, and {late}; give a larger --max-seconds")
                raise heard.failure(late, "verify again when this machine has less to do")
            for key, _ in selector.select(min(1.0, start + allowed - now)):
                piece = os.read(key.fd, _PIECE)
                if key.fd == process.errors:
                    process.tail = (process.tail + piece)[-_TAIL:]
                    if not piece:
                        selector.unregister(process.errors)
                elif piece:
                    heard.hear(piece, time.monotonic())
                else:
                    early = f"{_ending(process)} before it had sent its posterior{process.last_words()}"
                    raise heard.failure(early, "mend that, and verify again")


def _ending(process: _Process) -> str:
    """How a process ended that has closed its pipe."""
    try:
        status = process.popen.wait(timeout=2)
    except subprocess.TimeoutExpired:
        return "it fell silent"
    with contextlib.suppress(BlockingIOError):
        os.set_blocking(process.errors, False)
        while piece := os.read(process.errors, _PIECE):
            process.tail = (process.tail + piece)[-_TAIL:]
    number = -status if status < 0 else status - 128  # bubblewrap's status for a signal is 128 + its number
    if number in signal.valid_signals() and number > 0:
        return f"it was ended by signal {signal.Signals(number).name}"
    return f"it ended with status {status}"


class _Heard:
    """What the process has said so far, in the only order that our worker says it."""

    def __init__(self, manifest: Manifest, k: int, limits: Limits, scratch: Path) -> None:
        self._kind, self._k, self._limits, self._scratch = KIND_OF[manifest.family], k, limits, scratch
        self._reader = Reader(largest_file=8 * (k * k + 3 * k) + 4096)
        self._num_steps: int | None = None
        self._snapshots: list[Snapshot] = []
        self._confined, self._ended = False, 0.0
        self.ready: float | None = None
        self.final: Final | None = None

    def hear(self, piece: bytes, now: float) -> None:
        """Takes in a piece that came at a time of the verifier's clock.

        Raises:
            RunFailed: it is nothing that our worker would say, or more steps than the budget has.
        """
        try:
            for message, file in self._reader.feed(piece):
                if self.final is None:
                    self._take(message, file, now)
        except Garbled as error:
            raise RunFailed(f"it sent {error}") from error

    def failure(self, what: str, mend: str) -> Exception:
        """Of the submitted code, or, while that has not been touched, of this machine, which can be mended."""
        if self.ready is not None:
            return RunFailed(what)
        return InputError(
            f"the process that submitted code is run in did not come so far as to read it: {what}; {mend}"
        )

    def _take(self, message: Message, file: bytes, now: float) -> None:
        if isinstance(message, Ready):
            if self.ready is not None:
                raise Garbled("'ready' twice")
            self.ready, self._confined = now, message.confined
            return
        if self.ready is None:
            raise Garbled(f"'{message.event}' before 'ready'")
        if isinstance(message, Started):
            self._start(message)
        elif isinstance(message, Reached):
            self._add(message, file, now)
        else:
            self._finish(message, file, now)

    def _start(self, message: Started) -> None:
        if self._num_steps is not None:
            raise Garbled("'started' twice")
        self._num_steps = message.num_steps
        if message.num_steps > self._limits.steps:
            raise RunFailed(f"it wants {message.num_steps} steps, its declared budget has {self._limits.steps}")

    def _add(self, message: Reached | Final, file: bytes, now: float) -> None:
        assert self.ready is not None
        before = self._snapshots[-1].steps if self._snapshots else -1
        if self._num_steps is None or not before < message.steps <= self._num_steps:
            raise Garbled(f"q after {message.steps} steps, out of turn")
        if len(self._snapshots) == MAX_WAYPOINTS:
            raise Garbled(f"more than the {MAX_WAYPOINTS} posteriors that it was asked for")
        self._snapshots.append(Snapshot(message.steps, now - self.ready, self._read(file), message.work))

    def _finish(self, message: Final, file: bytes, now: float) -> None:
        assert self.ready is not None
        self._ended = now - self.ready
        if message.status == "ok":
            # The last look on the way saw the same q, a moment earlier.
            if self._snapshots and self._snapshots[-1].steps == message.steps:
                self._snapshots.pop()
            self._add(message, file, now)
        self.final = message

    def _read(self, file: bytes) -> Posterior:
        """A posterior from the bytes of its file, read as any stranger's is."""
        path = self._scratch / "posterior.safetensors"
        path.write_bytes(file)
        try:
            posterior = read_posterior(path, self._k)
        except InputError as error:
            reason = printable(str(error).replace(f"{self._scratch}/", ""), 300)
            raise RunFailed(f"it sent a posterior that cannot be read: {reason}") from error
        finally:
            path.unlink()  # the next one is another file: these tensors may be mapped onto this one
        if posterior.kind != self._kind:
            raise RunFailed(f"it sent a posterior of kind {posterior.kind}, its family's is {self._kind}")
        return posterior

    def outcome(self) -> Trained:
        assert self.final is not None
        reason = None if self.final.reason is None else printable(self.final.reason, 300)
        return Trained(self.final.status, reason, self._ended, tuple(self._snapshots), self._confined)


def printable(text: str, length: int) -> str:
    """Text of a stranger on one line, shortened, without control characters or quotes that would end its own."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split()).replace("'", "’")
    return line if len(line) <= length else f"{line[: length - 3]}..."
