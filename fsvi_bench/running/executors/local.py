"""Processes of this machine, one thread each: small linear algebra is slower on two threads than on one."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Generic

from fsvi_bench.running.executors.base import Argument, Result, WorkerDied, is_result
from fsvi_bench.threads import use_one_thread

if TYPE_CHECKING:
    from fsvi_bench.training.trainer import Device


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# What takes seconds to import. A server that has done so once forks workers in milliseconds, for all of a run's pools.
_PRELOADED = ["gpytorch", "pytorch_lightning"]


def start_worker(environment: dict[str, str], *folders: str) -> None:
    """One thread, and deaf to Ctrl-C: a terminal sends it to every process, but ending workers is the parent's part.

    The folders are removed should the parent be killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(*folders)
    # A server's is that of its own start, which may have been long ago. What libraries read as they are loaded, such as
    # OMP_NUM_THREADS, stays as it was then.
    os.environ.clear()
    os.environ.update(environment)
    import numpy as np

    # A method that draws from NumPy's global generator must not draw the same in every copy of the server.
    np.random.seed()
    use_one_thread()


def _worker_context() -> BaseContext:
    """How workers are started: never as copies of this process, which may hold threads, locks and a GPU.

    On Linux they are forked from a server that has done nothing but import (one per process, which a host program may
    have started before for purposes of its own). Elsewhere system libraries may not survive even that, and where no
    sockets can be made in the temporary folder there is no server: interpreters of their own need neither.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    try:
        _ensure_server()
        trial = context.Process(target=int)
        trial.start()
        trial.join()
    except (OSError, EOFError):
        return multiprocessing.get_context("spawn")
    return context


def _ensure_server() -> None:
    """Starts the server if there is none.

    Raises:
        OSError: it finds no place for its socket.
    """
    with shielded_start():
        forkserver.ensure_running()


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


def end_with_parent(*folders: str) -> None:
    """A parent killed with -9 tells nobody; its workers would wait for work for ever. Their folders go with them."""
    threading.Thread(target=_end_with_parent, args=folders, daemon=True).start()


def _end_with_parent(*folders: str) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that share nothing with this one; killed, and its queue dropped, on an error or Ctrl-C."""
    pool = ProcessPoolExecutor(
        workers, mp_context=_worker_context(), initializer=start_worker, initargs=(dict(os.environ),)
    )
    try:
        yield pool
    except BaseException:
        give_up(pool)
        raise
    pool.shutdown()


def give_up(pool: ProcessPoolExecutor) -> None:
    """Kills a pool's processes and drops its calls; returns at once."""
    results = pool._result_queue
    for process in list((pool._processes or {}).values()):
        # Lightning would turn SIGTERM into an exception, and the worker would go on to the next job. Who has ended is
        # reaped by the server, and the number may be another process's by now.
        if process.is_alive():
            process.kill()
    # A worker killed in the middle of a result leaves the pool's thread waiting for its rest, and the end of Python for
    # that thread, as long as there is anyone who could write there; this process itself could.
    results._writer.close()  # type: ignore[attr-defined]
    pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class LocalExecutor:
    """Calls in processes of this machine; with one worker, in this very process.

    If a worker dies, the calls that were under way are made again, each in a process of its own.
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
        waiting = _Waiting(arguments)
        if self.workers <= 1 or not waiting.more_than_one():
            for argument in waiting:
                yield argument, _outcome(lambda argument=argument: function(argument))  # type: ignore[misc]
            return
        while waiting:
            under_way: dict[Future[bytes], Argument] = {}
            try:
                yield from _share_out(function, waiting, self.workers, under_way)
            except BrokenProcessPool:
                for argument in under_way.values():
                    yield argument, _outcome(lambda argument=argument: _call_alone(function, argument))  # type: ignore[misc]


class _Waiting(Generic[Argument]):
    """Arguments that nobody has taken yet; true while there are some. Reads ahead by two at most."""

    def __init__(self, arguments: Iterable[Argument]) -> None:
        self._rest, self._ahead = iter(arguments), deque[Argument]()

    def _look_ahead(self, count: int) -> bool:
        while len(self._ahead) < count:
            try:
                self._ahead.append(next(self._rest))
            except StopIteration:
                return False
        return True

    def more_than_one(self) -> bool:
        return self._look_ahead(2)

    def __bool__(self) -> bool:
        return self._look_ahead(1)

    def __iter__(self) -> Iterator[Argument]:
        while self:
            yield self.take()

    def first(self) -> Argument:
        self._look_ahead(1)
        return self._ahead[0]

    def take(self) -> Argument:
        self._look_ahead(1)
        return self._ahead.popleft()


def _share_out(
    function: Callable[[Argument], Result],
    waiting: _Waiting[Argument],
    workers: int,
    under_way: dict[Future[bytes], Argument],
) -> Iterator[tuple[Argument, Result | Exception]]:
    """Takes from `waiting` what a pool can work on at once, and yields what is done; `under_way` holds the rest.

    Raises:
        BrokenProcessPool: a worker died.
    """
    with _pool(workers) as pool:
        while waiting or under_way:
            while len(under_way) < workers and waiting:
                # Taken once it is handed over: a pool that turns out to be broken leaves it to the next one.
                future = _submit(pool, function, waiting.first())
                under_way[future] = waiting.take()
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                outcome = _outcome(lambda future=future: pickle.loads(future.result()))  # type: ignore[misc]
                yield under_way.pop(future), outcome


def _submit(pool: ProcessPoolExecutor, function: Callable[[Any], Any], argument: Any) -> Future[bytes]:
    # Arguments and results travel as bytes: left to itself, torch would send every tensor as a file descriptor into
    # shared memory, and run out of both.
    return pool.submit(_call_with_bytes, function, pickle.dumps(argument))


def _call_alone(function: Callable[[Argument], Result], argument: Argument) -> Result:
    """Twice if need be: the death that ended the pool may have been another call's."""
    for _ in range(2):
        try:
            with _pool(1) as pool:
                return pickle.loads(_submit(pool, function, argument).result())
        except BrokenProcessPool:
            continue
    raise WorkerDied("the process that computed this died, again and again; it may have run out of memory")


def _call_with_bytes(function: Callable[[Any], Any], argument: bytes) -> bytes:
    return pickle.dumps(function(pickle.loads(argument)))


def _outcome(call: Callable[[], Result]) -> Result | Exception:
    try:
        return call()
    except BrokenProcessPool:
        raise
    except Exception as error:
        if is_result(error):
            return error
        raise
