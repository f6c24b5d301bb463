"""How much of its workers' time does a run use? Wall time over (sum of compute / workers), for `--protocol quick`.

    python benchmarks/scheduling.py              # diabetes, all methods, two workers; asked: at most 1.2

Time counts from the moment that the first worker has imported what it needs and takes its first batch.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fsvi_bench.running.executors import LocalExecutor
from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources, fit_missing, run
from fsvi_bench.running.store import Store
from fsvi_bench.threads import use_one_thread
from fsvi_bench.training.trainer import Device


def timed(function: Callable[[Any], Any], argument: Any) -> tuple[Any, float, float, int]:
    """A call's result, when it began and ended (one clock for all processes), and where."""
    began = time.monotonic()
    result = function(argument)
    return result, began, time.monotonic(), os.getpid()


@dataclass
class Stopwatch:
    """An executor that remembers when each call began and ended."""

    executor: LocalExecutor
    calls: list[tuple[float, float, int]] = field(default_factory=list)

    @property
    def workers(self) -> int:
        return self.executor.workers

    @property
    def has_gpu(self) -> bool:
        return False

    def on(self, device: Device) -> Stopwatch:
        return self

    def map(self, function: Callable[[Any], Any], arguments: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        for argument, outcome in self.executor.map(partial(timed, function), arguments):
            if isinstance(outcome, Exception):
                yield argument, outcome
                continue
            result, *times = outcome
            self.calls.append(tuple(times))
            yield argument, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    use_one_thread()
    plan = make_plan(Request(protocol="quick"))
    fit_missing(plan.splits, LocalExecutor(arguments.workers), None, Silent(), official=True)
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as folder:
            watch = Stopwatch(LocalExecutor(arguments.workers))
            _, computed = run(plan, Store(Path(folder)), Resources(executor=watch), Silent())
        wall = max(end for _, end, _ in watch.calls) - min(begin for begin, _, _ in watch.calls)
        compute = sum(end - begin for begin, end, _ in watch.calls)
        share = wall / (compute / arguments.workers)
        print(f"{len(computed)} cells in {len(watch.calls)} batches on {len({p for *_, p in watch.calls})} workers: "
              f"wall {wall:.1f} s, compute {compute:.1f} s, wall / (compute / {arguments.workers}) = {share:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
