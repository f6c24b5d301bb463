"""The command in a process of its own, forked from the server of workers, which has made the imports that take seconds."""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from fsvi_bench.running.executors import worker_context


class Command:
    """`fsvi-bench` with these arguments in a session of its own; used as a `Popen`."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        context, words = worker_context(), [str(each) for each in arguments]
        pipes = [context.Pipe(duplex=False) for _ in ("stdout", "stderr")]
        theirs = [sends for _, sends in pipes]
        self._process = context.Process(target=_run, args=(words, theirs, {**os.environ, **environment}))
        self._process.start()
        self._said = ["", ""]
        self._readers = [
            threading.Thread(target=self._read, args=(place, receives), daemon=True)
            for place, (receives, _) in enumerate(pipes)
        ]
        for sends, reader in zip(theirs, self._readers, strict=True):
            sends.close()
            reader.start()

    def _read(self, place: int, receives: Connection) -> None:
        with open(receives.fileno(), closefd=False) as stream:
            self._said[place] = stream.read()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it and the processes that it has started say, until all of them have ended."""
        for reader in self._readers:
            reader.join(timeout)
            if reader.is_alive():
                raise TimeoutError(f"the command has not ended after {timeout} s")
        self._process.join()
        return self._said[0], self._said[1]


def _run(words: list[str], pipes: list[Connection], environment: dict[str, str]) -> Any:
    os.setsid()
    for descriptor, pipe in enumerate(pipes, start=1):
        os.dup2(pipe.fileno(), descriptor)
        pipe.close()
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the server ignores it
    sys.argv = ["fsvi-bench", *words]
    from fsvi_bench.cli.app import main

    main(words)
