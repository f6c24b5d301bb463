"""Reproductions that are experiments of their own: settings and claims from YAML, a function that finds things out."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from fsvi_bench.errors import InputError, plain
from fsvi_bench.files import json_in_lines, write_atomically
from fsvi_bench.papers.claims import PlacedClaim, Verdict, judge
from fsvi_bench.papers.parts import NO_CELLS
from fsvi_bench.papers.parts import Laboratory as Laboratory
from fsvi_bench.papers.parts import Plain as Plain  # these, and frames, are what experiments are written with
from fsvi_bench.papers.parts import Rising as Rising
from fsvi_bench.papers.parts import Row as Row
from fsvi_bench.papers.places import Workshop, run_or_find
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
from fsvi_bench.strict import checked

Settings = TypeVar("Settings", bound=BaseModel)
Model = TypeVar("Model", bound=BaseModel)


class Outcome(BaseModel):
    """What was written, and what stands in it. A claim that does not hold is a finding, not a failure."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    name: str
    quick: bool
    files: list[Path] = []
    computed: int
    reused: int
    tables: tuple[Table, ...] = ()
    claims: tuple[Verdict, ...] = ()
    records: Sequence[Record] = ()
    missing: int = 0  #: planned cells without a record, which were not asked to be computed


class File(Plain):
    """`conf/reproductions/<name>.yaml`: both scales, claims with thresholds fixed before any run, what is shown."""

    summary: str
    paper: dict[str, Any]
    quick: dict[str, Any]  #: goes on top of `paper`
    claims: Sequence[PlacedClaim] = ()
    tables: tuple[TableSpec, ...] = ()
    figure: FigureSpec | str  #: or the name of a reproduction that is drawn alike


@dataclass(frozen=True)
class Reproduction(ABC, Generic[Settings]):
    """A published experiment that can be made again, at the paper's scale or for a quick look.

    Args:
        settings: the model that the YAML's `paper` and `quick` must fit. What asks for cells, by a `Request`, can be
            shown as far as its folder goes, without computing anything.
        takes_days: unless told so, or for a quick look, it computes nothing.
    """

    name: str
    settings: type[Settings]
    takes_days: bool = field(default=False, kw_only=True)

    @property
    def shows_unfinished(self) -> bool:
        """Whether it shows what its folder holds, without computing anything."""
        return self.settings is Request

    @property
    def file(self) -> File:
        """Raises InputError if it does not validate."""
        return read_file(self.name, File)

    @property
    def summary(self) -> str:
        """One line."""
        return self.file.summary

    def check(self, quick: bool, data_dir: Path | None) -> None:
        """Makes sure of everything that is needed before anything is computed or written.

        Raises:
            InputError: something is missing or does not validate.
        """
        settings = self._settings(quick)
        if isinstance(settings, Request):
            plan = make_plan(settings)
            require_data(plan.splits, data_dir, plan.given)

    @abstractmethod
    def make(self, workshop: Workshop) -> Outcome:
        """Computes what the folder does not hold yet, and writes figure, table and numbers there.

        Raises:
            InputError: the folder holds something that does not belong there.
            PartFailed: something could not be computed; what was finished is kept.
        """

    def _settings(self, quick: bool) -> Settings:
        file = self.file
        content = file.paper | (file.quick if quick else {})
        return checked(self.settings, content, path_of(self.name), "mend the file")


@dataclass(frozen=True)
class Experiment(Reproduction[Settings]):
    """A named experiment.

    Args:
        settings: with a `Request`, the cells that it asks for are run, or found, first.
        investigate: what it finds out, as tidy frames, of which the YAML's claims, tables and figure are made;
            deterministic, with parts for whatever takes long.
        page: a page of Markdown about all this, given the verdicts, and whether it is a quick look.
    """

    investigate: Callable[[Settings, Laboratory], Frames]
    page: Callable[[Frames, Sequence[Verdict], bool], str] | None = None

    def make(self, workshop: Workshop) -> Outcome:
        """Of cells none of which has a task there is nothing to show."""
        settings = self._settings(workshop.quick)
        cells = run_or_find(make_plan(settings), workshop, self.name) if isinstance(settings, Request) else NO_CELLS
        laboratory = Laboratory(self.name, workshop, cells)
        some = not cells.records or any(record.task_sha256 for record in cells.records)
        shown = self._show(settings, self.investigate(settings, laboratory), workshop) if some else {}
        return Outcome(
            name=self.name,
            quick=workshop.quick,
            computed=cells.computed + laboratory.computed,
            reused=cells.reused + laboratory.reused,
            records=cells.records,
            missing=len(cells.missing),
            **shown,
        )

    def _show(self, settings: Settings, frames: Frames, workshop: Workshop) -> dict[str, Any]:
        """Writes everything; what of it an outcome holds."""
        file, stem, verdicts = self.file, workshop.stem(self.name), self._judge(frames)
        with self._names_of_the_file(frames):
            tables = tuple(spec.of(frames) for spec in file.tables)
        numbers = {
            "format": "fsvi-reproduction/2",
            "figure": self.name,
            "quick": workshop.quick,
            "settings": settings,
            "claims": verdicts,
            "tables": tables,
            "frames": {name: _columns(frame) for name, frame in frames.items()},
        }
        texts = {".json": json_in_lines(to_json(numbers, inf_nan_mode="strings").decode(), 3)}
        if tables:
            texts[".csv"] = as_csv(tables)
        if self.page:
            texts[".md"] = self.page(frames, verdicts, workshop.quick)
        # Before the figure, so that what was computed is there whatever becomes of the drawing.
        written = write_texts({stem.with_name(stem.name + suffix): text for suffix, text in texts.items()})
        with self._names_of_the_file(frames):
            figure = figure_of(file.figure).of(frames)
        return {"files": [*write_figure(figure, stem), *written], "tables": tables, "claims": verdicts}

    def _judge(self, frames: Frames) -> tuple[Verdict, ...]:
        try:
            with self._names_of_the_file(frames):
                return judge(self.file.claims, frames)
        except (TypeError, ValueError) as error:  # of columns of words, too
            raise InputError(
                f"{path_of(self.name)}: {plain(str(error))}; name in the file's claims what the experiment finds"
            ) from error

    @contextmanager
    def _names_of_the_file(self, frames: Frames) -> Iterator[None]:
        """Around what looks up frames and columns by the names that the file has for them."""
        try:
            yield
        except KeyError as error:
            if "no row has" in str(error):
                raise InputError(f"{path_of(self.name)}: {error.args[0]}; mend its `where`") from error
            # pandas puts the name in a sentence.
            name = next(iter(re.findall("'(.+?)'", str(error))), str(error))
            known = ", ".join(f"{each} ({', '.join(map(str, frame))})" for each, frame in frames.items())
            raise InputError(
                f"{path_of(self.name)} names '{name}', which is no frame or column of the experiment; "
                f"frames (columns): {known or 'none'}"
            ) from error


def _columns(frame: pd.DataFrame) -> dict[str, list[Any]]:
    return {str(name): frame[name].replace({pd.NA: None}).tolist() for name in frame}


def figure_of(figure: FigureSpec | str) -> FigureSpec:
    """A file's figure, or that of the reproduction that it names."""
    return figure_of(read_file(figure, File).figure) if isinstance(figure, str) else figure


def write_texts(texts: Mapping[Path, str]) -> list[Path]:
    """Writes files; where they are."""
    for path, text in texts.items():
        write_atomically(path, text.encode())
    return list(texts)


def path_of(name: str) -> Path:
    """Where a reproduction's file lies."""
    return resource_dir("conf") / "reproductions" / f"{name}.yaml"


def read_file(name: str, model: type[Model]) -> Model:
    """A reproduction's file. Raises InputError if it does not validate."""
    return checked(model, read_yaml(path_of(name)), path_of(name), "mend the file")
