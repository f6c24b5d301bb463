"""From options to a plan: which tasks, methods, families and seeds to run, all checked before anything starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, PositiveInt, model_validator

from fsvi_bench.arithmetic import Kernels
from fsvi_bench.errors import InputError, did_you_mean, quoted, unknown_name
from fsvi_bench.methods.base import AdamOptions, GaussianOptions, MethodOptions
from fsvi_bench.methods.registry import MethodEntry, built_in_names, default_names, load_method, network_methods
from fsvi_bench.networks.official import CertifiedNetwork, named_network
from fsvi_bench.networks.task import LogitTask, NetworkTask
from fsvi_bench.posteriors.base import Family
from fsvi_bench.resources import read_yaml, resource_dir
from fsvi_bench.running.cell import Plan, PlannedTask, Variant
from fsvi_bench.running.options import FLAGS, Request
from fsvi_bench.running.provenance import decisive_sha256
from fsvi_bench.strict import Plain, checked
from fsvi_bench.tasks.build import require_split
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.official import Split, read_one_task
from fsvi_bench.tasks.splits import parse_ranges

FAMILIES: tuple[Family, ...] = get_args(Family)
DEFAULT_DATASET = "diabetes"


class SubGrid(Plain):
    """A part of a protocol on some of its data sets; it inherits what it does not set."""

    datasets: Annotated[tuple[str, ...], Field(min_length=1)]
    measurement_points: tuple[PositiveInt, ...] = ()
    grid: dict[str, tuple[Any, ...]] = {}


class Protocol(Request):
    """`conf/protocols/<name>.yaml`: a whole experiment, which is a request with grids.

    The command line overrides it. The defaults are the diabetes data with all splits, every default method with all of
    its families, and seed 0.
    """

    summary: str = "defaults"
    #: For single methods; they override `options`, and the protocol's `max_steps` overrides them.
    method_options: dict[str, dict[str, Any]] = {}
    grid: dict[str, tuple[Any, ...]] = {}  #: option -> values; every method with the option runs with each value
    sub_grids: tuple[SubGrid, ...] = ()  #: run in addition, each on its own data sets
    arithmetic: Kernels = "own"  #: the kernels to train with; see `fsvi_bench.arithmetic`

    @property
    def grids(self) -> list[dict[str, tuple[Any, ...]]]:
        """The grids of the protocol and of its sub-grids."""
        return [self.grid, *(each.grid for each in self.sub_grids)]

    @model_validator(mode="after")
    def _consistent(self) -> Protocol:
        if any(not (each.measurement_points or each.grid) for each in self.sub_grids):
            raise ValueError("a sub-grid needs measurement_points or a grid")
        if unknown := [name for name in self.method_options if self.methods and name not in self.methods]:
            raise ValueError(f"method_options has '{unknown[0]}', which is not among the methods")
        if {"M", "max_steps"} & set(chain(self.options, *self.grids)) or "M" in chain(*self.method_options.values()):
            raise ValueError("M and max_steps cannot be options here; set measurement_points and max_steps instead")
        if empty := [name for grid in self.grids for name, values in grid.items() if not values]:
            raise ValueError(f"grid has no values for '{empty[0]}'")
        if others := [name for each in self.sub_grids for name in each.datasets if name not in self.datasets]:
            raise ValueError(f"sub_grids has '{others[0]}', which is not among the data sets")
        return self


def protocols() -> dict[str, Path]:
    """The files of the protocols of this package, by name."""
    return {path.stem: path for path in sorted((resource_dir("conf") / "protocols").glob("*.yaml"))}


def load_protocol(name: str) -> Protocol:
    """A protocol by name.

    Raises:
        InputError: there is no such protocol, or its file is not valid.
    """
    if (path := protocols().get(name)) is None:
        raise unknown_name("protocol", name, protocols())
    return checked(Protocol, read_yaml(path), path, "fix the file")


def make_plan(request: Request) -> Plan:
    """Checks a request and expands it to a plan, whose tasks are not known yet.

    Raises:
        InputError: a name is unknown, a split is out of range, an option is not valid, or a task is given twice.
    """
    asked = _asked(request)
    given = tuple(named_network(name) or read_one_task(name) for name in asked.task_files)
    tasks = _planned(request, given)
    methods = _distinct(map(load_method, asked.methods or default_names()))
    known = {name for method in methods.values() for name in method.cls.Options.model_fields}
    own = _own_options(request, methods.values())
    _require_known(request, asked, known, methods)
    names = dict.fromkeys(task.dataset for task in tasks)
    networks = {task.place[0]: task.task for task in given if isinstance(task, CertifiedNetwork)}
    taken = {name: _taken(method, networks, bool(asked.methods)) for name, method in methods.items()}
    if networks.keys() == names.keys():
        methods = {name: method for name, method in methods.items() if taken[name]}
    rows = [row for method in methods.values() for row in _rows(request, asked, method, own[method.name])]
    if networks:
        rows = [_only_on([name for name in names if name not in networks], row) for row in rows]
        for name in filter(taken.get, methods):
            of_networks = _rows(request, asked, methods[name], own[name], on_networks=True)
            rows += [_only_on(taken[name], row) for row in of_networks]
    rows = [row for row in rows if row.datasets is None or names.keys() & row.datasets]
    if not rows:
        families = ", ".join(dict.fromkeys(family for method in methods.values() for family in method.cls.families))
        wanted = f"{'--family' if request.families else 'the protocol has the family'} {', '.join(asked.families)}"
        missing = f"{wanted}: none of the chosen methods ({', '.join(methods)}) has it"
        raise InputError(f"{missing}; their families: {families}")
    return Plan(
        written=datetime.now(UTC),
        tasks=tuple(tasks),
        variants=tuple(rows),
        provenance={},
        given=given,
        methods=methods,
        unused=_unused(request, rows, methods),
        shared=_shared(request, rows, own),
    )


def _asked(request: Request) -> Protocol:
    """The protocol, overridden by the request."""
    protocol = Protocol() if request.protocol is None else load_protocol(request.protocol)
    for name in request.families:
        if name not in FAMILIES:
            raise unknown_name("family", name, FAMILIES)
    given = {name: value for name, value in request if name != "options" and value not in (None, (), [])}
    return protocol.model_copy(update=given)


def chosen_splits(request: Request) -> list[Split]:
    """The (data set, split) pairs of a request; by default all splits of a data set.

    Raises:
        InputError: a data set is unknown or lacks a split.
    """
    asked, chosen = _asked(request), []
    if asked.task_files and not asked.datasets:
        if request.splits is not None:
            raise InputError("--splits applies to data sets, but a task is one split; drop --splits or add --dataset")
        return []
    for card in map(load_card, dict.fromkeys(asked.datasets or [DEFAULT_DATASET])):
        for split in range(card.splits.count) if asked.splits is None else parse_ranges(asked.splits):
            require_split(card, split)
            chosen.append((card.name, split))
    return chosen


def _planned(request: Request, given: Iterable[FrozenTask | CertifiedNetwork]) -> list[PlannedTask]:
    """The splits of data sets, and the tasks given as files."""
    places = [*chosen_splits(request), *(task.place for task in given)]
    for (name, split), count in Counter(places).items():
        if count > 1:  # one table cannot have two different tasks of one split
            raise InputError(
                f"{name} split {split} is given twice; give each split once, and run different tasks of one split with "
                "different --out, because their results are not comparable"
            )
    return [PlannedTask(dataset=name, split=split) for name, split in places]


def _taken(method: MethodEntry, networks: Mapping[str, NetworkTask], required: bool) -> tuple[str, ...]:
    """The networks that a method takes; all of them, if they are required."""
    takes, units = method.cls.networks, method.cls.needs_hidden_units
    found = tuple(of for of, task in networks.items() if takes and not (units and isinstance(task, LogitTask)))
    if required and len(found) < len(networks):
        other = next(of for of in networks if of not in found)
        why = (
            f"needs hidden units, but {other} has none"
            if takes
            else f"supports linear models only, but {other} is a network"
        )
        own = "" if takes or method.name in built_in_names() else "extend your method (docs/how-to/method.md), "
        raise InputError(
            f"{method.name} {why}; run them separately, {own}or choose from "
            f"{', '.join(each for each in network_methods() if each != method.name)}"
        )
    return found


def _only_on(datasets: Iterable[str], row: Variant) -> Variant:
    return row.model_copy(update={"datasets": tuple(filter(row.is_for, datasets))})


def _distinct(methods: Iterable[MethodEntry]) -> dict[str, MethodEntry]:
    """The methods by name. Two methods of one name would share a row of the table."""
    by_name: dict[str, MethodEntry] = {}
    for method in methods:
        if by_name.setdefault(method.name, method).code_sha256 != method.code_sha256:
            raise InputError(f"two different methods are called '{method.name}'; rename one of the classes")
    return by_name


def _own_options(request: Request, methods: Iterable[MethodEntry]) -> dict[str, dict[str, Any]]:
    """Method -> options that the request sets as METHOD.OPTION. METHOD is the method's name, or what `--method` gave.

    Raises:
        InputError: it names a method that is not chosen, or an option that the method does not have.
    """
    by_name = {name: method for method in methods for name in (method.name, method.spec)}
    own: dict[str, dict[str, Any]] = {method.name: {} for method in by_name.values()}
    for key, value in request.options.items():
        name, dot, option = key.rpartition(".")
        if not dot:
            continue
        if (method := by_name.get(name)) is None:
            raise InputError(
                f"--set {key}: {quoted(name)} is not among the chosen methods; "
                f"{did_you_mean(name, by_name)}they are {', '.join(own)}"
            )
        if option not in (known := method.cls.Options.model_fields):
            raise InputError(
                f"--set {key}: {method.name} has no option {quoted(option)}; "
                f"{did_you_mean(option, known)}its options: {', '.join(known) or 'none'}"
            )
        own[method.name][option] = value
    return own


def _unused(request: Request, rows: Iterable[Variant], methods: Mapping[str, MethodEntry]) -> tuple[str, ...]:
    """The flags of the request that no row uses: methods lack the option, or are in closed form and do not train."""
    used: set[str] = set()
    for row in rows:
        method, names = methods[row.method], set(row.hyperparameters)
        if issubclass(method.cls.Options, AdamOptions) and not method.trains_with(method.options(row.hyperparameters)):
            names -= set(GaussianOptions.model_fields)
        used |= names | {f"{prefix}.{name}" for name in names for prefix in (method.name, method.spec)}
    flags = {"M": request.measurement_points, "max_steps": request.max_steps}  # from the command line only
    unused = [FLAGS[name] for name, value in flags.items() if value and name not in used]
    return (*unused, *(f"--set {name}" for name in request.options if name not in used))


def _shared(
    request: Request, rows: Iterable[Variant], own: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[str, ...]]:
    """Option -> methods, for options that the request sets for several methods at once."""
    taken = dict.fromkeys((name, row.method) for row in rows for name in row.hyperparameters)
    found = {
        name: tuple(method for each, method in taken if each == name and name not in own[method])
        for name in request.options
    }
    return {name: methods for name, methods in found.items() if len(methods) > 1}


def _require_known(request: Request, asked: Protocol, known: set[str], methods: Iterable[str]) -> None:
    planned = () if request.methods else (asked.options, *asked.grids)  # those are meant for the protocol's own methods
    everywhere = [key for key in request.options if "." not in key]
    for key in chain(everywhere, *planned):
        if key not in known:
            raise InputError(
                f"--set {key}: none of the chosen methods ({', '.join(methods)}) has this option; "
                f"{did_you_mean(key, known)}their options: {', '.join(sorted(known)) or 'none'}"
            )


def _rows(
    request: Request, asked: Protocol, method: MethodEntry, own: Mapping[str, Any], *, on_networks: bool = False
) -> Iterator[Variant]:
    """The rows of a method: one per family and setting. `own` are options that the request sets for it alone."""
    usual = method.defaults.network_options if on_networks else {}
    settings, code = _settings(request, asked, method, usual, own), decisive_sha256(method.code_sha256)
    seeds = (0,) if asked.seeds is None else tuple(parse_ranges(asked.seeds, "--seeds"))
    for family in FAMILIES:
        wanted = family in method.cls.families and family in (asked.families or FAMILIES)
        for options, datasets in settings if wanted else ():
            yield Variant(
                method=method.name,
                family=family,
                hyperparameters=options.model_dump(mode="json"),
                # A network's mode depends on where the search for it starts.
                seeds=(0,) if method.is_deterministic(options) and not on_networks else seeds,
                code_sha256=code,
                datasets=datasets,
            )


def _settings(
    request: Request, asked: Protocol, method: MethodEntry, usual: dict[str, Any], own: Mapping[str, Any]
) -> list[tuple[MethodOptions, tuple[str, ...] | None]]:
    """The distinct settings of a method, each with the data sets it is for; None means all."""
    fields = method.cls.Options.model_fields
    usual = usual | {name: value for name, value in asked.options.items() if name in fields}
    usual |= asked.method_options.get(method.name, {})
    fixed = {name: [value] for name, value in {**request.options, **own}.items()}
    found: dict[str, tuple[MethodOptions, tuple[str, ...] | None]] = {}
    for part in (None, *asked.sub_grids):
        points = part.measurement_points if part and not request.measurement_points else ()
        flags = {"M": points or asked.measurement_points, "max_steps": [asked.max_steps] if asked.max_steps else []}
        grid = {**flags, **asked.grid, **(part.grid if part else {}), **fixed}
        axes = {name: values for name, values in grid.items() if name in fields and values}
        for values in product(*axes.values()):
            options = method.options({**usual, **dict(zip(axes, values, strict=True))})
            _, before = found.get(key := options.model_dump_json(), (options, ()))
            both = None if part is None or before is None else tuple(dict.fromkeys([*before, *part.datasets]))
            found[key] = options, both
    return list(found.values())
