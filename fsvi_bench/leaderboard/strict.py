"""YAML and JSON of strangers: bounded in size and depth, each key once, numbers finite, nothing but plain values.

YAML has no aliases, anchors or tags here, so that a text says what it seems to say and cannot grow.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from fsvi_bench.core_yaml import CoreDumper, CoreLoader
from fsvi_bench.errors import InputError, quoted
from fsvi_bench.leaderboard.submission import (
    LONGEST_LINE,
    Claims,
    Line,
    Link,
    Manifest,
    PythonFile,
    PythonName,
    Sha256,
    Slug,
    Text,
)

MANIFEST_BYTES, SOURCE_BYTES = 2**16, 2**20
MAX_KEYS = 64  #: of one object of a JSON text; what is not known is not kept
MAX_DEPTH = 6  #: of lists and mappings; the formats need 4
MAX_DIGITS = 19  #: of an integer, its sign included: more than any field means; Python cannot print 5,000
SCORES = ("kl", "predictive_kl_box")  #: may be the string "Infinity"

Model = TypeVar("Model", bound=BaseModel)


def read_manifest(path: Path) -> Manifest:
    """`parse_manifest` of what stands in a file."""
    return parse_manifest(path, read_at_most(path, MANIFEST_BYTES + 1))


def parse_manifest(path: Path, content: bytes) -> Manifest:
    """The content of `submission.yaml`, or as much of it as tells that it is too large.

    Raises:
        InputError: it is too large, not plain YAML, or not a manifest; says which field, what was got and expected.
    """
    if len(content) > MANIFEST_BYTES:
        key = _last_key(content[:MANIFEST_BYTES].decode(errors="ignore"))
        where = "" if key is None else f"{_word(key)}: "
        raise InputError(
            f"{path}: {where}the text goes beyond the file's limit of {MANIFEST_BYTES // 1024} KiB; shorten it"
        )
    return validated(Manifest, load_yaml(path, content), path)


def cells_bytes(count: int) -> int:
    """The most that a `cells.json` of so many cells may have: each may give its reason at length."""
    return 2**16 + 5 * 2**10 * count


def parse_claims(path: Path, content: bytes, most: int) -> Claims:
    """The content of `cells.json`, of at most so many cells.

    Raises:
        InputError: it is too large, not plain JSON, or not a list of cells; says which field is wrong, and how.
    """
    if len(content) > cells_bytes(most):
        raise too_large(path, cells_bytes(most))
    value = load_json(path, content)
    cells = value.get("cells") if isinstance(value, dict) else None
    if isinstance(cells, list) and len(cells) > most:
        raise InputError(f"{path}: cells: got {len(cells)} cells, expected at most {most}, one for each official task")
    for cell in cells if isinstance(cells, list) else ():
        if isinstance(cell, dict):
            cell.update({name: math.inf for name in SCORES if cell.get(name) == "Infinity"})
    return validated(Claims, value, path)


def read_at_most(path: Path, count: int) -> bytes:
    """The first bytes of a regular file; a link is not followed, and nothing that could block is opened.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            return stream.read(count)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def too_large(path: Path, limit: int) -> InputError:
    """The error for a file beyond its limit."""
    return InputError(f"{path} is larger than the {limit} bytes that such a file may have; is it the right file?")


class _Refused(Exception):
    """Part of a text that has no place here."""


class _PlainLoader(CoreLoader):
    """Refuses what is not plain; keeps the path of the node that it is at."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.path: list[str] = []

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        inside = [] if parent is None or index is None else [_label(index)]
        self.path += inside
        if parent is not None and index is None and not isinstance(event, yaml.ScalarEvent):
            raise _Refused("a key is not text; write names as keys")
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _Refused("aliases and anchors (& and *) are not taken; write the value out")
        if event.tag is not None:
            raise _Refused(f"the tag {quoted(event.tag)} is not taken; write a plain value")
        if len(self.path) > MAX_DEPTH:
            raise _Refused(f"nested more than {MAX_DEPTH} deep; write it flat")
        node = super().compose_node(parent, index)  # type: ignore[no-untyped-call]
        if isinstance(node, yaml.MappingNode):
            _require_plain_keys(node)
        elif isinstance(node, yaml.ScalarNode) and node.tag.endswith(":int") and len(node.value) > MAX_DIGITS:
            raise _Refused(_LONG_INTEGER)
        del self.path[len(self.path) - len(inside) :]
        return node


def manifest_yaml(manifest: Manifest) -> bytes:
    """The text of `submission.yaml`, which `read_manifest` reads as the same."""
    fields = manifest.model_dump(mode="json", by_alias=True)
    optional = {name for name, field in Manifest.model_fields.items() if not field.is_required()}
    fields["budget"] = {name: value for name, value in fields["budget"].items() if value is not None}
    shown = {name: value for name, value in fields.items() if not (name in optional and value in (None, {}, ""))}
    text = yaml.dump(shown, Dumper=CoreDumper, sort_keys=False, allow_unicode=True, width=100)
    return str(text).encode()


def load_yaml(path: Path, content: bytes) -> Any:
    """Plain values of a YAML text; see the module's words on what is not taken.

    Raises:
        InputError: it is not plain YAML in UTF-8.
    """
    loader = None
    try:
        loader = _PlainLoader(content.decode())
        value = loader.get_single_data()  # type: ignore[no-untyped-call]
    except _Refused as error:
        assert loader is not None
        raise InputError(f"{path}: {_dotted(loader.path)}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not plain YAML: {_yaml_reason(error)}; mend the file") from error
    _require_plain(path, value)
    return value


def load_json(path: Path, content: bytes) -> Any:
    """Plain values of a JSON text.

    Raises:
        InputError: it is not JSON in UTF-8, a key stands twice in an object, an object has too many of them, a number
            is NaN or infinite, or it is nested too deep.
    """
    try:
        value = json.loads(content.decode(), object_pairs_hook=_unique, parse_int=_integer, parse_constant=float)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else _short_reason(error)
        line = f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f"{path} is not plain JSON: {reason}{line}; mend the file") from error
    except _Refused as error:
        raise InputError(f"{path}: {error}") from error
    _require_plain(path, value)
    return value


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= MAX_DIGITS else 10**MAX_DIGITS


class _Twice(dict[str, Any]):
    """An object that has a key twice."""

    key = ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise _Refused(f"an object has {len(pairs)} keys, expected at most {MAX_KEYS}; remove what does not belong")
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    twice, seen = _Twice(made), set[str]()
    twice.key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return twice


def _require_plain_keys(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            raise _Refused("a key is not text; write names as keys")
        if key.value in seen:
            raise _Refused(f"the key {quoted(key.value)} stands twice; keep one of them")
        seen.add(key.value)


def _label(index: Any) -> str:
    return str(index) if isinstance(index, int) else str(getattr(index, "value", ""))


def _require_plain(path: Path, value: Any) -> None:
    """Raises InputError for what is left to look for: keys that stand twice, depth, NaN, infinity, huge integers."""
    for where, found in _leaves(value, ()):
        if isinstance(found, _Twice):
            problem = f"the key {quoted(found.key)} stands twice; keep one of them"
        elif isinstance(found, float) and not math.isfinite(found):
            problem = f"got {found}, expected a finite number; correct it"
        elif isinstance(found, int) and abs(found) >= 10**MAX_DIGITS:
            problem = _LONG_INTEGER
        elif isinstance(found, dict | list):
            problem = f"nested more than {MAX_DEPTH} deep; write it flat"
        else:
            continue
        raise InputError(f"{path}: {_dotted(where)}: {problem}")


def _leaves(value: Any, where: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None or isinstance(value, _Twice) or len(where) > MAX_DEPTH:
        yield where, value
        return
    for key, item in inner:
        yield from _leaves(item, (*where, key))


def _last_key(text: str) -> str | None:
    """The last key of the outermost mapping of a YAML text that breaks off; None if there is none."""
    # A quoted scalar that breaks off is no token, and hides what is before it on its line: it is closed here.
    found = [_outer_keys(text + end) for end in ("", '"', "'")]
    keys = max(found, key=len)
    return keys[-1] if keys else None


def _outer_keys(text: str) -> list[str]:
    depth, keys, is_key = 0, list[str](), True
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    break
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
                is_key = not is_key if depth == 1 else is_key
            elif isinstance(event, yaml.ScalarEvent) and depth == 1:
                if is_key:
                    keys.append(event.value)
                is_key = not is_key
    except yaml.YAMLError:
        pass
    return keys


def validated(model: type[Model], value: Any, path: Path) -> Model:
    """Plain values as a model; pydantic's complaint in our own words.

    Raises:
        InputError: a field is missing, unknown, or not what the format takes.
    """
    if not isinstance(value, dict):
        raise InputError(f"{path} holds {_got(value)}, expected a mapping of fields; see docs/submitting.md")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InputError(f"{path}: {_complaint(model, error)}") from error


def _complaint(model: type[BaseModel], error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    loc, kind, context = first["loc"], first["type"], first.get("ctx", {})
    if loc[:1] == ("hyperparameters",) and len(loc) > 2 and loc[-1] != "[key]":
        # One complaint for each type that a setting may have; the name is enough.
        said = f"got {_got(first['input'])}, expected a number, true, false, null or {_TEXT_OF_SETTING}"
        return f"{_dotted(loc[:2])}: {said}; correct it"
    field = _dotted(loc)
    if kind == "missing":
        return f"{field} is missing; add it"
    if kind == "extra_forbidden":
        known = f" (known: {', '.join(_names(model))})" if len(loc) == 1 else ""
        return f"{field} is not a field of this format{known}; remove it"
    if kind == "value_error":
        return f"{field}: {context['error']}"
    if kind == "string_pattern_mismatch":
        expected = _WORDS.get(context["pattern"], "other text")
    else:
        said, should, expected = str(first["msg"]).partition(" should ")
        if said not in ("Input", "String") or not should:
            return f"{field}: {first['msg']}; correct it"
        expected = expected.removeprefix("be ").removeprefix("have ")
    return f"{field}: got {_got(first['input'])}, expected {expected}; correct it"


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


_TEXT_OF_SETTING = "plain text of at most 200 characters"
_LONG_INTEGER = f"an integer of more than {MAX_DIGITS} digits is not taken; correct it"
_LINE = f"one line of at most {LONGEST_LINE} characters without <, >, quotes, backslashes and control characters"
_TEXT = "text without <, > and control characters"


def _pattern(kind: Any) -> str:
    return str(TypeAdapter(kind).json_schema()["pattern"])


_WORDS = {
    _pattern(Slug): "lower-case letters, digits and hyphens, at most 63",
    _pattern(Line): _LINE,
    _pattern(Text): _TEXT,
    _pattern(Link): "an https:// address",
    _pattern(PythonFile): "the plain name of a .py file",
    _pattern(PythonName): "a Python name",
    _pattern(Sha256): "64 hexadecimal digits",
}


def _got(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    return f"{value!r:.60}"


def _dotted(where: Any) -> str:
    return ".".join(_word(str(part)) for part in where if part != "[key]") or "the document"


def _word(name: str) -> str:
    """A key as it is if it is a plain name, else in quotes and shortened."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) else quoted(name)


def _yaml_reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        line = "" if error.problem_mark is None else f" in line {error.problem_mark.line + 1}"
        return f"{(error.problem or error.context or 'not understood')[:200]}{line}"
    return _short_reason(error)


def _short_reason(error: Exception) -> str:
    """Of an error whose words may hold the text itself."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position} may not stand in YAML"
    return "nested too deep" if isinstance(error, RecursionError) else "a number is not one that can be read"
