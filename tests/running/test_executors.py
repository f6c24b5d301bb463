"""Work in processes: results as they finish, errors as results, and an interrupt that leaves no mess."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.running.executors import WorkerDied, available_cores, run_parallel


def work(argument):
    """Runs in a worker (or here): a number doubled, or the planted error."""
    if argument == "refused":
        raise TaskRefused("planted")
    if argument == "input":
        raise InputError("planted")
    return argument * 2


def dies(argument):
    """Kills its process: `always`, or the first time that it is called with a path."""
    if argument == "always":
        os.kill(os.getpid(), signal.SIGKILL)
    if not isinstance(argument, int) and not argument.exists():
        argument.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return argument


def threads_and_process(_):
    return torch.get_num_threads(), os.getpid()


@pytest.mark.parametrize("workers", [1, 2])
def test_every_result_comes_back_with_its_argument(workers):
    outcomes = dict(run_parallel(work, [1, 2, "refused", 3], workers))
    assert (outcomes[1], outcomes[2], outcomes[3]) == (2, 4, 6)
    assert isinstance(outcomes["refused"], TaskRefused)
    assert str(outcomes["refused"]) == "planted"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_users_mistake_stops_everything(workers):
    with pytest.raises(InputError, match="planted"):
        list(run_parallel(work, [1, "input", 2], workers))


def test_a_worker_that_dies_costs_no_other_call_and_is_tried_once_more(tmp_path):
    arguments = [0, tmp_path / "once", 1, "always", *range(2, 8)]
    outcomes = list(run_parallel(dies, arguments, 2))
    assert sorted(str(argument) for argument, _ in outcomes) == sorted(map(str, arguments))
    by_argument = dict(outcomes)
    died = by_argument.pop("always")
    assert isinstance(died, WorkerDied)
    assert "out of memory" in str(died)
    assert by_argument == {argument: argument for argument in by_argument}


def test_workers_are_other_processes_of_one_thread():
    results = [outcome for _, outcome in run_parallel(threads_and_process, range(4), 2)]
    assert {threads for threads, _ in results} == {1}
    assert os.getpid() not in {process for _, process in results}
    assert available_cores() >= 1


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        pytest.param(["--splits", "0-19"], "split-*.safetensors", id="while fits are running"),
        pytest.param(
            ["--dataset", "toy", "--splits", "0-3", "--max-steps", "10000000"], "record.json", id="while methods train"
        ),
    ],
)
def test_an_interrupt_ends_quietly_and_keeps_what_was_finished(tmp_path, arguments, first):
    """Ctrl-C, as a terminal sends it: to the whole process group, with more to do than there are workers."""
    environment = {**os.environ, "FSVI_BENCH_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "fsvi_bench", "run", *arguments, "--workers", "2", "--wandb", "off"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A CI job may itself run with interrupts ignored, which children would inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not (kept := list(tmp_path.rglob(first))) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("fsvi-bench: interrupted; what was finished is kept")
    assert kept
    assert all(path.is_file() for path in kept)
    temporary = [path for path in tmp_path.rglob(".*") if path.is_file()]
    assert temporary == []
