"""Does a large grid stay quick? Seconds and memory of planning, and of the status of, 100,000 cells.

    python benchmarks/grid.py            # 100,000 cells: planned, none done, all done

Each command runs in a process of its own, imports included. Records are copies of one made record.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SPLITS, FAMILIES, POINTS = 20, 2, 4
GRID = ["run", "--dataset", "toy", "--method", "rand-a", "--wandb", "off"]


def measure(*arguments: str | Path) -> tuple[float, float, str]:
    """Seconds, peak memory (MiB) and standard output of one `fsvi-bench` command."""
    command = [sys.executable, "-m", "fsvi_bench", *map(str, arguments)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    return time.perf_counter() - started, usage.ru_maxrss / 1024, text


def write_plan_and_records(folder: Path, seeds: int, records: bool) -> int:
    """A folder as a run leaves it; every record is one that was made, under another cell's name."""
    from fsvi_bench.running.cell import Variant
    from fsvi_bench.running.store import Store

    subprocess.run([sys.executable, "-m", "fsvi_bench", *GRID, "--splits", "0", "--max-steps", "1", "--out", folder / "one"],
                   check=True, capture_output=True)  # fmt: skip
    subprocess.run([sys.executable, "-m", "fsvi_bench", *GRID, "--method", "exact", "--out", folder / "tasks"],
                   check=True, capture_output=True)  # fmt: skip
    one, all_splits = Store(folder / "one"), Store(folder / "tasks")
    template, like = one.records[0], one.plans[0].variants
    variants = tuple(
        Variant.model_validate(
            {
                **each.model_dump(),
                "hyperparameters": {**each.hyperparameters, "M": 10 * (1 + place)},
                "seeds": tuple(range(seeds)),
            }
        )
        for each in like
        for place in range(POINTS)
    )
    plan = all_splits.plans[0].model_copy(update={"variants": variants})
    out = folder / "out"
    (out / "plans").mkdir(parents=True)
    (out / "plans" / f"{plan.name}.json").write_text(plan.model_dump_json())
    cells = list(plan.cells())
    for cell in cells if records else ():
        path = out / cell.folder / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(template.model_copy(update={**dict(cell), "cell": cell.key}).model_dump_json(indent=2))
    return len(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where the records go; default: a temporary folder")
    arguments = parser.parse_args()
    seeds = arguments.cells // (SPLITS * FAMILIES * POINTS)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        for records in (False, True):
            where = folder / str(records)
            count = write_plan_and_records(where, seeds, records)
            if not records:
                points = [word for place in range(POINTS) for word in ("--measurement-points", str(10 * (1 + place)))]
                dry = [*GRID, "--seeds", f"0-{seeds - 1}", *points, "--dry-run", "--json", "--out", where / "nothing"]
                seconds, memory, text = measure(*dry)
                print(f"run --dry-run: {json.loads(text)['planned']:,} cells, {seconds:.1f} s, {memory:.0f} MiB")
            seconds, memory, text = measure("status", where / "out", "--json")
            done = json.loads(text)["ok"]
            print(f"status, {done:,} of {count:,} cells done: {seconds:.1f} s, {memory:.0f} MiB")


if __name__ == "__main__":
    main()
