"""What every inference method is: a LightningModule over B independent problems, trained side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from fsvi_bench.posteriors.base import Family, Posterior
from fsvi_bench.scoring.objective import Objective
from fsvi_bench.tasks.training_problems import TrainingProblems

__all__ = ["ExactLimit", "Method", "MethodOptions", "TrainingProblems"]


class MethodOptions(BaseModel):
    """A method's hyperparameters; unknown names, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class ExactLimit:
    """Settings under which a method claims to reach the best member of its family.

    Args:
        settings: options on top of the defaults, `max_steps` and `M` among them.
        tolerance: how many nats above the optimum of KL(q ‖ P_D) it ends at most, on each toy task (k = 20, N = 40).
            The optimum is 0 for `full`, and EXACT-FFG's KL for `ffg`.
    """

    settings: Mapping[str, Any]
    tolerance: float


class Method(pl.LightningModule, ABC):
    """B problems side by side; no problem's result may depend on which others share the batch.

    A method implements `num_steps`, `training_step` and `posterior`. It either leaves optimisation to Lightning (then
    `configure_optimizers` and a loss from `training_step`) or sets `automatic_optimization = False` and does its own.
    `posterior` returns a `FullGaussian` or `FactorisedGaussian` (`fsvi_bench.posteriors.gaussian`) in float64, with a
    leading axis of B. Settings are fields of a nested `Options(MethodOptions)`, set by `--set name=value`; one called
    `max_steps` is set by `--max-steps`, one called `M` by `--measurement-points`.

    Args of every method: the training problems, the Gaussian family, the options, and one seed per problem, from
    which the method derives whatever streams it needs (`fsvi_bench.seeds`). `fsvi-bench methods check` holds a method
    to all of this.
    """

    Options: ClassVar[type[MethodOptions]] = MethodOptions
    families: ClassVar[tuple[Family, ...]] = ("full", "ffg")
    deterministic: ClassVar[bool] = False  #: True: nothing is drawn; one cell whatever the seeds say
    #: How many steps one call of `training_step` may do. Lightning costs a tenth of a millisecond a call.
    steps_per_call: ClassVar[int] = 1
    #: By family: where the method's own optimum is the exact posterior (`full`) or its best factorised approximation
    #: (`ffg`), as where its measurement set sees every weight. Left empty, it claims no such thing.
    exact_limits: ClassVar[Mapping[Family, ExactLimit]] = {}

    def __init__(
        self, problems: TrainingProblems, family: Family, options: MethodOptions, seeds: Sequence[int]
    ) -> None:
        super().__init__()
        self.problems, self.family, self.options, self.seeds = problems, family, options, tuple(seeds)

    @classmethod
    def check(cls, options: MethodOptions, problem: TrainingProblems) -> None:
        """Called with every problem, as a batch of one, before anything is trained.

        Raises:
            InputError: the settings do not fit the problem.
        """

    @classmethod
    def is_deterministic(cls, options: MethodOptions) -> bool:
        """Whether nothing is drawn under these options, so that there is one cell whatever the seeds say.

        It says nothing about training: gradients of the full batch are deterministic, too. See `trains`.
        """
        return cls.deterministic

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """How many steps the whole training takes; 1 for a formula, which has no trace and no posterior before it."""

    @property
    def trains(self) -> bool:
        """Whether there is a way to the posterior that can be looked at: more than one step."""
        return self.num_steps > 1

    @abstractmethod
    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        """One call for all B problems. `batch` is the range of steps to do, at most `steps_per_call` of them."""

    @abstractmethod
    def posterior(self) -> Posterior:
        """The current approximation, with a leading axis of B problems; asked for before the first step too."""

    @property
    def finished(self) -> bool:
        """True if further steps would change nothing; training then ends early."""
        return False

    def stopped_after(self) -> Sequence[int | None]:
        """For each problem, how many steps it took until nothing could move it any more, or None; its trace ends there,
        whatever the others of its batch still do."""
        return [None] * len(self.problems)

    def divergences(self) -> Sequence[str | None]:
        """For each problem, why training on it came to nothing, or None."""
        return [None] * len(self.problems)

    def objectives(self) -> Sequence[Objective | None]:
        """For each problem, what the method minimises, if that can be told apart from how; see `scoring.objective`.

        Asked for before the first step too, on the method's device.
        """
        return [None] * len(self.problems)

    def work(self) -> Sequence[Mapping[str, int] | None]:
        """For each problem, what training took in units that methods share, such as `likelihood_rows`, or None."""
        return [None] * len(self.problems)

    def details(self) -> Sequence[Mapping[str, float] | None]:
        """For each problem, numbers of the method's own that its record should hold, such as a sparsity, or None."""
        return [None] * len(self.problems)

    def configure_optimizers(self) -> Any:
        """Lightning's hook; by default there is no optimiser."""
        return None

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Lightning's hook: a range of steps stays as it is."""
        return batch

    def on_fit_start(self) -> None:
        """Brings the data to the device that Lightning chose."""
        self.problems = self.problems.to(self.device)
