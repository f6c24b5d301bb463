"""Re-runs whose process is a stub that ends as told: no jail, no training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.rerun import RerunSettings, comparison, rerun
from fsvi_bench.leaderboard.rerun.child import Limits, RunFailed, Snapshot, Trained
from fsvi_bench.leaderboard.submission import Submission
from fsvi_bench.leaderboard.verification import Rerun, VerifiedCell
from fsvi_bench.posteriors.base import Family, Posterior
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.running.progress import Silent
from fsvi_bench.tasks.official import Place, TaskSet
from fsvi_bench.tasks.task import Task
from tests.leaderboard.planted import planted_posteriors, planted_tasks
from tests.leaderboard.rerunning import submission

Ends = Callable[[Task], Trained | RunFailed]

SETTINGS = RerunSettings(count=2, seed=3, require_isolation=False)
DIVERGED = Trained("diverged", "the loss was not finite at step 3", 1.0, (), True)
FAILED = Trained("failed", "ValueError: no", 1.0, (), True)


class Stub:
    """In place of the process: ends as told, and keeps the problems and the limits that it was given."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends
        self.problems: list[Task] = []
        self.limits: list[Limits] = []

    def __call__(self, manifest: object, source: object, problem: Task, seed: int, limits: Limits, jail: object):
        self.problems.append(problem)
        self.limits.append(limits)
        ended = self.ends(problem)
        if isinstance(ended, Exception):
            raise ended
        return ended


class Planted(NamedTuple):
    """Tasks, posteriors, and a maker of submissions of them, `without` some."""

    tasks: TaskSet
    posteriors: dict[Place, Posterior]
    make: Callable[..., tuple[Submission, tuple[VerifiedCell, ...]]]


def plant(root: Path, family: Family = "full", distance: float = 0.3) -> Planted:
    tasks = planted_tasks()
    posteriors = planted_posteriors(tasks, family, distance=distance)
    words = {"source": {"file": "mine.py", "class": "Mine"}, "family": family}

    def make(without=()):
        kept = {place: q for place, q in posteriors.items() if place not in without}
        return submission(tasks, kept, b"class Mine: ...", root, **words)

    return Planted(tasks, posteriors, make)


def ends_with(q: Posterior) -> Trained:
    return Trained("ok", None, 1.0, (Snapshot(1, 1.0, q, {"gradients": 1}),), True)


def prior(problem: Task) -> FullGaussian:
    zero = torch.zeros(problem.frozen.k, dtype=torch.float64)
    return FullGaussian(zero, torch.diag(zero + 1))


def ends_as_submitted(tasks: TaskSet, posteriors: Mapping[Place, Posterior]) -> Ends:
    """Official problems end with their own files, withheld ones with the prior."""
    own = {task.sha256: posteriors[place] for place, task in tasks.tasks.items() if place in posteriors}
    return lambda problem: ends_with(own.get(problem.frozen.sha256) or prior(problem))


def run(
    monkeypatch, ends: Ends, whole, tasks, cells, settings: RerunSettings = SETTINGS, progress=None, hidden=()
) -> tuple[Rerun, Stub]:
    stub = Stub(ends)
    monkeypatch.setattr(comparison, "train_apart", stub)
    return rerun(whole, tasks, cells, settings, progress or Silent(), hidden=hidden), stub


def refusal(monkeypatch, ends: Ends, whole, tasks, cells, settings: RerunSettings = SETTINGS) -> str:
    with pytest.raises(InputError) as caught:
        run(monkeypatch, ends, whole, tasks, cells, settings)
    return str(caught.value)
