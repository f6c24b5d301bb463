"""Files of strangers as strict models: TOML and JSON of these fields, of these types, and nothing else."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fsvi_bench.errors import InputError, invalid_field, plain


class Strict(BaseModel):
    """What a stranger's file may hold: these fields, of these types, and nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="strings")


Model = TypeVar("Model", bound=BaseModel)


def parse_toml(model: type[Model], content: bytes, path: Path) -> Model:
    """A stranger's TOML file as what it should hold.

    Raises:
        InputError: it is no TOML, or holds something else.
    """
    try:
        values = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # TOML, UTF-8, a number of 5,000 digits, lists within lists
        raise InputError(f"{path} is not TOML: {plain(str(error))}; mend the file") from error
    return checked(model, values, path)


def checked(model: type[Model], values: Any, where: object, mend: str = "mend that field") -> Model:
    """Raises InputError, which says which field is wrong, if the values are not the model's."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{where}: {invalid_field(error)}; {mend}") from error


def toml_text(model: Strict) -> str:
    """A model as its TOML file, which writes strings, finite numbers, truth values and lists as JSON does."""
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
    """Raises InputError if a file's content is not the model's."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise InputError(f"{path} cannot be read: {invalid_field(error)}; make the file anew") from error
