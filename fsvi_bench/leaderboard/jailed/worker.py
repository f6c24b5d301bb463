"""The process in the jail: `python -m fsvi_bench.leaderboard.jailed.worker FOLDER PIPE`.

It trains one problem as `fsvi_bench.running` would, on one thread, and sends q on its way and at the end. It holds
neither test rows, nor the exact posterior, nor scores. Before the message `ready` only code of ours has run; after it
the entry's code has the process to itself, and the verifier believes nothing that it sends unchecked.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from fsvi_bench.conformance import check_method, subjects
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.jailed.confinement import calls_are_open, confine, end_with_parent, leaks
from fsvi_bench.leaderboard.jailed.messages import MAX_POSTERIORS, MAX_REASON, Job, Message, read_job, send
from fsvi_bench.methods.base import Method
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import load_method
from fsvi_bench.posteriors.base import Posterior, defect, divergence, unstack
from fsvi_bench.posteriors.io import posterior_file
from fsvi_bench.threads import use_one_thread
from fsvi_bench.training.trainer import train

PER_DECADE = 4  #: looks at q, so that they reach back to 10^-2.5 of the steps by way of 10 % and 1 %


def looks(total: int) -> list[int]:
    """Before the first step, then evenly on a logarithmic scale up to the end; 1 % and 10 % are among them."""
    steps = {round(total * 10 ** (-place / PER_DECADE)) for place in range(MAX_POSTERIORS - 1)}
    return sorted({0, *steps})


def main(folder: Path, pipe: int) -> None:
    """Does the job of a folder; whatever the method raises is sent as its failure."""
    end_with_parent()
    use_one_thread()
    job = read_job(folder)
    found = leaks(job.planted, job.port) if job.planted else []
    confined = confine(job.memory, job.cpu_seconds, may_write=job.problem is None)
    if job.planted and calls_are_open():
        found.append("all system calls (libseccomp is needed: install libseccomp2)")
    send(pipe, Message(status="ready", leaks=found, reason=confined))
    if found:
        return
    try:
        if job.problem is None:
            _check(folder, job, pipe)
        else:
            _train(_method(folder, job, job.problem), job.steps, pipe)
    except Exception as error:
        said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        reason = said.replace(f"{folder}/", "")  # an author knows the file by its name alone
        send(pipe, Message(status="failed", reason=reason[:MAX_REASON]))


def _method(folder: Path, job: Job, problem: TrainingData) -> Method:
    module, _, name = job.method.partition(":")
    cls = load_method(f"{folder}/{job.method}").cls if ".py" in module else getattr(import_module(module), name)
    options = cls.checked_options(job.settings, name)
    cls.check(options, problem)
    return cls(problem, cls.checked_family(job.family), [job.seed], options)


def _check(folder: Path, job: Job, pipe: int) -> None:
    """Conformance, with the entry's family and settings; but for its budget and the size of its measurement sets, which
    small problems cannot have."""
    settings = {name: value for name, value in job.settings.items() if name not in ("max_steps", "M")}
    findings = check_method(subjects(f"{folder}/{job.method}", [job.family], settings)).findings
    if failed := [finding for finding in findings if finding.status == "failed"]:
        first = f"the first '{failed[0].check}': {failed[0].message}"
        advice = "mend its source (fsvi-bench methods check shows all)"
        raise InputError(f"it breaks {len(failed)} of {len(findings)} rules, {advice}, {first}")
    send(pipe, Message(status="ok", steps=sum(finding.status == "ok" for finding in findings)))


def _train(method: Method, budget: int, pipe: int) -> None:
    k, last = method.problems.k, method.num_steps
    if last > max(1, budget):  # a formula is one step
        raise InputError(
            f"it takes {last} steps and its budget declares {budget}; raise --steps, or lower max_steps (--set)"
        )

    def observe(steps: int, seconds: float) -> None:
        nonlocal last
        last = steps or last
        q = _posterior(method)
        if (defect(q, k) or divergence(q)) is None:
            send(pipe, Message(status="under way", steps=steps, posterior=posterior_file(q)))

    # A formula has nothing to show before its one step.
    at = looks(method.num_steps) if method.trains else []
    train(method, "cpu", observe if at else None, at)
    q = _posterior(method)
    if (fault := defect(q, k)) is not None:
        raise InputError(f"the posterior is not one over the weights: {fault}")
    if (reason := method.divergences()[0] or divergence(q)) is not None:
        send(pipe, Message(status="diverged", reason=reason[:MAX_REASON], steps=last))
    else:
        send(pipe, Message(status="ok", steps=last, posterior=posterior_file(q)))


def _posterior(method: Method) -> Posterior:
    (q,) = unstack(method.posterior().cpu())
    return q


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
