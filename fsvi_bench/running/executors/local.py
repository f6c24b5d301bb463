"""Processes of this machine, one thread each: small linear algebra is slower on two threads than on one.

Every worker has a pipe of its own, so that a death is one call's. The pools of `concurrent.futures` and loky share one
queue of results: a death ends the pool, and one in the middle of a result leaves their reader waiting for the rest.
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

from fsvi_bench.running.executors.base import Argument, Result, WorkerDied, answer, as_result, read_answer
from fsvi_bench.threads import use_one_thread

if TYPE_CHECKING:
    from fsvi_bench.training.trainer import Device

ATTEMPTS = 3  #: of a call whose worker dies
# What takes seconds to import. A server that has done so once forks workers in milliseconds, for all of a run's calls.
_PRELOADED = ["gpytorch", "pytorch_lightning"]


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class LocalExecutor:
    """Calls in processes of this machine; with one worker, in this very process.

    If a worker dies, its call is made again by a new one.
    """

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
        """See `Executor.map`."""
        rest = iter(arguments)
        first = list(islice(rest, 2))
        if self.workers > 1 and len(first) > 1:
            yield from _share_out(function, chain(first, rest), self.workers)
            return
        for argument in chain(first, rest):
            try:
                yield argument, function(argument)
            except Exception as error:
                yield argument, as_result(error)


def _share_out(
    function: Callable[[Argument], Result], arguments: Iterator[Argument], workers: int
) -> Iterator[tuple[Argument, Result | Exception]]:
    """Calls that are made by so many workers at once."""
    context, crew = worker_context(), list[Worker]()
    calls: dict[Any, tuple[Worker, Argument, int]] = {}  # by pipe: who is at which argument, for which time

    def hire() -> None:
        crew.append(Worker(context, start_worker, dict(os.environ)))

    def begin(argument: Argument, attempt: int) -> None:
        worker = next(worker for worker in crew if worker.pipe not in calls)
        calls[worker.pipe] = worker, argument, attempt
        worker.send(partial(function, argument))

    try:
        first = list(islice(arguments, workers))
        for _ in first:  # before any has an argument, for which a pipe may have no room until it is read
            hire()
        arguments = chain(first, arguments)
        while True:
            for argument in islice(arguments, workers - len(calls)):
                begin(argument, 1)
            if not calls:
                return
            for pipe in wait(list(calls)):
                worker, argument, attempt = calls.pop(pipe)
                try:
                    result = worker.receive()
                except WorkerDied as error:
                    crew.remove(worker)
                    worker.kill()
                    hire()
                    if attempt < ATTEMPTS:
                        begin(argument, attempt + 1)
                        continue
                    result = error
                except Exception as error:
                    result = as_result(error)
                yield argument, result
    finally:
        for worker in crew:
            worker.kill()


class Worker:
    """A process that makes one call after another.

    Nobody else holds the other end of its pipe: whatever ends it, even in the middle of an answer, is seen here.

    Args:
        prepare: called with `arguments` in the new process; has to call `start_worker`.
    """

    def __init__(self, context: BaseContext, prepare: Callable[..., None], *arguments: Any) -> None:
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, prepare, arguments))  # type: ignore[attr-defined]
        with shielded_start():
            self._process.start()
        theirs.close()

    def send(self, call: Callable[[], Any]) -> None:
        """Asks for a call; that the process is dead is told by `receive`."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send_bytes(pickle.dumps(call))

    def receive(self) -> Any:
        """The result of the call that it is at; raises what that raised.

        Raises:
            WorkerDied: it died before it had sent all of its answer.
        """
        try:
            answered = self.pipe.recv_bytes()
        except (EOFError, ConnectionResetError) as error:
            raise WorkerDied(
                "the process that computed this died, again and again; it may have run out of memory"
            ) from error
        return read_answer(answered)

    def kill(self) -> None:
        # Lightning would turn SIGTERM into an exception, and the worker would go on.
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _serve(pipe: Connection, prepare: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """What a worker does until its parent has no more calls."""
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
    safe_path = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        resource_tracker.ensure_running()  # the first process would start it, and let Ctrl-C through again
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        if safe_path is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = safe_path
