"""Where independent calls are made, several at once: in processes of this machine, or elsewhere.

Processes have one thread each: small linear algebra is slower on two threads than on one. Every worker has a pipe of
its own, and a thread that waits for its answers. The process pools of `concurrent.futures` and loky share one queue of
results: a death ends the pool, and one in the middle of a result leaves their reader waiting for the rest.
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
from fsvi_bench.threads import one_thread as one_thread
from fsvi_bench.threads import use_one_thread as use_one_thread

if TYPE_CHECKING:
    from fsvi_bench.training.trainer import Device

Argument = TypeVar("Argument")
Result = TypeVar("Result")
#: How many calls there is room for, when asked, and what has `answer` called elsewhere.
Crew = tuple[Callable[[], int], Callable[[bytes], Future[bytes]]]
RETRIES = 3  #: how often a call is made again whose worker or node was lost; its own exception is never tried again


class WorkerDied(RuntimeError):
    """A worker process was killed (out of memory, say) or crashed while it was at a call."""


class Executor(ABC):
    """Makes calls of a module's function with arguments and results that pickle."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many calls are made at once; work that can be split is split into as many parts."""

    @property
    @abstractmethod
    def has_gpu(self) -> bool:
        """Whether calls can compute on a CUDA GPU; on a cluster this process's machine need not have one."""

    @abstractmethod
    def on(self, device: Device) -> Executor:
        """The executor for calls that compute on this device: how many fit at once depends on it."""

    @abstractmethod
    def hire(self) -> AbstractContextManager[Crew]:
        """Those who make calls until the block ends."""

    def result(self, future: Future[bytes]) -> bytes:
        """Of a call that was answered; raises WorkerDied if its worker was lost."""
        return future.result()

    def map(
        self, function: Callable[[Argument], Result], arguments: Iterable[Argument]
    ) -> Iterator[tuple[Argument, Result | Exception]]:
        """(argument, result) as each call finishes, in any order.

        `arguments` is read no faster than workers take from it, so that a long list need not be in memory as a whole. A
        call's own exception (TaskRefused, ArithmeticError, RuntimeError) is its result, and the others go on. A call
        whose worker was lost is made again elsewhere; one that goes on losing its worker has `WorkerDied` for its
        result. When the iteration ends early, by an error or Ctrl-C, running calls are given up.

        Raises:
            InputError: a call's input was the user's mistake, which would be every other call's too.
        """
        rest: Iterator[tuple[Argument, int]] = zip(arguments, repeat(0))
        calls: dict[Future[bytes], tuple[Argument, int]] = {}
        with self.hire() as (room, submit):
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
                            yield argument, WorkerDied(f"{error}; it was tried {attempt + 1} times")
                    else:
                        yield argument, outcome_of(read_answer, answered)


# Calls and answers travel as bytes: left to themselves, multiprocessing and Ray would put every tensor into shared
# memory, and run out of it.


def answer(call: bytes) -> bytes:
    """Runs in a worker: makes a pickled call, and pickles its result or what it raised."""
    try:
        return pickle.dumps((pickle.loads(call)(), None))
    except BaseException as error:
        error.add_note(format_exc())  # where in the worker it was
        return pickle.dumps((None, _portable(error)))


def _portable(error: BaseException) -> BaseException:
    """The error, or one that says the same if it does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def read_answer(answered: bytes) -> Any:
    """A call's result; raises what it raised."""
    result, error = pickle.loads(answered)
    if error is not None:
        raise error
    return result


def outcome_of(function: Callable[[Argument], Result], argument: Argument) -> Result | Exception:
    """What a call returns or raises, if that is its own result; raises what would be every other call's too."""
    try:
        return function(argument)
    except (TaskRefused, ArithmeticError, RuntimeError) as error:
        return error


# What takes seconds to import. A server that has done so once forks workers in milliseconds, for all of a run's calls.
_PRELOADED = ["gpytorch", "pytorch_lightning"]
_starting = threading.Lock()


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class LocalExecutor(Executor):
    """Calls in processes of this machine; with one worker, in this very process."""

    workers: int = 1

    @property
    def has_gpu(self) -> bool:
        import torch

        return torch.cuda.is_available()

    def on(self, device: Device) -> LocalExecutor:
        """A GPU serves one process: a batch fills it better than several processes do."""
        return self if device == "cpu" else LocalExecutor()

    def map(
        self, function: Callable[[Argument], Result], arguments: Iterable[Argument]
    ) -> Iterator[tuple[Argument, Result | Exception]]:
        """See `Executor.map`; with one worker, or for one call, in this very process."""
        rest = iter(arguments)
        first = list(islice(rest, 2))
        if self.workers > 1 and len(first) > 1:
            return super().map(function, chain(first, rest))
        return ((argument, outcome_of(function, argument)) for argument in chain(first, rest))

    @contextmanager
    def hire(self) -> Iterator[Crew]:
        context, environment = worker_context(), dict(os.environ)
        crew, mine, over = list[Worker](), threading.local(), threading.Event()

        def call(pickled: bytes) -> bytes:
            if not (hasattr(mine, "worker") and mine.worker.waits):
                mine.worker = Worker(context, start_worker, environment)
                crew.append(mine.worker)
                if over.is_set():
                    mine.worker.kill()
            answered: bytes = mine.worker.call(pickled)
            return answered

        with ThreadPoolExecutor(self.workers) as threads:
            try:
                yield lambda: self.workers, lambda pickled: threads.submit(call, pickled)
            finally:
                over.set()
                for worker in crew:
                    worker.kill()


class Worker:
    """A process that makes one call after another.

    Nobody else holds the other end of its pipe: whatever ends it, even in the middle of an answer, is seen here.

    Args:
        prepare: called with `arguments` in the new process; has to call `start_worker`.
    """

    def __init__(self, context: BaseContext, prepare: Callable[..., None], *arguments: Any) -> None:
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, prepare, arguments))  # type: ignore[attr-defined]
        with shielded_start():
            self._process.start()
        theirs.close()

    def call(self, call: bytes) -> bytes:
        """What `answer` makes of a call there.

        Raises:
            WorkerDied: the process died before it had sent all of its answer.
        """
        try:
            self._pipe.send_bytes(call)
            return self._pipe.recv_bytes()
        except (EOFError, OSError) as error:  # in the middle of an answer, an OSError without a number
            self.kill()
            raise WorkerDied("the process that computed this died; it may have run out of memory") from error

    @property
    def waits(self) -> bool:
        """Whether it is there for a call; between calls only its end makes its pipe readable."""
        return not self._pipe.poll()

    def kill(self) -> None:
        if self._process.is_alive():  # else its number may be another process's by now
            self._process.kill()  # Lightning would turn SIGTERM into an exception, and the worker would go on
        self._process.join()


def _serve(pipe: Connection, prepare: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """What a worker does until its parent has no more calls."""
    # A process that a method forks must not keep the pipe open when the worker is gone.
    os.register_at_fork(after_in_child=pipe.close)
    prepare(*arguments)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send_bytes(answer(pipe.recv_bytes()))


def start_worker(environment: dict[str, str], *folders: str) -> None:
    """One thread, and deaf to Ctrl-C: a terminal sends it to every process, but ending workers is the parent's part.

    A parent killed with -9 tells nobody: then the worker ends by itself, and the folders are removed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=folders, daemon=True).start()
    # A server's is that of its own start, which may have been long ago. What libraries read as they are loaded, such as
    # OMP_NUM_THREADS, stays as it was then.
    os.environ.clear()
    os.environ.update(environment)
    import numpy as np

    # A method that draws from NumPy's global generator must not draw the same in every copy of the server.
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
    """How workers are started: never as copies of this process, which may hold threads, locks and a GPU.

    On Linux they are forked from a server that has done nothing but import (one per process, which a host program may
    have started before for purposes of its own). Elsewhere system libraries may not survive even that, and where no
    sockets can be made in the temporary folder there is no server: interpreters of their own need neither.
    """
    if sys.platform == "linux":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        with contextlib.suppress(OSError, EOFError):
            trial = context.Process(target=int)
            with shielded_start():
                trial.start()  # which starts the server if there is none
            trial.join()
            return context
    return multiprocessing.get_context("spawn")


@contextmanager
def shielded_start() -> Iterator[None]:
    """Processes started in this context never hear of Ctrl-C, not even while they import.

    Neither do they take modules in the current folder for libraries.
    """
    with _starting:  # the environment is that of all threads
        safe_path = os.environ.get("PYTHONSAFEPATH")
        os.environ["PYTHONSAFEPATH"] = "1"
        resource_tracker.ensure_running()  # the first process would start it, and let Ctrl-C through again
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
    """`local` with that many processes, or `ray`: the cluster at that address, at $RAY_ADDRESS, or a new one.

    Raises:
        InputError: there is no such cluster.
    """
    if name == "ray":
        from fsvi_bench.running.ray_cluster import RayExecutor

        return RayExecutor.connect(ray_address or os.environ.get("RAY_ADDRESS") or None, workers, gpu_share)
    return LocalExecutor(workers or available_cores())
