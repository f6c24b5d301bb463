"""What `--device auto` chooses: the device on which the training of a grid is expected to end first.

The expectation is linear in the number B of problems that are trained side by side: a step on a GPU takes
`step + problem · B`, and B problems on one core take `core · B`. The constants come from measurements in float64, at
k = 100 and M = 80: for RANDA, of one NVIDIA H200 and a core of its machine; for SSGE, of one NVIDIA H100 and a core of
an AMD EPYC (`benchmarks/README.md`). Other GPUs and processors have others: `--device` overrides the choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.registry import MethodEntry
from fsvi_bench.running.cell import Plan
from fsvi_bench.training.trainer import Device, choose_device


class Work(NamedTuple):
    """The training of one batch."""

    method: str
    problems: int
    steps: int


class Speed(NamedTuple):
    """Seconds of a step."""

    step: float  #: on a GPU, for any number of problems
    problem: float  #: on a GPU, for each problem on top of that
    core: float  #: on one core, for each problem

    @staticmethod
    def measured(of_20: float, of_400: float, of_core: float) -> Speed:
        """From problem-steps per second: on a GPU with 20 and with 400 problems, and on one core."""
        few, many = 20 / of_20, 400 / of_400
        problem = (many - few) / 380
        return Speed(few - 20 * problem, problem, 1 / of_core)


RANDA = Speed.measured(5442, 35689, 1227)  #: also stands for methods that were not measured
SPEEDS = {"ssge": Speed.measured(497, 627, 505)}


def device_for(
    wanted: str, work: Iterable[Work], available: bool | None = None, cores: int = 1, gpus: int = 1
) -> Device:
    """The device for a grid.

    Args:
        wanted: `cpu`, `cuda` or `auto`.
        available: whether there is a CUDA GPU where the grid is computed; by default, whether this machine has one.
        cores: the number of parallel calls on CPUs.
        gpus: the number of parallel calls on GPUs.

    Raises:
        InputError: as `choose_device`.
    """
    device = choose_device(wanted, available)
    return fastest(work, cores, gpus) if wanted == "auto" and device == "cuda" else device


def fastest(work: Iterable[Work], cores: int, gpus: int) -> Device:
    """The device that is expected to finish the work first; the CPU if nothing is trained."""
    on_gpus = on_cores = 0.0
    for method, problems, steps in work:
        speed = SPEEDS.get(method, RANDA)
        on_gpus += steps * (speed.step + speed.problem * problems) / gpus
        on_cores += steps * speed.core * problems / min(cores, problems)
    return "cuda" if on_gpus < on_cores else "cpu"


def steps_of(entry: MethodEntry, options: MethodOptions) -> int:
    """The number of training steps; 0 for a closed form."""
    return int(getattr(options, "max_steps", 0)) if entry.trains_with(options) else 0


def work_of(plan: Plan) -> list[Work]:
    """The batches of a plan: all splits and seeds of a data set, for each row of the table."""
    splits, found = Counter(task.dataset for task in plan.tasks), []
    for variant in plan.variants:
        entry = plan.methods[variant.method]
        steps = steps_of(entry, entry.options(variant.hyperparameters))
        for dataset, count in splits.items() if steps else ():
            if variant.is_for(dataset):
                found.append(Work(variant.method, count * len(variant.seeds), steps))
    return found
