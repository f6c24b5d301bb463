"""Reproductions as experiments: settings and claims from a YAML file, and a function that computes the results."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import pandas as pd
from pydantic import BaseModel
from pydantic_core import to_json

from fsvi_bench.errors import InputError, plain
from fsvi_bench.files import json_in_lines, write_atomically
from fsvi_bench.papers.claims import PlacedClaim, Verdict, judge
from fsvi_bench.papers.parts import NO_CELLS
from fsvi_bench.papers.parts import (
    ExperimentContext as ExperimentContext,  # these, and frames, are what experiments use
)
from fsvi_bench.papers.parts import Rising as Rising
from fsvi_bench.papers.parts import Row as Row
from fsvi_bench.papers.parts import as_row as as_row
from fsvi_bench.papers.parts import joined as joined
from fsvi_bench.papers.workspace import Scale as Scale
from fsvi_bench.papers.workspace import Workspace, run_or_find
from fsvi_bench.presenting.frames import Frames as Frames
from fsvi_bench.presenting.frames import TableSpec
from fsvi_bench.presenting.looks import write_figure
from fsvi_bench.presenting.plots import FigureSpec
from fsvi_bench.presenting.tables import Table, as_csv
from fsvi_bench.resources import read_yaml, resource_dir
from fsvi_bench.running.cell import Record
from fsvi_bench.running.options import Request
from fsvi_bench.running.plan import make_plan
from fsvi_bench.running.runner import require_data
from fsvi_bench.strict import Plain, checked

Settings = TypeVar("Settings", bound=BaseModel)
Model = TypeVar("Model", bound=BaseModel)


@runtime_checkable
class NeedsData(Protocol):
    """Settings of an experiment that needs raw data, other than those of a `Request`."""

    def require_data(self, data_dir: Path | None) -> None:
        """Raises InputError if the data are not on this machine and cannot be downloaded."""


class Outcome(Plain):
    """The files written, and their content. A claim that does not hold is a finding, not a failure."""

    name: str
    scale: Scale
    files: list[Path] = []
    computed: int
    reused: int
    tables: tuple[Table, ...] = ()
    claims: tuple[Verdict, ...] = ()
    records: Sequence[Record] = ()
    missing: int = 0  #: planned cells without a record, which were not to be computed


class File(Plain):
    """`conf/reproductions/<name>.yaml`: settings of each scale, claims with thresholds fixed before any run,
    tables and figure."""

    summary: str
    paper: dict[str, Any]
    quick: dict[str, Any]  #: overrides `paper`
    medium: dict[str, Any] | None = None  #: overrides `paper`; only experiments that train networks have it
    claims: Sequence[PlacedClaim] = ()
    tables: tuple[TableSpec, ...] = ()
    figure: FigureSpec | str  #: or the name of a reproduction with the same figure


@dataclass(frozen=True)
class Reproduction(ABC, Generic[Settings]):
    """A published experiment that can be reproduced, at full scale or a smaller one.

    Args:
        settings: the model of the YAML's scales. A reproduction whose model is `Request` is made from the
            cells of a run, and can show an unfinished run without computing anything.
        takes_days: whether full scale takes days; it is then computed only on request.
    """

    name: str
    settings: type[Settings]
    takes_days: bool = field(default=False, kw_only=True)

    @property
    def shows_unfinished(self) -> bool:
        """Whether it can show the records in its folder without computing anything."""
        return self.settings is Request

    @property
    def file(self) -> File:
        """The YAML file. Raises InputError if it is not valid."""
        return read_file(self.name, File)

    @property
    def summary(self) -> str:
        """A one-line summary."""
        return self.file.summary

    def require(self, scale: Scale) -> None:
        """Raises InputError if the YAML does not declare this scale, or is not valid."""
        self._overrides(scale)

    def changes(self, scale: Scale) -> str:
        """The settings in which a scale differs from full scale, in words; empty for full scale."""
        full, own = (_flat(self._settings(each).model_dump(mode="json")) for each in ("paper", scale))
        unset = "as in the protocol" if self.shows_unfinished else "none"
        usual, its = ({k: unset if v in (None, []) else v for k, v in each.items()} for each in (full, own))
        return "; ".join(
            f"{name} {_in_words(its.get(name, 'none'))} (full scale: {_in_words(usual.get(name, unset))})"
            for name in dict.fromkeys([*own, *full])
            if own.get(name) != full.get(name)
        )

    def check(self, scale: Scale, data_dir: Path | None) -> None:
        """Checks the settings of runs, and the raw data of runs and images, before anything is computed or written.

        Raises:
            InputError: something is missing or not valid.
        """
        settings = self._settings(scale)
        if isinstance(settings, Request):
            plan = make_plan(settings)
            require_data(plan.splits, data_dir, plan.given, official=True)
        elif isinstance(settings, NeedsData):
            settings.require_data(data_dir)

    @abstractmethod
    def make(self, workspace: Workspace) -> Outcome:
        """Computes what is missing in the folder, and writes figure, table and numbers there.

        Raises:
            InputError: the folder contains an unexpected file.
            PartFailed: a part could not be computed; finished parts are kept.
        """

    def _settings(self, scale: Scale) -> Settings:
        content = self.file.paper | self._overrides(scale)
        return checked(self.settings, content, path_of(self.name), "fix the file")

    def _overrides(self, scale: Scale) -> dict[str, Any]:
        file = self.file
        overrides = {"paper": {}, "quick": file.quick, "medium": file.medium}[scale]
        if overrides is None:
            raise InputError(
                f"{self.name} has no medium scale, expected one of {', '.join(_names_with_medium())}; drop --medium"
            )
        return overrides


@dataclass(frozen=True)
class Experiment(Reproduction[Settings]):
    """A named experiment.

    Args:
        settings: for a `Request`, its cells are first run or found.
        investigate: computes the results as tidy frames, from which the YAML's claims, tables and figure are made. It
            is deterministic, and splits long computations into parts.
        page: returns a Markdown page from the frames, the verdicts, and the scale.
    """

    investigate: Callable[[Settings, ExperimentContext], Frames]
    page: Callable[[Frames, Sequence[Verdict], Scale], str] | None = None

    def make(self, workspace: Workspace) -> Outcome:
        """As `Reproduction.make`. If no cell has a task, nothing is written."""
        settings = self._settings(workspace.scale)
        cells = run_or_find(make_plan(settings), workspace, self.name) if isinstance(settings, Request) else NO_CELLS
        context = ExperimentContext(self.name, workspace, cells)
        some = not cells.records or any(record.task_sha256 for record in cells.records)
        shown = self._show(settings, self.investigate(settings, context), workspace) if some else {}
        return Outcome(
            name=self.name,
            scale=workspace.scale,
            computed=cells.computed + context.computed,
            reused=cells.reused + context.reused,
            records=cells.records,
            missing=len(cells.missing),
            **shown,
        )

    def _show(self, settings: Settings, frames: Frames, workspace: Workspace) -> dict[str, Any]:
        """Writes all files; returns the fields of the outcome."""
        file, stem, verdicts = self.file, workspace.stem(self.name), self._judge(frames)
        with self._names_of_the_file(frames):
            tables = tuple(spec.of(frames) for spec in file.tables)
        numbers = {
            "format": "fsvi-reproduction/3",
            "figure": self.name,
            "scale": workspace.scale,
            "settings": settings,
            "claims": verdicts,
            "tables": tables,
            "frames": {name: _columns(frame) for name, frame in frames.items()},
        }
        texts = {".json": json_in_lines(to_json(numbers, inf_nan_mode="strings").decode(), 3)}
        if tables:
            texts[".csv"] = as_csv(tables)
        if self.page:
            texts[".md"] = self.page(frames, verdicts, workspace.scale)
        # Written before the figure, so that results are kept if drawing fails.
        written = write_texts({stem.with_name(stem.name + suffix): text for suffix, text in texts.items()})
        with self._names_of_the_file(frames):
            figure = figure_of(file.figure).of(frames)
        return {"files": [*write_figure(figure, stem), *written], "tables": tables, "claims": verdicts}

    def _judge(self, frames: Frames) -> tuple[Verdict, ...]:
        try:
            with self._names_of_the_file(frames):
                return judge(self.file.claims, frames)
        except (TypeError, ValueError) as error:  # also for columns of text
            raise InputError(f"{path_of(self.name)}: {plain(str(error))}; fix the file's claims") from error

    @contextmanager
    def _names_of_the_file(self, frames: Frames) -> Iterator[None]:
        """Turns a KeyError for a frame or column named in the file into an InputError."""
        try:
            yield
        except KeyError as error:
            if "no row has" in str(error):
                raise InputError(f"{path_of(self.name)}: {error.args[0]}; fix its `where`") from error
            # pandas puts the name into a sentence.
            name = next(iter(re.findall("'(.+?)'", str(error))), str(error))
            known = ", ".join(f"{each} ({', '.join(map(str, frame))})" for each, frame in frames.items())
            raise InputError(
                f"{path_of(self.name)} names '{name}', expected a frame or column of the experiment; its frames "
                f"(columns): {known or 'none'}"
            ) from error


def _columns(frame: pd.DataFrame) -> dict[str, list[Any]]:
    return {str(name): frame[name].replace({pd.NA: None}).tolist() for name in frame}


def _flat(settings: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """Nested settings by name, such as `network.width`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{within}{name}.") if isinstance(value, Mapping) else {f"{within}{name}": value}
    return found


def _in_words(value: Any) -> str:
    return ", ".join(map(_in_words, value)) if isinstance(value, list) else str(value)


def _names_with_medium() -> list[str]:
    contents = {path.stem: read_yaml(path) for path in sorted(path_of("any").parent.glob("*.yaml"))}
    return [name for name, content in contents.items() if isinstance(content, dict) and "medium" in content]


def figure_of(figure: FigureSpec | str) -> FigureSpec:
    """A file's figure, or the figure of the reproduction that it names."""
    return figure_of(read_file(figure, File).figure) if isinstance(figure, str) else figure


def write_texts(texts: Mapping[Path, str]) -> list[Path]:
    """Writes files and returns their paths."""
    for path, text in texts.items():
        write_atomically(path, text.encode())
    return list(texts)


def path_of(name: str) -> Path:
    """Path of a reproduction's file."""
    return resource_dir("conf") / "reproductions" / f"{name}.yaml"


def read_file(name: str, model: type[Model]) -> Model:
    """A reproduction's file. Raises InputError if it is not valid."""
    return checked(model, read_yaml(path_of(name)), path_of(name), "fix the file")
