"""A method under test, the problems on which it is trained, and the process state that it must not change."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
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
MANY_STEPS = 100  #: for checks of what a method does late in training
MEASUREMENT_POINTS = 10  #: fewer than the rows of any problem of the suite

Numbers = Float[Tensor, "k k_plus_1"]  #: one problem's posterior: its mean next to its covariance factor


@dataclass(frozen=True)
class Subject:
    """A method with one family and settings.

    Args:
        settings: options that override the method's defaults.
        steps: `max_steps`, if the method has that option and `settings` does not set it. A small `M` is set likewise.
        gpu: whether to compare with a GPU.
    """

    entry: MethodEntry
    family: Family
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: int = STEPS
    gpu: bool = False

    @property
    def options(self) -> MethodOptions:
        """The options used for training.

        Raises:
            InputError: the method does not accept the settings.
        """
        small = {"max_steps": self.steps, "M": MEASUREMENT_POINTS}
        own = small.keys() & self.entry.cls.Options.model_fields
        return self.entry.options({**{name: small[name] for name in own}, **self.settings})

    @property
    def longer(self) -> Subject:
        """With `MANY_STEPS`, unless the settings contain `max_steps`."""
        return replace(self, steps=MANY_STEPS)

    @property
    def deterministic(self) -> bool:
        return self.entry.cls.is_deterministic(self.options)

    def seeds(self, places: Sequence[int], seed: int = 0) -> list[int]:
        """Derived as in a run, with a problem's place in the full batch in place of its task."""
        return [derive_seed(str(place), self.entry.name, self.family, seed) for place in places]

    def make(self, data: TrainingData, seeds: Sequence[int] | None = None) -> Method:
        """The method on these problems, not yet trained, with minibatches smaller than the training set.

        With all rows in every minibatch nothing is drawn, and a correct method would seem to ignore its seeds.
        """
        options = self.options
        if isinstance(rows := getattr(options, "minibatch", None), int) and rows >= data.N:
            options = options.model_copy(update={"minibatch": data.N // 2})
        return self.entry.make(data, self.family, seeds or self.seeds(range(len(data))), options)

    def train(self, data: TrainingData, seeds: Sequence[int] | None = None, device: Device = "cpu") -> Method:
        """The method on these problems, trained."""
        train(method := self.make(data, seeds), device)
        return method

    def trained(self, data: TrainingData, seed: int = 0, device: Device = "cpu") -> list[Numbers]:
        """The results of training copies of these problems together."""
        places = range(len(data))
        return numbers(self.train(take(data, places), self.seeds(places, seed), device))

    @cached_property
    def example(self) -> Method:
        """The method trained on the toy problems: once, for all checks that only look at it."""
        return self.train(take(toy_batch(), range(TOYS)))

    @cached_property
    def results(self) -> list[Numbers]:
        """The results of the example."""
        return numbers(self.example)


def subjects(
    method: object, families: Sequence[str] = (), settings: Mapping[str, Any] | None = None, *, gpu: bool = False
) -> list[Subject]:
    """A method with each of its families.

    Args:
        method: the class, a name, or `path/file.py:Class`.
        families: some of the method's families; by default all of them.

    Raises:
        InputError: there is no such method or family, or the method does not accept the settings.
    """
    entry = find_method(method)
    chosen = dict.fromkeys(entry.cls.checked_family(family, entry.name) for family in families or entry.cls.families)
    found = [Subject(entry, family, settings or {}, gpu=gpu) for family in chosen]
    found[0].options  # noqa: B018 -- raises InputError for invalid settings
    return found


def numbers(method: Method) -> list[Numbers]:
    """Each problem's posterior, on the CPU."""
    return [torch.column_stack([q.mean, q.covariance_tril()]) for q in unstack(method.posterior().cpu())]


def relative_difference(one: Numbers, other: Numbers) -> float:
    """The largest absolute difference, divided by the largest absolute entry of `other` if that exceeds 1."""
    return float((one - other).abs().max() / other.abs().max().clamp(min=1))


# --- Problems ---------------------------------------------------------------------------------------------------------

TOYS = 4
ALL_TOYS = 20  #: the data set's number of splits, each with its own data
ODD_N = 67  #: prime, and more than a minibatch of 64


@cache
def _toy_problem(split: int) -> Task:
    return bind_task(build_task(load_card("toy"), split).task)


def toy_problems(count: int = TOYS) -> tuple[Task, ...]:
    """Problems with k = 20 and N = 40, each with its own true weights and data."""
    return tuple(map(_toy_problem, range(count)))


@cache
def odd_problems() -> TrainingData:
    """Eight problems with whitened features and k = 7, N = 67, D = 3, none of which is a multiple of a cache line."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X, centres, weights, noise = draw(8, ODD_N, 3), draw(8, 7, 3), draw(8, 7, 1), draw(8, ODD_N)
    one = torch.ones(8, dtype=torch.float64)
    parameters = centres, one[:, None].expand(8, 3) * 1.5, one
    feature_map = FeatureMap(*parameters, inducing_tril(*parameters, 1e-6 * one))
    Phi = feature_map(X)
    y = (Phi @ weights)[..., 0] + 0.1 * noise
    return TrainingData(X, y, Phi, 0.01 * one, X.amin(1), X.amax(1), feature_map)


def take(data: TrainingData, places: Sequence[int]) -> TrainingData:
    """Copies of some problems of a batch."""
    return data.map(lambda tensor: tensor[list(places)])


def perturbed(data: TrainingData, seed: int) -> TrainingData:
    """A copy with every number moved up or down at random by one unit in the last place."""
    g = torch.Generator().manual_seed(seed)
    return data.map(
        lambda tensor: tensor.nextafter(tensor + torch.randn(tensor.shape, generator=g, dtype=tensor.dtype))
    )


def toy_batch(count: int = TOYS) -> TrainingData:
    """A new batch of the first toy problems."""
    return TrainingData.of(toy_problems(count))


# --- Process state ----------------------------------------------------------------------------------------------------

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
    "use of deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "warning filters": (lambda: list(warnings.filters), _set_filters),
    "environment variables": (lambda: dict(os.environ), _set_environment),
}


@contextlib.contextmanager
def restored(access: Access) -> Iterator[list[str]]:
    """Restores the state on exit; the yielded list then contains the names of what had changed."""
    before = {name: get() for name, (get, _) in access.items()}
    changed: list[str] = []
    try:
        yield changed
    finally:
        for name, (get, restore) in access.items():
            if get() != before[name]:
                changed.append(name)
                restore(before[name])
