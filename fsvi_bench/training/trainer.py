"""Lightning set up so that a step costs what its arithmetic costs: no logger, bar, summary or checkpoints."""

from __future__ import annotations

import logging
import time
import warnings
from typing import Literal

import pytorch_lightning as pl
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.methods.base import Method

Device = Literal["cpu", "cuda"]


def choose_device(wanted: str) -> Device:
    """`auto` is the GPU where there is one.

    Raises:
        InputError: a GPU is asked for and there is none, or the name is unknown.
    """
    if wanted not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device is '{wanted}', expected auto, cpu or cuda")
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise InputError("--device cuda: this machine has no CUDA GPU that torch can use; choose cpu or auto")
    return "cuda" if available and wanted != "cpu" else "cpu"


class _Stopwatch(pl.Callback):
    """Seconds between the first and the last step, Lightning's own set-up apart."""

    def __init__(self) -> None:
        self.started = self.seconds = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.started = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self.started


def train(method: Method, device: Device) -> float:
    """Runs the method's steps; returns the seconds that they took for the whole batch."""
    stopwatch = _Stopwatch()
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    trainer = pl.Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[stopwatch],
    )
    # The loader is a range, so its length bounds the run even when a method drives its optimiser itself.
    steps = range(method.num_steps)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*configure_optimizers.*returned `None`.*")
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*`training_step` returned `None`.*")
        warnings.filterwarnings("ignore", message=".*Total length of `range` across ranks is zero.*")
        warnings.filterwarnings("ignore", module="pytorch_lightning.utilities._pytree")
        try:
            trainer.fit(method, train_dataloaders=steps)
        except SystemExit:
            # Lightning turns Ctrl-C into an exit of its own; whoever called decides how an interrupt ends.
            if trainer.interrupted:
                raise KeyboardInterrupt from None
            raise
    return stopwatch.seconds
