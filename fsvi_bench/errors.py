"""Errors that are the user's to mend: one plain sentence each, never a traceback."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class InputError(Exception):
    """Bad usage or input. The message says what was got, what was expected and how to mend it.

    The command line prints it as one line on stderr and exits with status 2.
    """


class TaskRefused(Exception):
    """A task whose certificate fails its own limits; scoring against it would measure rounding errors."""


class Diverged(Exception):
    """Training diverged, and the message says where. It is raised by `fsvi_bench.fit` alone: `run` writes a record."""


class WorkersLost(RuntimeError):
    """Work cannot go on because all workers are out of reach; what they finished is kept."""


def in_one_line(error: BaseException) -> str:
    """An exception by its name and what it says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200].removesuffix(": ")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint such as `did you mean 'boston'? ` (empty when nothing is near)."""
    by_lower_case = {candidate.lower(): candidate for candidate in known if candidate != name}
    nearest = [by_lower_case[found] for found in difflib.get_close_matches(name[:60].lower(), by_lower_case, 1, 0.6)]
    return f"did you mean '{nearest[0]}'? " if nearest else ""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not among `known`, with the nearest one suggested.

    The name may come from a file: it is shortened, and control characters in it are not passed to a terminal.
    """
    known = sorted(known)
    return InputError(f"unknown {kind} {quoted(name)}: {did_you_mean(name, known)}known: {', '.join(known)}")


def whole_number(name: str, value: object, least: int = 0) -> int:
    """A number such as a seed or a count, as Python's own.

    Raises:
        InputError: it is none (a truth value is none), below `least`, or has more than 64 bits.
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
    (r"less than or equal to ([-+.\w]*\w)", r"\1 at most"),
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
    """A message whose parts by pydantic, `Input should be greater than or equal to 2`, say `expected 2 or more`."""
    text = re.sub("Input is not a valid path for <class '.*?'>", "expected a path", text)
    if "Input should be " not in text:
        return text
    for theirs, ours in _DEMANDS:
        text = re.sub(f"Input should be {theirs}", f"expected {ours}", text)
    return text.replace("Input should be ", "expected ").replace(" or expected ", " or ")


def invalid_field(error: ValidationError) -> str:
    """The first thing that pydantic found wrong: which field, what was got, what expected.

    What a model as a whole asks for is a sentence of ours, which names its fields.
    """
    errors = error.errors(include_url=False)
    # Every alternative of a union complains: a wrong value in the one that was meant says more than what others lack.
    first = next((each for each in errors if each["type"] not in ("missing", "extra_forbidden")), errors[0])
    demand = plain_demands(first["msg"].removeprefix("Value error, "))
    if first["type"] == "value_error" and not first["loc"]:
        return demand
    field = plain(".".join(str(part) for part in first["loc"])) or "the document"
    if first["type"] == "missing":
        return f"{field} is missing"
    try:
        got = plain(repr(first["input"]), 60)
    except RecursionError:
        got = "nested too deeply"
    return f"{field} is {got}, {demand}"


def quoted(text: str) -> str:
    """Text from outside, in quotes, at most 60 characters of it, control characters spelled out."""
    return repr(text[:60]) + ("..." if len(text) > 60 else "")


def plain(text: str, limit: int = 200) -> str:
    """A library's message, which may repeat what stands in a file: one line, shortened, nothing a terminal obeys."""
    line = "".join(each if each.isprintable() else "?" for each in " ".join(text[: 2 * limit].split()))
    return line[:limit] + ("..." if len(line) > limit else "")
