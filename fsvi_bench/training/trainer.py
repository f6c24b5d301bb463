"""Lightning's Trainer as runs use it: no logger, progress bar, summary or checkpoints, and a training clock."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning.utilities.exceptions import SIGTERMException

from fsvi_bench.errors import InputError, quoted
from fsvi_bench.methods.base import Method

Device = Literal["cpu", "cuda"]
Observe = Callable[[int, float], None]


def choose_device(wanted: str, available: bool | None = None) -> Device:
    """`auto` chooses the GPU if there is one.

    Args:
        available: whether the machine that trains has a CUDA GPU; by default, whether this machine has one.

    Raises:
        InputError: a GPU is requested but not available, or the name is unknown.
    """
    if wanted not in ("auto", "cpu", "cuda"):
        raise InputError(f"the device is {quoted(str(wanted))}, expected auto, cpu or cuda; choose one of them")
    available = torch.cuda.is_available() if available is None else available
    if wanted == "cuda" and not available:
        raise InputError("the device is 'cuda', but no CUDA GPU is available; choose cpu or auto")
    return "cuda" if available and wanted != "cpu" else "cpu"


class Clock(pl.Callback):
    """Measures the seconds between the first and the last step, without the time that observers take.

    Observers run before the clock starts, before a step (when the previous step is complete), and at the end.

    Args:
        observe: called with (steps done, seconds so far) after each number of steps in `at`, before the first step if
            0 is among them, and when a method ends early.
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
    """Runs the method's steps; returns the seconds that they took for the whole batch, without observations.

    Args:
        observe: as for `Clock`.
        at: numbers of steps after which to observe.
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
            # One process, wherever it runs: Lightning would take the processes of a Slurm job for its own, and resume
            # from an `hpc_ckpt_*.ckpt` in the root folder; this one is none.
            plugins=[LightningEnvironment()],
            default_root_dir=os.devnull,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[clock],
        )
        try:
            trainer.fit(method, datamodule=method.data())
        except SystemExit as error:
            # Lightning exits the process on Ctrl-C and SIGTERM; the caller decides how to handle an interrupt.
            if isinstance(error, SIGTERMException) or isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise
    return clock.seconds


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences Lightning's messages about devices; restores its logger and the warning filters on exit."""
    lightning = logging.getLogger("pytorch_lightning")
    level = lightning.level
    lightning.setLevel(max(level, logging.WARNING))
    try:
        with warnings.catch_warnings():
            # Lightning itself uses a deprecated name of torch, and would warn at every run.
            warnings.filterwarnings("ignore", category=FutureWarning, module="pytorch_lightning.utilities._pytree")
            # With `--device cpu` the GPU is left unused on purpose.
            warnings.filterwarnings("ignore", message="GPU available but not used")
            warnings.filterwarnings("ignore", message="The `srun` command is available")
            yield
    finally:
        lightning.setLevel(level)
