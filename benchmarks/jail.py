"""What the jail costs a run of `verify`: starting it and its imports, in a first run, and the proof that it holds.

    python benchmarks/jail.py [--repeats 5] [--method exact] [--family full]

Runs a built-in method on a small task (toy, k = 20): as the first run of a sandbox, as a later one, and without a jail. Of
each run: seconds until the method starts, which are the same whatever it does, and seconds from there to its posterior.
Prints medians and the worst.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext

from fsvi_bench.leaderboard.entry import Budget, BuiltIn, Entry, Manifest
from fsvi_bench.leaderboard.jailed.jail import Jail, require_jail
from fsvi_bench.leaderboard.jailed.run import Limits, run_entry
from fsvi_bench.leaderboard.jailed.sandbox import closed_sandbox
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import Task, bind_task
from fsvi_bench.threads import use_one_thread


def entry(method: str, family: str) -> Entry:
    content = {
        "title": "A benchmark", "authors": ["nobody"], "owner": "nobody", "licence": "MIT", "family": family,
        "method": BuiltIn(name=method, version="0.4.0"), "settings": {}, "budget": Budget(steps=100_000, seconds=600.0),
    }  # fmt: skip
    return Entry("benchmark", Manifest.model_validate(content), None)


def seconds_of_a_run(each: Entry, task: Task, jail: Jail) -> tuple[float, float]:
    """Seconds to start, and seconds from there to the end."""
    start = time.perf_counter()
    run = run_entry(each, task, 0, jail, Limits())
    assert run.status == "ok", run.reason
    return time.perf_counter() - start - run.seconds, run.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--method", default="exact")
    parser.add_argument("--family", default="full")
    asked = parser.parse_args()
    use_one_thread()
    each, task = entry(asked.method, asked.family), bind_task(build_task(load_card("toy"), 0).task)
    jail = require_jail()
    kinds = {
        "first run": (jail, closed_sandbox),
        "later run": (jail, nullcontext),
        "no jail": (Jail(None), nullcontext),
    }
    for kind, (place, closing) in kinds.items():
        runs = []
        for _ in range(asked.repeats):
            with closing():
                runs.append(seconds_of_a_run(each, task, place))
        for what, seconds in zip(("to start", "from there"), zip(*runs, strict=True), strict=True):
            print(f"{kind}, {what:<10}: median {statistics.median(seconds):.2f} s, most {max(seconds):.2f} s")


if __name__ == "__main__":
    main()
