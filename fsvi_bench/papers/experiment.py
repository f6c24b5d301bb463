"""Reproductions that are experiments of their own: settings and claims from YAML, a function that finds things out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, ValidationError

from fsvi_bench.errors import InputError
from fsvi_bench.files import json_in_lines, write_atomically
from fsvi_bench.papers.base import Outcome, Reproduction, Workshop
from fsvi_bench.papers.claims import Claim, Values, Verdict, judge
from fsvi_bench.papers.parts import Parts
from fsvi_bench.papers.places import Cells, run_or_find
from fsvi_bench.presenting.figures import write_figure
from fsvi_bench.presenting.plots import Drawings, FigureSpec
from fsvi_bench.presenting.tables import Frames, Table, TableSpec, as_csv
from fsvi_bench.resources import read_yaml, resource_dir
from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.prepare import require_data

Settings = TypeVar("Settings", bound=BaseModel)


@dataclass(frozen=True)
class Findings:
    """What an experiment found out, as tidy frames, of which the YAML's tables and figure are made."""

    frames: Frames
    statistics: Mapping[str, Values] = field(default_factory=dict)  #: of claims that do not say where theirs stands
    drawings: Drawings = field(default_factory=dict)  #: what the figure's layers cannot draw
    page: Callable[[Sequence[Verdict]], str] | None = None  #: a page of Markdown about all this, given the verdicts


@dataclass(frozen=True)
class Laboratory:
    """What an experiment may use."""

    parts: Parts
    data_dir: Path | None
    quick: bool
    note: Callable[[str], None]  #: tells a person something, such as what stands in for missing data
    cells: Cells = Cells()  #: of the protocol that the settings ask for

    @property
    def device(self) -> str:
        """Where networks are trained."""
        return self.parts.workshop.resources.device


class _File(BaseModel):
    """`conf/reproductions/<name>.yaml`: both scales, claims with thresholds fixed before any run, what is shown."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    summary: str
    paper: dict[str, Any]
    quick: dict[str, Any]  #: goes on top of `paper`
    claims: tuple[Claim, ...] = ()
    tables: tuple[TableSpec, ...] = ()
    figure: FigureSpec | str  #: or the name of a reproduction that is drawn alike


class ExperimentNumbers(BaseModel):
    """The JSON file of an experiment."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    format: Literal["fsvi-reproduction/2"] = "fsvi-reproduction/2"
    figure: str
    quick: bool
    settings: dict[str, Any]
    claims: tuple[Verdict, ...]
    tables: tuple[Table, ...]
    frames: dict[str, dict[str, list[Any]]]  #: name -> column -> values


class Experiment(Reproduction, Generic[Settings]):
    """A named experiment.

    Args:
        settings: the model that the YAML's `paper` and `quick` must fit. With a `Request`, the cells that it asks for
            are run, or found, first.
        investigate: finds out; deterministic, with parts for whatever takes long.
    """

    def __init__(
        self,
        name: str,
        settings: type[Settings],
        investigate: Callable[[Settings, Laboratory], Findings],
        takes_days: bool = False,
    ) -> None:
        self.name, self.settings, self.investigate = name, settings, investigate
        self.shows_unfinished, self.takes_days = settings is Request, takes_days

    @property
    def summary(self) -> str:
        return _read(self.name).summary

    def check(self, quick: bool, data_dir: Path | None) -> None:
        settings = self.at_scale(quick)
        if isinstance(settings, Request):
            require_data(make_plan(settings), data_dir)

    def make(self, workshop: Workshop) -> Outcome:
        """Of cells none of which has a task there is nothing to show."""
        settings, parts = self.at_scale(workshop.quick), Parts(self.name, workshop)
        cells = run_or_find(make_plan(settings), workshop, self.name) if isinstance(settings, Request) else Cells()
        laboratory = Laboratory(parts, workshop.resources.data_dir, workshop.quick, workshop.progress.note, cells)
        some = not cells.records or any(record.task_sha256 for record in cells.records)
        shown = self._show(settings, self.investigate(settings, laboratory), workshop) if some else {}
        return Outcome(
            name=self.name,
            quick=workshop.quick,
            computed=cells.computed + parts.computed,
            reused=cells.reused + parts.reused,
            records=cells.records,
            missing=len(cells.missing),
            **shown,
        )

    def _show(self, settings: Settings, findings: Findings, workshop: Workshop) -> dict[str, Any]:
        """Writes everything; what of it an outcome holds."""
        verdicts = self._judge(findings)
        with self._names_of_the_file(findings):
            tables = tuple(spec.of(findings.frames) for spec in _read(self.name).tables)
        numbers = ExperimentNumbers(
            figure=self.name,
            quick=workshop.quick,
            settings=settings.model_dump(mode="json"),
            claims=verdicts,
            tables=tables,
            frames={
                name: {str(column): frame[column].replace({pd.NA: None}).tolist() for column in frame}
                for name, frame in findings.frames.items()
            },
        )
        # Before the figure, so that what was computed is there whatever becomes of the drawing.
        stem = workshop.stem(self.name)
        written = _write(stem, numbers, findings.page and findings.page(verdicts))
        files = [*write_figure(self._drawn(figure_of(self.name), findings), stem), *written]
        return {"files": files, "tables": tables, "claims": verdicts}

    def _judge(self, findings: Findings) -> tuple[Verdict, ...]:
        claims = _read(self.name).claims
        with self._names_of_the_file(findings):
            placed = {claim.statistic: claim.at.of(findings.frames) for claim in claims if claim.at is not None}
        try:
            if twice := placed.keys() & findings.statistics.keys():
                raise ValueError(f"{', '.join(twice)} is both in the file and returned by the experiment")
            return judge(claims, {**findings.statistics, **placed})
        except ValueError as error:
            raise InputError(f"{_path_of(self.name)}: {error}; name in the file's claims what the experiment finds") from error

    def _drawn(self, figure: FigureSpec, findings: Findings) -> Figure:
        drawings = {name: partial(_draw_alone, draw) for name, draw in findings.drawings.items()}
        with self._names_of_the_file(findings):
            return figure.of(findings.frames, drawings)

    @contextmanager
    def _names_of_the_file(self, findings: Findings) -> Iterator[None]:
        """Around what looks up frames, columns and drawings by the names that the file has for them."""
        try:
            yield
        except KeyError as error:
            # pandas puts the name in a sentence.
            name = next(iter(re.findall("'(.+?)'", str(error))), str(error))
            frames = [f"{each} ({', '.join(map(str, frame))})" for each, frame in findings.frames.items()]
            raise InputError(
                f"{_path_of(self.name)} names '{name}', which is no frame, column or drawing of the experiment; "
                f"frames (columns): {', '.join(frames) or 'none'}; drawings: {', '.join(findings.drawings) or 'none'}"
            ) from error

    def at_scale(self, quick: bool) -> Settings:
        """The settings of the paper, or of a quick look.

        Raises:
            InputError: the file does not validate.
        """
        file = _read(self.name)
        try:
            return self.settings.model_validate({**file.paper, **(file.quick if quick else {})})
        except ValidationError as error:
            raise _error(self.name, error) from error


def figure_of(name: str) -> FigureSpec:
    """The figure of a reproduction's file, or of the one that it names."""
    figure = _read(name).figure
    return figure_of(figure) if isinstance(figure, str) else figure


def _read(name: str) -> _File:
    try:
        return _File.model_validate(read_yaml(_path_of(name)))
    except ValidationError as error:
        raise _error(name, error) from error


def _path_of(name: str) -> Path:
    return resource_dir("conf") / "reproductions" / f"{name}.yaml"


def _error(name: str, error: ValidationError) -> InputError:
    first = error.errors()[0]
    return InputError(f"{_path_of(name)}: '{'.'.join(map(str, first['loc']))}': {first['msg']}; mend the file")


def _write(stem: Path, numbers: ExperimentNumbers, page: str | None) -> list[Path]:
    """Writes the numbers, the tables and the page, if there is one; where they are."""
    table = as_csv(numbers.tables) if numbers.tables else None
    texts = {".json": json_in_lines(numbers.model_dump_json(), 3), ".csv": table, ".md": page}
    paths = {stem.with_name(stem.name + suffix): text for suffix, text in texts.items() if text is not None}
    for path, text in paths.items():
        write_atomically(path, text.encode())
    return list(paths)


def _draw_alone(draw: Callable[[Axes], None], axes: Axes) -> None:
    """A drawing whose own mistakes are not taken for those of the file."""
    try:
        draw(axes)
    except KeyError as error:
        raise RuntimeError(f"a drawing looked up {error}, which is not there") from error
