"""Work spread over processes of one thread each; small linear algebra is slower on two threads than on one."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
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


def run_parallel(
    function: Callable[[Argument], Result], arguments: Sequence[Argument], workers: int
) -> Iterator[tuple[Argument, Result | Exception]]:
    """(argument, result) as each call finishes; a call's own exception is its result, and the others go on.

    Raises:
        InputError: a call's input was the user's mistake, which would be every other call's too.
    """
    workers = min(workers, len(arguments))
    if workers <= 1:
        for argument in arguments:
            yield argument, _outcome(lambda argument=argument: function(argument))  # type: ignore[misc]
        return
    with _pool(workers) as pool:
        # Arguments and results travel as bytes: left to itself, torch would send every tensor as a file descriptor
        # into shared memory, and run out of both.
        futures: dict[Future[bytes], Argument] = {
            pool.submit(_call_with_bytes, function, pickle.dumps(argument)): argument for argument in arguments
        }
        for future in as_completed(futures):
            yield futures[future], _outcome(lambda future=future: pickle.loads(future.result()))  # type: ignore[misc]


def _call_with_bytes(function: Callable[[Any], Any], argument: bytes) -> bytes:
    return pickle.dumps(function(pickle.loads(argument)))


def _outcome(call: Callable[[], Result]) -> Result | Exception:
    try:
        return call()
    except InputError:
        raise
    except (TaskRefused, ArithmeticError, RuntimeError) as error:
        return error
