"""Calls in a process of their own that nobody waits for until the end, and then not for long."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cached_property
from typing import Generic

from fsvi_bench.running.executors.base import Result
from fsvi_bench.running.executors.local import deaf_to_interrupts, end_with_parent, give_up


class Background(Generic[Result]):
    """One process, started by the first call, that makes calls one after the other; what goes wrong there stays there.

    It is silent, deaf to Ctrl-C, has a temporary folder of its own, and is killed when its context is left.
    """

    def __init__(self) -> None:
        self._calls: list[Future[Result]] = []

    @cached_property
    def _pool(self) -> ProcessPoolExecutor:
        self._temporary = tempfile.TemporaryDirectory(prefix="fsvi-", ignore_cleanup_errors=True)
        context, arguments = multiprocessing.get_context("spawn"), (self._temporary.name,)
        return ProcessPoolExecutor(1, context, initializer=_start, initargs=arguments)

    def submit(self, function: Callable[..., Result], *arguments: object) -> None:
        """Returns at once.

        Raises:
            OSError: no process can be started.
            BrokenExecutor: it has died.
        """
        with deaf_to_interrupts():
            self._calls.append(self._pool.submit(function, *arguments))

    def results(self, seconds: float) -> Iterator[Result]:
        """What the calls returned, in their order.

        Raises:
            TimeoutError: no call ended for so many seconds.
            BrokenExecutor: the process died.
            Exception: what a call raised.
        """
        for call in self._calls:
            try:
                yield call.result(seconds)
            except TimeoutError:
                raise TimeoutError(f"no answer in {seconds:g} s") from None

    def __enter__(self) -> Background[Result]:
        return self

    def __exit__(self, *_: object) -> None:
        if "_pool" in vars(self):
            give_up(self._pool)
            self._temporary.cleanup()


def _start(temporary: str) -> None:
    end_with_parent(temporary)
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.environ["TMPDIR"] = tempfile.tempdir = temporary
