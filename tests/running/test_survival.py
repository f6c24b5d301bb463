"""Runs that are killed, that run out of space, and that meet: nothing finished is lost, nothing is computed twice."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.running.cell import Record
from tests.requirements import skip_or_fail
from tests.running.commands import Command
from tests.running.test_executors import until

KILLS = int(os.environ.get("FSVI_BENCH_KILLS", "3"))
METHODS = os.environ.get("FSVI_BENCH_KILL_METHODS", "exact mean-field-vi rand-a-ngd").split()
SPLITS = os.environ.get("FSVI_BENCH_KILL_SPLITS", "0-3")
GRID = f"--dataset toy --splits {SPLITS} --max-steps 200".split() + [w for name in METHODS for w in ("--method", name)]
pytestmark = pytest.mark.slow


def start(out: Path, *arguments: str) -> Command:
    return Command("run", *arguments, "--wandb", "off", "--out", out)


def finish(process: Command, seconds: float = 300) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def finished(out: Path) -> dict[str, tuple[int, bytes]]:
    """Every record on disk, each read as what it should be, with the time at which it was written."""
    found = {}
    for path in sorted(out.rglob("record.json")):
        content = path.read_bytes()
        record = Record.model_validate_json(content)
        assert record.status == "ok"
        assert read_posterior(path.parent / "posterior.safetensors", 20, record.task_sha256).k == 20
        found[str(path)] = (path.stat().st_mtime_ns, content)
    return found


def without_clock(text: str) -> list[dict]:
    return [{k: v for k, v in record.items() if k not in ("seconds", "provenance")} for record in json.loads(text)]


def kill_after(process: Command, out: Path, records: int, seconds: float) -> bool:
    """Ends the process group with -9, so many seconds after so many records are there (of 0: after work began).

    Returns whether it was still running.
    """
    while process.poll() is None:
        if (out / ".running").is_file() and len(list(out.rglob("record.json"))) >= records:
            time.sleep(seconds)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(0.01)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def test_killed_again_and_again_a_run_loses_nothing(tmp_path):
    """`kill -9` of the whole process group at random moments of its work."""
    status, expected, _ = finish(start(tmp_path / "whole", *GRID, "--workers", "1", "--json"), 3000)
    assert status == 0
    moments, total, before, kept, kills = random.Random(5), len(json.loads(expected)), {}, [], 0
    for left in range(KILLS, 0, -1):
        process = start(tmp_path / "out", *GRID, "--workers", "2")
        (tmp_path / "out" / ".running").unlink(missing_ok=True)  # the last victim's
        # A share of what is left for each kill, so that the last one still finds a run at work.
        more = moments.randint(0, max(1, (total - 1 - len(before)) // left))
        kills += kill_after(process, tmp_path / "out", len(before) + more, moments.uniform(0, 0.5))
        after = finished(tmp_path / "out")
        assert {path: after[path] for path in before} == before, "a finished cell was computed again or lost"
        before = after
        kept.append(len(after))
    print(f"{kills} kills; records after each: {kept} of {total}")
    assert kills >= KILLS // 2, "most runs ended before they were killed"
    assert len({count for count in kept if 0 < count < total}) >= 2, "the kills hit no run in the middle of its work"
    status, text, _ = finish(start(tmp_path / "out", *GRID, "--workers", "1", "--json"), 3000)
    assert status == 0
    assert without_clock(text) == without_clock(expected)
    after = finished(tmp_path / "out")
    assert {path: after[path] for path in before} == before
    assert not [path for path in (tmp_path / "out").rglob(".*.*") if path.is_file()], "half-written files are left"
    tables = [finish(start(tmp_path / name, *GRID, "--workers", "1"))[1] for name in ("whole", "out")]
    assert tables[0] == tables[1]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of half a megabyte, and a way to make it larger."""
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], capture_output=True, text=True
    )
    if made.returncode:
        skip_or_fail(f"cannot mount a tmpfs: {made.stderr.strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_is_said_plainly_and_costs_nothing_that_is_finished(tmp_path, small_disk):
    grid = ["--dataset", "toy", "--method", "exact", "--method", "mean-field-vi", "--max-steps", "50"]
    expected = finish(start(tmp_path / "whole", *grid, "--workers", "1", "--json"))[1]
    status, out, err = finish(start(small_disk / "out", *grid, "--workers", "2"))
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("fsvi-bench: cannot write ")
    assert "No space left on device" in err.splitlines()[-1]
    assert "Traceback" not in err
    before = finished(small_disk / "out")
    assert 5 < len(before) < 60
    status, _, err = finish(start(small_disk / "out", *grid, "--rerun", "all", "--workers", "1"))
    assert status == 2, "what is to be computed again finds no place"
    assert finished(small_disk / "out").keys() == before.keys()
    before = finished(small_disk / "out")
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    status, text, _ = finish(start(small_disk / "out", *grid, "--workers", "1", "--json"))
    assert status == 0
    assert without_clock(text) == without_clock(expected)
    after = finished(small_disk / "out")
    assert {path: after[path] for path in before} == before


def test_two_runs_in_one_folder_are_told_apart(tmp_path):
    """The first goes on undisturbed; its lock ends with it, even with -9."""
    endless = ["--dataset", "toy", "--splits", "0", "--method", "mean-field-vi", "--max-steps", "10000000"]
    first = start(tmp_path, *endless)
    try:
        until(lambda: (tmp_path / ".running").is_file() or first.poll() is not None)
        status, out, err = finish(start(tmp_path, "--dataset", "toy", "--method", "exact"))
        assert (status, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith(f"fsvi-bench: another run is using {tmp_path} (process {first.pid} on ")
        assert first.poll() is None
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
    status, out, _ = finish(start(tmp_path, "--dataset", "toy", "--splits", "0", "--method", "exact"))
    assert status == 0
    assert "exact full" in out
