"""Lightning set up so that a step costs what its arithmetic costs: no logger, bar, summary or checkpoints."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import pytorch_lightning as pl
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.methods.base import Method

Device = Literal["cpu", "cuda"]
Observe = Callable[[int, float], None]


def choose_device(wanted: str, available: bool | None = None) -> Device:
    """`auto` is the GPU where there is one.

    Args:
        available: whether there is one where the work is done; by default, on this machine.

    Raises:
        InputError: a GPU is asked for and there is none, or the name is unknown.
    """
    if wanted not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device is '{wanted}', expected auto, cpu or cuda")
    available = torch.cuda.is_available() if available is None else available
    if wanted == "cuda" and not available:
        raise InputError("--device cuda: there is no CUDA GPU to work on here; choose cpu or auto")
    return "cuda" if available and wanted != "cpu" else "cpu"


class _Conductor(pl.Callback):
    """Counts the seconds between the first and the last step, stops the clock for observations, and ends early."""

    def __init__(self, observe: Observe | None, at: Sequence[int]) -> None:
        self.observe, self.at = observe, frozenset(at)
        self.seconds, self._started = 0.0, 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._look(0)
        self._started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Method)
        if pl_module.finished:
            trainer.should_stop = True
        if batch.stop in self.at or trainer.should_stop:
            self._stop(pl_module)
            self._look(batch.stop)
            self._started = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop(pl_module)

    def _stop(self, module: pl.LightningModule) -> None:
        if module.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - self._started

    def _look(self, step: int) -> None:
        if self.observe is not None and (step in self.at or step > 0):
            self.observe(step, self.seconds)


class StepRanges:
    """The steps 0 to `total` in ranges of at most `steps_per_call` that end wherever somebody wants to look.

    Lightning's loader: its length bounds the run even when a method drives its optimiser itself. (Lightning would take
    a plain list for a collection of loaders.)
    """

    def __init__(self, total: int, steps_per_call: int, stops: Sequence[int] = ()) -> None:
        edges = sorted({0, total, *range(0, total, steps_per_call), *(stop for stop in stops if 0 < stop < total)})
        self.ranges = [range(start, stop) for start, stop in pairwise(edges)]

    def __iter__(self) -> Iterator[range]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)


def train(method: Method, device: Device, observe: Observe | None = None, at: Sequence[int] = ()) -> float:
    """Runs the method's steps; returns the seconds that they took for the whole batch, observations apart.

    Args:
        observe: called with (steps done, seconds so far) after each number of steps in `at`, before the first step if 0
            is among them, and when a method ends early.
    """
    conductor = _Conductor(observe, at)
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    trainer = pl.Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[conductor],
    )
    steps = StepRanges(method.num_steps, method.steps_per_call, at)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*configure_optimizers.*returned `None`.*")
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*`training_step` returned `None`.*")
        warnings.filterwarnings("ignore", message=".*Total length of `StepRanges` across ranks is zero.*")
        warnings.filterwarnings("ignore", module="pytorch_lightning.utilities._pytree")
        try:
            trainer.fit(method, train_dataloaders=steps)
        except SystemExit:
            # Lightning turns Ctrl-C into an exit of its own; whoever called decides how an interrupt ends.
            if trainer.interrupted:
                raise KeyboardInterrupt from None
            raise
    return conductor.seconds
