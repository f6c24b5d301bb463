"""`fsvi_bench.fit`: a method's approximation of one task's exact posterior."""

from __future__ import annotations

from typing import Any

from fsvi_bench.errors import Diverged, InputError, whole_number
from fsvi_bench.methods.base import Method
from fsvi_bench.methods.problems import TrainingData, require_task
from fsvi_bench.methods.registry import find_method
from fsvi_bench.posteriors.base import Posterior, defect, divergence
from fsvi_bench.running.executors import one_thread
from fsvi_bench.running.job import make_method
from fsvi_bench.tasks.task import Task
from fsvi_bench.training.trainer import choose_device, train


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

    On a CPU its numbers are those of `fsvi-bench run` for the same task, seed and settings, to the last bit. It takes
    one thread: for problems of this size two are slower.

    Args:
        method: a name (`fsvi-bench methods list`), `path/file.py:Class`, or a subclass of `Method`.
        task: of `load_task`, `make_task` or `Task.from_gpytorch`.
        family: such as `full` or `ffg`; the method's first by default.
        seed: all that is drawn derives from it, the task, the method and the family.
        max_steps: training steps, of a method that trains.
        M: the number of measurement points, of a method that has them.
        device: `cpu`, `cuda`, or `auto`, which is the GPU where there is one.
        options: other options of the method, as `--set` takes them.

    Raises:
        InputError: any of these is not as above; one sentence says what to change.
        Diverged: training diverged, which is a result of the method under these settings.
    """
    entry, problem = find_method(method), require_task(task)
    given = {name: value for name, value in (("max_steps", max_steps), ("M", M)) if value is not None}
    chosen = entry.options(_countable({**options, **given}, entry.name))
    seed = whole_number("seed", seed)
    seeds = (0 if entry.cls.is_deterministic(chosen) else seed,)  # as `run` has it
    # An array that is compared has no truth value; its text is as good as any other that names no family.
    family = entry.cls.checked_family(None if family is None else str(family), entry.name)
    entry.cls.check(chosen, TrainingData.of(problem))
    hardware = choose_device(str(device))
    with one_thread():
        trained = make_method(entry, family, chosen, [problem], seeds)
        train(trained, hardware)
        q: Posterior = trained.cpu().posterior()[0]
    if (fault := defect(q, problem.k)) is not None:
        raise InputError(f"method {entry.name} returned what is not a posterior over the weights: {fault}; correct it")
    if (reason := trained.divergences()[0] or divergence(q)) is not None:
        raise Diverged(f"method {entry.name} {family} on {_name(problem)} diverged: {reason}")
    return q


def _countable(options: dict[str, Any], method: str) -> dict[str, Any]:
    """The options, if no whole number among them is so large that no range or array has this length."""
    for name, value in options.items():
        if isinstance(value, int) and value.bit_length() >= 63:
            got = f"a number of {value.bit_length()} bits"
            raise InputError(
                f"method {method}, option '{name}': got {got}, expected fewer than 63; choose a smaller one"
            )
    return options


def _name(task: Task) -> str:
    return f"{task.dataset} split {task.split}"
