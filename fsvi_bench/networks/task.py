"""The network task, `fsvi-network-task/1`: a network's priors and noise, and the inputs where functions are compared.

The targets are a data set's own (`real`), or drawn from the model at its inputs (`simulated`). Scores compare functions
at the frozen inputs and need no other data. Only training a method needs the raw data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fsvi_bench.errors import InputError, quoted, unknown_name
from fsvi_bench.maths.networks import Network
from fsvi_bench.seeds import derive_seed, derived_generator
from fsvi_bench.tasks.build import split_indices, standardisation
from fsvi_bench.tasks.card import card_names, load_card
from fsvi_bench.tasks.raw import RawData, load_raw
from fsvi_bench.tensorfile import TensorFile, identity, read_tensor_file, write_tensor_file

FORMAT = "fsvi-network-task/1"
Targets = Literal["real", "simulated"]
Place = Literal["train", "test", "box"]
Level = Literal["C0", "C1", "C2"]
HIDDEN_BY_QUADRATURE = 4  #: at most, of at most two units
PLACES: tuple[Place, ...] = ("train", "test", "box")
LEAST_NOISE = 0.01  #: in units of the training targets: below, samplers stall
POINTS = 20  #: frozen inputs at each place
DEFINING = ("format", "dataset", "split", "model", "targets", "data_sha256")

_AXES: Mapping[str, list[str]] = {
    "noise_variance": [],
    "output_scale": [],
    "bias_scale": [],
    "input_mean": ["D"],
    "input_std": ["D"],
    "target_mean": [],
    "target_std": [],
    "train_index": ["N"],
    "inputs_train": [str(POINTS), "D"],
    "inputs_test": [str(POINTS), "D"],
    "inputs_box": [str(POINTS), "D"],
    "targets_test": [str(POINTS)],
}
_SIMULATED = {"simulated_targets": ["N"]}


class Training(NamedTuple):
    """The standardised training data of a task."""

    X: Float[Tensor, "N D"]
    y: Float[Tensor, " N"]


@dataclass(frozen=True, eq=False)
class NetworkTask:
    """One frozen task; tensors are float64 on the CPU, row numbers int64. Inputs and targets are standardised.

    Simulated targets come from one draw of all weights from the prior, so this draw is an exact one from the posterior.
    """

    dataset: str
    split: int
    model: str  #: `collapsed-H`, H the number of hidden units
    targets: Targets
    data_sha256: str
    noise_variance: Float[Tensor, ""]
    output_scale: Float[Tensor, ""]
    bias_scale: Float[Tensor, ""]
    input_mean: Float[Tensor, " D"]
    input_std: Float[Tensor, " D"]
    target_mean: Float[Tensor, ""]
    target_std: Float[Tensor, ""]
    train_index: Int[Tensor, " N"]
    inputs_train: Float[Tensor, "20 D"]
    inputs_test: Float[Tensor, "20 D"]
    inputs_box: Float[Tensor, "20 D"]  #: uniform in the bounding box of the training inputs
    targets_test: Float[Tensor, " 20"]  #: at `inputs_test`; scored by NLPD only
    simulated_targets: Float[Tensor, " N"] | None = None

    @property
    def name(self) -> str:
        """The name that users type, such as `yacht:0:collapsed-10`."""
        return task_name(self.dataset, self.split, self.model, self.targets)

    @property
    def place(self) -> tuple[str, int]:
        """Its row in tables of results, such as `yacht-collapsed-10`, and the split."""
        return f"{self.dataset}-{self.model}" + ("-simulated" if self.targets == "simulated" else ""), self.split

    @property
    def network(self) -> Network:
        """The model with its priors."""
        units = units_of(self.model)
        return Network(self.inputs_box.shape[1], units, float(self.output_scale), float(self.bias_scale))

    @property
    def level(self) -> Level:
        """The kind of certificate that it can have."""
        if self.network.k_hidden <= HIDDEN_BY_QUADRATURE and self.network.H <= 2:
            return "C0"
        return "C1" if self.targets == "simulated" else "C2"

    @property
    def metadata(self) -> dict[str, str]:
        """The defining metadata, as strings."""
        return {"format": FORMAT} | {key: str(getattr(self, key)) for key in DEFINING[1:]}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The defining tensors by their names in the file."""
        simulated = {} if self.simulated_targets is None else {"simulated_targets": self.simulated_targets}
        return {name: getattr(self, name) for name in _AXES} | simulated

    @cached_property
    def sha256(self) -> str:
        """The task's identity, recorded with every score."""
        return identity(self.metadata, self.tensors)

    @property
    def true_weights(self) -> Float[Tensor, " k"]:
        """The whitened weights that the simulated targets of `build` come from: one exact draw from their posterior."""
        return _draw_weights(self.network, _targets_seed(self.dataset, self.split, self.model))[0]

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
        X = (torch.from_numpy(raw.X)[self.train_index] - self.input_mean) / self.input_std
        y = (torch.from_numpy(raw.y)[self.train_index] - self.target_mean) / self.target_std
        return Training(X, y if self.simulated_targets is None else self.simulated_targets)


def task_name(dataset: str, split: int, model: str, targets: Targets) -> str:
    """`yacht:0:collapsed-10`, with `:simulated` for simulated targets."""
    return f"{dataset}:{split}:{model}" + (":simulated" if targets == "simulated" else "")


def units_of(model: str) -> int:
    """H of `collapsed-H`.

    Raises:
        InputError: it is another name.
    """
    if (match := re.fullmatch(r"collapsed-([1-9]\d{0,3})", model)) is None:
        raise InputError(f"model is {quoted(model)}, expected collapsed-H with H hidden units, such as collapsed-50")
    return int(match[1])


def build(
    dataset: str,
    split: int,
    model: str,
    targets: Targets,
    noise_scale: float,
    data_dir: Path | None = None,
) -> NetworkTask:
    """A task of a standard split, with priors of unit scale.

    Args:
        noise_scale: σ in units of the training targets' standard deviation.

    Raises:
        InputError: the data set or the split does not exist, or its data cannot be loaded.
    """
    card = load_card(dataset)
    raw = load_raw(card, split, data_dir)
    train, test = split_indices(card, split, raw)
    (input_mean, input_std), (target_mean, target_std) = (standardisation(of[train]) for of in (raw.X, raw.y))
    X, y = (raw.X - input_mean) / input_std, (raw.y - target_mean) / target_std
    chosen = {
        place: derived_generator("network task", dataset, split, place).choice(rows, POINTS, replace=False)
        for place, rows in (("train", train), ("test", test))
    }
    low, high = X[train].min(0), X[train].max(0)
    box = low + (high - low) * derived_generator("network task", dataset, split, "box").random((POINTS, card.D))
    numbers: dict[str, Any] = {
        "noise_variance": noise_scale**2,
        "output_scale": 1.0,
        "bias_scale": 1.0,
        "input_mean": input_mean,
        "input_std": input_std,
        "target_mean": target_mean,
        "target_std": target_std,
        "inputs_train": X[chosen["train"]],
        "inputs_test": X[chosen["test"]],
        "inputs_box": box,
        "targets_test": y[chosen["test"]],
    }
    tensors = {name: torch.as_tensor(value, dtype=torch.float64).clone() for name, value in numbers.items()}
    if targets == "simulated":
        network = Network(card.D, units_of(model))
        rows = torch.from_numpy(np.concatenate([X[train], X[chosen["test"]]]))
        drawn = simulate(network, rows, noise_scale, _targets_seed(dataset, split, model))
        tensors |= {"simulated_targets": drawn[: len(train)].clone(), "targets_test": drawn[len(train) :].clone()}
    index = torch.from_numpy(train)
    return NetworkTask(dataset, split, model, targets, raw.sha256, train_index=index, **tensors)


def simulate(network: Network, X: Float[Tensor, "n D"], noise_scale: float, seed: int) -> Float[Tensor, " n"]:
    """Targets at X from weights drawn from the prior, with noise."""
    w, generator = _draw_weights(network, seed)
    noise = torch.randn(len(X), generator=generator, dtype=torch.float64)
    return network.values(w, X) + noise_scale * noise


def _draw_weights(network: Network, seed: int) -> tuple[Float[Tensor, " k"], torch.Generator]:
    generator = torch.Generator().manual_seed(seed % 2**63)
    return torch.randn(network.k, generator=generator, dtype=torch.float64), generator


def _targets_seed(dataset: str, split: int, model: str) -> int:
    return derive_seed("network task", dataset, split, model, "targets")


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
        raise file.error(f"metadata 'targets' is {quoted(targets)}, expected real or simulated")
    if not re.fullmatch("[0-9]{1,6}", metadata["split"]):
        raise file.error(f"metadata 'split' is {quoted(metadata['split'])}, expected a whole number such as 0")
    file.require_axes({**_AXES, **(_SIMULATED if targets == "simulated" else {})})
    units_of(metadata["model"])
    _check_values(file)
    fields: dict[str, Any] = {**{key: metadata[key] for key in DEFINING[1:]}, **file.tensors}
    return NetworkTask(**fields | {"split": int(metadata["split"])})


def _check_values(file: TensorFile) -> None:
    dataset, tensors = file.metadata["dataset"], file.tensors
    if dataset not in card_names():
        raise InputError(f"{file.path}: {unknown_name('data set', dataset, card_names())}")
    card = load_card(dataset)
    if (D := tensors["inputs_box"].shape[1]) != card.D:
        raise file.error(f"'inputs_box' has D={D} columns, but {dataset} has {card.D} inputs")
    for name in ("noise_variance", "output_scale", "bias_scale", "input_std", "target_std"):
        if (smallest := float(tensors[name].min())) <= 0:
            raise file.error(f"'{name}' contains {smallest:g}, expected positive numbers; export the task again")
    if (scale := float(tensors["noise_variance"]) ** 0.5) < LEAST_NOISE:
        raise file.error(f"the noise has the standard deviation {scale:g}, expected at least {LEAST_NOISE:g}")
    rows = tensors["train_index"]
    if int(rows.min()) < 0 or int(rows.max()) >= card.n or int(rows.bincount().max()) > 1:
        raise file.error(f"'train_index' must have distinct row numbers from 0 to {card.n - 1}; export the task again")
