"""Models of what is read from files, whose fields are all declared, and strict ones for untrusted files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fsvi_bench.errors import InputError, invalid_field, plain


class Plain(BaseModel):
    """Immutable data with only the declared fields, which JSON can store, including infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class Strict(Plain):
    """Plain data of exactly the declared types, for untrusted TOML and JSON files."""

    model_config = ConfigDict(strict=True)


Model = TypeVar("Model", bound=BaseModel)


def parse_toml(model: type[Model], content: bytes, path: Path) -> Model:
    """Parses an untrusted TOML file as a model.

    Raises:
        InputError: it is not TOML, or does not fit the model.
    """
    try:
        values = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # TOML, UTF-8, a number of 5,000 digits, lists within lists
        raise InputError(f"{path} is not valid TOML: {plain(str(error))}; fix the file") from error
    return checked(model, values, path)


def checked(model: type[Model], values: Any, where: object, fix: str = "fix this field") -> Model:
    """The values as a model; raises InputError, which names the field, if one is not valid."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{where}: {invalid_field(error)}; {fix}") from error


def toml_text(model: Strict) -> str:
    """A model as TOML, whose strings, finite numbers, booleans and lists are written as in JSON."""
    top: list[str] = []
    tables: list[str] = []
    for name, value in model.model_dump(mode="json", by_alias=True, exclude_defaults=True).items():
        if isinstance(value, dict):
            tables += ["", f"[{name}]", *(_line(*each) for each in value.items())]
        else:
            top.append(_line(name, value))
    return "\n".join([*top, *tables]) + "\n"


def _line(name: str, value: Any) -> str:
    return f"{name} = {json.dumps(value, ensure_ascii=False)}"


def parse_json(model: type[Model], content: bytes, path: Path) -> Model:
    """Parses a JSON file as a model; raises InputError if it does not fit."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise InputError(f"{path} is not valid: {invalid_field(error)}; write the file again") from error
