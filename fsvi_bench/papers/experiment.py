"""Reproductions that are experiments of their own: settings and claims from YAML, a function that finds things out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, ValidationError

from fsvi_bench.errors import InputError
from fsvi_bench.files import json_in_lines, write_atomically
from fsvi_bench.papers.base import Outcome, Reproduction, Workshop
from fsvi_bench.papers.claims import Claim, Values, Verdict, judge
from fsvi_bench.papers.parts import Parts
from fsvi_bench.presenting.figures import write_figure
from fsvi_bench.presenting.plots import Drawings, FigureSpec
from fsvi_bench.presenting.tables import Frames, Table, TableSpec, as_csv
from fsvi_bench.resources import read_yaml, resource_dir

Settings = TypeVar("Settings", bound=BaseModel)


@dataclass(frozen=True)
class Findings:
    """What an experiment found out, as tidy frames, of which the YAML's tables and figure are made.

    `figure`, `tables` and `numbers` are of experiments whose YAML does not specify these yet.
    """

    figure: Figure | None = None
    tables: Sequence[Table] = ()
    statistics: Mapping[str, Values] = field(default_factory=dict)  #: of claims that do not say where theirs stands
    numbers: dict[str, Any] = field(default_factory=dict)
    page: Callable[[Sequence[Verdict]], str] | None = None  #: a page of Markdown about all this, given the verdicts
    frames: Frames = field(default_factory=dict)
    drawings: Drawings = field(default_factory=dict)  #: what the figure's layers cannot draw


@dataclass(frozen=True)
class Laboratory:
    """What an experiment may use."""

    parts: Parts
    data_dir: Path | None
    quick: bool
    note: Callable[[str], None]  #: tells a person something, such as what stands in for missing data

    @property
    def device(self) -> str:
        """Where networks are trained."""
        return self.parts.workshop.resources.device


class _File(BaseModel):
    """`conf/reproductions/<name>.yaml`: both scales, and the claims with thresholds fixed before any run."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    summary: str
    paper: dict[str, Any]
    quick: dict[str, Any]  #: goes on top of `paper`
    claims: tuple[Claim, ...]
    tables: tuple[TableSpec, ...] = ()
    figure: FigureSpec | None = None


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
    numbers: dict[str, Any]


class Experiment(Reproduction, Generic[Settings]):
    """A named experiment.

    Args:
        settings: the model that the YAML's `paper` and `quick` must fit.
        investigate: finds out; deterministic, with parts for whatever takes long.
    """

    def __init__(
        self, name: str, settings: type[Settings], investigate: Callable[[Settings, Laboratory], Findings]
    ) -> None:
        self.name, self.settings, self.investigate = name, settings, investigate

    @property
    def summary(self) -> str:
        return self._file().summary

    def check(self, quick: bool, data_dir: Path | None) -> None:
        self._settings(quick)

    def make(self, workshop: Workshop) -> Outcome:
        settings, parts = self._settings(workshop.quick), Parts(self.name, workshop)
        laboratory = Laboratory(parts, workshop.resources.data_dir, workshop.quick, workshop.progress.note)
        findings = self.investigate(settings, laboratory)
        verdicts, stem = self._judge(findings), workshop.stem(self.name)
        file = self._file()
        tables = (*findings.tables, *(spec.of(findings.frames) for spec in file.tables))
        numbers = ExperimentNumbers(
            figure=self.name,
            quick=workshop.quick,
            settings=settings.model_dump(mode="json"),
            claims=verdicts,
            tables=tables,
            frames={
                name: {str(column): frame[column].tolist() for column in frame}
                for name, frame in findings.frames.items()
            },
            numbers=findings.numbers,
        )
        written = []
        # Before the figure, so that what was computed is there whatever becomes of the drawing.
        texts = {".json": json_in_lines(numbers.model_dump_json(), 3), ".csv": as_csv(tables)}
        if findings.page is not None:
            texts[".md"] = findings.page(verdicts)
        for suffix, text in texts.items():
            path = stem.with_name(stem.name + suffix)
            write_atomically(path, text.encode())
            written.append(path)
        figure = findings.figure if file.figure is None else file.figure.of(findings.frames, findings.drawings)
        assert figure is not None
        return Outcome(
            name=self.name,
            quick=workshop.quick,
            files=[*write_figure(figure, stem), *written],
            computed=parts.computed,
            reused=parts.reused,
            tables=tables,
            claims=verdicts,
        )

    def _judge(self, findings: Findings) -> tuple[Verdict, ...]:
        claims = self._file().claims
        placed = {claim.statistic: claim.at.of(findings.frames) for claim in claims if claim.at is not None}
        try:
            return judge(claims, {**findings.statistics, **placed})
        except ValueError as error:
            raise InputError(f"{self._path}: {error}; name in the file's claims what the experiment finds") from error

    def _settings(self, quick: bool) -> Settings:
        file = self._file()
        try:
            return self.settings.model_validate({**file.paper, **(file.quick if quick else {})})
        except ValidationError as error:
            raise self._error(error) from error

    def _file(self) -> _File:
        try:
            return _File.model_validate(read_yaml(self._path))
        except ValidationError as error:
            raise self._error(error) from error

    @property
    def _path(self) -> Path:
        return resource_dir("conf") / "reproductions" / f"{self.name}.yaml"

    def _error(self, error: ValidationError) -> InputError:
        first = error.errors()[0]
        return InputError(f"{self._path}: '{'.'.join(map(str, first['loc']))}': {first['msg']}; mend the file")
