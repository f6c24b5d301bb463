"""How long a leaderboard of many submissions takes to be read and ranked.

    python -m benchmarks.leaderboard_ranking [--entries 500] [--datasets 8] [--splits 20] [--kib 41]

Makes synthetic submissions with posterior files of the given size (links to one file per submission, so that little
disk is taken and the page cache is warm), and times reading and hashing them all, every track's table, the tables
across tracks, and one comparison.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsvi_bench.leaderboard.entries import SUBMISSIONS, folder_sha256, read_entries
from fsvi_bench.leaderboard.references import References
from fsvi_bench.leaderboard.strict import manifest_yaml
from fsvi_bench.leaderboard.submission import CELLS_FILE, MANIFEST_FILE, TRACKS
from fsvi_bench.leaderboard.verification import verification_path, write_verification

from fsvi_bench.leaderboard.comparing import comparison
from fsvi_bench.leaderboard.ranking import rank_across, rank_track
from tests.leaderboard.boards import SOURCE, manifest, references, verification, verified_cells

NAMES = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "wine", "yacht", "protein")
FAMILIES = ("full", "ffg", "bernoulli")


def submission(root: Path, name: str, family: str, table: References, kib: int) -> None:
    """One folder and its verification."""
    folder = root / SUBMISSIONS / name
    folder.mkdir(parents=True)
    cells = verified_cells(name, table, family)
    one = root / f"{name}.bytes"
    one.write_bytes(os.urandom(kib * 1024))
    for cell in cells:
        path = folder / "posteriors" / cell.dataset / f"split-{cell.split:02d}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.hardlink_to(one)
    (folder / MANIFEST_FILE).write_bytes(manifest_yaml(manifest(name, family)))
    (folder / CELLS_FILE).write_bytes(b"x" * 400 * len(cells))
    (folder / "mine.py").write_text(SOURCE)
    write_verification(verification_path(root, name), verification(name, cells, family, True, folder_sha256(folder)))


def timed(what: str, call: Callable[[], Any]) -> Any:
    start, cpu = time.perf_counter(), time.process_time()
    found = call()
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(f"{wall:8.2f} s, of processors {cpu:8.2f} s: {what}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("entries", 500), ("datasets", 8), ("splits", 20), ("kib", 41)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    table = references(dict.fromkeys(NAMES[: asked.datasets], asked.splits))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for n in range(asked.entries):
            submission(root, f"entry-{n:04d}", FAMILIES[n % len(FAMILIES)], table, asked.kib)
        entries = timed("read and hashed", lambda: read_entries(root)).entries
        assert all(entry.verification is not None for entry in entries)
        for track in TRACKS:
            timed(f"ranked: {track}", lambda track=track: rank_track(entries, table, track))
        timed("ranked: across tracks", lambda: rank_across(entries, table, "predictive_kl_box"))
        timed("compared", lambda: comparison(entries[0], entries[3], table))


if __name__ == "__main__":
    main()
