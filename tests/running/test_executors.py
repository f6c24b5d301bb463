"""Work in processes: results as they finish, errors as results, and an interrupt that leaves no mess."""

from __future__ import annotations

import ast
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.running.executors import LocalExecutor, WorkerDied, available_cores


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


def waits_for_ever(path):
    """Having written which process it is, and whose child."""
    path.write_text(f"{os.getpid()} {os.getppid()}")
    while True:
        time.sleep(1)


def sends_half_a_result(path):
    """Returns at once, or, given a path, announces 1,000 bytes to its parent, sends none and writes the path."""
    if path is None:
        return
    while not path.with_suffix(".go").exists():  # the parent has the other result, and reads nothing for now
        time.sleep(0.01)
    frame = sys._getframe()
    while "pipe" not in frame.f_locals:
        frame = frame.f_back
    os.write(frame.f_locals["pipe"].fileno(), struct.pack("!i", 1000))
    path.touch()
    time.sleep(1000)


def environment(_):
    return dict(os.environ)


def parent_gpytorch_and_draw(_):
    """Whose child this worker is, where gpytorch was imported from before it came here, and a draw without a seed."""
    time.sleep(0.3)  # for the other worker to take the other call
    found = sys.modules.get("gpytorch")
    return os.getppid(), found and found.__file__, float(np.random.random())


def threads_and_process(_):
    return torch.get_num_threads(), os.getpid()


@pytest.mark.parametrize("workers", [1, 2])
def test_every_result_comes_back_with_its_argument(workers):
    outcomes = dict(LocalExecutor(workers).map(work, [1, 2, "refused", 3]))
    assert (outcomes[1], outcomes[2], outcomes[3]) == (2, 4, 6)
    assert isinstance(outcomes["refused"], TaskRefused)
    assert str(outcomes["refused"]) == "planted"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_users_mistake_stops_everything(workers):
    with pytest.raises(InputError, match="planted"):
        list(LocalExecutor(workers).map(work, [1, "input", 2]))


LEAVES_EARLY = """
import sys, time
from pathlib import Path
from fsvi_bench.running.executors import LocalExecutor
from tests.running.test_executors import sends_half_a_result

if __name__ == "__main__":
    path = Path(sys.argv[1])
    for argument, _ in LocalExecutor(2).map(sends_half_a_result, [None, path]):
        path.with_suffix(".go").touch()
        while not path.exists():
            time.sleep(0.01)
        time.sleep(0.5)
        break
    print("ended")
"""


def test_a_worker_killed_in_the_middle_of_its_result_keeps_nobody_waiting(tmp_path):
    """Whoever has read a result's length would wait for the rest for ever."""
    (tmp_path / "program.py").write_text(LEAVES_EARLY)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "half")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "ended\n"), ended.stderr


def test_a_worker_that_dies_costs_no_other_call_and_is_tried_once_more(tmp_path):
    arguments = [0, tmp_path / "once", 1, "always", *range(2, 8)]
    outcomes = list(LocalExecutor(2).map(dies, arguments))
    assert sorted(str(argument) for argument, _ in outcomes) == sorted(map(str, arguments))
    by_argument = dict(outcomes)
    died = by_argument.pop("always")
    assert isinstance(died, WorkerDied)
    assert "out of memory" in str(died)
    assert by_argument == {argument: argument for argument in by_argument}


def pauses(argument):
    """The first call kills its process after a while, when nobody listens; the others take no time."""
    path, number = argument
    if number == 0 and not path.exists():
        time.sleep(0.5)
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_worker_that_dies_while_results_are_being_written_costs_nothing(tmp_path):
    """A worker ends between two calls: the next argument must not be lost with it."""
    arguments, got = [(tmp_path / "died", number) for number in range(8)], []
    for _, outcome in LocalExecutor(2).map(pauses, arguments):
        got.append(outcome)
        time.sleep(1.5)
    assert sorted(got) == list(range(8))


def test_workers_see_the_environment_of_now(monkeypatch):
    """They come from a process that may have been started long ago, for another pool."""
    for name, value in (("FSVI_BENCH_CACHE", "first"), ("FSVI_BENCH_CACHE", "second"), ("FSVI_BENCH_DATA", "third")):
        monkeypatch.setenv(name, value)
        expected = dict(os.environ)
        assert [result for _, result in LocalExecutor(2).map(environment, range(2))] == [expected, expected]
    monkeypatch.delenv("FSVI_BENCH_DATA")
    expected = dict(os.environ)
    assert [result for _, result in LocalExecutor(2).map(environment, range(2))] == [expected, expected]


def test_workers_of_all_pools_come_from_one_server_with_everything_imported_and_draw_each_its_own():
    found = [result for _ in range(2) for _, result in LocalExecutor(2).map(parent_gpytorch_and_draw, range(2))]
    parents, imported, draws = zip(*found, strict=True)
    assert len(set(parents)) == 1
    assert os.getpid() not in parents
    assert all(imported)
    assert len(set(draws)) == 4


def run_two(cwd, **variables):
    """A program of its own, in a folder of its own: its number, and what two workers say of themselves."""
    lines = ["import os", "from fsvi_bench.running.executors import LocalExecutor",
             "from tests.running.test_executors import parent_gpytorch_and_draw as call",
             "if __name__ == '__main__': print(os.getpid(), list(LocalExecutor(2).map(call, range(2))))"]  # fmt: skip
    script = cwd.parent / "program" / "program.py"
    script.parent.mkdir()
    script.write_text("\n".join(lines))
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    done = subprocess.run([sys.executable, str(script)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    own, _, results = done.stdout.partition(" ")
    return int(own), [result for _, result in ast.literal_eval(results)]


def test_modules_in_the_current_folder_are_not_taken_for_libraries(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "gpytorch.py").write_text("")
    own, results = run_two(folder)
    for parent, imported, _ in results:
        assert parent != own
        assert imported
        assert not Path(imported).is_relative_to(folder)


def test_a_temporary_folder_without_room_for_a_socket_costs_only_time(tmp_path):
    """A socket's path has 107 bytes at most."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    own, results = run_two(folder, TMPDIR=str(folder))
    assert [(parent, imported) for parent, imported, _ in results] == [(own, None)] * 2


def test_an_interrupt_while_libraries_are_imported_ends_quietly(tmp_path):
    command = [sys.executable, "-m", "fsvi_bench", "run", "--dataset", "toy", "--wandb", "off", "--workers", "2"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heeds_interrupts,
    )
    try:
        until(lambda: b"forkserver" in b"".join(commands_of_children(process.pid)))
        time.sleep(1)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err


def _heeds_interrupts():
    """A CI job may itself run with interrupts ignored, which children would inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def commands_of_children(process):
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if stat.read_text().rpartition(")")[2].split()[1] == str(process):
                yield (stat.parent / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue


def test_workers_do_not_outlive_a_parent_that_was_killed(tmp_path):
    """`kill -9` gives the parent no time to end them."""
    marks = [tmp_path / "first", tmp_path / "second"]
    call = f"list(LocalExecutor(2).map(waits_for_ever, [Path(p) for p in {list(map(str, marks))}]))"
    lines = ["from pathlib import Path", "from fsvi_bench.running.executors import LocalExecutor",
             "from tests.running.test_executors import waits_for_ever", f"if __name__ == '__main__': {call}"]  # fmt: skip
    script = tmp_path / "parent.py"
    script.write_text("\n".join(lines))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    parent = subprocess.Popen([sys.executable, str(script)], env=environment)
    until(lambda: all(mark.is_file() and mark.read_text() for mark in marks))
    workers, servers = zip(*(map(int, mark.read_text().split()) for mark in marks), strict=True)
    assert all(is_running(process) for process in (*workers, *servers))
    parent.kill()
    parent.wait()
    until(lambda: not any(is_running(process) for process in (*workers, *servers)))


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_arguments_are_read_as_workers_take_them():
    taken = []
    outcomes = LocalExecutor(2).map(work, (taken.append(number) or number for number in range(100)))
    next(outcomes)
    assert len(taken) <= 6  # two under way, two ahead, and what finished meanwhile
    assert len(list(outcomes)) == 99


def test_workers_are_other_processes_of_one_thread():
    results = [outcome for _, outcome in LocalExecutor(2).map(threads_and_process, range(4))]
    assert {threads for threads, _ in results} == {1}
    assert os.getpid() not in {process for _, process in results}
    assert available_cores() >= 1


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        pytest.param(["tasks", "build", "--out", "tasks"], "split-*.safetensors", id="while fits are running"),
        pytest.param(
            ["run", "--dataset", "toy", "--splits", "0-3", "--max-steps", "1000000", "--wandb", "off"],
            "record.json",
            id="while methods train",
        ),
    ],
)
def test_an_interrupt_ends_quietly_and_keeps_what_was_finished(tmp_path, arguments, first):
    """Ctrl-C, as a terminal sends it: to the whole process group, with more to do than there are workers."""
    environment = {**os.environ, "FSVI_BENCH_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "fsvi_bench", *arguments, "--workers", "2"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heeds_interrupts,
    )
    deadline = time.monotonic() + 400  # on a machine busy with other tests
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
    temporary = [path for path in tmp_path.rglob(".*") if path.is_file() and path.name != ".lock"]
    assert temporary == []
