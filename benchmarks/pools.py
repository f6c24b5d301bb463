"""How long until two workers have imported what training needs? Three pools in a row, as a run's stages open them.

    python benchmarks/pools.py

Time counts from the call, the workers' start and imports included.
"""

from __future__ import annotations

import os
import time

from fsvi_bench.running.executors import LocalExecutor


def ready(_: int) -> int:
    """Where it ran, once everything that trains is imported."""
    import fsvi_bench.methods.registry
    import fsvi_bench.running.runner  # noqa: F401

    return os.getpid()


def main() -> None:
    for pool in range(3):
        began = time.monotonic()
        processes = {process for _, process in LocalExecutor(2).map(ready, range(2))}
        print(f"pool {pool + 1}: {time.monotonic() - began:.2f} s, {len(processes)} processes", flush=True)


if __name__ == "__main__":
    main()
