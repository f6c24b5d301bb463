"""Work in processes: results as they finish, errors as results, and an interrupt that leaves no mess."""

from __future__ import annotations

import ast
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from multiprocessing import connection
from pathlib import Path

import numpy as np
import pytest

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.running import executors
from fsvi_bench.running.executors import RETRIES, LocalExecutor, WorkerDied

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def nothing():
    """A worker's preparation, and a call."""


def test_a_worker_whose_parent_dies_before_its_answer_ends_quietly():
    """It raises nothing, which multiprocessing would print below the name of the process."""
    pipe, parent = connection.Pipe()
    parent.send_bytes(pickle.dumps(nothing))
    parent.close()
    executors._serve(pipe, nothing, ())
    pipe.close()


def work(argument):
    """Runs in a worker (or here): a number doubled, or the planted error."""
    if argument == "refused":
        raise TaskRefused("planted")
    if argument == "input":
        raise InputError("planted")
    return argument * 2


def dies(argument):
    """Kills its process the first time that it is called with a path."""
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


def leaves_early(path):
    """Others are answered while a worker has announced a result and sent none of it; then all is given up."""
    outcomes = LocalExecutor(2).map(sends_half_a_result, [path, None, None, None])
    next(outcomes)
    path.with_suffix(".go").touch()
    until(path.exists)
    print(next(outcomes), next(outcomes))
    outcomes.close()


class Unpicklable(RuntimeError):
    """As some libraries' errors are: made with other arguments than it keeps."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def counts_and_fails(path):
    with path.open("a") as stream:
        stream.write("x")
    raise ArithmeticError("planted")


def dies_each_time(path):
    if path is not None:
        with path.open("a") as stream:
            stream.write("x")
        os.kill(os.getpid(), signal.SIGKILL)


def fails_unpicklably(_):
    raise Unpicklable("one", "two")


def environment(_):
    return dict(os.environ)


def parent_gpytorch_and_draw(_):
    """Whose child this worker is, where gpytorch was imported from before it came here, and a draw without a seed."""
    time.sleep(0.3)  # for the other worker to take the other call
    found = sys.modules.get("gpytorch")
    return os.getppid(), found and found.__file__, float(np.random.random())


def threads_and_process(_):
    import torch  # not above, which would cost each program and its workers seconds

    return torch.get_num_threads(), os.getpid()


def test_every_result_comes_back_with_its_argument(executor):
    outcomes = dict(executor.map(work, [1, 2, "refused", 3]))
    assert (outcomes[1], outcomes[2], outcomes[3]) == (2, 4, 6)
    assert (type(outcomes["refused"]), str(outcomes["refused"])) == (TaskRefused, "planted")


def test_a_users_mistake_stops_everything(executor):
    with pytest.raises(InputError, match="planted"):
        list(executor.map(work, [1, "input", 2]))


def test_arguments_are_read_as_workers_take_them(executor):
    taken = []
    outcomes = executor.map(work, (taken.append(number) or number for number in range(30)))
    next(outcomes)
    assert len(taken) <= 4  # two under way, and what finished meanwhile
    assert len(list(outcomes)) == 29


def test_workers_are_other_processes_of_one_thread(elsewhere):
    results = [outcome for _, outcome in elsewhere.map(threads_and_process, range(4))]
    assert {threads for threads, _ in results} == {1}
    assert os.getpid() not in {process for _, process in results}


def test_a_calls_own_error_is_its_result_and_is_never_tried_again(elsewhere, tmp_path):
    paths = [tmp_path / "one", tmp_path / "two"]
    errors = [error for _, error in elsewhere.map(counts_and_fails, paths)]
    assert [(type(error), str(error)) for error in errors] == [(ArithmeticError, "planted")] * 2
    assert [path.read_text() for path in paths] == ["x"] * 2


def test_an_error_that_does_not_pickle_keeps_its_message(elsewhere):
    errors = [error for _, error in elsewhere.map(fails_unpicklably, range(2))]
    assert [(type(error), str(error)) for error in errors] == [(RuntimeError, "Unpicklable: one and two")] * 2


def test_a_worker_that_dies_costs_no_other_call_and_is_tried_again(elsewhere, tmp_path):
    arguments = [0, tmp_path / "once", 1, *range(2, 6)]
    assert Counter(elsewhere.map(dies, arguments)) == Counter(zip(arguments, arguments, strict=True))


def test_a_call_that_goes_on_losing_its_worker_is_given_up(elsewhere, tmp_path):
    outcomes = dict(elsewhere.map(dies_each_time, [tmp_path / "attempts", None]))
    died = outcomes[tmp_path / "attempts"]
    assert isinstance(died, WorkerDied)
    assert "out of memory" in str(died)
    assert (tmp_path / "attempts").read_text() == "x" * (1 + RETRIES)
    assert outcomes[None] is None


def pauses(argument):
    """The first call kills its process after a while, when nobody listens; the others take no time."""
    path, number = argument
    if number == 0 and not path.exists():
        time.sleep(0.5)
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def sends_half_and_dies(path):
    """Killed when the pipe has the answer's length and half of what it announces."""
    if not path.exists():
        path.touch()

        def half(pipe, content):
            pipe._send(struct.pack("!i", len(content)) + bytes(content[: len(content) // 2]))
            os.kill(os.getpid(), signal.SIGKILL)

        connection.Connection._send_bytes = half
    return bytes(300_000)


def dies_and_leaves_a_child(path):
    """The child would hold the worker's end of the pipe as long as it lives."""
    if not path.exists():
        path.touch()
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    return bytes(300_000)


@pytest.mark.parametrize("call", [sends_half_and_dies, dies_and_leaves_a_child])
def test_a_death_in_the_middle_of_an_answer_or_with_children_is_noticed_at_once(tmp_path, call):
    began = time.monotonic()
    done = dict(LocalExecutor(2).map(call, [tmp_path / "one", tmp_path / "two"]))
    assert list(done.values()) == [bytes(300_000)] * 2
    assert time.monotonic() - began < 45  # the child lives for 60 s


def test_a_worker_that_dies_idle_costs_no_call_and_gets_no_signal(monkeypatch):
    """Its number may be another process's by then."""
    sent = []
    with LocalExecutor(1).open_pool() as (_, submit):
        process = executors.read_answer(submit(pickle.dumps(os.getpid)).result())
        os.kill(process, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{process}").exists())  # with all its threads
        assert executors.read_answer(submit(pickle.dumps(os.getpid)).result()) != process
        kill = os.kill
        monkeypatch.setattr(os, "kill", lambda number, what: sent.append(number) or kill(number, what))
    assert process not in sent


def test_a_worker_that_dies_while_results_are_being_written_costs_nothing(tmp_path):
    """A worker ends between two calls: the next argument must not be lost with it."""
    arguments, got = [(tmp_path / "died", number) for number in range(8)], []
    for _, outcome in LocalExecutor(2).map(pauses, arguments):
        got.append(outcome)
        time.sleep(1.5 if len(got) == 1 else 0)
    assert sorted(got) == list(range(8))


def test_workers_see_the_environment_of_now(monkeypatch):
    """They come from a process that may have been started long ago, for another pool."""
    for change in (
        partial(monkeypatch.setenv, "FSVI_BENCH_DATA", "new"),
        partial(monkeypatch.delenv, "FSVI_BENCH_DATA"),
    ):
        change()
        assert [seen for _, seen in LocalExecutor(2).map(environment, range(2))] == [dict(os.environ)] * 2


def test_workers_of_all_pools_come_from_one_server_with_everything_imported_and_draw_each_its_own():
    found = [result for _ in range(2) for _, result in LocalExecutor(2).map(parent_gpytorch_and_draw, range(2))]
    parents, imported, draws = zip(*found, strict=True)
    assert len(set(parents)) == 1
    assert os.getpid() not in parents
    assert all(imported)
    assert len(set(draws)) == 4


WITHOUT_LIBRARIES = "executors._PRELOADED.clear(), "  #: for workers that need none, whose import takes seconds


def program(folder, call, *arguments, cwd=None, **variables):
    """A program of its own, that says what two workers make of a call."""
    lines = ["import os, sys", "from pathlib import Path", "from fsvi_bench.running.executors import LocalExecutor",
             "from tests.running.test_executors import *", f"if __name__ == '__main__': {call}"]  # fmt: skip
    script = folder / "program.py"
    script.write_text("\n".join(lines))
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, env={**os.environ, "PYTHONPATH": path, **variables}, **PIPES)


def run_two(tmp_path, cwd, **variables):
    call = "print(os.getpid(), list(LocalExecutor(2).map(parent_gpytorch_and_draw, range(2))))"
    process = program(tmp_path, call, cwd=cwd, **variables)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    own, _, results = out.partition(" ")
    return int(own), [result for _, result in ast.literal_eval(results)]


@pytest.mark.slow
def test_modules_in_the_current_folder_are_not_taken_for_libraries(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "gpytorch.py").write_text("")
    own, results = run_two(tmp_path, folder)
    for parent, imported, _ in results:
        assert parent != own
        assert imported
        assert not Path(imported).is_relative_to(folder)


@pytest.mark.slow
def test_a_temporary_folder_without_room_for_a_socket_costs_only_time(tmp_path):
    """A socket's path has 107 bytes at most."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    own, results = run_two(tmp_path, folder, TMPDIR=str(folder))
    assert [(parent, imported) for parent, imported, _ in results] == [(own, None)] * 2


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_of_its_result_keeps_nobody_waiting(tmp_path):
    """Whoever has read a result's length would wait for the rest for ever."""
    process = program(tmp_path, WITHOUT_LIBRARIES + "leaves_early(Path(sys.argv[1]))", tmp_path / "half")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "(None, None) (None, None)\n"), err


@pytest.mark.slow
def test_workers_do_not_outlive_a_parent_that_was_killed(tmp_path):
    """`kill -9` gives the parent no time to end them."""
    marks = [tmp_path / "first", tmp_path / "second"]
    parent = program(
        tmp_path, WITHOUT_LIBRARIES + "list(LocalExecutor(2).map(waits_for_ever, map(Path, sys.argv[1:])))", *marks
    )
    until(lambda: all(mark.is_file() and mark.read_text() for mark in marks))
    processes = [int(process) for mark in marks for process in mark.read_text().split()]
    assert all(map(is_running, processes))
    parent.kill()
    parent.communicate()
    until(lambda: not any(map(is_running, processes)))


def command(cwd, *arguments):
    """The command in a process group of its own, with two workers."""
    words = [sys.executable, "-m", "fsvi_bench", *arguments, "--workers", "2"]
    given = {"env": {**os.environ, "FSVI_BENCH_CACHE": str(cwd / "cache")}, "start_new_session": True}
    return subprocess.Popen(words, cwd=cwd, preexec_fn=_heeds_interrupts, **given, **PIPES)


def interrupted(process):
    """Ctrl-C, as a terminal sends it: to the whole process group."""
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    return err


@pytest.mark.slow
def test_an_interrupt_while_libraries_are_imported_ends_quietly(tmp_path):
    process = command(tmp_path, "run", "--dataset", "toy", "--wandb", "off")
    until(lambda: b"forkserver" in b"".join(commands_of_children(process.pid)))
    time.sleep(1)
    interrupted(process)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["tasks", "build", "--out", "tasks"], "split-*.safetensors"),
        (
            ["run", "--dataset", "toy", "--method", "exact", "--method", "rand-a", "--splits", "0-3", "--max-steps",
             "1000000", "--wandb", "off"],
            "record.json",
        ),
    ],
    ids=["fits", "training"],
)  # fmt: skip
def test_an_interrupt_ends_quietly_and_keeps_what_was_finished(tmp_path, arguments, first):
    """With more to do than there are workers."""
    process = command(tmp_path, *arguments)
    until(lambda: list(tmp_path.rglob(first)), 400)
    kept = list(tmp_path.rglob(first))
    said = "finished work is kept" if arguments[0] == "tasks" else r"[1-9]\d* of 16 cells are finished: rerun"
    assert re.match(f"fsvi-bench: interrupted; {said}", interrupted(process).splitlines()[-1])
    assert all(path.is_file() for path in kept)
    assert [path for path in tmp_path.rglob(".*") if path.is_file() and path.name != ".lock"] == []


def test_what_a_call_prints_goes_to_stderr(capsys):
    """A command's results alone are on stdout."""
    assert executors.read_answer(executors.answer(pickle.dumps(partial(print, "a word")))) is None
    assert capsys.readouterr() == ("", "a word\n")
