"""A task bound to its data: standardised inputs and targets, features, and the exact posterior they imply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fsvi_bench.errors import InputError, TaskRefused, quoted
from fsvi_bench.maths.batching import Stacked
from fsvi_bench.maths.blr import PrecisionGaussian, blr_posterior, covariance_tril, log_evidence
from fsvi_bench.maths.features import Kernel, inducing_tril, nystrom_features, rbf_grid_features
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import Certificate, Fit, certify, save
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.raw import RawData, load_raw

if TYPE_CHECKING:
    from gpytorch.likelihoods import GaussianLikelihood
    from gpytorch.models import GP

BOX_POINTS = 1000


@dataclass(frozen=True, eq=False)
class FeatureMap(Stacked):
    """φ at standardised inputs; every tensor may have a leading axis of problems."""

    inducing_points: Float[Tensor, "*B k D"]
    lengthscales: Float[Tensor, "*B D"]
    outputscale: Float[Tensor, "*B"]
    tril: Float[Tensor, "*B k k"] | None  #: chol(k(Z,Z) + jitter·I), or None for the unwhitened RBF grid
    kernel: Kernel = "rbf"
    rotation: Float[Tensor, "*B k k"] | None = None  #: an orthogonal matrix by which features are multiplied, if any

    def __call__(self, x: Float[Tensor, "*B n D"]) -> Float[Tensor, "*B n k"]:
        if self.tril is None:
            features = rbf_grid_features(x, self.inducing_points, self.lengthscales)
        else:
            scales = self.lengthscales, self.outputscale
            features = nystrom_features(x, self.inducing_points, *scales, self.tril, self.kernel)
        return features if self.rotation is None else features @ self.rotation

    @staticmethod
    def of(task: FrozenTask) -> FeatureMap:
        """The feature map that a task defines.

        Raises:
            TaskRefused: k(Z,Z) + jitter·I is not positive definite.
        """
        parameters = (task.inducing_points, task.lengthscales, task.outputscale)
        if task.features == "rbf-grid":
            return FeatureMap(*parameters, tril=None)
        kernel: Kernel = task.features.split("-")[1]  # type: ignore[assignment]
        try:
            return FeatureMap(*parameters, inducing_tril(*parameters, task.jitter, kernel), kernel)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise TaskRefused(
                f"k(Z,Z) + {float(task.jitter):g}·I of {task.dataset} split {task.split} is not positive definite; "
                "build the task with a larger jitter"
            ) from error

    @property
    def tensors(self) -> dict[str, Any]:
        """The tensors by name (without `tril` for an RBF grid)."""
        return {name: part for name, part in vars(self).items() if isinstance(part, Tensor)}

    @staticmethod
    def stack(maps: Sequence[FeatureMap]) -> FeatureMap:
        """B feature maps of one kind and equal shape as one with a leading axis B.

        Raises:
            InputError: the maps differ in kind.
        """
        if len({(one.kernel, one.tril is None) for one in maps}) > 1:
            raise InputError(
                "tasks with different kernels, or with whitened and RBF-grid features, cannot be trained side by side; "
                "train them one by one"
            )
        stacked: dict[str, Any] = {name: torch.stack([m.tensors[name] for m in maps]) for name in maps[0].tensors}
        return replace(maps[0], **stacked)

    def __getitem__(self, problem: int) -> FeatureMap:
        """One problem's feature map, copied so that its memory alignment does not depend on the batch."""
        return self.map(lambda tensor: tensor[problem].clone())


def box_inputs(low: Float[Tensor, "*B D"], high: Float[Tensor, "*B D"]) -> Float[Tensor, "*B 1000 D"]:
    """1,000 fixed inputs, uniform in a bounding box: the same unit draws for every task."""
    unit = torch.from_numpy(np.random.default_rng(0).random((BOX_POINTS, low.shape[-1])))
    return low[..., None, :] + (high - low)[..., None, :] * unit.to(low.device)


class Truth(NamedTuple):
    """The exact posterior P_D of one problem and its evidence (standardised units)."""

    posterior: PrecisionGaussian
    covariance_tril: Float[Tensor, "k k"]
    log_evidence: Float[Tensor, ""]


class Exact(NamedTuple):
    """The exact posterior N(mean, covariance) of the weights as NumPy arrays, and its log evidence in nats."""

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    log_evidence: float


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """A frozen task bound to its data: trained on (X, y, Phi), scored on (X_test, y_test, Phi_test), standardised."""

    frozen: FrozenTask
    feature_map: FeatureMap
    X: Float[Tensor, "N D"]
    y: Float[Tensor, " N"]
    X_test: Float[Tensor, "N_test D"]
    y_test: Float[Tensor, " N_test"]
    fit: Fit | None = None  #: how the features were fitted, if known

    @property
    def dataset(self) -> str:
        return self.frozen.dataset

    @property
    def split(self) -> int:
        return self.frozen.split

    @property
    def sha256(self) -> str:
        """The task's identity, recorded with every score."""
        return self.frozen.sha256

    def __repr__(self) -> str:
        features = self.frozen.features
        return f"Task({self.dataset!r}, split={self.split}, N={self.N}, k={self.k}, features={features!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and other.sha256 == self.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    @property
    def k(self) -> int:
        return self.frozen.k

    @property
    def N(self) -> int:
        return len(self.y)

    @property
    def noise_variance(self) -> Float[Tensor, ""]:
        return self.frozen.noise_variance

    @cached_property
    def Phi(self) -> Float[Tensor, "N k"]:
        return self.feature_map(self.X)

    @cached_property
    def Phi_test(self) -> Float[Tensor, "N_test k"]:
        return self.feature_map(self.X_test)

    @cached_property
    def bounding_box(self) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
        """Lower and upper corner of the bounding box of the standardised training inputs."""
        return self.X.amin(0), self.X.amax(0)

    @cached_property
    def Phi_box(self) -> Float[Tensor, "1000 k"]:
        """Features at the box inputs (`box_inputs`)."""
        return self.feature_map(box_inputs(*self.bounding_box))

    @cached_property
    def truth(self) -> Truth:
        """The exact posterior, by QR (`fsvi_bench.maths.blr.blr_posterior`)."""
        posterior = blr_posterior(self.Phi, self.y, self.noise_variance)
        evidence = log_evidence(self.Phi, self.y, self.noise_variance, posterior)
        return Truth(posterior, covariance_tril(posterior.precision_tril), evidence)

    @cached_property
    def exact(self) -> Exact:
        """The exact posterior and log evidence as NumPy arrays (standardised units)."""
        mean, tril = self.truth.posterior.mean, self.truth.covariance_tril
        return Exact(mean.numpy().copy(), (tril @ tril.mT).numpy(), float(self.truth.log_evidence))

    @cached_property
    def certificate(self) -> Certificate:
        """Evidence that the exact posterior is accurate, computed now; the limits are not checked here."""
        return certify(self, self.fit)

    def certified(self) -> Task:
        """The task itself.

        Raises:
            TaskRefused: the certificate exceeds the limits.
        """
        self.certificate.require_limits()
        return self

    def save(self, path: str | Path) -> None:
        """Writes the task, including data that are the user's own, and its certificate next to it.

        Raises:
            InputError: the path does not end in `.safetensors`, or is not writable.
        """
        if Path(path).suffix != ".safetensors":
            raise InputError(
                f"the path {quoted(str(path))} does not end in .safetensors, the ending by which folders are searched "
                "for tasks; name a file such as mine.safetensors"
            )
        save((self.frozen, self.certificate), Path(path))

    @staticmethod
    def from_gpytorch(
        model: GP,
        X: ArrayLike,
        y: ArrayLike,
        *,
        likelihood: GaussianLikelihood | None = None,
        X_test: ArrayLike | None = None,
        y_test: ArrayLike | None = None,
        name: str = "own",
        jitter: float = 1e-6,
    ) -> Task:
        """The task defined by a fitted sparse GP: its kernel, inducing points and noise, with the exact posterior.

        Args:
            model: an SGPR (`ExactGP` with `InducingPointKernel`) or SVGP (`ApproximateGP`, whitened or not) with an
                RBF or Matérn kernel, with or without `ScaleKernel`, and a zero or constant mean.
            X, y: the data as passed to the model (NumPy, torch or pandas); the posterior uses all rows.
            likelihood: the likelihood of an SVGP, which its model does not contain.
            X_test, y_test: held-out rows in the units of X and y. Without them the rows of X and y are scored.
            name: name of the data set; letters, digits, - and _.
            jitter: added to the diagonal of k(Z,Z), which defines the features.

        Raises:
            InputError: the data or the model are not valid, or the model was never fitted.
            TaskRefused: the exact posterior cannot be computed to the required accuracy.
        """
        from fsvi_bench.tasks.from_gpytorch import read_model
        from fsvi_bench.tasks.own import task_of_model

        return task_of_model(*read_model(model, likelihood), X, y, X_test, y_test, name, jitter)


def raw_data(task: FrozenTask, data_dir: Path | None = None, raw: RawData | None = None) -> RawData:
    """The raw data of a task: `raw` if given, else the data stored in the task, else those of its data set.

    Raises:
        InputError: the data cannot be loaded, or are not those of the task.
    """
    raw = raw or task.own_data or load_raw(load_card(task.dataset), task.split, data_dir)
    if raw.sha256 != task.data_sha256:
        raise InputError(
            f"task {task.dataset} split {task.split} was made from data with SHA-256 {task.data_sha256}, "
            f"got {raw.sha256}; use the data set's published file"
        )
    return raw


def bind_task(task: FrozenTask, data_dir: Path | None = None, raw: RawData | None = None) -> Task:
    """Binds a frozen task to its raw data (see `raw_data`).

    Raises:
        InputError: as `raw_data`.
        TaskRefused: the task's features cannot be computed.
    """
    raw = raw_data(task, data_dir, raw)
    X = (torch.from_numpy(raw.X) - task.input_mean) / task.input_std
    y = (torch.from_numpy(raw.y) - task.target_mean) / task.target_std
    train, test = task.train_index, task.test_index
    return Task(task, FeatureMap.of(task), X[train], y[train], X[test], y[test])
