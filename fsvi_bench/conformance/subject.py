"""A method that is held to the rules, set up and trained as a run does it, and the numbers that it ends with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from fsvi_bench.conformance.problems import take
from fsvi_bench.errors import unknown_name
from fsvi_bench.methods.base import Method, MethodOptions
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import MethodEntry, find_method
from fsvi_bench.posteriors.base import Family, unstack
from fsvi_bench.seeds import derive_seed
from fsvi_bench.training.trainer import Device, train

STEPS = 20
MANY_STEPS = 100  #: of the checks that look for what a method does late
MEASUREMENT_POINTS = 10  #: fewer than any problem of the suite has rows

#: Mean and covariance factor of one problem's posterior.
Numbers = tuple[Float[Tensor, " k"], Float[Tensor, "k k"]]


class Failed(AssertionError):
    """A method breaks a rule; the message says what was found, what was expected and how to mend it."""


class NotApplicable(Exception):
    """A check has nothing to ask of this method here; the message says why."""


@dataclass(frozen=True)
class Subject:
    """A method with one family and settings.

    Args:
        settings: options on top of the method's defaults.
        steps: `max_steps`, for a method that has the option and settings that do not name it.
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
        budget = {"max_steps": self.steps} if self.has("max_steps") else {}
        return self.entry.options({**budget, **self.settings})

    @property
    def for_long(self) -> Subject:
        """With `MANY_STEPS`, unless its settings name a number of their own."""
        return replace(self, steps=max(self.steps, MANY_STEPS))

    @property
    def deterministic(self) -> bool:
        return self.entry.cls.is_deterministic(self.options)

    def has(self, option: str) -> bool:
        """Whether the method has an option of that name."""
        return option in self.entry.cls.Options.model_fields

    def with_settings(self, **settings: Any) -> Subject:
        """With other settings on top."""
        return replace(self, settings={**self.settings, **settings})

    def seeds(self, places: Sequence[int], seed: int = 0) -> list[int]:
        """As a run derives them, with a problem's place in the full batch for its task."""
        return [derive_seed(str(place), self.entry.name, self.family, seed) for place in places]

    def make(self, data: TrainingData, seeds: Sequence[int] | None = None) -> Method:
        """The method on these problems, not yet trained."""
        seeds = self.seeds(range(len(data))) if seeds is None else seeds
        return self.entry.cls(data, self.family, seeds, self.options)

    def train(
        self, data: TrainingData, observe: Callable[[int, float], None] | None = None, at: Sequence[int] = ()
    ) -> Method:
        """The method on these problems, trained; `observe` is called with (steps, seconds) at some steps."""
        method = self.make(data)
        train(method, "cpu", observe, at)
        return method

    def trained(
        self, data: TrainingData, places: Sequence[int] | None = None, seed: int = 0, device: Device = "cpu"
    ) -> list[Numbers]:
        """What becomes of the problems at these places of a batch (copied), trained together."""
        places = range(len(data)) if places is None else places
        method = self.make(take(data, places), self.seeds(places, seed))
        train(method, device)
        return numbers(method)


def subjects(
    method: object, families: Sequence[str] = (), settings: Mapping[str, Any] | None = None, *, gpu: bool = False
) -> list[Subject]:
    """A method with each of its families, and small measurement sets unless the settings say otherwise.

    Args:
        method: the class, a name, or `path/file.py:Class`.
        families: some of the method's; all of them by default.

    Raises:
        InputError: there is no such method or family, or the method does not take the settings.
    """
    entry = find_method(method)
    own = entry.cls.families
    if unknown := [name for name in families if name not in own]:
        raise unknown_name(f"family of {entry.name}", unknown[0], own)
    points = {"M": MEASUREMENT_POINTS} if "M" in entry.cls.Options.model_fields else {}
    chosen = [name for name in own if not families or name in families]
    found = [Subject(entry, name, {**points, **(settings or {})}, gpu=gpu) for name in chosen]
    found[0].options  # noqa: B018 -- settings that it does not take are refused here, by name
    return found


def numbers(method: Method) -> list[Numbers]:
    """Mean and covariance factor of each problem, on the CPU."""
    return [(q.mean, q.covariance_tril()) for q in unstack(method.posterior().cpu())]


def same(one: Numbers, other: Numbers) -> bool:
    """Bit for bit."""
    return one[0].equal(other[0]) and one[1].equal(other[1])


def apart(one: Numbers, other: Numbers) -> float:
    """The largest difference between two posteriors' numbers, relative to the largest of them where that exceeds 1."""
    pairs = list(zip(one, other, strict=True))
    scale = max(1.0, *(float(each.abs().max()) for each in other))
    return max(float((mine - theirs).abs().max()) for mine, theirs in pairs) / scale
