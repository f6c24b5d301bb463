"""The options of `fsvi-bench run` and `fsvi_bench.run`, in one model for both. It imports nothing heavy.

The settings of a method are read from, and written as, words of a command line by the same rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BeforeValidator, Field, model_validator

from fsvi_bench.core_yaml import CoreLoader
from fsvi_bench.errors import InputError, quoted
from fsvi_bench.strict import Plain

#: Settings with their own flags.
FLAGS: Mapping[str, str] = {"M": "--measurement-points", "max_steps": "--max-steps"}
T = TypeVar("T")
Rerun = Literal["none", "failed", "diverged", "all"]


def parse_setting(text: str) -> tuple[str, Any]:
    """Parses `key=value` from `--set`; the value is read as YAML (a number, true, a word).

    Raises:
        InputError: there is no `=`, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {quoted(text)} is not of the form key=value; write, for example, lr=0.01")
    try:
        return key.strip(), _read(value)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"--set {quoted(text)}: the value is not a number, word or list; write, for example, lr=0.01"
        ) from error


def read_settings(words: Iterable[str]) -> dict[str, Any]:
    """The values of `key=value` words by key.

    Raises:
        InputError: as `parse_setting`, or a key has two values.
    """
    found: dict[str, Any] = {}
    for name, value in map(parse_setting, words):
        if name in found and found[name] != value:
            raise InputError(f"--set {name} is given twice, as {found[name]} and {value}; make one run for each value")
        found[name] = value
    return found


def parse_settings(given: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Options of a method by name, from a mapping or from `key=value` words. A name may be METHOD.OPTION.

    Raises:
        InputError: as `read_settings`, or they are neither, or M is among them, which has its own flag.
    """
    if not isinstance(given, Mapping | Sequence) or not all(isinstance(each, str) for each in given):
        raise InputError(f"--set {given!r:.60} is neither a mapping of names to values nor a list of key=value words")
    settings = dict(given) if isinstance(given, Mapping) else read_settings(_several(given))
    if any(name.rpartition(".")[2] == "M" for name in settings):
        raise InputError(f"--set M is not supported; set the size of the measurement set with {FLAGS['M']}")
    return settings


def setting(name: str, value: object) -> str:
    """The text `key=value` that `parse_setting` reads as this value."""
    try:
        plain = isinstance(value, str) and _read(value) == value
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        plain = False
    return f"{name}={value if plain else json.dumps(value, ensure_ascii=False)}"


def setting_words(settings: Mapping[str, Any]) -> list[str]:
    """The flags of `run` for these settings."""
    words = []
    for name, value in settings.items():
        words += [FLAGS[name], str(value)] if name in FLAGS else ["--set", setting(name, value)]
    return words


def _read(text: str) -> Any:
    value = yaml.load(text, CoreLoader)  # a safe loader
    json.dumps(value)  # raises TypeError for a date or bytes, which only an explicit tag can produce
    return value


def _several(given: Any) -> Any:
    return [given] if isinstance(given, str | Integral | Path | type) else given


def _ranges(given: Any) -> Any:
    """In Python, ranges may also be a number or several numbers."""
    if given is None or isinstance(given, str):
        return given
    try:
        return ",".join(map(str, _several(given)))
    except TypeError:
        return given  # of no type that is expected


def _method(given: Any) -> Any:
    """In Python, a method may also be the class of an installed method."""
    if not isinstance(given, type):
        return given
    from fsvi_bench.methods.registry import find_method

    entry = find_method(given)
    if not entry.code_sha256:
        name = given.__name__
        raise InputError(f"{name} is not the class of an installed method; name it as path/file.py:{name}")
    return entry.name


Several = Annotated[Sequence[T], BeforeValidator(_several)]  #: or a single one
Ranges = Annotated[str | None, BeforeValidator(_ranges)]


class Request(Plain):
    """A requested experiment. None and empty values stand for the protocol's value, else for the default."""

    datasets: Several[str] = Field(default=(), description="Data set; may be repeated. Default: diabetes (bundled).")
    task_files: Several[Path] = Field(
        default=(),
        description="Task file, or a task such as boston:0 or (a network) yacht:0:collapsed-10; may be repeated. "
        "Data sets of the protocol are run as well.",
    )
    methods: Several[Annotated[str, BeforeValidator(_method)]] = Field(
        default=(),
        description="Method name, or path/file.py:Class; may be repeated. Default: exact, fixed-a, rand-a, rand-a-ngd, "
        "ssge, mean-field-vi, spike-and-slab and the five dropout methods.",
    )
    families: Several[str] = Field(
        default=(),
        description=(
            "full, ffg, factor, bernoulli, spike-slab or particles; may be repeated. Default: all families of a method."
        ),
    )
    splits: Ranges = Field(default=None, description="Splits, such as 0-19 or 0,3,5. Default: all.")
    seeds: Ranges = Field(
        default=None, description="Seeds, such as 0-4 or 0,2. Default: 0. Deterministic methods use one seed."
    )
    measurement_points: Several[Annotated[int, Field(ge=1)]] = Field(
        default=(), description="Size M of the measurement set; may be repeated. Default: the method's."
    )
    max_steps: int | None = Field(
        default=None, ge=1, description="Training steps, for methods that train. Default: the method's."
    )
    protocol: str | None = Field(
        default=None, description="Named experiment with its own defaults, such as quick, official, burt2020 or atlas."
    )
    options: Annotated[dict[str, Any], BeforeValidator(parse_settings)] = Field(
        default={},
        description="OPTION=VALUE for all methods with this option, or METHOD.OPTION=VALUE for one; may be repeated.",
    )

    @model_validator(mode="after")
    def _steps_once(self) -> Request:
        if self.max_steps is not None and "max_steps" in self.options:
            raise InputError("the number of steps is given by both --max-steps and --set max_steps; drop one of them")
        return self


class RunOptions(Request):
    """A request, and how and where to compute it."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto (the faster one for the grid), cpu or cuda."
    )
    executor: Literal["local", "ray"] = Field(default="local", description="local (processes) or ray (a cluster).")
    ray_address: str | None = Field(
        default=None,
        description="With ray: address of the head node, or auto. Default: $RAY_ADDRESS, else a new local cluster.",
    )
    gpu_share: float | None = Field(
        default=None, gt=0, le=1, description="With ray: fraction of a GPU per call, such as 0.25. Default: 1."
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        description="Number of single-threaded processes. Default: one per core (with ray: all that fit).",
    )
    wandb: Literal["auto", "online", "offline", "off"] = Field(
        default="auto", description="Logging to W&B: auto (online with a key, else offline), online, offline or off."
    )
    out: Path = Field(
        default=Path("fsvi-bench-results"),
        description="Output folder. Runs resume: rerun the command to compute missing cells.",
    )
    rerun: Rerun = Field(default="none", description="Finished cells to recompute: none, failed, diverged or all.")
    data_dir: Path | None = Field(
        default=None,
        description=(
            "Folder with the raw data (UCI_Datasets/..., uci_datasets/...). "
            "Default: $FSVI_BENCH_DATA, else the cache or a download."
        ),
    )

    @model_validator(mode="after")
    def _cluster_of_ray(self) -> RunOptions:
        require_ray(self.executor, self.ray_address, self.gpu_share)
        return self


def require_ray(executor: str, ray_address: str | None, gpu_share: float | None = None) -> None:
    """Raises InputError if options of a cluster are given without one."""
    for flag, value in (("--ray-address", ray_address), ("--gpu-share", gpu_share)):
        if value is not None and executor != "ray":
            raise InputError(f"{flag} requires --executor ray; add it or drop {flag}")
