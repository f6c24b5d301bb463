"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
from annotated_types import Ge
from pydantic import BaseModel
from pydantic.fields import FieldInfo

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Folder that holds UCI_Datasets/...; else $FSVI_BENCH_DATA, the cache, a download."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Processes of one thread each; default: one per core (with ray: all there is room for).",
    ),
]


#: Flags of a model's fields that are not called like the field, and what stands for a value in the help.
FLAGS = {
    "datasets": "--dataset",
    "task_files": "--task",
    "methods": "--method",
    "families": "--family",
    "options": "--set",
}
METAVARS = {"options": "KEY=VALUE", "ray_address": "HOST:PORT"}


def takes(model: type[BaseModel]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A command whose first parameter is a model has an option for each of the model's fields."""

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def parsed(**given: Any) -> int:
            own = {name: given.pop(name) for name in model.model_fields}
            return command(model(**{name: value for name, value in own.items() if value is not None}), **given)

        _, *rest = signature(command, eval_str=True).parameters.values()
        fields = [_parameter(name, field) for name, field in model.model_fields.items()]
        rest = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in rest]
        parsed.__signature__ = Signature([*fields, *rest])  # type: ignore[attr-defined]
        parsed.__annotations__ = {}  # what is told by the signature
        return parsed

    return decorate


def _parameter(name: str, field: FieldInfo) -> Parameter:
    """A model's field as Typer wants it; what may be repeated is a list, and None if it is not given."""
    flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
    least: Any = next((each.ge for each in field.metadata if isinstance(each, Ge)), None)
    option = typer.Option(flag, help=field.description, metavar=METAVARS.get(name), min=least)
    kind, default = field.annotation, field.default
    if get_origin(kind) in (Sequence, dict):
        kind, default = list[get_args(kind)[0]] | None, None  # type: ignore[misc, assignment]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
