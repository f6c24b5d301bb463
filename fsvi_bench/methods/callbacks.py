"""Lightning callbacks of every method: averaging of iterates, and an early end."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl


class Averaging(pl.Callback):
    """Averages the iterates of the final steps (Polyak and Ruppert), by the share in the option `averaging`."""

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        total = pl_module.num_steps
        averaged = max(round(pl_module.options.averaging * total), 1)
        if pl_module.steps_done > total - averaged:
            pl_module.average.update(pl_module.q)


class EarlyEnd(pl.Callback):
    """Ends training when all steps are done, or when all problems have converged or diverged."""

    every = 64  #: steps between checks on a GPU, since each check waits for the GPU

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        # Fitting a finished method again changes nothing.
        trainer.should_stop = trainer.should_stop or pl_module.finished

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        done = pl_module.steps_done
        due = pl_module.device.type == "cpu" or done % self.every == 0 or done >= pl_module.num_steps
        if due and pl_module.finished:
            trainer.should_stop = True
