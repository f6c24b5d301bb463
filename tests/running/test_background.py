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
        assert next(process.results(START)) == 1
        began = time.monotonic()
        (outcome,) = process.results(START if error is None else 1.0)
        assert outcome is None if error is None else isinstance(outcome, error)
        assert time.monotonic() - began < 10
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("then", "error"), [("hangs", TimeoutError), ("dies", BrokenExecutor)])
def test_the_calls_behind_one_that_is_lost_are_made(tmp_path, monkeypatch, then, error):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Background() as process:
        process.submit(square, 1)
        assert list(process.results(START)) == [1]
        process.submit(leave_a_folder, then)
        if then == "dies":
            time.sleep(2)  # what is handed over afterwards finds no process
        process.submit(square, 2)
        process.submit(square, 3)
        assert isinstance(next(process.results(1.0 if then == "hangs" else START)), error)
        assert list(process.results(START)) == [4, 9]
    assert list(tmp_path.iterdir()) == []


def test_modules_in_the_current_folder_are_not_taken_for_libraries(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("pickle", "queue", "socket"):
        (folder / f"{name}.py").write_text("raise RuntimeError")
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "from fsvi_bench.running.executors.background import Background\n"
        "if __name__ == '__main__':\n"
        "    with Background() as process:\n"
        "        process.submit(abs, -3)\n"
        f"        print(list(process.results({START})), os.environ.get('PYTHONSAFEPATH'))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, str(script)], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True,
                          timeout=120, check=False)  # fmt: skip
    assert done.stdout == "[3] None\n"


def test_no_temporary_folder_stays_behind_where_its_parent_was_killed(tmp_path):
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
        assert list(process.results(START)) == [None, 9]
