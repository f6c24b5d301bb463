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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from packaging.version import Version

import fsvi_bench
from fsvi_bench.errors import InputError, plain, unknown_name
from fsvi_bench.leaderboard.entry import BuiltIn, Entry
from fsvi_bench.leaderboard.jailed.jail import Jail, environment
from fsvi_bench.leaderboard.jailed.messages import (
    MAX_POSTERIORS,
    MAX_REASON,
    Job,
    Message,
    RunFailed,
    take_messages,
    write_job,
)
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import KIND_OF, Family, Posterior
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.tasks.task import Task

START_SECONDS = 180.0  #: until `ready`: to import libraries and read the problem, before the entry's code runs
CONFORMANCE_SECONDS = 300.0
GRACE_SECONDS = 5.0  #: on top of what the budget allows: to import the entry's file and to write posteriors
_TAIL, _PIECE = 2000, 2**16  #: bytes that are looked at of its stderr, and read at a time of its messages

Heard = Iterator[tuple[float, Message]]  #: seconds since `ready`, and a message


@dataclass(frozen=True)
class Limits:
    """What a run may take beside its entry's budget.

    `patience` times the declared seconds allows for hardware that is slower than the entry's; `seconds` is the most.
    """

    patience: float = 10.0
    seconds: float = 3600.0
    memory: int = 4 * 2**30  #: bytes, beyond what Python and its libraries take


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


def find_method(entry: Entry) -> tuple[str, dict[str, Any]]:
    """Where the jailed process finds the entry's class, and its settings; all of a built-in method's, as checked.

    Raises:
        InputError: the built-in method is not here, or does not take the family or the settings.
    """
    method, manifest = entry.manifest.method, entry.manifest
    if not isinstance(method, BuiltIn):
        return f"{method.file}:{method.class_}", manifest.settings
    from fsvi_bench.methods.registry import built_in_names, load_installed  # seconds, which refusals are spared

    if method.name not in built_in_names():  # an installed package's method is entered by its source
        raise unknown_name("built-in method", method.name, built_in_names())
    if Version(method.version) > Version(fsvi_bench.__version__):
        raise InputError(
            f"{entry.name} is of fsvi-bench {method.version}, this is {fsvi_bench.__version__}; install that version"
        )
    found = load_installed(method.name)
    found.cls.checked_family(manifest.family, method.name)
    options = found.options(manifest.settings).model_dump(mode="json")
    return f"{found.cls.__module__}:{found.cls.__qualname__}", options


def run_entry(entry: Entry, task: Task, seed: int, jail: Jail, limits: Limits) -> Run:
    """Trains an entry's method on one task, in a process of its own.

    Raises:
        InputError: the method is not here, the jail does not hold, or the process ends before it has touched the
            entry's code.
    """
    snapshots: list[Snapshot] = []
    with _conversation(entry, task, seed, jail, limits) as (isolation, heard):
        start = time.monotonic()
        try:
            for seconds, message in heard:
                if message.status == "diverged" or message.status == "failed":
                    return Run(message.status, quotable(message.reason, 300), seconds, tuple(snapshots), isolation)
                _require_turn(message, snapshots, entry.manifest.budget.steps)
                posterior = _posterior(message.posterior, task.k, entry.manifest.family)
                snapshots.append(Snapshot(message.steps, seconds, posterior))
                if message.status == "ok":
                    break
        except RunFailed as error:
            return Run("failed", str(error), time.monotonic() - start, (), isolation)
    return Run("ok", None, seconds, tuple(snapshots), isolation)


def _require_turn(message: Message, snapshots: list[Snapshot], budget: int) -> None:
    """Raises RunFailed unless the message's posterior may come after these, of which a final one replaces its own."""
    last = snapshots[-1].steps if snapshots else -1
    if message.status == "ok" and last == message.steps:
        snapshots.pop()  # the last look on the way saw the same q, a moment earlier
    elif not last < message.steps <= max(1, budget):  # a formula is one step
        raise RunFailed(f"it sent a posterior after {message.steps} steps, out of turn")
    elif message.status == "under way" and len(snapshots) == MAX_POSTERIORS:
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


def require_conformance(entry: Entry, jail: Jail, limits: Limits) -> int:
    """Holds an entry's method to what every method must do, in the jail; returns how many rules it kept.

    A built-in method is checked by this project's own tests.

    Raises:
        InputError: it breaks a rule, exceeds a limit, or as `run_entry`.
    """
    find_method(entry)
    if entry.source is None:
        return 0
    with _conversation(entry, None, 0, jail, limits) as (_, heard):
        try:
            _, message = next(heard)
        except RunFailed as error:
            raise InputError(f"{entry.name}: {error}; mend its source") from error
    if message.status != "ok":
        raise InputError(f"{entry.name}: {quotable(message.reason, MAX_REASON)}")
    return message.steps


@contextlib.contextmanager
def _conversation(
    entry: Entry, task: Task | None, seed: int, jail: Jail, limits: Limits
) -> Iterator[tuple[str, Heard]]:
    """Starts the worker on a job, without a task that of conformance; it is gone for good afterwards.

    Yields:
        How the process is isolated, once that is proved, and what it says from then on.
    """
    budget, (method, settings) = entry.manifest.budget, find_method(entry)
    allowed = min(limits.patience * budget.seconds + GRACE_SECONDS, limits.seconds) if task else CONFORMANCE_SECONDS
    with contextlib.ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fsvi-bench-")))
        folder, stage, planted = top / "job", top / "stage", top / "planted"
        folder.mkdir()
        stage.mkdir()
        planted.write_text("planted")
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        job = Job(
            method=method,
            family=entry.manifest.family,
            settings=settings,
            problem=TrainingData.of(task).only(0) if task else None,  # copies: a view would take test rows along
            steps=budget.steps,
            seed=seed,
            memory=limits.memory,
            cpu_seconds=math.ceil(allowed),
            planted=planted if jail.bwrap else None,
            port=listener.getsockname()[1],
        )
        write_job(folder, job, entry.source)
        for path in (top, *top.rglob("*")):  # for `nobody`, whatever the umask
            path.chmod(0o755 if path.is_dir() else 0o644)
        arguments = ["-m", "fsvi_bench.leaderboard.jailed.worker", str(folder)]
        errors = stack.enter_context(tempfile.TemporaryFile())
        process, pipe = _start(jail.command(folder, arguments, limits.memory, stage), errors, stack)
        heard = _messages(process, pipe, errors, task.k if task else 0, allowed)
        yield _isolation(jail, heard), heard


def _isolation(jail: Jail, heard: Heard) -> str:
    """What the process says of its jail before it touches the entry's code; raises InputError if that does not hold."""
    try:
        _, ready = next(heard)
    except RunFailed as error:
        raise InputError(
            f"the jail did not get ready: {error}; mend bubblewrap, or wait for a less busy machine"
        ) from error
    if ready.leaks:
        reached = quotable(" and ".join(dict.fromkeys(ready.leaks)), 200)
        raise InputError(f"the jail does not hold: code in it could reach {reached}; is `bwrap` bubblewrap? "
                         "Nothing of the entry was run")  # fmt: skip
    return jail.words if jail.bwrap is None else f"{jail.words}, {quotable(ready.reason, 100)}"


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


def _messages(process: subprocess.Popen[bytes], pipe: int, errors: IO[bytes], k: int, allowed: float) -> Heard:
    """What comes through the pipe: first `ready`, then everything else, with the seconds since `ready`.

    Raises:
        RunFailed: a limit, the process's end, or what no worker of ours would say.
    """
    begun, limit, awaited = time.monotonic(), START_SECONDS, True
    received = bytearray()
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    while (left := begun + limit - time.monotonic()) > 0:
        if not poller.poll(1000 * left):
            continue
        if not (piece := os.read(pipe, _PIECE)):
            raise RunFailed(f"{_ending(process)} before it had sent its posterior{_last_words(errors)}")
        received += piece
        for message in take_messages(received, k):
            now = time.monotonic()
            if awaited != (message.status == "ready"):
                raise RunFailed(f"it sent '{message.status}' out of turn")
            if awaited:
                begun, limit, awaited = now, allowed, False
            yield now - begun, message
    raise RunFailed(f"it was not done within {limit:.0f} s{_last_words(errors)}")


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
