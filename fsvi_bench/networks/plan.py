"""The official network tasks and how long their posteriors are sampled: `conf/networks.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from fsvi_bench.errors import InputError, invalid_field
from fsvi_bench.networks.reference import DRAWS, KEPT
from fsvi_bench.networks.task import Targets, task_name
from fsvi_bench.resources import read_yaml, resource_dir
from fsvi_bench.strict import Plain

Repeats = Annotated[int, Field(ge=2)]


class Sampling(Plain):
    """Lengths of the samplers' runs."""

    chains: Repeats  #: of NUTS
    warmup: PositiveInt
    draws: PositiveInt  #: of each chain
    runs: Repeats  #: of sequential Monte Carlo
    particles: PositiveInt  #: of each run
    moves: PositiveInt  #: HMC transitions at each temperature
    ladders: Repeats  #: NUTS along the temperatures
    ladder_warmup: PositiveInt  #: at each temperature
    ladder_draws: PositiveInt
    bounds: PositiveInt = 20  #: simulated data sets with bounds of log Z
    temperatures: PositiveInt = 2000  #: of annealing in both directions
    annealed: PositiveInt = 8  #: chains of each bound
    ranks: PositiveInt = 100  #: simulated data sets for calibration
    rank_warmup: PositiveInt = 500
    rank_draws: Annotated[int, Field(ge=KEPT)] = 1000

    @model_validator(mode="after")
    def _enough_draws(self) -> Sampling:
        if (draws := self.chains * self.draws) < DRAWS:
            raise ValueError(f"the chains have {draws} draws in all, expected at least {DRAWS}; raise draws")
        return self


class Model(Plain):
    """Tasks of one data set and model."""

    dataset: str
    model: str
    noise_scale: PositiveFloat | None = None  #: `logit-100` has none
    real: tuple[int, ...] = ()  #: splits with the data set's targets
    simulated: tuple[int, ...] = ()
    sampling: Sampling


class _Plan(Plain):
    models: tuple[Model, ...]


class Planned(NamedTuple):
    """One official task."""

    of: Model
    split: int
    targets: Targets

    @property
    def name(self) -> str:
        """The name that users type."""
        return task_name(self.of.dataset, self.split, self.of.model, self.targets)


def planned_models() -> tuple[Model, ...]:
    """The models of the official tasks, in order.

    Raises:
        InputError: the file is not valid.
    """
    path = resource_dir("conf") / "networks.yaml"
    try:
        return _Plan.model_validate(read_yaml(path)).models
    except ValidationError as error:
        raise InputError(f"{path} is not valid: {invalid_field(error)}; fix the file") from error


def planned_tasks() -> dict[str, Planned]:
    """All official tasks by name, in order; errors as `planned_models`."""
    return {each.name: each for model in planned_models() for each in _tasks(model)}


def _tasks(model: Model) -> Iterator[Planned]:
    yield from (Planned(model, split, "real") for split in model.real)
    yield from (Planned(model, split, "simulated") for split in model.simulated)
