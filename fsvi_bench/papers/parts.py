"""An experiment's parts: computed side by side, kept as JSON as they finish, found again by a second run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import to_json

from fsvi_bench.errors import InputError
from fsvi_bench.files import sha256_of_json, write_atomically
from fsvi_bench.papers.places import Cells, Workshop
from fsvi_bench.sources import reached

#: What draws, tells and arranges, and computes no part.
_DECIDES_NOTHING = (
    "fsvi_bench.papers.claims", "fsvi_bench.papers.experiment",
    "fsvi_bench.papers.parts", "fsvi_bench.presenting", "fsvi_bench.running",
)  # fmt: skip


class Plain(BaseModel):
    """Plain data that JSON can hold, infinity included."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


def _rising(values: Any) -> Any:
    if list(values) != sorted(set(values)):
        raise ValueError("expected rising numbers")
    return values


Rising = AfterValidator(_rising)  #: what a setting of several numbers may ask for


Row = dict[str, Any]  #: what a part returns: what was measured of one thing, by name
Function = Callable[..., Row]
Arguments = dict[str, Any]  #: numbers, words and `Plain` models, by name


class PartFailed(Exception):
    """A part could not be computed; the others are kept."""


class _Kept(Plain):
    """A part's file."""

    argument: Arguments  #: for people: the file's name stands for it
    result: dict[str, int | float | list[float | dict[str, str | int | float]]]


NO_CELLS = Cells()


class Laboratory:
    """One experiment's parts, in a folder, and what else it may use.

    A part is a call of a module's function that takes plain data and returns a `Row`, so that it can run in any process
    and be found again: its name is a hash of the function, the arguments and the sources that decide the result.
    """

    def __init__(self, name: str, workshop: Workshop, cells: Cells = NO_CELLS) -> None:
        self.folder, self.workshop = workshop.root / "parts" / name, workshop
        self.cells = cells  #: of the protocol that the settings ask for
        self.note = workshop.progress.note  #: tells a person something, such as what stands in for missing data
        self.data_dir = workshop.resources.data_dir
        self.device = workshop.resources.device  #: where networks are trained
        self.computed = self.reused = 0

    def table(self, function: Function, grid: Mapping[str, Iterable[Any]], **shared: Any) -> pd.DataFrame:
        """A row for each part: its place in the grid, whose last values vary fastest, and its result.

        Raises:
            PartFailed: a part raised something; all others are computed and kept first.
            InputError: a file lies in the folder that is not a part, or a part's input is the user's mistake.
        """
        places: list[Arguments] = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
        paths = [self._path(function, place | shared) for place in places]
        missing = [place | shared for place, path in zip(places, paths, strict=True) if not path.is_file()]
        self.computed += len(missing)
        self.reused += len(places) - len(missing)
        progress, failures = self.workshop.progress, []
        progress.start(function.__name__, len(missing))
        for argument, outcome in self.workshop.resources.executor.map(partial(_attempt, function), missing):
            if isinstance(outcome, dict):
                kept = _Kept(argument=argument, result=outcome).model_dump_json() + "\n"
                write_atomically(self._path(function, argument), kept.encode())
            else:
                failures.append(f"{_words(argument)}: {' '.join(str(outcome).split())}")
                progress.note(f"failed: {failures[-1]}")
            progress.advance(function.__name__, _words(argument))
        if failures:
            raise PartFailed(f"{len(failures)} of {len(places)} parts failed; the first: {failures[0]}")
        # What a second run will find, and nothing else.
        return pd.DataFrame(place | _read(path) for place, path in zip(places, paths, strict=True))

    def _path(self, function: Function, argument: Arguments) -> Path:
        plain = json.loads(to_json(argument, inf_nan_mode="strings"))
        return self.folder / f"{sha256_of_json([function.__qualname__, plain, _deciding(function)])[:24]}.json"


def _attempt(function: Function, argument: Arguments) -> Row | str:
    """A part's result, or what it raised, in words: an exception may not survive the way between processes, and an
    executor takes a ValueError, such as NumPy's LinAlgError, for a bug, which would end the other parts too."""
    try:
        return function(**argument)
    except (ValueError, ArithmeticError, MemoryError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def _deciding(function: Callable[..., Any]) -> dict[str, str]:
    """Hashes of the function's module and of all that it imports, by name; without what decides no number."""
    module = inspect.getfile(inspect.unwrap(function))  # not that of a decorator
    return reached((Path(module).read_bytes(),), _DECIDES_NOTHING)


def _read(path: Path) -> Row:
    try:
        return _Kept.model_validate_json(path.read_bytes()).result
    except (OSError, ValidationError) as error:
        raise InputError(
            f"{path} is not a finished part ({type(error).__name__}); move it away and run again"
        ) from error


def _words(argument: Arguments) -> str:
    return ", ".join(f"{name} {each}" for name, each in argument.items() if isinstance(each, str | int | float))[:80]
