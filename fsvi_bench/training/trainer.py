"""Lightning's Trainer as a run has it: no logger, bar, summary or checkpoints, and a clock that stops for observers."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import pytorch_lightning as pl
import torch

from fsvi_bench.errors import InputError, quoted
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
        raise InputError(f"the device is {quoted(str(wanted))}, expected auto, cpu or cuda")
    available = torch.cuda.is_available() if available is None else available
    if wanted == "cuda" and not available:
        raise InputError("the device is 'cuda', but there is no CUDA GPU to work on here; choose cpu or auto")
    return "cuda" if available and wanted != "cpu" else "cpu"


class Clock(pl.Callback):
    """Counts the seconds between the first and the last step, and stops for whoever observes.

    Observers look before the clock starts, before a step (all of the former one is then done), and at the end.

    Args:
        observe: called with (steps done, seconds so far) after each number of steps in `at`, before the first step if 0
            is among them, and when a method ends early.
    """

    def __init__(self, observe: Observe | None, at: Sequence[int]) -> None:
        self.observe, self.at = observe, frozenset(at)
        self.seconds, self._started, self._seen = 0.0, 0.0, -1

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if pl_module.steps_done in self.at:
            self._show(pl_module)
        self._started = time.perf_counter()

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if pl_module.steps_done in self.at:
            self._stop(pl_module)
            self._show(pl_module)
            self._started = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self._stop(pl_module)
        if pl_module.steps_done in self.at or pl_module.steps_done < pl_module.num_steps:
            self._show(pl_module)

    def _stop(self, method: Any) -> None:
        if method.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - self._started

    def _show(self, method: Any) -> None:
        if self.observe is not None and method.steps_done != self._seen:
            self.observe(method.steps_done, self.seconds)
        self._seen = method.steps_done


def train(method: Method, device: Device, observe: Observe | None = None, at: Sequence[int] = ()) -> float:
    """Runs the method's steps; returns the seconds that they took for the whole batch, observations apart.

    Args:
        observe: as `Clock` has it.
        at: numbers of steps.
    """
    clock = Clock(observe, at)
    if not method.trains:
        started = time.perf_counter()
        method.posterior()
        return time.perf_counter() - started
    with _quiet():
        trainer = pl.Trainer(
            accelerator=device,
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[clock],
        )
        try:
            trainer.fit(method, datamodule=method.data())
        except SystemExit:
            # Lightning turns Ctrl-C into an exit of its own; whoever called decides how an interrupt ends.
            if trainer.interrupted:
                raise KeyboardInterrupt from None
            raise
    return clock.seconds


@contextmanager
def _quiet() -> Iterator[None]:
    """Lightning says which devices it found at every run. Its logger and the filters are then as they were before."""
    lightning = logging.getLogger("pytorch_lightning")
    level = lightning.level
    lightning.setLevel(max(level, logging.WARNING))
    try:
        with warnings.catch_warnings():
            # Lightning's own use of an old name of torch's, once for every run.
            warnings.filterwarnings("ignore", category=FutureWarning, module="pytorch_lightning.utilities._pytree")
            # Advice to take a GPU that `--device cpu` leaves alone.
            warnings.filterwarnings("ignore", message="GPU available but not used")
            yield
    finally:
        lightning.setLevel(level)
