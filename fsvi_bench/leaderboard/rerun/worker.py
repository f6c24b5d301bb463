"""The process that runs submitted code: `python -m fsvi_bench.leaderboard.rerun.worker FOLDER PIPE`.

It trains one problem as `fsvi_bench.running` would, with the same seed and on one thread, and sends q on its way and at
the end. It holds neither test rows, nor the exact posterior, nor scores. From the message `ready` on, the submitted
code has the process to itself: what is sent after that is its word, and the verifier believes none of it unchecked.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.rerun.confinement import confine, end_with_parent
from fsvi_bench.leaderboard.rerun.protocol import (
    MAX_REASON,
    MAX_WAYPOINTS,
    Final,
    Job,
    Reached,
    Ready,
    Started,
    read_job,
    send,
)
from fsvi_bench.methods.base import Method
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import load_method
from fsvi_bench.posteriors.base import Posterior, defect, divergence, unstack
from fsvi_bench.posteriors.io import posterior_file
from fsvi_bench.threads import use_one_thread
from fsvi_bench.training.trainer import train

WAYPOINTS_PER_DECADE = 4  #: so that they reach back to 10^-2.5 of the steps, by way of 10 % and 1 %


def waypoint_steps(total: int) -> list[int]:
    """Before the first step, then evenly on a logarithmic scale up to the end; 1 % and 10 % are among them."""
    steps = {round(total * 10 ** (-place / WAYPOINTS_PER_DECADE)) for place in range(MAX_WAYPOINTS - 1)}
    return sorted({0, *steps})


def main(folder: Path, pipe: int) -> None:
    """Does the job of a folder; whatever the method raises is sent as its failure."""
    end_with_parent()
    use_one_thread()
    job, problem = read_job(folder)
    send(pipe, Ready(confined=confine(job.memory, job.cpu_seconds)))
    try:
        _train(folder, job, problem, pipe)
    except Exception as error:
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        send(pipe, Final(status="failed", reason=reason[:MAX_REASON], steps=0, work=None))


def _train(folder: Path, job: Job, problem: TrainingData, pipe: int) -> None:
    entry = load_method(f"{folder / job.source}:{job.class_}")
    options = entry.options(job.hyperparameters)
    entry.cls.check(options, problem)
    method = entry.cls(problem, job.family, [job.seed], options)
    send(pipe, Started(num_steps=method.num_steps))
    last = method.num_steps

    def observe(steps: int, seconds: float) -> None:
        nonlocal last
        last = steps or last
        q = _posterior(method)
        if _trouble(q, problem.k) is None:
            send(pipe, Reached(steps=steps, work=_work(method)), posterior_file(q))

    # A formula has nothing to show before its one step.
    looks = waypoint_steps(method.num_steps) if method.trains else []
    train(method, "cpu", observe if looks else None, looks)
    _finish(method, last, problem.k, pipe)


def _finish(method: Method, steps: int, k: int, pipe: int) -> None:
    q, work = _posterior(method), _work(method)
    diverged = method.divergences()[0] or divergence(q)
    if (reason := defect(q, k)) is not None:
        reason = f"the posterior is not one over the weights: {reason}"
        send(pipe, Final(status="failed", reason=reason[:MAX_REASON], steps=steps, work=work))
    elif diverged is not None:
        send(pipe, Final(status="diverged", reason=diverged[:MAX_REASON], steps=steps, work=work))
    else:
        send(pipe, Final(status="ok", reason=None, steps=steps, work=work), posterior_file(q))


def _posterior(method: Method) -> Posterior:
    (q,) = unstack(method.posterior().cpu())
    return q


def _trouble(q: Posterior, k: int) -> str | None:
    return defect(q, k) or divergence(q)


def _work(method: Method) -> dict[str, int] | None:
    work: Mapping[str, int] | None = method.work()[0]
    return None if work is None else {name: int(count) for name, count in work.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
