"""Traces of KL, NLPD and the method's own loss during training; scoring does not count as training time."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from fsvi_bench.errors import InputError
from fsvi_bench.posteriors.base import Posterior, defect, divergence, unstack
from fsvi_bench.scoring.scores import trace_scores
from fsvi_bench.tasks.task import Task

if TYPE_CHECKING:
    from fsvi_bench.methods.base import Method  # imports Lightning, which reading a trace does not need

POINTS_PER_DECADE = 8
TRACED_SETS = 4  #: held-out measurement sets on which objectives are traced; they take 2% of a quick run's time


@dataclass(frozen=True)
class TracePoint:
    """Scores after `steps` steps; `seconds` is the batch's training time so far divided by the batch size.

    The NLPD of a mixture is computed at the end only, since it takes as long as many steps; that of the Gaussian with
    q's moments is computed at every point. `loss` is the method's own objective in nats (`Method.objective`), None if
    it has none.
    """

    steps: int
    seconds: float
    kl: float
    nlpd: float | None
    kl_moment_matched: float
    nlpd_moment_matched: float
    loss: float | None = None


COLUMNS = tuple(column.name for column in fields(TracePoint))
_LINES = TypeAdapter(list[TracePoint])


@dataclass
class Trace:
    """One cell's trace."""

    points: list[TracePoint] = field(default_factory=list)

    def to_csv(self) -> str:
        """One line per point, in full precision."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(map(astuple, self.points))
        return text.getvalue()


def read_trace(path: Path) -> Trace:
    """Reads a trace file.

    Raises:
        InputError: the file is not a trace.
    """
    try:
        header, *lines = csv.reader(path.read_text(encoding="utf-8").splitlines())
        if tuple(header) != COLUMNS:
            raise ValueError
        return Trace(_LINES.validate_python([_score_or_none(line) for line in lines]))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"{path} is not a trace ({type(error).__name__}), expected numbers in the columns {','.join(COLUMNS)}; "
            "move it elsewhere and rerun the command"
        ) from error


def _score_or_none(line: list[str]) -> dict[str, str | None]:
    """A line's fields by name; csv writes None as an empty field."""
    return {name: value or None for name, value in zip(COLUMNS, line, strict=True)}


def trace_steps(total: int) -> list[int]:
    """Steps to trace: before the first step, evenly on a logarithmic scale, and at the end."""
    count = 1
    steps = {0, total}
    while (step := round(10 ** (count / POINTS_PER_DECADE))) < total:
        steps.add(step)
        count += 1
    return sorted(steps)


class Tracer:
    """Scores a method's current posteriors at every call; one trace per problem.

    A problem that has stopped gets one last point, at the step at which it stopped, so its trace does not depend on
    how long the rest of its batch continues.
    """

    def __init__(self, method: Method, tasks: Sequence[Task]) -> None:
        self.method, self.tasks = method, tasks
        self.traces = [Trace() for _ in tasks]
        self._ended = [False] * len(tasks)

    def __call__(self, steps: int, seconds: float) -> None:
        """Call it after `steps` steps and `seconds` of training."""
        posteriors = unstack(self.method.posterior().cpu())
        share = seconds / len(self.tasks)
        stops = self.method.stopped_after()
        for place, (task, q, stop) in enumerate(zip(self.tasks, posteriors, stops, strict=True)):
            # A posterior of the wrong kind is rejected with a full message after training.
            if self._ended[place] or defect(q, task.frozen.k) is not None:
                continue
            at = steps if stop is None else min(stop, steps)
            last = stop is not None or steps >= self.method.num_steps
            scores = trace_scores(q, task, mixtures=last)
            self.traces[place].points.append(TracePoint(at, share, **scores._asdict(), loss=self._loss(place, q)))
            self._ended[place] = stop is not None

    def _loss(self, place: int, q: Posterior) -> float | None:
        """The method's objective at one problem's q; NaN if q has diverged or the objective cannot be computed."""
        if divergence(q) is not None:
            return math.nan
        try:
            return self.method.objective(place, self.tasks[place], TRACED_SETS)
        except NotImplementedError:
            return None  # the method has no objective
        except Exception:
            return math.nan
