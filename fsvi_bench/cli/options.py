"""Typer commands from pydantic models: the docstring holds the help of a command and, under `Args`, of its options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from inspect import Parameter, Signature, cleandoc
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo, ParameterInfo

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
METAVARS = {
    "options": "KEY=VALUE",
    "settings": "KEY=VALUE",
    "ray_address": "HOST:PORT",
    "task": "TASK",
    "task_files": "TASK",
    "posterior": "FILE",
    "secret": "FILE",
    "key": "FILE",
    "splits": "RANGE",
    "seeds": "RANGE",
    "title": "TEXT",
    "notes": "TEXT",
    "link": "URL",
}
#: Placeholders for the values of all other options, by their type; a flag takes no value.
METAVARS_OF_TYPES = {bool: "", int: "N", float: "X", str: "NAME", Path: "DIR"}


class _PlainHelp:
    """Help that names values (FILE, N) instead of Python's types (<path>, <list[str]>)."""

    def get_params(self, ctx: Any) -> Any:
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for each in parameters:
            if each.param_type_name == "argument":
                each.display_type_rich = lambda **_: None  # the column beside the argument's name
            elif each.name == "help":
                each.metavar = ""
        return parameters


class Command(_PlainHelp, TyperCommand):
    """A command of `fsvi-bench`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuses empty values, such as that of `--out "$UNSET"`: Python takes an empty path for the current folder."""
        for before, word in pairwise(["", *args]):
            flag, equals, value = word.partition("=") if word.startswith("--") else (before, "=", word)
            if equals and not value:
                name = flag if flag.startswith("--") else "an argument"
                raise InputError(f"{name} is empty, expected a value; is a variable of the shell not set?")
        return super().parse_args(ctx, args)


class Group(_PlainHelp, TyperGroup):
    """A group of commands of `fsvi-bench`."""


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
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", text)  # Typer would keep these line breaks
    return text, {name: " ".join(words.split()) for name, words in found}


def _parameter(name: str, field: FieldInfo, texts: Mapping[str, str]) -> Parameter:
    """A field as a parameter for Typer. One that may be repeated is a list, or None if it is not given.

    The metadata of a field are the bounds that pydantic checks, and settings for Typer where its defaults do not fit.
    """
    least, most = (next((getattr(m, end) for m in field.metadata if hasattr(m, end)), None) for end in ("ge", "le"))
    usual = typer.Option(_flag(name), min=least, max=most)
    info = copy(next((m for m in field.metadata if isinstance(m, ParameterInfo)), usual))
    info.help = field.description or texts[name]
    kind: Any = field.annotation
    if isinstance(info, OptionInfo):
        info.metavar = _placeholder(name, kind)
    if get_origin(kind) is Literal:
        kind = str  # pydantic checks the values
    default = Parameter.empty if field.is_required() else field.default
    if get_origin(kind) in (Sequence, dict):
        each = get_args(kind)[0]
        kind = list[getattr(each, "__origin__", each)]  # type: ignore[misc]
        if not field.is_required():
            kind, default = kind | None, None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _placeholder(name: str, kind: Any) -> str:
    """What stands for the value of an option in the help."""
    types = [getattr(each, "__origin__", each) for each in (kind, *get_args(kind))]
    found = next((each for each in types if each in METAVARS_OF_TYPES), str)
    return METAVARS_OF_TYPES[found] if found is int else METAVARS.get(name, METAVARS_OF_TYPES[found])
