"""Processes in the jail: how the verifier starts, keeps and ends them.

Importing the libraries takes seconds, longer than many runs. So a process in the jail imports them once, and then forks
a process for each job, one after another. It never runs an entry's code itself. The process of a job can neither open
files for writing nor reach other processes (`confinement`), and it is killed before the next job. Jobs can still pass
each other some bytes through the system's counters of processes and their time, so each entry has its own sandbox.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.jailed.jail import Jail, environment
from fsvi_bench.leaderboard.jailed.messages import Job

EXIT_SECONDS = 2  #: how long a process that has closed its pipe may take to end
#: Limit for answers on the socket: with hundreds of threads and gigabytes, a killed process takes long to end.
KILL_SECONDS = 60.0


@dataclass(frozen=True, eq=False)
class Started:
    """A job that has been started."""

    sandbox: Sandbox
    pipe: int  #: its messages
    errors: IO[bytes]  #: its stderr

    def ending(self) -> int | None:
        """The exit status of its process, which has closed the pipe: -n for signal n, None if it has not ended.

        If the sandbox itself has ended, it is the sandbox's.
        """
        return self.sandbox.end_job(EXIT_SECONDS)


class Sandbox:
    """A process in the jail that runs jobs, one at a time.

    Without a jail, it runs one job itself, since not all systems allow a fork after the imports.

    Args:
        memory: bytes for a job, in addition to those of Python and its libraries.
        datasets: a folder that replaces the data sets of the package.

    Raises:
        InputError: the process cannot be started.
    """

    def __init__(self, jail: Jail, memory: int, datasets: Path | None = None) -> None:
        self.forks = jail.bwrap is not None
        self._status: int | None = None
        self._in_job = False
        with contextlib.ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="fsvi-bench-"))
            self._remove_folder = weakref.finalize(self, _remove, folder, jail.bwrap is not None)
            stack.callback(self._remove_folder)
            folder.chmod(0o755)  # for `nobody`, whatever the umask
            self.errors = stack.enter_context(tempfile.TemporaryFile())
            self._control, theirs = socket.socketpair()
            stack.enter_context(self._control).settimeout(KILL_SECONDS)
            place = "/tmp" if jail.bwrap else str(folder)  # where the process may write before it confines itself
            arguments = ["-m", "fsvi_bench.leaderboard.jailed.worker", place, "many" if self.forks else "one"]
            with theirs:
                self._process = _start(jail.command(arguments, memory, folder, datasets), theirs, self.errors)
            stack.callback(_kill, self._process)
            self.close = weakref.finalize(self, stack.pop_all().close)

    @property
    def waits(self) -> bool:
        """Whether it can take another job. Between jobs, its socket becomes readable only when it ends."""
        if not self.close.alive or self._process.poll() is not None:
            return False
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        return not poller.poll(0)

    @contextlib.contextmanager
    def run(self, job: Job) -> Iterator[Started]:
        """Starts a job, and kills its process at the end of the block; after an exception, the whole sandbox."""
        with contextlib.ExitStack() as stack:
            pipe, writing = os.pipe()
            stack.callback(os.close, pipe)
            theirs = stack.enter_context(os.fdopen(writing, "wb"))
            try:
                errors = stack.enter_context(tempfile.TemporaryFile())
                with theirs, tempfile.TemporaryFile() as content:
                    content.write(pickle.dumps(job))
                    content.seek(0)
                    self._in_job, self._status = True, None
                    # If the sandbox has ended, the pipe shows it.
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        socket.send_fds(self._control, [b"j"], [content.fileno(), writing, errors.fileno()])
                yield Started(self, pipe, errors)
                self.end_job(0)
            except BaseException:
                self.close()
                raise
            if not self.forks:
                self.close()

    def remove_folder(self) -> None:
        """Removes the folder for the start of a jail, which is not needed any more when a job is ready."""
        if self.forks:
            self._remove_folder()

    def end_job(self, patience: int) -> int | None:
        """Kills the process of the job unless it ends within so many seconds; returns as `Started.ending`."""
        if not self._in_job:
            return self._status
        self._in_job = False
        answer = b""
        with contextlib.suppress(OSError):
            if self.forks:
                self._control.sendall(bytes([patience]))
                answer = self._control.recv(16)
        if answer:
            self._status = None if answer == b"killed" else int(answer)
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(patience)
                is_signal = self.forks and status - 128 in signal.valid_signals()  # bubblewrap reports n as 128 + n
                self._status = 128 - status if is_signal else status
            _kill(self._process)
        return self._status


class _Kept(threading.local):
    """The idle sandbox of a thread, and what it is for: bubblewrap ends with the thread that has started it."""

    what: tuple[str, Jail, int] | None = None
    sandbox: Sandbox | None = None


_kept = _Kept()


@contextlib.contextmanager
def sandbox(entry: str, jail: Jail, memory: int) -> Iterator[Sandbox]:
    """The sandbox of this thread for the entry with this hash, kept until one for another entry is asked for."""
    what, found = (entry, jail, memory), _kept.sandbox
    _kept.sandbox = None
    if found is not None and (_kept.what != what or not found.waits):
        found.close()
        found = None
    found = found or Sandbox(jail, memory)
    try:
        yield found
    finally:
        if found.waits:
            _kept.what, _kept.sandbox = what, found


@contextlib.contextmanager
def closed_sandbox() -> Iterator[None]:
    """Ends the idle sandbox of this thread at the end of the block."""
    try:
        yield
    finally:
        if _kept.sandbox is not None:
            _kept.sandbox.close()
            _kept.sandbox = None


def _start(command: list[str], control: socket.socket, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts a process whose last argument is the number of its end of the socket.

    Raises:
        InputError: it cannot be started.
    """
    try:
        return subprocess.Popen(
            [*command, str(control.fileno())],
            env=environment(),
            cwd="/",
            pass_fds=(control.fileno(),),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    except OSError as error:
        raise InputError(f"cannot start {command[0]}: {error.strerror}; check that it is installed") from error


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _remove(folder: Path, jailed: bool) -> None:
    """Removes a folder. In that of a jail, folders of the system may be mounted: only empty ones are removed."""
    if not jailed:
        shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            path.rmdir()
        folder.rmdir()
