"""Errors that users can fix: one plain sentence each, never a traceback."""

from __future__ import annotations

import difflib
import operator
import re
import textwrap
import traceback
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class InputError(Exception):
    """Bad usage or input. The message says what was given, what was expected and how to fix it.

    The command line prints it as one line on stderr and exits with status 2.
    """


class TaskRefused(Exception):
    """The certificate of a task exceeds its limits; scores against this task would measure rounding errors."""


class Diverged(Exception):
    """Training diverged; the message says where. Only `fsvi_bench.fit` raises it: `run` writes a record instead."""


class WorkersLost(RuntimeError):
    """The run cannot continue because all workers were lost; finished work is kept."""


def in_one_line(error: BaseException) -> str:
    """The type and message of an exception, on one line of at most 200 characters that ends with a whole word."""
    name, message = type(error).__name__, str(error)
    return textwrap.shorten(f"{name}: {message}" if message.strip() else name, 200, placeholder=" …")


def place_in(error: BaseException, file: str) -> str:
    """Where in a file an exception arose, as " (FILE, line 7: CODE)"; empty if it arose elsewhere."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({file}, line {own[-1].lineno}: {own[-1].line})" if own else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint such as `did you mean 'boston'? `, or an empty string if no name is close."""
    by_lower_case = {candidate.lower(): candidate for candidate in known if candidate != name}
    nearest = [by_lower_case[found] for found in difflib.get_close_matches(name[:60].lower(), by_lower_case, 1, 0.6)]
    return f"did you mean {quoted(nearest[0])}? " if nearest else ""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not in `known`, with the closest one as a suggestion.

    All names may come from files: the unknown one is shortened, and control characters are escaped.
    """
    known = sorted(known)
    expected = f"expected one of {', '.join(map(plain, known))}" if known else "there are none"
    return InputError(f"unknown {kind} {quoted(name)}: {did_you_mean(name, known)}{expected}")


def whole_number(name: str, value: object, least: int = 0) -> int:
    """A number such as a seed or a count, as a Python `int`.

    Raises:
        InputError: it is not an integer (or is a bool), is less than `least`, or has more than 64 bits.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if isinstance(value, bool) or not least <= number < 2**64:
        raise InputError(f"{name} is {quoted(str(value))}, expected a whole number of {least} or more")
    return number


_DEMANDS = (
    (r"greater than or equal to ([-+.\w]*\w)", r"\1 or more"),
    (r"greater than ([-+.\w]*\w)", r"more than \1"),
    (r"less than or equal to ([-+.\w]*\w)", r"at most \1"),
    (
        r"a valid integer(, unable to parse string as an integer|, got a number with a fractional part)?",
        "a whole number",
    ),
    (r"a valid number(, unable to parse string as a number)?", "a number"),
    (r"a valid boolean(, unable to interpret input)?", "true or false"),
    (r"a valid string", "text"),
    (r"a valid (dictionary|mapping)", "a mapping"),
    (r"(a valid (list|tuple|array)|an instance of Sequence)", "a list"),
)


def plain_demands(text: str) -> str:
    """Rewrites pydantic's phrases: `Input should be greater than or equal to 2` becomes `expected 2 or more`."""
    text = re.sub("Input is not a valid path for <class '.*?'>", "expected a path", text)
    if "Input should be " not in text:
        return text
    for theirs, ours in _DEMANDS:
        text = re.sub(f"Input should be {theirs}", f"expected {ours}", text)
    return text.replace("Input should be ", "expected ").replace(" or expected ", " or ")


def demand(error: Mapping[str, Any]) -> str:
    """What one of pydantic's errors demands: `more than 0` becomes `expected 1 or more` for a whole number."""
    bound = error.get("ctx", {}).get("gt")
    message = f"Input should be {bound + 1} or more" if type(bound) is int else error["msg"]
    return plain_demands(message.removeprefix("Value error, "))


def invalid_field(error: ValidationError) -> str:
    """The first error that pydantic found: which field, what was given, and what is expected.

    Errors of a model as a whole have a sentence of their own, which names the fields.
    """
    errors = error.errors(include_url=False)
    # All alternatives of a union report errors: a wrong value in the intended one says more than a missing field.
    first = next((each for each in errors if each["type"] not in ("missing", "extra_forbidden")), errors[0])
    if first["type"] == "value_error" and not first["loc"]:
        return demand(first)
    field = plain(".".join(str(part) for part in first["loc"])) or "the document"
    if first["type"] == "missing":
        return f"{field} is missing"
    try:
        got = plain(repr(first["input"]), 60)
    except RecursionError:
        got = "nested too deeply"
    return f"{field} is {got}, {demand(first)}"


def quoted(text: str) -> str:
    """User input in quotes: at most 60 characters, with control characters escaped."""
    return repr(text[:60]) + ("..." if len(text) > 60 else "")


def printable(text: str) -> str:
    """A text of several lines in which control characters, which terminals obey, and invalid Unicode are escaped."""
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)


def plain(text: str, limit: int = 200) -> str:
    """A library's message, which may quote a file, on one line: shortened, and without control characters."""
    line = "".join(each if each.isprintable() else "?" for each in " ".join(text[: 2 * limit].split()))
    return line[:limit] + ("..." if len(line) > limit else "")
