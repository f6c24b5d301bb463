"""Work spread over processes of one thread each; small linear algebra is slower on two threads than on one."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from fsvi_bench.errors import InputError, TaskRefused

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_one_thread() -> None:
    """Limits torch, BLAS and OpenMP of this process to one thread."""
    import scipy.linalg  # noqa: F401 -- only libraries that are loaded by then can be limited; SciPy has its own BLAS
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)


def _start_worker() -> None:
    """One thread, and deaf to Ctrl-C: a terminal sends it to every process, but ending workers is the parent's part."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    use_one_thread()


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of fresh processes; on an error or Ctrl-C the queue is dropped and running work is not waited for."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
            # Lightning would turn SIGTERM into an exception, and the worker would go on to the next job.
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


class WorkerDied(RuntimeError):
    """A worker process was killed (out of memory, say) or crashed while it was at a call."""


def run_parallel(
    function: Callable[[Argument], Result], arguments: Sequence[Argument], workers: int
) -> Iterator[tuple[Argument, Result | Exception]]:
    """(argument, result) as each call finishes; a call's own exception is its result, and the others go on.

    If a worker dies, the calls that were under way are made again, each in a process of its own; one whose process
    goes on dying has `WorkerDied` for its result.

    Raises:
        InputError: a call's input was the user's mistake, which would be every other call's too.
    """
    workers = min(workers, len(arguments))
    if workers <= 1:
        for argument in arguments:
            yield argument, _outcome(lambda argument=argument: function(argument))  # type: ignore[misc]
        return
    waiting = deque(arguments)
    while waiting:
        under_way: dict[Future[bytes], Argument] = {}
        try:
            yield from _share_out(function, waiting, workers, under_way)
        except BrokenProcessPool:
            for argument in under_way.values():
                yield argument, _outcome(lambda argument=argument: _call_alone(function, argument))  # type: ignore[misc]


def _share_out(
    function: Callable[[Argument], Result],
    waiting: deque[Argument],
    workers: int,
    under_way: dict[Future[bytes], Argument],
) -> Iterator[tuple[Argument, Result | Exception]]:
    """Takes from `waiting` what a pool can work on at once, and yields what is done; `under_way` holds the rest.

    Raises:
        BrokenProcessPool: a worker died.
    """
    with _pool(workers) as pool:
        while waiting or under_way:
            while waiting and len(under_way) < workers:
                future = _submit(pool, function, waiting[0])
                under_way[future] = waiting.popleft()
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
    except InputError:
        raise
    except BrokenProcessPool:
        raise
    except (TaskRefused, ArithmeticError, RuntimeError) as error:
        return error
