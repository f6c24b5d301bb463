"""Calls in a separate process; results are collected at the end, with a time limit."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, wait
from functools import cached_property, partial
from typing import Generic

from fsvi_bench.running.executors.base import Result
from fsvi_bench.running.executors.local import end_with_parent, give_up, shielded_start


class Background(Generic[Result]):
    """One process, started by the first call, that makes calls one after the other; what goes wrong there stays there.

    It is silent, deaf to Ctrl-C, has a temporary folder of its own, and is killed when its context is left.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[[], Result], Future[Result]]] = deque()

    @cached_property
    def _pool(self) -> ProcessPoolExecutor:
        self._temporary = tempfile.TemporaryDirectory(prefix="fsvi-", ignore_cleanup_errors=True)
        context, arguments = multiprocessing.get_context("spawn"), (self._temporary.name,)
        return ProcessPoolExecutor(1, context, initializer=_start, initargs=arguments)

    def submit(self, function: Callable[..., Result], *arguments: object) -> None:
        """Returns at once.

        Raises:
            OSError: no process can be started.
        """
        call = partial(function, *arguments)
        try:
            with shielded_start():
                future = self._pool.submit(call)
        except BrokenExecutor as error:  # `results` makes the call
            future = Future()
            future.set_exception(error)
        self._calls.append((call, future))

    def results(self, seconds: float) -> Iterator[Result | BaseException]:
        """What the calls returned or raised, in their order, each waited for so many seconds.

        A call during which the process dies (`BrokenExecutor`) or gives no answer (`TimeoutError`) is not made again;
        for the calls behind it another process is started.

        Raises:
            OSError: no process can be started.
        """
        while self._calls:
            if "_pool" not in vars(self):  # the last call has cost it
                behind, self._calls = self._calls, deque()
                for call, _ in behind:
                    self.submit(call)
            future = self._calls.popleft()[1]
            answered = bool(wait([future], seconds).done)
            error = future.exception() if answered else TimeoutError(f"no answer in {seconds:g} s")
            if not answered or isinstance(error, BrokenExecutor):
                self._end()
            yield error or future.result()

    def __enter__(self) -> Background[Result]:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if (pool := vars(self).pop("_pool", None)) is not None:
            give_up(pool)
            self._temporary.cleanup()


def _start(temporary: str) -> None:
    end_with_parent(temporary)
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.environ["TMPDIR"] = tempfile.tempdir = temporary
