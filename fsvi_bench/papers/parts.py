"""An experiment's parts: computed in parallel, stored as JSON when finished, and reused by later runs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator, BeforeValidator, ValidationError
from pydantic_core import to_json

from fsvi_bench.errors import InputError
from fsvi_bench.files import sha256_of_json, write_atomically
from fsvi_bench.papers.workspace import Cells, Workspace
from fsvi_bench.sources import reached
from fsvi_bench.strict import Plain

#: Modules that display and organise results, and do not affect any part's result.
_WITHOUT_EFFECT = (
    "fsvi_bench.papers.claims", "fsvi_bench.papers.experiment",
    "fsvi_bench.papers.parts", "fsvi_bench.presenting", "fsvi_bench.running",
)  # fmt: skip


def _rising(values: Any) -> Any:
    if list(values) != sorted(set(values)):
        raise ValueError("expected ascending numbers without duplicates")
    return values


Rising = AfterValidator(_rising)  #: for settings whose numbers must be ascending


Row = dict[str, Any]  #: a part's result: measured values by name
Function = Callable[..., Row]
Arguments = dict[str, Any]  #: numbers, strings and `Plain` models, by name


class PartFailed(Exception):
    """A part could not be computed; finished parts are kept."""


def _number(value: Any) -> Any:
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


#: A word or a number; JSON has words for the numbers that are not finite.
_Value = Annotated[str | int | float, BeforeValidator(_number)]


class _Kept(Plain):
    """A part's file."""

    argument: Arguments  #: for readers; the file's name identifies it
    result: dict[str, int | float | list[float | dict[str, _Value]]]


NO_CELLS = Cells()


class ExperimentContext:
    """The folder of one experiment's parts, and its resources.

    A part is a call of a module's function that takes plain data and returns a `Row`, so it can run in any process and
    be reused. Its file name is a hash of the function, the arguments, and the sources that determine the result.
    """

    def __init__(self, name: str, workspace: Workspace, cells: Cells = NO_CELLS) -> None:
        self.folder, self.workspace = workspace.root / "parts" / name, workspace
        self.cells = cells  #: of the protocol, if the settings are a `Request`
        self.note = workspace.progress.note  #: shows a note to the user, such as what is left out
        self.data_dir = workspace.resources.data_dir
        self.device = workspace.resources.device  #: on which networks are trained
        self.computed = self.reused = 0

    def table(self, function: Function, grid: Mapping[str, Iterable[Any]], **shared: Any) -> pd.DataFrame:
        """One row per part, with its place in the grid (the last entry varies fastest) and its result.

        Raises:
            PartFailed: a part raised an exception; all other parts are computed and kept first.
            InputError: the folder contains a file that is not a part, or a part's input is invalid.
        """
        places: list[Arguments] = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
        paths = [self._path(function, place | shared) for place in places]
        missing = [place | shared for place, path in zip(places, paths, strict=True) if not path.is_file()]
        self.computed += len(missing)
        self.reused += len(places) - len(missing)
        progress, failures = self.workspace.progress, []
        progress.start(function.__name__, len(missing))
        for argument, outcome in self.workspace.resources.executor.map(partial(_attempt, function), missing):
            if isinstance(outcome, dict):
                kept = _Kept(argument=argument, result=outcome).model_dump_json() + "\n"
                write_atomically(self._path(function, argument), kept.encode())
            else:
                failures.append(f"{_describe(argument)}: {' '.join(str(outcome).split())}")
                progress.note(f"failed: {failures[-1]}")
            progress.advance(function.__name__, _describe(argument))
        if failures:
            raise PartFailed(f"{len(failures)} of {len(places)} parts failed; the first: {failures[0]}")
        # Read from the files, so that the first run returns exactly what later runs will.
        return pd.DataFrame(place | _read(path) for place, path in zip(places, paths, strict=True))

    def _path(self, function: Function, argument: Arguments) -> Path:
        plain = json.loads(to_json(argument, inf_nan_mode="strings"))
        return self.folder / f"{sha256_of_json([function.__qualname__, plain, _deciding(function)])[:24]}.json"


def as_row(frames: Mapping[str, pd.DataFrame]) -> Row:
    """A part's result if it has several rows in each of several frames."""
    return {name: frame.to_dict("records") for name, frame in frames.items()}


def joined(parts: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The frames of all parts whose results come from `as_row`."""
    return {str(name): pd.DataFrame(chain.from_iterable(rows)) for name, rows in parts.items()}


def _attempt(function: Function, argument: Arguments) -> Row | str:
    """A part's result, or its exception as text. Some exceptions cannot be pickled, and an executor treats a
    ValueError, such as NumPy's LinAlgError, as a bug and stops the other parts too."""
    try:
        return function(**argument)
    except (ValueError, ArithmeticError, MemoryError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def _deciding(function: Callable[..., Any]) -> dict[str, str]:
    """Hashes, by name, of the function's module and its imports, without `_WITHOUT_EFFECT`."""
    module = inspect.getfile(inspect.unwrap(function))  # not a decorator's module
    return reached((Path(module).read_bytes(),), _WITHOUT_EFFECT)


def _read(path: Path) -> Row:
    try:
        return _Kept.model_validate_json(path.read_bytes()).result
    except (OSError, ValidationError) as error:
        raise InputError(
            f"{path} is not a finished part ({type(error).__name__}); move it elsewhere and rerun the command"
        ) from error


def _describe(argument: Arguments) -> str:
    """Numbers, strings, and models that have words of their own."""

    def has_words(value: Any) -> bool:
        return type(value).__str__ is not Plain.__str__ if isinstance(value, Plain) else not isinstance(value, tuple)

    return ", ".join(f"{name} {each}" for name, each in argument.items() if has_words(each))[:80]
