"""What the tests of `training/` share: a user's own Trainer, and a logger that keeps what it is told."""

import pytorch_lightning as pl
from pytorch_lightning.loggers.logger import DummyLogger


class Recorder(DummyLogger):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def log_metrics(self, metrics, step=None):
        self.seen.append((step, dict(metrics)))


def trained(method, *callbacks, ckpt_path=None, **settings):
    """A method after a fit by a Trainer that says nothing; the Trainer."""
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    given = {"max_epochs": 1, "devices": 1, "accelerator": "cpu", **quiet, **settings}
    trainer = pl.Trainer(callbacks=list(callbacks), **given)
    trainer.fit(method, datamodule=method.data(), ckpt_path=ckpt_path)
    return trainer
