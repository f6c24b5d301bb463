"""A callback for the user's own Lightning Trainer: how close a method is to the exact posterior during training."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytorch_lightning as pl
import torch

from fsvi_bench.errors import InputError, whole_number
from fsvi_bench.methods.base import Method
from fsvi_bench.methods.callbacks import Averaging
from fsvi_bench.methods.problems import require_task
from fsvi_bench.posteriors.base import unstack
from fsvi_bench.scoring.scores import trace_scores
from fsvi_bench.tasks.task import Task


class Scores(pl.Callback):
    """Logs `kl`, KL(q ‖ P_D), and `nlpd` of the current posterior at the start, at regular steps and at the end.

    With several problems these are means over problems, and `kl/0`, `nlpd/0`, `kl/1`, ... are the scores of each. They
    are logged to the Trainer's loggers by the number of steps done, and to `trainer.callback_metrics`, where
    `ModelCheckpoint(monitor="kl")` finds them. Scoring runs on the CPU and draws no random numbers, so training is not
    affected. The KL of dropout is infinite; the scores of a diverged problem are NaN.

    Args:
        tasks: the method's tasks, in the same order.
        every: steps between two scores.

    Raises:
        InputError: `tasks` are not tasks, or `every` is not a whole number of at least 1.
    """

    def __init__(self, tasks: Sequence[Task] | Task, every: int = 500) -> None:
        super().__init__()
        self.tasks = [require_task(task) for task in (tasks if isinstance(tasks, list | tuple) else [tasks])]
        self.every = whole_number("every", every, 1)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if not isinstance(pl_module, Method):
            raise InputError(
                f"Scores got a {type(pl_module).__name__}, expected a Method of fsvi-bench; remove the callback"
            )
        given = pl_module.problems.y.cpu()
        same = len(given) == len(self.tasks) and all(map(torch.equal, given, [task.y for task in self.tasks]))
        if not same:
            raise InputError(
                f"Scores got {len(self.tasks)} tasks, expected the method's {len(given)} tasks in the same order; "
                "pass the same tasks to both"
            )
        # The iterate must be averaged before it is scored.
        trainer.callbacks = sorted(trainer.callbacks, key=lambda each: not isinstance(each, Averaging))  # type: ignore[attr-defined]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._log(trainer, pl_module)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        if pl_module.steps_done % self.every == 0:
            self._log(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if pl_module.steps_done % self.every != 0:
            self._log(trainer, pl_module)

    def _log(self, trainer: pl.Trainer, method: Any) -> None:
        metrics = self.metrics(method)
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=method.steps_done)

    def metrics(self, method: Method) -> dict[str, float]:
        """The scores of a method's current posterior by the names under which they are logged."""
        found = [trace_scores(q, task) for q, task in zip(unstack(method.posterior().cpu()), self.tasks, strict=True)]
        metrics: dict[str, float] = {}
        for name in ("kl", "nlpd"):
            values = [getattr(scores, name) for scores in found]
            if None in values:  # the density of a mixture too spread out to be computed
                continue
            metrics[name] = fmean(values)
            if len(values) > 1:
                metrics |= {f"{name}/{place}": value for place, value in enumerate(values)}
        return metrics
