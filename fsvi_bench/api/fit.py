"""`fsvi_bench.fit`: a method's approximation of one task's exact posterior."""

from __future__ import annotations

from typing import Any

from fsvi_bench.errors import Diverged, InputError, whole_number
from fsvi_bench.methods.base import Method
from fsvi_bench.methods.problems import TrainingData, require_task
from fsvi_bench.methods.registry import find_method
from fsvi_bench.networks.official import CertifiedNetwork
from fsvi_bench.networks.task import NetworkTask
from fsvi_bench.posteriors.base import Posterior, defect, divergence
from fsvi_bench.running.devices import Work, device_for, steps_of
from fsvi_bench.running.job import make_method
from fsvi_bench.tasks.task import Task
from fsvi_bench.threads import one_thread
from fsvi_bench.training.trainer import train


def fit(
    method: str | type[Method],
    task: Task,
    *,
    family: str | None = None,
    seed: int = 0,
    max_steps: int | None = None,
    M: int | None = None,
    device: str = "auto",
    **options: Any,
) -> Posterior:
    """Trains a method on a task and returns its posterior q: `q.mean`, `q.covariance`, `q.sample(n, seed)`.

    On a CPU the result is bitwise equal to that of `fsvi-bench run` for the same task, seed and settings. It uses one
    thread: two are slower for problems of this size.

    Args:
        method: a name (see `fsvi-bench methods list`), `path/file.py:Class`, or a subclass of `Method`.
        task: a task from `load_task`, `make_task` or `Task.from_gpytorch`.
        family: such as `full` or `ffg`; by default the first family of the method.
        seed: the random numbers depend on it, the task, the method and the family.
        max_steps: number of training steps, for methods that train.
        M: number of measurement points, for methods that use them.
        device: `cpu`, `cuda`, or `auto`: the faster one. For a single task that is the CPU.
        options: other options of the method, as for `--set`.

    Raises:
        InputError: an argument is not valid; one sentence says how to fix it.
        Diverged: training diverged, which is a result of the method with these settings.
    """
    _refuse_networks(task)
    entry, problem = find_method(method), require_task(task)
    given = {name: value for name, value in (("max_steps", max_steps), ("M", M)) if value is not None}
    chosen = entry.options({**options, **given})
    seed = whole_number("seed", seed)
    seeds = (0 if entry.is_deterministic(chosen) else seed,)  # as in `run`
    # Comparisons of an array have no truth value; its text is an unknown family like any other.
    family = entry.cls.checked_family(None if family is None else str(family), entry.name)
    entry.check(chosen, TrainingData.of(problem))
    hardware = device_for(str(device), [Work(entry.name, 1, steps_of(entry, chosen))])
    with one_thread():
        trained = make_method(entry, family, chosen, [problem], seeds)
        train(trained, hardware)
        q: Posterior = trained.cpu().posterior()[0]
    if (fault := defect(q, problem.k)) is not None:
        raise InputError(f"method {entry.name} did not return a posterior over the weights: {fault}; fix the method")
    if (reason := trained.divergences()[0] or divergence(q)) is not None:
        raise Diverged(f"method {entry.name} {family} on {_name(problem)} diverged: {reason}")
    return q


def _refuse_networks(task: object) -> None:
    """Raises InputError if it is a network."""
    found = task.task if isinstance(task, CertifiedNetwork) else task
    if isinstance(found, NetworkTask):
        raise InputError(
            f"the task is the network {found.name}, expected a linear Task; train on it with `fsvi-bench run --task "
            f"{found.name}`, or through NetworkData (docs/concepts/networks.md)"
        )


def _name(task: Task) -> str:
    return f"{task.dataset} split {task.split}"
