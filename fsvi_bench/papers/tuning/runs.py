"""Training runs of the search, and the objective at their ends."""

from __future__ import annotations

import math
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import Field, PositiveFloat, PositiveInt

from fsvi_bench.methods.base import Method
from fsvi_bench.methods.data import Batch, Rows
from fsvi_bench.methods.points import ParticleMethod
from fsvi_bench.methods.registry import load_method
from fsvi_bench.papers.experiment import Row
from fsvi_bench.papers.problems import load_problem
from fsvi_bench.seeds import derive_seed
from fsvi_bench.strict import Plain
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


class Variant(NamedTuple):
    """A method and one of its families."""

    method: str
    family: str


class Training(Plain):
    """A variant with all its options. The method's code decides the result too, and this module does not import it."""

    method: str
    family: str
    code_sha256: str
    options: dict[str, Any]
    setting: Setting = Field(exclude=True)  #: the point of the grid, for the tables

    @staticmethod
    def of(variant: Variant, setting: Setting, schedule: Schedule) -> Training:
        """Raises InputError if the method refuses an option."""
        entry = load_method(variant.method)
        changes = setting.options(entry.cls.Options.model_fields) | schedule.model_dump()
        options = entry.options(changes).model_dump()
        return Training(**variant._asdict(), code_sha256=entry.code_sha256, options=options, setting=setting)

    def __str__(self) -> str:
        rates = f"lr {self.setting.lr:g} {self.setting.schedule}"
        return f"{self.method} {self.family} {rates} {self.setting.max_steps} steps"


class Tasks(Plain):
    """The first splits of a data set. Where the raw data are does not matter."""

    dataset: str
    sha256: tuple[str, ...]
    data_dir: Path | None = Field(default=None, exclude=True)

    @staticmethod
    def of(dataset: str, splits: int, data_dir: Path | None) -> Tasks:
        """Raises InputError if a task or its raw data are not available."""
        problems = [load_problem(dataset, split, data_dir) for split in range(splits)]
        return Tasks(dataset=dataset, sha256=tuple(problem.sha256 for problem in problems), data_dir=data_dir)

    def load(self) -> list[Task]:
        return [load_problem(self.dataset, split, self.data_dir) for split in range(len(self.sha256))]

    def __str__(self) -> str:
        return self.dataset


def train_and_measure(training: Training, tasks: Tasks, curve: tuple[int, ...]) -> Row:
    """The method's objective on each task, trained side by side, in nats; infinite if it diverged.

    `along` has the objective of the first task after these numbers of steps; `seconds` are those of training.
    """
    use_one_thread()
    problems = tasks.load()
    entry = load_method(training.method)
    seeds = [derive_seed("tuning", problem.sha256, training.method, training.family) for problem in problems]
    family: Any = training.family
    method = entry.cls(problems, family, seeds, entry.options(training.options))
    along: list[float | dict[str, str | int | float]] = []

    def observe(steps: int, seconds: float) -> None:
        along.append({"step": steps, "objective": objectives(method, problems)[0]})

    seconds = train(
        method, "cpu", observe if curve else None, [step for step in curve if step <= method.options.max_steps]
    )
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
