"""The network task, `fsvi-network-task/1`: a model with its priors, and the inputs where functions are compared.

The model is a network, `collapsed-H`, or a logistic regression on the features of the official linear task of the same
split, `logit-100`. The targets are a data set's own (`real`), or drawn from the model at its inputs (`simulated`).
Scores compare functions at the frozen inputs and need no other data. Only training a method needs the raw data.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fsvi_bench.errors import InputError, quoted, unknown_name
from fsvi_bench.maths.networks import LinearModel, Network
from fsvi_bench.seeds import derive_seed, derived_generator
from fsvi_bench.tasks.build import split_indices, standardisation
from fsvi_bench.tasks.card import card_names, load_card
from fsvi_bench.tasks.frozen import NETWORK_ROW
from fsvi_bench.tasks.official import read_official
from fsvi_bench.tasks.raw import RawData, load_raw
from fsvi_bench.tasks.task import FeatureMap
from fsvi_bench.tensorfile import TensorFile, identity, read_tensor_file, write_tensor_file

FORMAT = "fsvi-network-task/1"
Targets = Literal["real", "simulated"]
Place = Literal["train", "test", "box"]
Level = Literal["C0", "C1", "C2"]
HIDDEN_BY_QUADRATURE = 4  #: weights at most, with the units' biases
PLACES: tuple[Place, ...] = ("train", "test", "box")
LEAST_NOISE = 0.01  #: in units of the training targets; official tasks have at least 0.1, below which samplers stall
POINTS = 20  #: frozen inputs at each place
LOGIT, FEATURES = "logit-100", 100
DEFINING = ("format", "dataset", "split", "model", "targets", "data_sha256")

_AXES: Mapping[str, list[str]] = {
    "input_mean": ["D"],
    "input_std": ["D"],
    "train_index": ["N"],
    "inputs_train": [str(POINTS), "D"],
    "inputs_test": [str(POINTS), "D"],
    "inputs_box": [str(POINTS), "D"],
    "targets_test": [str(POINTS)],
}
_SIMULATED = {"simulated_targets": ["N"]}


class Training(NamedTuple):
    """The training data of a task: standardised inputs, and targets that are standardised, or 0 and 1."""

    X: Float[Tensor, "N D"]
    y: Float[Tensor, " N"]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class NetworkTask(ABC):
    """One frozen task; tensors are float64 on the CPU, row numbers int64. Inputs are standardised.

    Simulated targets come from one draw of all weights from the prior, so this draw is an exact one from the posterior.
    """

    own_metadata: ClassVar[tuple[str, ...]] = ()  #: what a model adds to `DEFINING`
    own_axes: ClassVar[Mapping[str, list[str]]]  #: and to the tensors

    dataset: str
    split: int
    model: str  #: `collapsed-H`, H the number of hidden units, or `logit-100`
    targets: Targets
    data_sha256: str
    noise_variance: Float[Tensor, ""] | None = None  #: None: targets are 0 or 1, and f is their logit
    input_mean: Float[Tensor, " D"]
    input_std: Float[Tensor, " D"]
    train_index: Int[Tensor, " N"]
    inputs_train: Float[Tensor, "20 D"]
    inputs_test: Float[Tensor, "20 D"]
    inputs_box: Float[Tensor, "20 D"]  #: uniform in the bounding box of the training inputs
    targets_test: Float[Tensor, " 20"]  #: at `inputs_test`; scored by NLPD only
    simulated_targets: Float[Tensor, " N"] | None = None
    targets_seed: int | None = None  #: of simulated targets; files do not have it

    @property
    @abstractmethod
    def network(self) -> Network | LinearModel:
        """The model with its priors."""

    @property
    @abstractmethod
    def level(self) -> Level:
        """The kind of certificate that it can have."""

    @property
    @abstractmethod
    def unit(self) -> float:
        """The unit of the targets, in the data set's."""

    @abstractmethod
    def observed(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Targets, given the data set's."""

    @classmethod
    def axes(cls, targets: str) -> dict[str, list[str]]:
        """The axes of each tensor."""
        return {**_AXES, **cls.own_axes, **(_SIMULATED if targets == "simulated" else {})}

    def __repr__(self) -> str:
        sigma = "" if self.noise_scale is None else f", sigma={self.noise_scale:g}"
        return f"{type(self).__name__}({self.name!r}, N={len(self.train_index)}{sigma})"

    @property
    def name(self) -> str:
        """The name that users type, such as `yacht:0:collapsed-10`."""
        return task_name(self.dataset, self.split, self.model, self.targets)

    @property
    def place(self) -> tuple[str, int]:
        """Its row in tables of results, such as `yacht-collapsed-10`, and the split."""
        return f"{self.dataset}-{self.model}" + ("-simulated" if self.targets == "simulated" else ""), self.split

    @property
    def noise_scale(self) -> float | None:
        """σ."""
        return None if self.noise_variance is None else float(self.noise_variance) ** 0.5

    @property
    def metadata(self) -> dict[str, str]:
        """The defining metadata, as strings."""
        return {"format": FORMAT} | {key: str(getattr(self, key)) for key in (*DEFINING[1:], *self.own_metadata)}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The defining tensors by their names in the file."""
        return {name: getattr(self, name) for name in self.axes(self.targets)}

    @cached_property
    def sha256(self) -> str:
        """The task's identity, recorded with every score."""
        return identity(self.metadata, self.tensors)

    @property
    def true_weights(self) -> Float[Tensor, " k"]:
        """The whitened weights that simulated targets come from: one exact draw from their posterior.

        Raises:
            InputError: the targets are the data set's, or the task was read from a file, which has no seed.
        """
        if self.targets_seed is None:
            if self.targets == "real":
                raise InputError(f"the targets of {self.name} are the data set's, so no weights are behind them")
            raise InputError(
                f"{self.name} was read from a file, which has no seed of its targets; make it by `build` with its seed"
            )
        return _draw_weights(self.network, self.targets_seed)[0]

    @property
    def inputs(self) -> dict[Place, Float[Tensor, "20 D"]]:
        """The frozen inputs by place."""
        return {"train": self.inputs_train, "test": self.inputs_test, "box": self.inputs_box}

    def training(self, data_dir: Path | None = None, raw: RawData | None = None) -> Training:
        """The training data.

        Raises:
            InputError: the raw data cannot be loaded, or are not the task's.
        """
        raw = raw or load_raw(load_card(self.dataset), self.split, data_dir)
        if raw.sha256 != self.data_sha256:
            raise InputError(
                f"task {self.name} was made from data with SHA-256 {quoted(self.data_sha256)}, got {raw.sha256}; use "
                "the data set's published file"
            )
        X, y = (torch.from_numpy(of)[self.train_index] for of in (raw.X, raw.y))
        y = self.observed(y) if self.simulated_targets is None else self.simulated_targets
        return Training((X - self.input_mean) / self.input_std, y)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class CollapsedTask(NetworkTask):
    """A task of `collapsed-H`, for standardised targets."""

    own_axes = {name: [] for name in ("noise_variance", "output_scale", "bias_scale", "target_mean", "target_std")}

    noise_variance: Float[Tensor, ""]
    output_scale: Float[Tensor, ""]
    bias_scale: Float[Tensor, ""]
    target_mean: Float[Tensor, ""]
    target_std: Float[Tensor, ""]

    @property
    def network(self) -> Network:
        units = units_of(self.model)
        return Network(self.inputs_box.shape[1], units, float(self.output_scale), float(self.bias_scale))

    @property
    def level(self) -> Level:
        if self.network.k_hidden <= HIDDEN_BY_QUADRATURE:
            return "C0"
        return "C1" if self.targets == "simulated" else "C2"

    @property
    def unit(self) -> float:
        return float(self.target_std)

    def observed(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return (y - self.target_mean) / self.target_std


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class LogitTask(NetworkTask):
    """A task of `logit-100`: P(y = 1) = sigmoid(φ(x)ᵀw) with w ~ N(0, I) and the features φ of a linear task."""

    own_metadata = ("linear_task",)
    own_axes = {"threshold": []}

    linear_task: str  #: the identity of the official linear task of the same split
    threshold: Float[Tensor, ""]  #: y is 1 above it: the median of the training targets

    @cached_property
    def network(self) -> LinearModel:
        """The model.

        Raises:
            InputError: this version has other features for the split.
        """
        linear = read_official(self.dataset, self.split).task
        if linear.sha256 != self.linear_task:
            raise InputError(
                f"task {self.name} has the features of the linear task {quoted(self.linear_task[:12])}, but the "
                f"official one is {linear.sha256[:12]}; build the task again"
            )
        return LinearModel(FeatureMap.of(linear), linear.k)

    @property
    def level(self) -> Level:
        return "C1" if self.targets == "simulated" else "C2"

    @property
    def unit(self) -> float:
        return 1.0

    def observed(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return (y > self.threshold).double()


def network_name(dataset: str, split: int) -> str | None:
    """The name of the network task with this row in tables; None for any other row.

    >>> network_name("yacht-collapsed-10-simulated", 0)
    'yacht:0:collapsed-10:simulated'
    """
    if (match := NETWORK_ROW.fullmatch(dataset)) is None:
        return None
    return task_name(match[1], split, match[2], "simulated" if match[3] else "real")


def task_name(dataset: str, split: int, model: str, targets: Targets) -> str:
    """`yacht:0:collapsed-10`, with `:simulated` for simulated targets."""
    return f"{dataset}:{split}:{model}" + (":simulated" if targets == "simulated" else "")


def units_of(model: str) -> int:
    """H of `collapsed-H`.

    Raises:
        InputError: it is another name.
    """
    if (match := re.fullmatch(r"collapsed-([1-9]\d{0,3})", model)) is None:
        raise InputError(
            f"model is {quoted(model)}, expected collapsed-H with H hidden units, such as collapsed-50, or {LOGIT}"
        )
    return int(match[1])


def build(
    dataset: str,
    split: int,
    model: str,
    targets: Targets,
    noise_scale: float | None = None,
    data_dir: Path | None = None,
    targets_seed: int | None = None,
) -> NetworkTask:
    """A task of a standard split, with priors of unit scale.

    Args:
        noise_scale: σ in units of the training targets' standard deviation; `logit-100` has none.
        targets_seed: of simulated targets, in place of the official task's.

    Raises:
        InputError: the data set or the split does not exist, or its data cannot be loaded; or there is noise where
            there should be none, or none or too little where there should be some.
    """
    card = load_card(dataset)
    raw = load_raw(card, split, data_dir)
    train, test = split_indices(card, split, raw)
    input_mean, input_std = standardisation(raw.X[train])
    X = (raw.X - input_mean) / input_std
    chosen = {
        place: derived_generator("network task", dataset, split, place).choice(rows, POINTS, replace=False)
        for place, rows in (("train", train), ("test", test))
    }
    low, high = X[train].min(0), X[train].max(0)
    box = low + (high - low) * derived_generator("network task", dataset, split, "box").random((POINTS, card.D))
    cls, own, numbers = _of_model(dataset, split, model, raw.y[train], noise_scale)
    numbers |= {
        "input_mean": input_mean,
        "input_std": input_std,
        "inputs_train": X[chosen["train"]],
        "inputs_test": X[chosen["test"]],
        "inputs_box": box,
        "targets_test": raw.y[chosen["test"]],
    }
    if targets == "real":
        targets_seed = None
    elif targets_seed is None:
        targets_seed = derive_seed("network task", dataset, split, model, "targets")
    task = cls(
        dataset=dataset,
        split=split,
        model=model,
        targets=targets,
        data_sha256=raw.sha256,
        train_index=torch.from_numpy(train),
        targets_seed=targets_seed,
        **own,
        **{name: torch.as_tensor(value, dtype=torch.float64).clone() for name, value in numbers.items()},
    )
    if targets_seed is None:
        return replace(task, targets_test=task.observed(task.targets_test))
    rows = torch.from_numpy(np.concatenate([X[train], X[chosen["test"]]]))
    drawn = simulate(task.network, rows, noise_scale, targets_seed)
    return replace(task, simulated_targets=drawn[: len(train)].clone(), targets_test=drawn[len(train) :].clone())


def _of_model(
    dataset: str, split: int, model: str, y: np.ndarray, noise_scale: float | None
) -> tuple[type[NetworkTask], dict[str, Any], dict[str, Any]]:
    """The class of tasks, and what a model adds to their metadata and numbers, given the data set's targets."""
    if model != LOGIT:
        units_of(model)
    if (noise_scale is None) != (model == LOGIT):
        got = "none" if noise_scale is None else f"σ = {noise_scale:g}"
        needed = "none; leave noise_scale out" if model == LOGIT else "a number; pass noise_scale"
        raise InputError(f"{model} got {got} for its noise, expected {needed}")
    if noise_scale is None:
        linear = read_official(dataset, split).task
        if linear.k != FEATURES:
            raise InputError(
                f"the linear task of {dataset} split {split} has k={linear.k}, expected k={FEATURES}; "
                f"choose a data set with a task of {FEATURES} features"
            )
        return LogitTask, {"linear_task": linear.sha256}, {"threshold": np.median(y)}
    if not noise_scale >= LEAST_NOISE:
        raise InputError(
            f"{model} got σ = {noise_scale:g} for its noise, expected at least {LEAST_NOISE:g}; choose more"
        )
    target_mean, target_std = standardisation(y)
    scales = {"noise_variance": noise_scale**2, "output_scale": 1.0, "bias_scale": 1.0}
    return CollapsedTask, {}, scales | {"target_mean": target_mean, "target_std": target_std}


def simulate(
    model: Network | LinearModel, X: Float[Tensor, "n D"], noise_scale: float | None, seed: int
) -> Float[Tensor, " n"]:
    """Targets at X from weights drawn from the prior: with noise, or 0 and 1."""
    w, generator = _draw_weights(model, seed)
    f = model.values(w, X)
    if noise_scale is None:
        return (torch.rand(len(X), generator=generator, dtype=torch.float64) < f.sigmoid()).double()
    return f + noise_scale * torch.randn(len(X), generator=generator, dtype=torch.float64)


def _draw_weights(model: Network | LinearModel, seed: int) -> tuple[Float[Tensor, " k"], torch.Generator]:
    generator = torch.Generator().manual_seed(seed % 2**63)
    return torch.randn(model.k, generator=generator, dtype=torch.float64), generator


def write_network_task(path: Path, task: NetworkTask) -> None:
    """Writes a task file atomically.

    Raises:
        InputError: the path is not writable.
    """
    write_tensor_file(path, task.tensors, task.metadata)


def read_network_task(path: Path) -> NetworkTask:
    """Reads and validates a task file.

    Raises:
        InputError: it is not a valid `fsvi-network-task/1` file; the message names the field and what was expected.
    """
    file = read_tensor_file(path, FORMAT, DEFINING)
    metadata = file.metadata
    if (targets := metadata["targets"]) not in ("real", "simulated"):
        raise file.error(f"metadata 'targets' is {quoted(targets)}, expected real or simulated; build the task again")
    if not re.fullmatch("[0-9]{1,6}", metadata["split"]):
        raise file.error(
            f"metadata 'split' is {quoted(metadata['split'])}, expected a whole number such as 0; build the task again"
        )
    cls = LogitTask if (model := metadata["model"]) == LOGIT else CollapsedTask
    if cls is CollapsedTask:
        try:
            units_of(model)
        except InputError as error:
            raise file.error(str(error)) from error
    for key in cls.own_metadata:
        if key not in metadata:
            raise file.error(f"metadata '{key}' is missing; build the task again")
    file.require_axes(cls.axes(targets))
    _check_values(file)
    fields: dict[str, Any] = {**{key: metadata[key] for key in (*DEFINING[1:], *cls.own_metadata)}, **file.tensors}
    return cls(**fields | {"split": int(metadata["split"])})


def _check_values(file: TensorFile) -> None:
    dataset, tensors = file.metadata["dataset"], file.tensors
    if dataset not in card_names():
        raise InputError(f"{file.path}: {unknown_name('data set', dataset, card_names())}")
    card = load_card(dataset)
    if (D := tensors["inputs_box"].shape[1]) != card.D:
        raise file.error(f"'inputs_box' has D={D} columns, but {dataset} has {card.D} inputs; build the task again")
    for name in ("noise_variance", "output_scale", "bias_scale", "input_std", "target_std"):
        if name in tensors and (smallest := float(tensors[name].min())) <= 0:
            raise file.error(f"'{name}' contains {smallest:g}, expected positive numbers; build the task again")
    if "noise_variance" not in tensors:
        for name in ("targets_test", "simulated_targets"):
            if name in tensors and not set(tensors[name].tolist()) <= {0, 1}:
                raise file.error(f"'{name}' has numbers other than 0 and 1; build the task again")
    elif (scale := float(tensors["noise_variance"]) ** 0.5) < LEAST_NOISE:
        raise file.error(
            f"the noise has the standard deviation {scale:g}, expected at least {LEAST_NOISE:g}; "
            "build the task with more noise"
        )
    rows = tensors["train_index"]
    if int(rows.min()) < 0 or int(rows.max()) >= card.n or int(rows.bincount().max()) > 1:
        raise file.error(f"'train_index' must have distinct row numbers from 0 to {card.n - 1}; build the task again")
