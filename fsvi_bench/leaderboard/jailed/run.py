"""The verifier's side of a run: it sends the job, times it, and reads its messages.

The process is not trusted: messages are bounded and typed, posteriors are read like any untrusted file, and the clock
is the verifier's. Only its count of steps cannot be checked.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

import fsvi_bench
from fsvi_bench.errors import InputError, plain, unknown_name
from fsvi_bench.leaderboard.entry import BuiltIn, Entry
from fsvi_bench.leaderboard.jailed.jail import Jail
from fsvi_bench.leaderboard.jailed.messages import (
    MAX_PARTICLES,
    MAX_POSTERIORS,
    MAX_REASON,
    Job,
    Message,
    Over,
    RunFailed,
    take_messages,
)
from fsvi_bench.leaderboard.jailed.sandbox import Sandbox, Started, sandbox
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import KIND_OF, Family, Posterior
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.resources import resource_dir
from fsvi_bench.tasks.task import Task

START_SECONDS = 180.0  #: until `ready`: for importing libraries and reading the problem, before the entry's code runs
CONFORMANCE_SECONDS = 300.0
GRACE_SECONDS = 5.0  #: in addition to the budget: for importing the entry's file and writing posteriors
_TAIL, _PIECE = 2000, 2**16  #: bytes of its stderr that are read, and of messages read at a time

Received = Iterator[tuple[float, Message]]  #: seconds since `ready`, and a message


@dataclass(frozen=True)
class Limits:
    """Limits of a run, in addition to the budget of its entry.

    A run may take `patience` times the declared seconds, since the hardware may be slower, but at most `seconds`.
    """

    patience: float = 10.0
    seconds: float = 3600.0
    memory: int = 4 * 2**30  #: bytes in addition to those of Python and its libraries


@dataclass(frozen=True, eq=False)
class Snapshot:
    """q after a number of steps, and the seconds since just before the import of the entry's file."""

    steps: int
    seconds: float
    posterior: Posterior
    over: Over = "weights"
    mode: tuple[float, ...] = ()  #: of a network's tangent


@dataclass(frozen=True, eq=False)
class Run:
    """The outcome of a run. If the status is ok, the last snapshot is the final posterior."""

    status: Literal["ok", "diverged", "failed"]
    reason: str | None
    seconds: float
    snapshots: tuple[Snapshot, ...]
    isolation: str


def find_method(entry: Entry, networks: bool = False) -> tuple[str, dict[str, Any]]:
    """Where the jailed process finds the entry's class, and its settings (complete for a built-in method).

    Args:
        networks: whether it is to run on networks, for which methods have defaults of their own.

    Raises:
        InputError: the built-in method does not exist, or does not support networks, the family or the settings.
    """
    method, manifest = entry.manifest.method, entry.manifest
    if not isinstance(method, BuiltIn):
        return f"{method.file}:{method.class_}", manifest.settings
    from fsvi_bench.methods.registry import (
        built_in_names,
        load_installed,
        network_methods,
    )  # takes seconds, which errors above do not need

    if method.name not in built_in_names():  # a method of another package is submitted as a source file
        raise unknown_name("built-in method", method.name, built_in_names())
    if Version(method.version) > Version(fsvi_bench.__version__):
        raise InputError(
            f"{entry.name} needs fsvi-bench {method.version}, but this is {fsvi_bench.__version__}; upgrade fsvi-bench"
        )
    found = load_installed(method.name)
    found.cls.checked_family(manifest.family, method.name)
    if networks and not found.cls.networks:
        raise InputError(
            f"{entry.name} uses {method.name}, a method for linear models only, but the edition has networks; choose "
            f"one of {', '.join(network_methods())}"
        )
    usual = found.defaults.network_options if networks else {}
    options = found.options({**usual, **manifest.settings}).model_dump(mode="json")
    return f"{found.cls.__module__}:{found.cls.__qualname__}", options


def run_entry(entry: Entry, task: Task | NetworkData, seed: int, jail: Jail, limits: Limits) -> Run:
    """Trains an entry's method on one task or network, in a separate process.

    Raises:
        InputError: the method does not exist, the jail is not tight, or the process ends before it runs the entry's
            code.
    """
    snapshots: list[Snapshot] = []
    with _started(entry, task, seed, jail, limits) as (isolation, received):
        start = time.monotonic()
        try:
            for seconds, message in received:
                if message.status == "diverged" or message.status == "failed":
                    return Run(message.status, quotable(message.reason, 300), seconds, tuple(snapshots), isolation)
                _require_order(message, snapshots, entry.manifest.budget.steps)
                posterior = _posterior(message, task, entry.manifest.family)
                snapshots.append(Snapshot(message.steps, seconds, posterior, message.over, tuple(message.mode)))
                if message.status == "ok":
                    break
        except RunFailed as error:
            return Run("failed", str(error), time.monotonic() - start, (), isolation)
    return Run("ok", None, seconds, tuple(snapshots), isolation)


def _require_order(message: Message, snapshots: list[Snapshot], budget: int) -> None:
    """Raises RunFailed unless the message may follow these snapshots. A final one replaces that of the same step."""
    last = snapshots[-1].steps if snapshots else -1
    if message.status == "ok" and last == message.steps:
        snapshots.pop()  # the last intermediate posterior is the same q
    elif not last < message.steps <= max(1, budget):  # a closed form is one step
        raise RunFailed(f"it sent a posterior after {message.steps} steps, which is out of order")
    elif message.status == "under way" and len(snapshots) == MAX_POSTERIORS:
        raise RunFailed(f"it sent more than {MAX_POSTERIORS} posteriors")


def _posterior(message: Message, task: Task | NetworkData, family: Family) -> Posterior:
    """A posterior from the bytes of its file, which is untrusted."""
    k, over, network = task.k, message.over, isinstance(task, NetworkData)
    hidden = isinstance(task, NetworkData) and task.noise_variance is not None
    allowed = {"weights": True, "hidden": hidden, "tangent": network}
    if not allowed[over] or len(message.mode) != k * (over == "tangent"):
        raise RunFailed(f"it sent a posterior over '{over}' with {len(message.mode)} numbers for the mode, which does "
                        "not fit its task")  # fmt: skip
    if over == "hidden" and isinstance(task, NetworkData):
        k = task.model.k_hidden
    try:
        posterior = read_posterior(Path("posterior"), k, content=message.posterior)
    except (InputError, MemoryError, RuntimeError) as error:
        raise RunFailed(f"it sent a posterior that cannot be read: {quotable(str(error), 300)}") from error
    if posterior.kind != KIND_OF[family]:
        raise RunFailed(f"it sent a posterior of kind {posterior.kind}, expected {KIND_OF[family]} for its family")
    most = max(MAX_PARTICLES, k)
    if isinstance(posterior, ParticlesPosterior) and len(posterior.particles) > most:
        raise RunFailed(f"it sent {len(posterior.particles):,} particles, expected at most {most:,}")
    return posterior


def require_conformance(entry: Entry, jail: Jail, limits: Limits) -> int:
    """Runs the conformance checks on an entry's method in the jail; returns the number of checks that passed.

    Built-in methods are checked by the tests of this project.

    Raises:
        InputError: a check fails, a limit is exceeded, or as `run_entry`.
    """
    find_method(entry)
    if entry.source is None:
        return 0
    with _started(entry, None, 0, jail, limits) as (_, received):
        try:
            _, message = next(received)
        except RunFailed as error:
            raise InputError(f"{entry.name}: {error}; fix its source") from error
    if message.status != "ok":
        raise InputError(f"{entry.name}: {quotable(message.reason, MAX_REASON)}")
    return message.steps


@contextlib.contextmanager
def _started(
    entry: Entry, task: Task | NetworkData | None, seed: int, jail: Jail, limits: Limits
) -> Iterator[tuple[str, Received]]:
    """Starts a job, or conformance checks if there is no task; its process is killed at the end.

    Yields:
        How the process is isolated, once this has been checked, and its messages from then on.
    """
    budget, (method, settings) = entry.manifest.budget, find_method(entry, isinstance(task, NetworkData))
    allowed = min(limits.patience * budget.seconds + GRACE_SECONDS, limits.seconds) if task else CONFORMANCE_SECONDS
    with contextlib.ExitStack() as stack:
        planted = stack.enter_context(tempfile.NamedTemporaryFile(prefix="fsvi-bench-"))
        Path(planted.name).chmod(0o644)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        job = Job(
            method=method,
            source=entry.source,
            family=entry.manifest.family,
            settings=settings,
            problem=TrainingData.of(task).only(0) if task else None,  # copies, since a view would contain test rows
            steps=budget.steps,
            seed=seed,
            memory=limits.memory,
            cpu_seconds=math.ceil(allowed),
            planted=Path(planted.name) if jail.bwrap else None,
            port=listener.getsockname()[1],
        )
        chosen: contextlib.AbstractContextManager[Sandbox]
        if task:
            chosen = sandbox(entry.sha256, jail, limits.memory)
        else:
            chosen = contextlib.closing(Sandbox(jail, limits.memory, stack.enter_context(_toy_only())))
        started = stack.enter_context(stack.enter_context(chosen).run(job))
        received = _messages(started, task.k if task else 0, allowed)
        isolation = _isolation(jail, received)
        started.sandbox.remove_folder()
        yield isolation, received


@contextlib.contextmanager
def _toy_only() -> Iterator[Path]:
    """A folder of data sets that has only the toy problem, which is generated from its card."""
    with tempfile.TemporaryDirectory(prefix="fsvi-bench-") as folder:
        datasets = Path(folder) / "datasets"
        (datasets / "toy").mkdir(parents=True)
        shutil.copy(resource_dir("datasets") / "toy" / "card.yaml", datasets / "toy")
        for path in (datasets.parent, *datasets.parent.rglob("*")):  # for `nobody`, whatever the umask
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield datasets


def _isolation(jail: Jail, received: Received) -> str:
    """Isolation reported by the process before it runs the entry's code; InputError if the jail is not tight."""
    try:
        _, ready = next(received)
    except RunFailed as error:
        raise InputError(
            f"the sandbox did not start: {error}; check bubblewrap, or try again when the machine is less busy"
        ) from error
    if ready.leaks:
        reached = quotable(" and ".join(dict.fromkeys(ready.leaks)), 200)
        raise InputError(f"the sandbox is not isolated, so no code of the entry was run: code in it could reach "
                         f"{reached}; check that `bwrap` is bubblewrap")  # fmt: skip
    return jail.words if jail.bwrap is None else f"{jail.words}, {quotable(ready.reason, 100)}"


def _messages(started: Started, k: int, allowed: float) -> Received:
    """The messages of a job, with the seconds since `ready`, which is the first.

    Raises:
        RunFailed: a limit is exceeded, the process ends, or a message is not valid.
    """
    begun, limit, awaited = time.monotonic(), START_SECONDS, True
    received = bytearray()
    poller = select.poll()
    poller.register(started.pipe, select.POLLIN)
    os.set_blocking(started.pipe, False)
    while (left := begun + limit - time.monotonic()) > 0:
        if not poller.poll(1000 * left):
            continue
        try:
            piece = os.read(started.pipe, _PIECE)
        except BlockingIOError:  # the process has taken its own bytes back
            continue
        if not piece:
            raise RunFailed(f"{_ending(started)} before it had sent its posterior{_last_words(started, awaited)}")
        received += piece
        for message in take_messages(received, k):
            now = time.monotonic()
            if awaited != (message.status == "ready"):
                raise RunFailed(f"it sent '{message.status}', which is out of order")
            if awaited:
                begun, limit, awaited = now, allowed, False
            yield now - begun, message
    raise RunFailed(f"it did not finish within {limit:.0f} s{_last_words(started, awaited)}")


def _ending(started: Started) -> str:
    """How a process ended after closing its pipe."""
    status = started.ending()
    if status is None:
        return "it closed its pipe without ending"
    if status < 0 and -status in signal.valid_signals():
        return f"it was killed by signal {signal.Signals(-status).name}"
    return f"it ended with status {status}"


def _last_words(started: Started, starting: bool) -> str:
    """The last line on stderr of the process, or while it starts of the sandbox; made safe to quote, or empty."""
    for stream in (started.errors, started.sandbox.errors)[: 2 if starting else 1]:
        size = os.fstat(stream.fileno()).st_size
        try:
            tail = os.pread(stream.fileno(), _TAIL, max(0, size - _TAIL)).decode(errors="replace")
        except OSError:  # the process shares the open file
            return ""
        if lines := [line for line in tail.splitlines() if line.strip()]:
            last = quotable(lines[-1], 160).replace("'", "’")  # it must not close the quotation
            return f"; the last line of its output: '{last}'"
    return ""


def quotable(text: str, length: int) -> str:
    """Untrusted text on one line, shortened, without control characters or markup."""
    return plain(text, length).translate(str.maketrans("<>", "‹›"))
