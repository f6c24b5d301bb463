"""A method's settings as words of a command line, written and read by one rule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from fsvi_bench.core_yaml import CoreLoader
from fsvi_bench.errors import InputError, quoted

#: Settings that have a flag of their own.
FLAGS: Mapping[str, str] = {"M": "--measurement-points", "max_steps": "--max-steps"}


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


def parse_option(text: str) -> tuple[str, Any]:
    """The same of a method's option, which M is not.

    Raises:
        InputError: as `parse_setting`, or it names M.
    """
    name, value = parse_setting(text)
    if name == "M":
        raise InputError(f"--set M is not an option; give the size of the measurement set with {FLAGS['M']}")
    return name, value


def setting(name: str, value: object) -> str:
    """`key=value`, which `parse_setting` reads as the same value."""
    plain = isinstance(value, str) and _reads_as_itself(value)
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


def _reads_as_itself(text: str) -> bool:
    try:
        return bool(_read(text) == text)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return False
