"""What happens between the steps of every method: averages, and an early end. Lightning callbacks."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl


class Averaging(pl.Callback):
    """Means of the iterates after each of the last steps (Polyak and Ruppert), where the options ask for a share."""

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        total = pl_module.num_steps
        averaged = max(round(pl_module.options.averaging * total), 1)
        if pl_module.steps_done > total - averaged:
            pl_module.average.update(pl_module.q)


class EarlyEnd(pl.Callback):
    """Ends when all steps are done, or further ones would change nothing: all problems have converged or diverged."""

    every = 64  #: steps between looks on a GPU, since a look waits for it

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        # A method that is fitted once more, having finished, stays as it is.
        trainer.should_stop = trainer.should_stop or pl_module.finished

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        done = pl_module.steps_done
        due = pl_module.device.type == "cpu" or done % self.every == 0 or done >= pl_module.num_steps
        if due and pl_module.finished:
            trainer.should_stop = True
