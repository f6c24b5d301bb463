"""From options to work: which tasks, methods, families and seeds, all checked before anything starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, product
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from fsvi_bench.arithmetic import Kernels
from fsvi_bench.errors import InputError, did_you_mean, unknown_name
from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.registry import MethodEntry, load_method, method_names
from fsvi_bench.posteriors.base import Family
from fsvi_bench.resources import read_yaml, resource_dir
from fsvi_bench.running.cell import PlanFile, PlannedTask, Variant
from fsvi_bench.running.options import Request
from fsvi_bench.running.provenance import decisive_sha256, provenance
from fsvi_bench.running.settings import FLAGS
from fsvi_bench.strict import checked
from fsvi_bench.tasks.build import split_indices
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.official import Place, read_named
from fsvi_bench.tasks.splits import parse_ranges

FAMILIES: tuple[Family, ...] = get_args(Family)
DEFAULT_DATASET = "diabetes"


class SubGrid(BaseModel):
    """A part of a protocol on some of its data sets; what it leaves out is as the protocol has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    datasets: Annotated[tuple[str, ...], Field(min_length=1)]
    measurement_points: tuple[PositiveInt, ...] = ()
    grid: dict[str, tuple[Any, ...]] = {}

    @model_validator(mode="after")
    def _consistent(self) -> SubGrid:
        if not self.measurement_points and not self.grid:
            raise ValueError("a sub-grid has neither measurement_points nor grid; it would add nothing")
        return self


class Protocol(BaseModel):
    """`conf/protocols/<name>.yaml`: a whole experiment. What the command line gives takes its place."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    summary: str
    datasets: tuple[str, ...] = (DEFAULT_DATASET,)
    methods: Literal["all"] | tuple[str, ...] = "all"
    families: tuple[Family, ...] = FAMILIES
    splits: str | None = None
    seeds: str = "0"
    measurement_points: tuple[PositiveInt, ...] = ()
    max_steps: PositiveInt | None = None
    options: dict[str, Any] = {}
    method_options: dict[str, dict[str, Any]] = {}  #: of single methods; they go before `options`
    grid: dict[str, tuple[Any, ...]] = {}  #: option -> values; every method that has the option runs with each of them
    sub_grids: tuple[SubGrid, ...] = ()  #: run besides, each on its own data sets
    arithmetic: Kernels = "own"  #: which kernels the command trains with; see `fsvi_bench.arithmetic`

    @property
    def grids(self) -> list[dict[str, tuple[Any, ...]]]:
        """Its own and its sub-grids'."""
        return [self.grid, *(each.grid for each in self.sub_grids)]

    @model_validator(mode="after")
    def _consistent(self) -> Protocol:
        strangers = [name for name in self.method_options if self.methods != "all" and name not in self.methods]
        if strangers:
            raise ValueError(f"method_options has '{strangers[0]}', which is not among the methods")
        named = set(chain(self.options, *self.grids, *self.method_options.values()))
        if {"M", "max_steps"} & named:
            raise ValueError("M and max_steps are not options here; give measurement_points and max_steps")
        if empty := [name for grid in self.grids for name, values in grid.items() if not values]:
            raise ValueError(f"grid has no values for '{empty[0]}'")
        if others := [name for each in self.sub_grids for name in each.datasets if name not in self.datasets]:
            raise ValueError(f"sub_grids has '{others[0]}', which is not among the data sets")
        return self


@dataclass(frozen=True)
class Plan:
    """Splits to be fitted or found in the cache, tasks given as files, and what to run on each."""

    splits: tuple[Place, ...]  #: (data set, split)
    tasks: tuple[FrozenTask, ...] = ()
    variants: tuple[Variant, ...] = ()
    methods: Mapping[str, MethodEntry] = field(default_factory=dict)  #: those of the variants, by name
    unused: tuple[str, ...] = ()  #: options that no chosen method has

    def file(
        self, tasks: Sequence[FrozenTask], refusals: Mapping[Place, str], device: str, unfitted: Sequence[Place] = ()
    ) -> PlanFile:
        """What is kept of the plan once its tasks are known. A cell of an unfitted split has a folder of its own, too:
        one that nobody writes."""
        now = datetime.now(UTC)
        known = [PlannedTask(dataset=t.dataset, split=t.split, task_sha256=t.sha256) for t in tasks]
        refused = [PlannedTask(dataset=name, split=split, refused=why) for (name, split), why in refusals.items()]
        later = [PlannedTask(dataset=name, split=split, task_sha256="") for name, split in unfitted]
        planned = (*known, *refused, *later)
        return PlanFile(written=now, tasks=planned, variants=self.variants, provenance=provenance(device, 0, now))


def protocol_names() -> list[str]:
    """Names of the protocols that travel with the package, sorted."""
    return sorted(path.stem for path in (resource_dir("conf") / "protocols").glob("*.yaml"))


def load_protocol(name: str) -> Protocol:
    """A protocol by name.

    Raises:
        InputError: there is none of that name, or its file does not validate.
    """
    if name not in protocol_names():
        raise unknown_name("protocol", name, protocol_names())
    path = resource_dir("conf") / "protocols" / f"{name}.yaml"
    return checked(Protocol, read_yaml(path), path, "mend the file")


def make_plan(request: Request) -> Plan:
    """Checks a request and spells it out.

    Raises:
        InputError: an unknown name, a split out of range, an option that does not validate, a task given twice.
    """
    protocol = load_protocol(request.protocol) if request.protocol is not None else Protocol(summary="defaults")
    tasks = tuple(read_named(path)[0] for path in request.task_files)
    splits = chosen_splits(request, protocol)
    _refuse_mixed_tasks(splits, tasks)
    names = request.methods or (method_names() if protocol.methods == "all" else protocol.methods)
    methods = _distinct([load_method(name) for name in names])
    variants, unused = _variants(request, protocol, methods)
    planned = {name for name, _ in splits} | {task.dataset for task in tasks}
    here = tuple(v for v in variants if v.datasets is None or planned.intersection(v.datasets))
    return Plan(splits, tasks, here, {method.name: method for method in methods}, unused)


def chosen_splits(request: Request, protocol: Protocol | None = None) -> tuple[Place, ...]:
    """(data set, split) pairs that a request names; all splits of a data set unless it says otherwise.

    Raises:
        InputError: an unknown data set, or a split that it does not have.
    """
    protocol = protocol or Protocol(summary="defaults")
    if request.task_files and not request.datasets:
        if request.splits is not None:
            raise InputError("--splits has no meaning with --task alone: a task file is one split; drop one of the two")
        return ()
    chosen: list[Place] = []
    for name in dict.fromkeys(request.datasets or protocol.datasets):
        card = load_card(name)
        text = protocol.splits if request.splits is None else request.splits
        numbers = range(card.splits.count) if text is None else parse_ranges(text)
        for split in numbers:
            split_indices(card, split)
            chosen.append((name, split))
    return tuple(chosen)


def _refuse_mixed_tasks(splits: Sequence[Place], tasks: Sequence[FrozenTask]) -> None:
    """Two different tasks of one split cannot stand in one table."""
    for (name, split), count in Counter([*splits, *((task.dataset, task.split) for task in tasks)]).items():
        if count > 1:
            raise InputError(
                f"{name} split {split} is asked for twice; give each split once, and run different tasks of one split "
                "with different --out, since their results are not compared"
            )


def _variants(
    request: Request, protocol: Protocol, methods: Sequence[MethodEntry]
) -> tuple[list[Variant], tuple[str, ...]]:
    """Every method with every family and setting, and the flags that none of the methods has a use for."""
    families = _families(request.families or protocol.families)
    seeds = tuple(parse_ranges(protocol.seeds if request.seeds is None else request.seeds, "--seeds"))
    axes = _axes(request, protocol)
    known = {name for method in methods for name in method.cls.Options.model_fields}
    planned = () if request.methods else (protocol.options, *protocol.grids)  # they are meant for its own methods
    _require_known(chain(request.options, *planned), known, methods)
    variants = [
        Variant(
            method=method.name,
            family=family,
            hyperparameters=options.model_dump(mode="json"),
            seeds=(0,) if method.cls.is_deterministic(options) else seeds,
            code_sha256=decisive_sha256(method.code_sha256),
            datasets=datasets,
        )
        for method in methods
        for family in families
        if family in method.cls.families
        for options, datasets in _settings(request, protocol, axes, method)
    ]
    if not variants:
        own = ", ".join(dict.fromkeys(family for method in methods for family in method.cls.families))
        raise InputError(f"no chosen method has a family among {', '.join(families)}; theirs: {own}")
    asked = {"M": request.measurement_points, "max_steps": request.max_steps is not None}  # not by a protocol
    return variants, tuple(FLAGS[name] for name in asked if asked[name] and name not in known)


def _axes(request: Request, protocol: Protocol) -> dict[str, Sequence[int]]:
    """Values of the settings that have flags of their own."""
    if request.max_steps is not None and "max_steps" in request.options:
        raise InputError("the number of steps is given twice, by --max-steps and by --set max_steps; drop one of them")
    planned = None if "max_steps" in request.options else protocol.max_steps
    steps = planned if request.max_steps is None else request.max_steps
    axes = {
        "M": list(dict.fromkeys(request.measurement_points or protocol.measurement_points)),
        "max_steps": [] if steps is None else [steps],
    }
    for name, numbers in axes.items():
        if wrong := [number for number in numbers if number < 1]:
            raise InputError(f"{FLAGS[name]} is {wrong[0]}, expected 1 or more")
    return {name: numbers for name, numbers in axes.items() if numbers}


def _distinct(methods: Sequence[MethodEntry]) -> list[MethodEntry]:
    """Each method once; two methods of one name would end up in one row of the table."""
    by_name: dict[str, MethodEntry] = {}
    for method in methods:
        if by_name.setdefault(method.name, method).code_sha256 != method.code_sha256:
            raise InputError(f"two different methods are called '{method.name}'; rename one of the classes")
    return list(by_name.values())


def _settings(
    request: Request, protocol: Protocol, axes: Mapping[str, Sequence[Any]], method: MethodEntry
) -> list[tuple[MethodOptions, tuple[str, ...] | None]]:
    """A method's settings, each once, with the data sets whose grid has them; None for all."""
    fields = method.cls.Options.model_fields
    fitting = {name: value for name, value in protocol.options.items() if name in fields}
    fitting |= protocol.method_options.get(method.name, {})
    fixed = {name: [value] for name, value in request.options.items()}
    found: dict[str, tuple[MethodOptions, tuple[str, ...] | None]] = {}
    for part in (None, *protocol.sub_grids):
        points = part.measurement_points if part and not request.measurement_points else ()
        on = {**axes, "M": points} if points else axes
        grid = {**on, **protocol.grid, **(part.grid if part else {}), **fixed, **on}
        own = {name: values for name, values in grid.items() if name in fields}
        for values in product(*own.values()):
            options = method.options({**fitting, **dict(zip(own, values, strict=True))})
            key = options.model_dump_json()
            before = found[key][1] if key in found else ()
            both = None if part is None or before is None else tuple(dict.fromkeys([*before, *part.datasets]))
            found[key] = (options, both)
    return list(found.values())


def _families(names: Sequence[str]) -> tuple[Family, ...]:
    for name in names:
        if name not in FAMILIES:
            raise unknown_name("family", name, FAMILIES)
    return tuple(family for family in FAMILIES if family in names)


def _require_known(settings: Iterable[str], known: set[str], methods: Sequence[MethodEntry]) -> None:
    for key in settings:
        if key not in known:
            chosen = ", ".join(method.name for method in methods)
            raise InputError(
                f"--set {key}: none of the chosen methods ({chosen}) has such an option; {did_you_mean(key, known)}"
                f"their options: {', '.join(sorted(known)) or 'none'}"
            )
