"""A task bound to its data: standardised inputs and targets, features, and the exact posterior they imply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.maths.blr import PrecisionGaussian, blr_posterior, covariance_tril, log_evidence
from fsvi_bench.maths.features import inducing_tril, nystrom_features, rbf_grid_features
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.raw import RawData, load_raw

BOX_POINTS = 1000


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """φ at standardised inputs; every tensor may carry a leading axis of problems."""

    inducing_points: Float[Tensor, "*B k D"]
    lengthscales: Float[Tensor, "*B D"]
    outputscale: Float[Tensor, "*B"]
    tril: Float[Tensor, "*B k k"] | None  #: chol(k(Z,Z) + jitter·I), or None for the unwhitened RBF grid

    def __call__(self, x: Float[Tensor, "*B n D"]) -> Float[Tensor, "*B n k"]:
        if self.tril is None:
            return rbf_grid_features(x, self.inducing_points, self.lengthscales)
        return nystrom_features(x, self.inducing_points, self.lengthscales, self.outputscale, self.tril)

    @staticmethod
    def of(task: FrozenTask) -> FeatureMap:
        """The feature map that a task defines.

        Raises:
            TaskRefused: k(Z,Z) + jitter·I is not positive definite.
        """
        kernel = (task.inducing_points, task.lengthscales, task.outputscale)
        if task.features == "rbf-grid":
            return FeatureMap(*kernel, tril=None)
        try:
            return FeatureMap(*kernel, tril=inducing_tril(*kernel, task.jitter))
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise TaskRefused(
                f"k(Z,Z) + {float(task.jitter):g}·I of {task.dataset} split {task.split} is not positive definite; "
                "the task needs a larger jitter"
            ) from error

    @staticmethod
    def stack(maps: Sequence[FeatureMap]) -> FeatureMap:
        """B feature maps of one kind and equal shape as one with a leading axis B.

        Raises:
            ValueError: whitened and unwhitened maps are mixed.
        """
        trils = [m.tril for m in maps if m.tril is not None]
        if len(trils) not in (0, len(maps)):
            raise ValueError("whitened features and RBF grids cannot share a batch")
        return FeatureMap(
            torch.stack([m.inducing_points for m in maps]),
            torch.stack([m.lengthscales for m in maps]),
            torch.stack([m.outputscale for m in maps]),
            torch.stack(trils) if trils else None,
        )

    def __getitem__(self, problem: int) -> FeatureMap:
        """One problem's feature map, as a copy: where it lies in memory must not depend on the batch."""
        tril = None if self.tril is None else self.tril[problem].clone()
        Z, lengthscales, outputscale = self.inducing_points, self.lengthscales, self.outputscale
        return FeatureMap(Z[problem].clone(), lengthscales[problem].clone(), outputscale[problem].clone(), tril)

    def to(self, device: torch.device) -> FeatureMap:
        tril = None if self.tril is None else self.tril.to(device)
        kernel = (self.inducing_points.to(device), self.lengthscales.to(device), self.outputscale.to(device))
        return FeatureMap(*kernel, tril=tril)


@dataclass(frozen=True, eq=False)
class Truth:
    """The exact posterior P_D of one problem and its evidence (standardised units)."""

    posterior: PrecisionGaussian
    covariance_tril: Float[Tensor, "k k"]
    log_evidence: Float[Tensor, ""]


@dataclass(frozen=True, eq=False)
class Task:
    """A frozen task bound to its data: learned from (X, y, Phi), scored on (X_test, y_test, Phi_test), standardised."""

    frozen: FrozenTask
    feature_map: FeatureMap
    X: Float[Tensor, "N D"]
    y: Float[Tensor, " N"]
    X_test: Float[Tensor, "N_test D"]
    y_test: Float[Tensor, " N_test"]

    @cached_property
    def Phi(self) -> Float[Tensor, "N k"]:
        return self.feature_map(self.X)

    @cached_property
    def Phi_test(self) -> Float[Tensor, "N_test k"]:
        return self.feature_map(self.X_test)

    @cached_property
    def bounding_box(self) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
        """Lower and upper corner of the standardised training inputs."""
        return self.X.amin(0), self.X.amax(0)

    @cached_property
    def Phi_box(self) -> Float[Tensor, "1000 k"]:
        """Features at 1,000 fixed inputs, uniform in the bounding box (the same unit draws for every task)."""
        low, high = self.bounding_box
        unit = np.random.default_rng(0).random((BOX_POINTS, len(low)))
        return self.feature_map(low + (high - low) * torch.from_numpy(unit))

    @cached_property
    def truth(self) -> Truth:
        """The exact posterior, by QR (`fsvi_bench.maths.blr.blr_posterior`)."""
        noise_variance = self.frozen.noise_variance
        posterior = blr_posterior(self.Phi, self.y, noise_variance)
        evidence = log_evidence(self.Phi, self.y, noise_variance, posterior)
        return Truth(posterior, covariance_tril(posterior.precision_tril), evidence)


def require_same_data(task: FrozenTask, raw: RawData) -> None:
    """Raises InputError unless the raw data are the ones that the task was made from."""
    if raw.sha256 != task.data_sha256:
        raise InputError(
            f"task {task.dataset} split {task.split} was made from data with SHA-256 {task.data_sha256}, "
            f"got {raw.sha256}; use the data set's published file"
        )


def bind(task: FrozenTask, raw: RawData) -> Task:
    """A task from its frozen part and the raw data that it was made from.

    Raises:
        InputError: the raw data are not the task's.
        TaskRefused: the task's features cannot be computed.
    """
    require_same_data(task, raw)
    X, y = torch.from_numpy(raw.X), torch.from_numpy(raw.y)
    X = (X - task.input_mean) / task.input_std
    y = (y - task.target_mean) / task.target_std
    train, test = task.train_index, task.test_index
    return Task(task, FeatureMap.of(task), X[train], y[train], X[test], y[test])


def bind_task(task: FrozenTask, data_dir: Path | None = None) -> Task:
    """`bind` with the raw data looked up by the task's data set.

    Raises:
        InputError, TaskRefused: as `bind` and `fsvi_bench.tasks.raw.load_raw`.
    """
    return bind(task, load_raw(load_card(task.dataset), task.split, data_dir))
