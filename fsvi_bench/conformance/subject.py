"""A method that is held to the rules, the problems that it is trained on, and what it may not change in its process."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.features import inducing_tril
from fsvi_bench.methods.base import Method, MethodOptions
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import MethodEntry, find_method
from fsvi_bench.posteriors.base import Family, unstack
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import FeatureMap, Task, bind_task
from fsvi_bench.training.trainer import Device, train

STEPS = 20
MANY_STEPS = 100  #: of the checks that look for what a method does late
MEASUREMENT_POINTS = 10  #: fewer than any problem of the suite has rows

Numbers = Float[Tensor, "k k_plus_1"]  #: one problem's posterior: its mean beside its covariance factor


@dataclass(frozen=True)
class Subject:
    """A method with one family and settings.

    Args:
        settings: options on top of the method's defaults.
        steps: `max_steps`, for a method that has the option and settings that do not name it. So is a small `M`.
        gpu: whether there is a GPU to compare with.
    """

    entry: MethodEntry
    family: Family
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: int = STEPS
    gpu: bool = False

    @property
    def options(self) -> MethodOptions:
        """As training has them.

        Raises:
            InputError: the method does not take the settings.
        """
        small = {"max_steps": self.steps, "M": MEASUREMENT_POINTS}
        own = small.keys() & self.entry.cls.Options.model_fields
        return self.entry.options({**{name: small[name] for name in own}, **self.settings})

    @property
    def for_long(self) -> Subject:
        """With `MANY_STEPS`, unless its settings name a number of their own."""
        return replace(self, steps=MANY_STEPS)

    @property
    def deterministic(self) -> bool:
        return self.entry.cls.is_deterministic(self.options)

    def seeds(self, places: Sequence[int], seed: int = 0) -> list[int]:
        """As a run derives them, with a problem's place in the full batch for its task."""
        return [derive_seed(str(place), self.entry.name, self.family, seed) for place in places]

    def make(self, data: TrainingData, seeds: Sequence[int] | None = None) -> Method:
        """The method on these problems, not yet trained, with a minibatch of fewer rows than they have.

        Where all rows are seen none are drawn: a sound method would look as if it ignored its seeds.
        """
        options = self.options
        if isinstance(rows := getattr(options, "minibatch", None), int) and rows >= data.N:
            options = options.model_copy(update={"minibatch": data.N // 2})
        return self.entry.cls(data, self.family, seeds or self.seeds(range(len(data))), options)

    def train(self, data: TrainingData, seeds: Sequence[int] | None = None, device: Device = "cpu") -> Method:
        """The method on these problems, trained."""
        train(method := self.make(data, seeds), device)
        return method

    def trained(
        self, data: TrainingData, places: Sequence[int] | None = None, seed: int = 0, device: Device = "cpu"
    ) -> list[Numbers]:
        """What becomes of the problems at these places of a batch (copied), trained together."""
        places = places or range(len(data))
        return numbers(self.train(take(data, places), self.seeds(places, seed), device))


def subjects(
    method: object, families: Sequence[str] = (), settings: Mapping[str, Any] | None = None, *, gpu: bool = False
) -> list[Subject]:
    """A method with each of its families.

    Args:
        method: the class, a name, or `path/file.py:Class`.
        families: some of the method's; all of them by default.

    Raises:
        InputError: there is no such method or family, or the method does not take the settings.
    """
    entry = find_method(method)
    chosen = dict.fromkeys(entry.cls.checked_family(family, entry.name) for family in families or entry.cls.families)
    found = [Subject(entry, family, settings or {}, gpu=gpu) for family in chosen]
    found[0].options  # noqa: B018 -- settings that it does not take are refused here, by name
    return found


def numbers(method: Method) -> list[Numbers]:
    """Those of each problem, on the CPU."""
    return [torch.column_stack([q.mean, q.covariance_tril()]) for q in unstack(method.posterior().cpu())]


def apart(one: Numbers, other: Numbers) -> float:
    """The largest difference between two posteriors' numbers, relative to the largest of them where that exceeds 1."""
    return float((one - other).abs().max() / other.abs().max().clamp(min=1))


# --- Problems ---------------------------------------------------------------------------------------------------------

TOYS = 4
ALL_TOYS = 20  #: as many as the data set has splits, each with data of its own
ODD_N = 67  #: prime, and more than a minibatch of 64


@cache
def _toy_problem(split: int) -> Task:
    return bind_task(build_task(load_card("toy"), split).task)


def toy_problems(count: int = TOYS) -> tuple[Task, ...]:
    """Problems with k = 20 and N = 40, whose weights differ as well as their data."""
    return tuple(map(_toy_problem, range(count)))


@cache
def odd_problems() -> TrainingData:
    """Eight with k = 7, N = 67 and D = 3: no side is a multiple of a cache line. The features are whitened."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X, centres, weights, noise = draw(8, ODD_N, 3), draw(8, 7, 3), draw(8, 7, 1), draw(8, ODD_N)
    one = torch.ones(8, dtype=torch.float64)
    parameters = centres, one[:, None].expand(8, 3) * 1.5, one
    feature_map = FeatureMap(*parameters, inducing_tril(*parameters, 1e-6 * one))
    Phi = feature_map(X)
    y = (Phi @ weights)[..., 0] + 0.1 * noise
    return TrainingData(X, y, Phi, 0.01 * one, X.amin(1), X.amax(1), feature_map)


def take(data: TrainingData, places: Sequence[int]) -> TrainingData:
    """Some problems of a batch, copied."""
    return data.map(lambda tensor: tensor[list(places)])


def nudged(data: TrainingData, seed: int) -> TrainingData:
    """A copy with every number one unit in the last place up or down, at random."""
    g = torch.Generator().manual_seed(seed)
    return data.map(
        lambda tensor: tensor.nextafter(tensor + torch.randn(tensor.shape, generator=g, dtype=tensor.dtype))
    )


def toy_batch(count: int = TOYS) -> TrainingData:
    """A fresh copy of the first toy problems side by side."""
    return TrainingData.of(toy_problems(count))


# --- Its process ------------------------------------------------------------------------------------------------------

Access = Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]]  #: name -> (get, set)


def _set_filters(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


GENERATORS: Access = {
    "torch": (lambda: torch.get_rng_state().tolist(), lambda state: torch.set_rng_state(torch.ByteTensor(state))),
    "NumPy": (lambda: pickle.dumps(np.random.get_state()), lambda state: np.random.set_state(pickle.loads(state))),
    "Python's random": (random.getstate, random.setstate),
}
SETTINGS: Access = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "choice of deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "list of warnings filters": (lambda: list(warnings.filters), _set_filters),
    "environment": (lambda: dict(os.environ), _set_environment),
}


@contextlib.contextmanager
def kept(access: Access) -> Iterator[list[str]]:
    """Puts back what is changed meanwhile; the list that it gives then holds the names of that."""
    before = {name: get() for name, (get, _) in access.items()}
    changed: list[str] = []
    try:
        yield changed
    finally:
        for name, (get, put_back) in access.items():
            if get() != before[name]:
                changed.append(name)
                put_back(before[name])
