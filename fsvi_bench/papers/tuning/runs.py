"""Training runs of the search, and the objective at their ends."""

from __future__ import annotations

import math
from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, PositiveFloat, PositiveInt

from fsvi_bench.methods.base import Method
from fsvi_bench.methods.data import Batch, Rows
from fsvi_bench.methods.points import ParticleMethod
from fsvi_bench.methods.registry import load_method
from fsvi_bench.papers.experiment import Plain, Row
from fsvi_bench.papers.problems import load_problem
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.task import Task
from fsvi_bench.threads import use_one_thread
from fsvi_bench.training.trainer import train


class Schedule(Plain):
    """How the learning rate falls, and the share of the last steps whose iterates are averaged."""

    lr_schedule: str
    averaging: float = Field(default=0.0, ge=0, lt=1)


class Setting(Plain):
    """A point of the grid."""

    lr: PositiveFloat
    schedule: str  #: its name in `Settings.schedules`
    max_steps: PositiveInt
    off_diagonal_lr: PositiveFloat = 1.0
    parametrisation: str = "weights"
    initial_scale: PositiveFloat = 1.0
    beta2: float | None = Field(default=None, gt=0, lt=1)  #: None: the method's default
    minibatch: PositiveInt | None = None  #: None: the method's default

    def options(self, known: Container[str]) -> dict[str, Any]:
        """Those options that a method has: others have no effect on it."""
        return {name: value for name, value in self if name in known and value is not None}


class Variant(Plain):
    """A method and one of its families."""

    method: str
    family: str


class Schedules(Plain):
    """The schedules by name."""

    of: dict[str, Schedule]


def train_and_measure(
    variant: Variant,
    dataset: str,
    setting: Setting,
    splits: int,
    schedules: Schedules,
    curve: tuple[int, ...],
    data_dir: str | None,
) -> Row:
    """The method's objective on the first splits of a data set, trained side by side, in nats; infinite if it diverged.

    `along` has the objective of split 0 after these numbers of steps; `seconds` are those of training.
    """
    use_one_thread()
    problems = [load_problem(dataset, split, Path(data_dir) if data_dir else None) for split in range(splits)]
    entry = load_method(variant.method)
    options = setting.options(entry.cls.Options.model_fields) | schedules.of[setting.schedule].model_dump()
    seeds = [derive_seed("tuning", problem.sha256, variant.method, variant.family) for problem in problems]
    family: Any = variant.family
    method = entry.cls(problems, family, seeds, entry.options(options))
    along: list[float | dict[str, str | int | float]] = []

    def observe(steps: int, seconds: float) -> None:
        along.append({"step": steps, "objective": objectives(method, problems)[0]})

    seconds = train(method, "cpu", observe if curve else None, [step for step in curve if step <= setting.max_steps])
    return {"objectives": [*objectives(method, problems)], "along": along, "seconds": seconds}


@torch.no_grad()
def objectives(method: Method, problems: list[Task]) -> list[float]:
    """The objective of each problem, in nats; infinite after a divergence.

    The particles of sample-then-optimise minimise losses with noise that only training knows; the losses of other
    particles are the same in training.
    """
    if isinstance(method, ParticleMethod):
        averaged = method.average is not None and method.average.count > 0
        q = (method.average.module if averaged else method.q)()
        values = method.train().loss(q, Batch(Rows.whole(method.problems))).tolist()
    else:
        values = [
            math.inf if reason else method.objective(place, problem)
            for place, (problem, reason) in enumerate(zip(problems, method.divergences(), strict=True))
        ]
    return [value if math.isfinite(value) else math.inf for value in values]
