"""Every cell of a submission scored again, by the same function that scores a run, and its claims held against that."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch

from fsvi_bench.errors import InputError, plain
from fsvi_bench.leaderboard.submission import CELLS_FILE, Claim, Submission, SubmissionRefused
from fsvi_bench.leaderboard.verification import VerifiedCell
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.running.executors.local import LocalExecutor
from fsvi_bench.scoring.scores import Scores, not_a_number, score
from fsvi_bench.tasks.official import Place, TaskSet
from fsvi_bench.tasks.task import Task

#: How far a claim may be from the score, in nats and relative: rounding differs between machines, methods by more.
ABSOLUTE, RELATIVE = 1e-8, 1e-6
CLAIMED = ("kl", "predictive_kl_box")


def rescore(
    submission: Submission, tasks: TaskSet, workers: int = 1, *, only: Collection[Place] | None = None
) -> tuple[VerifiedCell, ...]:
    """Scores of every cell that is ok, from its posterior and its official task.

    Args:
        only: the cells to score; all others are left out.
        workers: processes; the scores do not depend on how many.

    Raises:
        SubmissionRefused: a claim differs from its score, or a posterior's scores are no numbers.
        InputError: raw data are missing, or a worker broke down.
    """
    files = {(claim.dataset, claim.split): str(submission.folder / claim.file) for claim in submission.claims.cells}
    wanted = files.keys() if only is None else only
    posteriors = {place: (files[place], q) for place, q in submission.posteriors.items() if place in wanted}
    scores = score_all(posteriors, tasks, workers)
    cells = []
    for number, claim in enumerate(submission.claims.cells):
        if (claim.dataset, claim.split) not in wanted:
            continue
        found = scores.get((claim.dataset, claim.split))
        if found is not None:
            _require_as_claimed(submission, number, claim, found)
        cells.append(
            VerifiedCell(
                dataset=claim.dataset,
                split=claim.split,
                task_sha256=claim.task_sha256,
                status=claim.status,
                reason=claim.reason,
                scores=found,
            )
        )
    return tuple(cells)


def agrees(claimed: float | None, scored: float | None) -> bool:
    """Whether a claim is the score but for rounding; infinity and null agree with themselves alone."""
    if claimed is None or scored is None:
        return claimed is scored
    # inf − inf is NaN, and an infinite tolerance would let everything pass
    return claimed == scored or abs(claimed - scored) <= ABSOLUTE + RELATIVE * abs(scored) < float("inf")


class _Call(NamedTuple):
    """What a worker needs to score one cell."""

    place: Place
    file: str
    posterior: Posterior
    problem: Task


def score_all(
    posteriors: Mapping[Place, tuple[str, Posterior]], tasks: TaskSet, workers: int = 1
) -> dict[Place, Scores]:
    """Scores of posteriors, each given with the name of its file.

    Raises:
        InputError: a posterior's scores are no numbers, or raw data are missing.
    """
    scores = {}
    # Made as workers ask for them, so that few problems are in memory.
    calls = (_Call(place, file, q, tasks.problem(place)) for place, (file, q) in posteriors.items())
    for call, outcome in LocalExecutor(workers).map(_score, calls):
        if isinstance(outcome, SubmissionRefused):
            raise outcome
        if isinstance(outcome, Exception):
            raise InputError(f"{call.file} cannot be scored: {type(outcome).__name__}: {outcome}") from outcome
        scores[call.place] = outcome
    return scores


def _score(call: _Call) -> Scores:
    try:
        scores = score(call.posterior, call.problem)
    except InputError as error:
        raise SubmissionRefused(f"{call.file}: {error}") from error
    except (ArithmeticError, ValueError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
        # No fault of the machine's, as memory would be.
        raise SubmissionRefused(f"{call.file}: its scores cannot be computed ({plain(str(error))})") from error
    if names := not_a_number(scores):
        raise SubmissionRefused(f"{call.file}: its scores {', '.join(names)} are not numbers; rescale the posterior")
    return scores


def _require_as_claimed(submission: Submission, number: int, claim: Claim, scores: Scores) -> None:
    for name in CLAIMED:
        claimed, scored = getattr(claim, name), getattr(scores, name)
        if not agrees(claimed, scored):
            raise SubmissionRefused(
                f"{submission.folder / CELLS_FILE}: cells.{number}.{name}: {claim.dataset} split {claim.split} claims "
                f"{_shown(claimed)}, but its posterior scores {_shown(scored)}; submit it again"
            )


def _shown(value: float | None) -> str:
    return "null" if value is None else repr(value)
