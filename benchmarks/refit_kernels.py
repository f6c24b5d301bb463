"""How far from the official tasks fits end when BLAS computes with another processor's kernels.

    python benchmarks/refit_kernels.py --kernels Haswell Nehalem --tasks boston:0 concrete:3

SciPy's and NumPy's OpenBLAS takes the kernels of the processor that `OPENBLAS_CORETYPE` names: results differ in the last
bits, as on such a machine. Prints a Markdown table, a line as each fit ends; it needs $FSVI_BENCH_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.official import read_official
from fsvi_bench.tasks.raw import load_raw
from fsvi_bench.tasks.refit import compare
from fsvi_bench.threads import use_one_thread

TASKS = ["boston:0", "concrete:0", "concrete:3", "energy:0", "wine:0", "yacht:0"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=["Haswell", "Nehalem"])
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        return print(json.dumps(one(arguments.one)))
    print("| task | kernels | bound per point: official | refitted | apart [nats] | means [predictive sd] | log sds |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for task in arguments.tasks:
        for kernels in arguments.kernels:
            command = [sys.executable, str(Path(__file__)), "--one", task]
            environment = {**os.environ, "OPENBLAS_CORETYPE": kernels}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            bound, means, sds = json.loads(done.stdout)
            values = f"{bound['frozen']:.5f} | {bound['refitted']:.5f} | {bound['apart']:.1e}"
            print(f"| {task} | {kernels} | {values} | {means['apart']:.1e} | {sds['apart']:.1e} |", flush=True)
    return None


def one(task: str) -> list[dict[str, object]]:
    """The distances of one fit in this process."""
    use_one_thread()
    name, split = task.split(":")
    card = load_card(name)
    refit = compare(read_official(name, int(split)), build_task(card, int(split)), load_raw(card, int(split)))
    return [asdict(distance) for distance in refit.distances]


if __name__ == "__main__":
    main()
