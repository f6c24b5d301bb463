"""What every inference method is: a LightningModule over B independent problems, trained side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from fsvi_bench.posteriors.gaussian import Family, GaussianPosterior
from fsvi_bench.tasks.problem import FeatureMap, Problem


class MethodOptions(BaseModel):
    """A method's hyperparameters; unknown names, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True, eq=False)
class TrainingProblems:
    """What a method may see of B problems of equal shape: training rows and features, never test rows or the truth."""

    X: Float[Tensor, "B N D"]
    y: Float[Tensor, "B N"]
    Phi: Float[Tensor, "B N k"]
    noise_variance: Float[Tensor, " B"]
    low: Float[Tensor, "B D"]  #: lower corner of the bounding box of X
    high: Float[Tensor, "B D"]
    feature_map: FeatureMap

    @staticmethod
    def of(problems: Sequence[Problem]) -> TrainingProblems:
        """Stacks problems whose X and Phi agree in shape."""
        return TrainingProblems(
            X=torch.stack([p.X for p in problems]),
            y=torch.stack([p.y for p in problems]),
            Phi=torch.stack([p.Phi for p in problems]),
            noise_variance=torch.stack([p.task.noise_variance for p in problems]),
            low=torch.stack([p.bounding_box[0] for p in problems]),
            high=torch.stack([p.bounding_box[1] for p in problems]),
            feature_map=FeatureMap.stack([p.feature_map for p in problems]),
        )

    def to(self, device: torch.device) -> TrainingProblems:
        return TrainingProblems(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


class Method(pl.LightningModule, ABC):
    """B problems side by side; no problem's result may depend on which others share the batch.

    A method implements `num_steps`, `training_step` and `posterior`. It either leaves optimisation to Lightning (then
    `configure_optimizers` and a loss from `training_step`) or sets `automatic_optimization = False` and does its own.
    `posterior` returns a `FullGaussian` or `FactorisedGaussian` (`fsvi_bench.posteriors.gaussian`) in float64, with a
    leading axis of B. Settings are fields of a nested `Options(MethodOptions)`, set by `--set name=value`; one called
    `max_steps` is set by `--max-steps`, one called `M` by `--measurement-points`.

    Args of every method: the training problems, the Gaussian family, the options, and one seed per problem, from
    which the method derives whatever streams it needs (`fsvi_bench.seeds`).
    """

    Options: ClassVar[type[MethodOptions]] = MethodOptions
    families: ClassVar[tuple[Family, ...]] = ("full", "ffg")
    deterministic: ClassVar[bool] = False  #: True: one cell whatever the seeds say

    def __init__(
        self, problems: TrainingProblems, family: Family, options: MethodOptions, seeds: Sequence[int]
    ) -> None:
        super().__init__()
        self.problems, self.family, self.options, self.seeds = problems, family, options, tuple(seeds)

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """How many times `training_step` is called."""

    @abstractmethod
    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        """One step of all B problems."""

    @abstractmethod
    def posterior(self) -> GaussianPosterior:
        """The current approximation, with a leading axis of B problems."""

    def configure_optimizers(self) -> Any:
        """Lightning's hook; by default there is no optimiser."""
        return None

    def on_fit_start(self) -> None:
        """Brings the data to the device that Lightning chose."""
        self.problems = self.problems.to(self.device)
