"""Typer commands from pydantic models: the docstring holds the help of a command and, under `Args`, of its options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from inspect import Parameter, Signature, cleandoc
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from typer.models import ParameterInfo

from fsvi_bench.errors import InputError, invalid_field

#: Flags that differ from the name of their field, and placeholders for values in the help.
FLAGS = {
    "datasets": "--dataset",
    "task_files": "--task",
    "methods": "--method",
    "families": "--family",
    "authors": "--author",
    "options": "--set",
    "settings": "--set",
    "form": "--format",
    "as_json": "--json",
}
METAVARS = {"options": "KEY=VALUE", "settings": "KEY=VALUE", "ray_address": "HOST:PORT"}


def command_of(model: type[BaseModel], body: Callable[[Any], object]) -> Callable[..., object]:
    """A function for Typer with one parameter per field of the model; it validates them and calls `body`."""

    def command(**given: Any) -> object:
        try:
            options = model(**{name: value for name, value in given.items() if value is not None})
        except ValidationError as error:
            field = ".".join(map(str, error.errors()[0]["loc"]))
            message = invalid_field(error).removeprefix(field)
            raise InputError(f"{_flag(field.partition('.')[0])}{message}") from error
        return body(options)

    texts = {name: text for each in reversed(model.__mro__) for name, text in _described(each)[1].items()}
    command.__doc__ = _described(model)[0]
    command.__annotations__ = {}  # Typer reads the signature instead
    parameters = [_parameter(name, field, texts) for name, field in model.model_fields.items()]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return command


def _flag(name: str) -> str:
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


def _described(model: type) -> tuple[str, dict[str, str]]:
    """The description of a model in its docstring, and those of its fields."""
    text, _, fields = cleandoc(model.__doc__ or "").partition("\n\nArgs:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", fields, re.MULTILINE)
    return text, {name: " ".join(words.split()) for name, words in found}


def _parameter(name: str, field: FieldInfo, texts: Mapping[str, str]) -> Parameter:
    """A field as a parameter for Typer. One that may be repeated is a list, or None if it is not given.

    The metadata of a field are the bounds that pydantic checks, and settings for Typer where its defaults do not fit.
    """
    least, most = (next((getattr(m, end) for m in field.metadata if hasattr(m, end)), None) for end in ("ge", "le"))
    usual = typer.Option(_flag(name), metavar=METAVARS.get(name), min=least, max=most)
    info = copy(next((m for m in field.metadata if isinstance(m, ParameterInfo)), usual))
    info.help = field.description or texts[name]
    kind: Any = field.annotation
    if get_origin(kind) is Literal:
        kind = str  # pydantic checks the values
    default = Parameter.empty if field.is_required() else field.default
    if get_origin(kind) in (Sequence, dict):
        each = get_args(kind)[0]
        kind = list[getattr(each, "__origin__", each)]  # type: ignore[misc]
        if not field.is_required():
            kind, default = kind | None, None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])
