"""What `fsvi-bench run` and `fsvi_bench.run` take, one model for both. Nothing heavy is imported for it.

A method's settings are words of a command line, written and read by one rule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fsvi_bench.core_yaml import CoreLoader
from fsvi_bench.errors import InputError, quoted

#: Settings that have a flag of their own.
FLAGS: Mapping[str, str] = {"M": "--measurement-points", "max_steps": "--max-steps"}
T = TypeVar("T")
Rerun = Literal["none", "failed", "diverged", "all"]


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` of `--set`, the value read as in YAML (a number, true, a word).

    Raises:
        InputError: it has no `=`, or is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {quoted(text)} is not understood; write key=value, such as lr=0.01")
    try:
        return key.strip(), _read(value)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"--set {quoted(text)}: the value is not a number, word or list; write key=value") from error


def parse_settings(given: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """A method's options, of which M is none, by name, from a mapping or `key=value` words.

    Raises:
        InputError: as `parse_setting`, or one is M.
    """
    settings = dict(given if isinstance(given, Mapping) else map(parse_setting, _several(given)))
    if "M" in settings:
        raise InputError(f"--set M is not an option; give the size of the measurement set with {FLAGS['M']}")
    return settings


def setting(name: str, value: object) -> str:
    """`key=value`, which `parse_setting` reads as the same value."""
    try:
        plain = isinstance(value, str) and _read(value) == value
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        plain = False
    return f"{name}={value if plain else json.dumps(value, ensure_ascii=False)}"


def setting_words(settings: Mapping[str, Any]) -> list[str]:
    """The flags of `run` that give these settings."""
    words = []
    for name, value in settings.items():
        words += [FLAGS[name], str(value)] if name in FLAGS else ["--set", setting(name, value)]
    return words


def _read(text: str) -> Any:
    value = yaml.load(text, CoreLoader)  # a safe loader
    json.dumps(value)  # a TypeError for a date or bytes, which a tag alone can make
    return value


def _several(given: Any) -> Any:
    return [given] if isinstance(given, str | int | Path | type) else given


def _ranges(given: Any) -> Any:
    """From Python, a number or several will do, too."""
    return given if given is None or isinstance(given, str) else ",".join(map(str, _several(given)))


def _method(given: Any) -> Any:
    """From Python, the class of an installed method will do, too."""
    if not isinstance(given, type):
        return given
    from fsvi_bench.methods.registry import find_method

    entry = find_method(given)
    if not entry.code_sha256:
        name = given.__name__
        raise InputError(f"{name} is not the class of an installed method; give it as path/file.py:{name}")
    return entry.name


Several = Annotated[Sequence[T], BeforeValidator(_several)]  #: one of which will do, too
Ranges = Annotated[str | None, BeforeValidator(_ranges)]


class Request(BaseModel):
    """What is asked for; None and empty mean: as the protocol says, else the default."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    datasets: Several[str] = Field(default=(), description="Data set; may be repeated. Default: diabetes (bundled).")
    task_files: Several[Path] = Field(
        default=(), description="A frozen task file, or an official task such as boston:0; may be repeated."
    )
    methods: Several[Annotated[str, BeforeValidator(_method)]] = Field(
        default=(), description="Method name or file.py:Class; default: all outside the atlas."
    )
    families: Several[str] = Field(
        default=(), description="full, ffg, factor, bernoulli or spike-slab; default: all that a method has."
    )
    splits: Ranges = Field(default=None, description="0-19 or 0,3,5; default: all.")
    seeds: Ranges = Field(default=None, description="0-4 or 0,2; a deterministic method is one cell.")
    measurement_points: Several[Annotated[int, Field(ge=1)]] = Field(
        default=(), description="Size M of the measurement set; may be repeated."
    )
    max_steps: int | None = Field(default=None, ge=1, description="Training steps, for methods that train.")
    protocol: str | None = Field(default=None, description="A named experiment, such as quick.")
    options: Annotated[dict[str, Any], BeforeValidator(parse_settings)] = Field(
        default={}, description="A method option; may be repeated."
    )

    @model_validator(mode="after")
    def _steps_once(self) -> Request:
        if self.max_steps is not None and "max_steps" in self.options:
            raise InputError(
                "the number of steps is given twice, by --max-steps and by --set max_steps; drop one of them"
            )
        return self


class RunOptions(Request):
    """A request, and how, where and on what it is computed."""

    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto, cpu or cuda.")
    executor: Literal["local", "ray"] = Field(default="local", description="local (processes here) or ray (a cluster).")
    ray_address: str | None = Field(
        default=None, description="Head of a Ray cluster, or auto. Default: $RAY_ADDRESS, else one started here."
    )
    gpu_share: float | None = Field(
        default=None, gt=0, le=1, description="With ray: what a call takes of one GPU, such as 0.25. Default: 1."
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        description="Processes of one thread each; default: one per core (with ray: all there is room for).",
    )
    wandb: Literal["auto", "online", "offline", "off"] = Field(
        default="auto", description="auto (online with a key, else offline), online, offline or off."
    )
    out: Path = Field(
        default=Path("fsvi-bench-results"), description="Output folder; a second run there finishes what is missing."
    )
    rerun: Rerun = Field(default="none", description="Finished cells to compute again: failed, diverged or all.")
    data_dir: Path | None = Field(
        default=None, description="Folder that holds UCI_Datasets/...; else $FSVI_BENCH_DATA, the cache, a download."
    )

    @model_validator(mode="after")
    def _cluster_of_ray(self) -> RunOptions:
        require_ray(self.executor, self.ray_address, self.gpu_share)
        return self


def require_ray(executor: str, ray_address: str | None, gpu_share: float | None = None) -> None:
    """Raises InputError if there are options of a cluster, but none is used."""
    for flag, value in (("--ray-address", ray_address), ("--gpu-share", gpu_share)):
        if value is not None and executor != "ray":
            raise InputError(f"{flag} has no meaning without --executor ray; add that or drop the flag")
