"""What the tests of re-runs share: small methods to submit, submissions of them, and the jail that they need."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fsvi_bench.leaderboard.rerun.child import Limits, Trained, train_apart
from fsvi_bench.leaderboard.rerun.jail import Jail, find_jail
from fsvi_bench.leaderboard.submission import Claim, Claims, Submission
from fsvi_bench.leaderboard.verification import VerifiedCell
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import load_method
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.scoring.scores import score
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.official import Place, TaskSet
from fsvi_bench.tasks.task import Task
from fsvi_bench.training.trainer import train
from tests.leaderboard.planted import planted_manifest, planted_problem, planted_task
from tests.requirements import skip_or_fail

LIMITS = Limits(steps=10, seconds=60.0, memory=2 * 2**30)

#: Answers the prior; `{body}` is what is done on the way, with `self.problems` at hand.
METHOD = """
import os, sys, torch
from fsvi_bench.methods.base import Method
from fsvi_bench.posteriors.gaussian import FullGaussian


class Mine(Method):
    "The prior, and something on the side."

    def solve(self, problem):
{body}
        mean = torch.zeros_like(problem.Phi[:, 0])
        return FullGaussian(mean, torch.diag_embed(torch.ones_like(mean)))
"""


def method_that(*lines: str) -> bytes:
    """The text of a method whose step does this."""
    return METHOD.format(body="\n".join(f"        {line}" for line in lines)).encode()


def jail() -> Jail:
    """The jail with bubblewrap; ends the test where there is none."""
    found = find_jail()
    if found.bwrap is None:
        skip_or_fail("bubblewrap does not work here: install `bwrap` and allow user namespaces")
    return found


def problem() -> Task:
    return planted_problem(planted_task("boston", 0))


def trained(source: bytes, limits: Limits = LIMITS, within: Jail | None = None, **manifest: Any) -> Trained:
    """What comes of a file with a class `Mine`."""
    words = planted_manifest(source={"file": "mine.py", "class": "Mine"}, **manifest)
    return train_apart(words, source, problem(), 1, limits, within or jail())


def source_of(name: str) -> tuple[bytes, str]:
    """Text and class of a built-in method."""
    cls = load_method(name).cls
    return Path(inspect.getfile(cls)).read_bytes(), cls.__name__


def trained_here(name: str, family: Any, settings: Mapping[str, Any], of: Task) -> Posterior:
    """What a run of the benchmark would leave of a cell of seed 0."""
    return trained_until(name, family, settings, of, ())[-1]


def trained_until(
    name: str, family: Any, settings: Mapping[str, Any], of: Task, steps: Sequence[int]
) -> list[Posterior]:
    """What there was of it after each of these steps, copied; then what it left."""
    entry = load_method(name)
    seeds = [derive_seed(of.frozen.sha256, name, family, 0)]
    method = entry.cls(TrainingData.of([of]), family, seeds, entry.options(settings))
    found: list[Posterior] = []

    def observe(step: int, seconds: float) -> None:
        if step in steps:
            found.append(copy.deepcopy(method.posterior()[0]))

    train(method, "cpu", observe, steps)
    return [*found, method.posterior()[0]]


def submission(
    tasks: TaskSet, posteriors: Mapping[Place, Posterior], text: bytes | None, root: Path, **manifest: Any
) -> tuple[Submission, tuple[VerifiedCell, ...]]:
    """A submission as it is once read, and its cells as scored; tasks without a posterior diverged."""
    claims, cells = [], []
    for (dataset, split), task in tasks.tasks.items():
        place = {"dataset": dataset, "split": split, "task_sha256": task.sha256}
        if (q := posteriors.get((dataset, split))) is None:
            claims.append(Claim(**place, status="diverged", reason="it diverged"))
            cells.append(VerifiedCell(**place, status="diverged", reason="it diverged", scores=None))
            continue
        scores = score(q, tasks.problem((dataset, split)))
        claims.append(Claim(**place, status="ok", posterior_sha256="0" * 64, kl=scores.kl))
        cells.append(VerifiedCell(**place, status="ok", reason=None, scores=scores))
    words = planted_manifest(**manifest)
    whole = Submission(
        folder=root / words.name,
        manifest=words,
        claims=Claims(format="fsvi-cells/1", cells=claims),
        source=text,
        posteriors=posteriors,
        sha256="1" * 64,
    )
    return whole, tuple(cells)
