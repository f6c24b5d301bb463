"""Calls in a process apart: their results in order, and nothing else of them, whatever they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest

from fsvi_bench.running.executors.background import Background

START = 60.0  #: seconds in which a process has started, on a busy machine too


def square(number):
    print("hello")
    return number * number


def leave_a_folder(then):
    """In the temporary folder, as W&B does, which removes it when it ends by itself."""
    tempfile.mkdtemp()
    if then == "dies":
        os._exit(3)
    if then == "raises":
        raise ValueError(then)
    time.sleep(600 if then == "hangs" else 0)


def test_results_come_in_order_and_nothing_is_printed(capfd):
    with Background() as process:
        for number in range(5):
            process.submit(square, number)
        assert list(process.results(START)) == [0, 1, 4, 9, 16]
    assert capfd.readouterr() == ("", "")


def test_without_calls_there_is_no_process():
    with Background() as process:
        assert list(process.results(START)) == []


@pytest.mark.parametrize(
    ("then", "error"),
    [("hangs", TimeoutError), ("dies", BrokenExecutor), ("raises", ValueError), ("returns", None)],
)
def test_no_temporary_folder_stays_behind(tmp_path, monkeypatch, then, error):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Background() as process:
        process.submit(square, 1)
        process.submit(leave_a_folder, then)
        results = process.results(START)
        assert next(results) == 1
        began = time.monotonic()
        if error is None:
            assert list(results) == [None]
        else:
            with pytest.raises(error):
                list(process.results(1.0))
        assert time.monotonic() - began < 10
    assert list(tmp_path.iterdir()) == []


def test_nor_where_its_parent_was_killed(tmp_path):
    code = (
        "import os, signal, time\n"
        "from fsvi_bench.running.executors.background import Background\n"
        "process = Background()\n"
        "process.submit(os.getpid)\n"
        f"(number,) = process.results({START})\n"
        "process.submit(time.sleep, 600)\n"
        "print(number, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)},
                          stdout=subprocess.PIPE, text=True, timeout=120, check=False)  # fmt: skip
    deadline = time.monotonic() + 20
    while list(tmp_path.glob("fsvi-*")) or alive(int(done.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def alive(number):
    """Whether there is such a process that has not ended; one that nobody has reaped has."""
    stat = Path(f"/proc/{number}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_ctrl_c_is_not_for_it():
    with Background() as process:
        process.submit(os.getpid)
        (number,) = process.results(START)
        process.submit(os.kill, number, signal.SIGINT)
        process.submit(square, 3)
        assert list(process.results(START)) == [number, None, 9]
