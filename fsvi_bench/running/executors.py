"""Executors make independent calls in parallel: in processes on this machine, or elsewhere.

Processes have one thread each, because small linear algebra is slower on two threads than on one. Every worker has its
own pipe, and a thread that waits for its answers. The process pools of `concurrent.futures` and loky share one queue of
results instead: the death of a worker ends the pool, and if it dies while sending a result, the reader hangs.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from traceback import format_exc
from typing import TYPE_CHECKING, Any, TypeVar

from fsvi_bench.errors import TaskRefused
from fsvi_bench.threads import use_one_thread

if TYPE_CHECKING:
    from fsvi_bench.training.trainer import Device

Argument = TypeVar("Argument")
Result = TypeVar("Result")
#: A function for the number of calls that fit at present, and one that submits a pickled call to `answer` in a worker.
Pool = tuple[Callable[[], int], Callable[[bytes], Future[bytes]]]
RETRIES = 3  #: how often a call is repeated after its worker or node was lost; a call's own exception is final


class WorkerDied(RuntimeError):
    """A worker process crashed or was killed during a call, for example because it ran out of memory."""


class Executor(ABC):
    """Calls a function of a module in parallel; arguments and results are pickled."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """Number of parallel calls; work that can be split is split into this many parts."""

    @property
    @abstractmethod
    def has_gpu(self) -> bool:
        """Whether calls can use a CUDA GPU; on a cluster, this machine need not have one."""

    @abstractmethod
    def on(self, device: Device) -> Executor:
        """The executor for calls on this device, which decides how many calls fit in parallel."""

    @abstractmethod
    def open_pool(self) -> AbstractContextManager[Pool]:
        """Starts workers, which are stopped at the end of the block."""

    def result(self, future: Future[bytes]) -> bytes:
        """The answer to a finished call; raises WorkerDied if its worker was lost."""
        return future.result()

    def map(
        self, function: Callable[[Argument], Result], arguments: Iterable[Argument]
    ) -> Iterator[tuple[Argument, Result | Exception]]:
        """Yields (argument, result) as calls finish, in any order.

        `arguments` is read only as fast as workers need it, so that a long iterable is never in memory as a whole. If a
        call raises TaskRefused, ArithmeticError or RuntimeError, the exception is its result and the other calls
        continue. If its worker is lost, a call is repeated elsewhere; after `RETRIES` repetitions its result is
        `WorkerDied`. If the iteration ends early, by an error or Ctrl-C, running calls are cancelled.

        Raises:
            InputError: a call found a mistake of the user, which affects all calls.
        """
        rest: Iterator[tuple[Argument, int]] = zip(arguments, repeat(0))
        calls: dict[Future[bytes], tuple[Argument, int]] = {}
        with self.open_pool() as (room, submit):
            while True:
                for argument, attempt in islice(rest, max(0, max(1, room()) - len(calls))):
                    calls[submit(pickle.dumps(partial(function, argument)))] = argument, attempt
                if not calls:
                    return
                for future in wait(calls, timeout=1.0, return_when=FIRST_COMPLETED).done:
                    argument, attempt = calls.pop(future)
                    try:
                        answered = self.result(future)
                    except WorkerDied as error:
                        if attempt < RETRIES:
                            rest = chain([(argument, attempt + 1)], rest)
                        else:
                            yield argument, WorkerDied(f"{error}; {attempt + 1} attempts were made")
                    else:
                        yield argument, outcome_of(read_answer, answered)


# Calls and answers are sent as bytes: otherwise multiprocessing and Ray would put every tensor into shared memory, and
# exhaust it.


def answer(call: bytes) -> bytes:
    """Runs in a worker: makes a pickled call, and pickles its result or its exception.

    What the call prints, such as the code of a method, goes to stderr: stdout is for results.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return pickle.dumps((pickle.loads(call)(), None))
    except BaseException as error:
        error.add_note(format_exc())  # the traceback in the worker
        return pickle.dumps((None, _portable(error)))


def _portable(error: BaseException) -> BaseException:
    """The error, or a RuntimeError with the same message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def read_answer(answered: bytes) -> Any:
    """The result of a call; raises its exception, if it raised one."""
    result, error = pickle.loads(answered)
    if error is not None:
        raise error
    return result


def outcome_of(function: Callable[[Argument], Result], argument: Argument) -> Result | Exception:
    """The result of a call, or the exception it raised; raises exceptions that affect all calls."""
    try:
        return function(argument)
    except (TaskRefused, ArithmeticError, RuntimeError) as error:
        return error


# Imports that take seconds. A server that has made them forks workers in milliseconds.
_PRELOADED = ["gpytorch", "pytorch_lightning"]
_starting = threading.Lock()


def available_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class LocalExecutor(Executor):
    """Calls in processes on this machine; with one worker, in this process."""

    workers: int = 1

    @property
    def has_gpu(self) -> bool:
        import torch

        return torch.cuda.is_available()

    def on(self, device: Device) -> LocalExecutor:
        """One process per GPU: a single batch uses it better than several processes."""
        return self if device == "cpu" else LocalExecutor()

    def map(
        self, function: Callable[[Argument], Result], arguments: Iterable[Argument]
    ) -> Iterator[tuple[Argument, Result | Exception]]:
        """See `Executor.map`. With one worker, or for a single call, no process is started."""
        rest = iter(arguments)
        first = list(islice(rest, 2))
        if self.workers > 1 and len(first) > 1:
            return super().map(function, chain(first, rest))
        return ((argument, outcome_of(function, argument)) for argument in chain(first, rest))

    @contextmanager
    def open_pool(self) -> Iterator[Pool]:
        context, environment = worker_context(), dict(os.environ)
        workers, mine, over = list[Worker](), threading.local(), threading.Event()

        def call(pickled: bytes) -> bytes:
            if not (hasattr(mine, "worker") and mine.worker.waits):
                mine.worker = Worker(context, start_worker, environment)
                workers.append(mine.worker)
                if over.is_set():
                    mine.worker.kill()
            answered: bytes = mine.worker.call(pickled)
            return answered

        with ThreadPoolExecutor(self.workers) as threads:
            try:
                yield lambda: self.workers, lambda pickled: threads.submit(call, pickled)
            finally:
                over.set()
                for worker in workers:
                    worker.kill()


class Worker:
    """A process that makes one call after another.

    No other process holds the far end of its pipe, so its death is noticed here, even in the middle of an answer.

    Args:
        prepare: called with `arguments` in the new process; must call `start_worker`.
    """

    def __init__(self, context: BaseContext, prepare: Callable[..., None], *arguments: Any) -> None:
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, prepare, arguments))  # type: ignore[attr-defined]
        with shielded_start():
            self._process.start()
        theirs.close()

    def call(self, call: bytes) -> bytes:
        """The bytes that `answer` returns for a call.

        Raises:
            WorkerDied: the process died before it had sent its whole answer.
        """
        try:
            self._pipe.send_bytes(call)
            return self._pipe.recv_bytes()
        except (EOFError, OSError) as error:  # an OSError if it died in the middle of an answer
            self.kill()
            raise WorkerDied("the worker process died; it may have run out of memory") from error

    @property
    def waits(self) -> bool:
        """Whether the worker is alive. Between calls, its pipe becomes readable only when it ends."""
        return not self._pipe.poll()

    def kill(self) -> None:
        if self._process.is_alive():  # else its process number may have been reused
            self._process.kill()  # Lightning turns SIGTERM into an exception, and the worker would survive
        self._process.join()


def _serve(pipe: Connection, prepare: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Answers calls until the parent closes the pipe, or has died: then sending fails, too."""
    # A process forked by a method must not keep the pipe open after the worker has ended.
    os.register_at_fork(after_in_child=pipe.close)
    prepare(*arguments)
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(answer(pipe.recv_bytes()))


def start_worker(environment: dict[str, str], *folders: str) -> None:
    """Prepares a worker process: one thread, and no reaction to Ctrl-C, since the parent stops its workers.

    If the parent is killed, even with SIGKILL, the worker ends by itself and removes the folders.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=folders, daemon=True).start()
    # A fork server keeps the environment of its own start. Variables that libraries read when they are loaded, such as
    # OMP_NUM_THREADS, keep their effect from then.
    os.environ.clear()
    os.environ.update(environment)
    import numpy as np

    # A method that uses NumPy's global generator must not draw the same numbers in every fork of the server.
    np.random.seed()
    use_one_thread()


def _end_with_parent(*folders: str) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def worker_context() -> BaseContext:
    """How to start workers: never by forking this process, which may hold threads, locks and a GPU.

    On Linux they are forked from a server that has only made imports (one per process; a host program may already have
    started it). On other systems some system libraries do not survive a fork, and without sockets in the temporary
    folder there is no server: then workers are new interpreters.
    """
    if sys.platform == "linux":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        with contextlib.suppress(OSError, EOFError):
            trial = context.Process(target=int)
            with shielded_start():
                trial.start()  # this starts the server if there is none
            trial.join()
            return context
    return multiprocessing.get_context("spawn")


@contextmanager
def shielded_start() -> Iterator[None]:
    """Processes started in this context ignore Ctrl-C, even during their imports.

    They also do not import libraries from the current folder.
    """
    with _starting:  # all threads share the environment
        safe_path = os.environ.get("PYTHONSAFEPATH")
        os.environ["PYTHONSAFEPATH"] = "1"
        resource_tracker.ensure_running()  # else the first process starts it, which unblocks Ctrl-C
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.environ.pop("PYTHONSAFEPATH")
            if safe_path is not None:
                os.environ["PYTHONSAFEPATH"] = safe_path


def make_executor(
    name: str, workers: int | None = None, ray_address: str | None = None, gpu_share: float | None = None
) -> Executor:
    """The executor `local` (that many processes) or `ray` (the cluster at this address, at $RAY_ADDRESS, or a new one).

    Raises:
        InputError: there is no such cluster.
    """
    if name == "ray":
        from fsvi_bench.running.ray_cluster import RayExecutor

        return RayExecutor.connect(ray_address or os.environ.get("RAY_ADDRESS") or None, workers, gpu_share)
    return LocalExecutor(workers or available_cores())
