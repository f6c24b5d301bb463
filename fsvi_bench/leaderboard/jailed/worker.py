"""The process in the jail: `python -m fsvi_bench.leaderboard.jailed.worker FOLDER many|one SOCKET`.

It forks a process for each job that arrives; with `one`, it runs one job itself. A job trains one problem as
`fsvi_bench.running` would, on one thread, and sends q during training and at the end. It has no test rows, exact
posterior or scores. Before the message `ready` it runs only code of this package; after that the entry's code controls
the process of the job, and the verifier checks everything that it sends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import socket
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fsvi_bench.conformance import check_method, subjects
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.jailed.confinement import (
    calls_are_open,
    confine,
    end_with_parent,
    leaks,
    protect_from_others,
)
from fsvi_bench.leaderboard.jailed.messages import MAX_POSTERIORS, MAX_REASON, Job, Message, send
from fsvi_bench.methods.base import Method
from fsvi_bench.methods.networks import CollapsedData, Linearised, NetworkData
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import load_method
from fsvi_bench.posteriors.base import Posterior, defect, divergence, unstack
from fsvi_bench.posteriors.io import posterior_file
from fsvi_bench.threads import use_one_thread
from fsvi_bench.training.trainer import train

PER_DECADE = 4  #: posteriors per decade of steps, from 10^-2.5 of the steps, including 1% and 10%


def looks(total: int) -> list[int]:
    """The steps at which to send q: 0, then evenly on a logarithmic scale up to the end, including 1% and 10%."""
    steps = {round(total * 10 ** (-place / PER_DECADE)) for place in range(MAX_POSTERIORS - 1)}
    return sorted({0, *steps})


def main(folder: Path, forks: bool, control: int) -> None:
    """Runs the jobs that the verifier sends through a socket, each as three open files: job, pipe and stderr.

    Args:
        folder: where the source of an entry is written.
        forks: whether to run each job in a process of its own, which is killed when the verifier says so.
    """
    end_with_parent()
    use_one_thread()
    if forks:
        if os.getpid() != 1:  # else the folder may be one of the verifier's own
            sys.exit("bubblewrap has not isolated this process")
        protect_from_others(True)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # process 1 of the jail ignores signals without a handler
        _clear(folder)
    with socket.socket(fileno=control) as verifier:
        while handles := socket.recv_fds(verifier, 1, 3)[1]:
            process = _fork() if forks else 0
            if process == 0:
                verifier.close()
                content, pipe, errors = handles
                os.dup2(errors, 2)
                os.close(errors)
                with os.fdopen(content, "rb") as stream:
                    job: Job = pickle.load(stream)  # from the verifier
                _run(folder / "job", job, pipe)
                return
            for handle in handles:
                os.close(handle)
            patience = verifier.recv(1)  # nothing if the verifier has ended
            verifier.sendall(_ended(process, patience[0] if patience else 0))
            shutil.rmtree(folder / "job", ignore_errors=True)


def _clear(folder: Path) -> None:
    """Removes what libraries have written during their imports."""
    for path in folder.iterdir():  # Python's own folders may be among them, which are read-only
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.unlink()


def _fork() -> int:
    """Forks. The new process ends with this one, and shares no session, open file or random numbers with other jobs."""
    process = os.fork()
    if process == 0:
        end_with_parent()
        protect_from_others(False)
        os.setsid()  # the system schedules by session
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1):
            os.dup2(null, standard)
        os.close(null)
        np.random.seed()
    return process


def _ended(process: int, patience: float) -> bytes:
    """Kills a process unless it ends in time; its exit status in digits, negative for a signal, or `killed`."""
    deadline = time.monotonic() + patience
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return str(os.waitstatus_to_exitcode(status)).encode()
        if time.monotonic() >= deadline:
            break
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return b"killed"


def _run(folder: Path, job: Job, pipe: int) -> None:
    """Runs a job; an exception in the method is sent as its failure."""
    if job.source is not None:
        folder.mkdir()
        path = folder / job.method.partition(":")[0]
        path.write_bytes(job.source)
        path.chmod(0o444)
    found = leaks(job.planted, job.port) if job.planted else []
    confined = confine(job.memory, job.cpu_seconds, may_write=job.problem is None)
    if job.planted and calls_are_open():
        found.append("all system calls (install libseccomp2)")
    send(pipe, Message(status="ready", leaks=found, reason=confined))
    if found:
        return
    try:
        if job.problem is None:
            _check(folder, job, pipe)
        else:
            _train(_method(folder, job, job.problem), job, pipe)
    except Exception as error:
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        reason = reason.replace(f"{folder}/", "")  # the author knows only the name of the file
        send(pipe, Message(status="failed", reason=reason[:MAX_REASON]))


def _method(folder: Path, job: Job, problem: TrainingData | NetworkData) -> Method:
    module, _, name = job.method.partition(":")
    cls = load_method(f"{folder}/{job.method}").cls if ".py" in module else getattr(import_module(module), name)
    options = cls.checked_options(job.settings, name)
    cls.check(options, problem)
    return cls(problem, cls.checked_family(job.family), [job.seed], options)


def _check(folder: Path, job: Job, pipe: int) -> None:
    """Runs the conformance checks with the entry's family and settings, except for its number of steps and the size of
    its measurement sets, which are too large for small problems."""
    settings = {name: value for name, value in job.settings.items() if name not in ("max_steps", "M")}
    findings = check_method(subjects(f"{folder}/{job.method}", [job.family], settings)).findings
    if failed := [finding for finding in findings if finding.status == "failed"]:
        first = f"the first is '{failed[0].check}': {failed[0].message}"
        fix = "fix the source (`fsvi-bench methods check` shows all checks)"
        raise InputError(f"{len(failed)} of {len(findings)} conformance checks failed, {first}; {fix}")
    send(pipe, Message(status="ok", steps=sum(finding.status == "ok" for finding in findings)))


def _train(method: Method, job: Job, pipe: int) -> None:
    k, last, budget = method.problems.k, method.num_steps, job.steps
    if last > max(1, budget):  # a closed form is one step
        raise InputError(
            f"it takes {last} steps, but its budget is {budget}; increase --steps, or reduce max_steps with --set"
        )

    def observe(steps: int, seconds: float) -> None:
        nonlocal last
        last = steps or last
        q = _posterior(method)
        if (defect(q, k) or divergence(q)) is None:
            send(pipe, Message(status="under way", steps=steps, posterior=posterior_file(q)))

    # A closed form has no intermediate posterior, and those of networks take long to score.
    at = looks(method.num_steps) if method.trains and isinstance(job.problem, TrainingData) else []
    train(method, "cpu", observe if at else None, at)
    q = _posterior(method)
    if (fault := defect(q, k)) is not None:
        raise InputError(f"this is not a posterior over the weights: {fault}")
    if (reason := method.divergences()[0] or divergence(q)) is not None:
        send(pipe, Message(status="diverged", reason=reason[:MAX_REASON], steps=last))
    else:
        send(pipe, Message(status="ok", steps=last, posterior=posterior_file(q), **_over(method.problems)))


def _over(problems: Any) -> dict[str, Any]:
    """What a network's posterior is over, as fields of a message."""
    if isinstance(problems, CollapsedData):
        return {"over": "hidden"}
    return {"over": "tangent", "mode": problems.feature_map.at[0].tolist()} if isinstance(problems, Linearised) else {}


def _posterior(method: Method) -> Posterior:
    (q,) = unstack(method.posterior().cpu())
    return q


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "many", int(sys.argv[3]))
