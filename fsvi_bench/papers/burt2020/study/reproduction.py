"""`fsvi-bench reproduce burt2020-study`: makes tables from records, and the page with its figures from the tables.

Equal tables give equal bytes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.scores import scores_by_line
from fsvi_bench.papers.burt2020.study.claims import StudyClaim, judge_study
from fsvi_bench.papers.burt2020.study.collect import collect
from fsvi_bench.papers.burt2020.study.summary import frames_of
from fsvi_bench.papers.burt2020.study.table import (
    CELLS_FILE,
    Tables,
    as_text,
    continued,
    kept_words,
    read_tables,
    write_tables,
)
from fsvi_bench.papers.experiment import File, Outcome, Reproduction, figure_of, read_file, write_texts
from fsvi_bench.papers.pages import render
from fsvi_bench.papers.workspace import Cells, Scale, Workspace, holds_records, run_or_find
from fsvi_bench.presenting.frames import Frames, TableSpec
from fsvi_bench.presenting.looks import write_figure
from fsvi_bench.presenting.plots import FigureSpec
from fsvi_bench.presenting.tables import as_csv
from fsvi_bench.running.options import Request
from fsvi_bench.running.plan import make_plan

PAGE = "study"  #: `study.md` and the folder `study` next to it
PER_FIGURE = 4  #: data sets per figure of figures 3 and 4, in alphabetical order, as in the paper
FIGURE_DOTS_PER_INCH = 120


class StudyFile(File):
    """`conf/reproductions/burt2020-study.yaml`; its `figure` is drawn for a few data sets at a time."""

    claims: tuple[StudyClaim, ...]  # type: ignore[assignment]  # their statistics are located by the study
    published: str  #: SHA-256 of the two tables, as CSV, to which the page's sentences refer
    figures: dict[str, FigureSpec]


class Study(Reproduction[Request]):
    """The whole protocol as a page.

    In a folder with records, `study/scores.csv.gz` and `curves.csv.gz` are made from them; in a folder without, such as
    `docs`, both files are read. `study.md` and its figures are made from these two files alone. In a folder with both,
    cells without a record keep their lines. So a study can be continued on another machine by `fsvi-bench run` after
    copying both files there (`--compute` would compute all cells). To publish it, copy the files into `docs`, write the
    findings into `study.md.j2`, and the table's hash into `burt2020-study.yaml`.
    """

    @property
    def file(self) -> StudyFile:
        return read_file(self.name, StudyFile)

    def make(self, workspace: Workspace) -> Outcome:
        """As `Reproduction.make`. Raw data are needed for records, not for tables.

        Raises:
            InputError: the folder contains neither records nor tables of the study, or tables that do not match its
                records.
        """
        stem, cells, written = workspace.stem(PAGE), Cells(), list[Path]()
        if workspace.compute or holds_records(workspace.root):
            cells = run_or_find(make_plan(self._settings(workspace.scale)), workspace, self.name)
            written = write_tables(_found(cells, workspace, stem), stem)
        elif not (stem / CELLS_FILE).is_file():
            raise InputError(
                f"{workspace.root} contains neither records nor {stem.name}/{CELLS_FILE}; name the folder of the "
                "study's runs with --out, or compute them with --compute"
            )
        tables, file = read_tables(stem), self.file
        frames = frames_of(tables, judge_study(tables.cells, file.claims))
        written += write_page(tables, frames, file, stem, workspace.scale)
        return Outcome(
            name=self.name,
            scale=workspace.scale,
            files=written,
            computed=cells.computed,
            reused=cells.reused,
            tables=(TableSpec(title="Claims", frame="verdicts").of(frames),),
            records=cells.records,
            missing=int(tables.cells["status"].eq("missing").sum()),
        )


def _found(cells: Cells, workspace: Workspace, stem: Path) -> Tables:
    """The tables of a folder's records, completed by existing tables."""
    found = collect(cells, workspace)
    # Complete records need no earlier table, and overwrite a damaged one.
    if not cells.missing or not (stem / CELLS_FILE).is_file():
        return found
    earlier = read_tables(stem)
    if note := kept_words(found, earlier):
        workspace.progress.note(f"{stem / CELLS_FILE}: {note}")
    return continued(found, earlier)


def write_page(tables: Tables, frames: Frames, file: StudyFile, stem: Path, scale: Scale) -> list[Path]:
    """Writes `stem`.md, with figures and all tables in the folder `stem`.

    Raises:
        InputError: a folder cannot be written.
    """
    figures = {
        name: spec.of(frames)
        for name, spec in file.figures.items()
        if len(frames[spec.panels[0].layers[0].frame or ""])
    }
    begun = sorted(tables.cells.loc[tables.cells["status"] != "missing", "dataset"].unique())
    for place in range(0, len(begun), PER_FIGURE):
        here = tables.cells[tables.cells["dataset"].isin(begun[place : place + PER_FIGURE])]
        scores = {"scores": scores_by_line(here, scale)}
        figures[f"scores-{place // PER_FIGURE + 1}"] = figure_of(file.figure).of(scores)
    page = page_of(tables, frames, file, figures=sorted(figures), folder=stem.name, scale=scale)
    everything = as_csv([spec.of(frames) for spec in file.tables])
    written = write_texts({stem.with_name(f"{stem.name}.md"): page, stem / "tables.csv": everything})
    return [*written, *(write_figure(figure, stem / name, FIGURE_DOTS_PER_INCH)[0] for name, figure in figures.items())]


def page_of(tables: Tables, frames: Frames, file: StudyFile, **settings: object) -> str:
    """The page's text. Sentences about results appear only with the published tables."""
    missing, published = tables.cells["status"].eq("missing").sum(), is_published(tables, file)
    values = {**frames, **settings, "cells": tables.cells, "missing": missing, "published": published}
    return render(Path(__file__).with_name("study.md.j2"), **values) + "\n"


def is_published(tables: Tables, file: StudyFile) -> bool:
    """Whether these are the tables to which the page's sentences refer."""
    both = as_text(tables.cells) + as_text(tables.curves)
    return hashlib.sha256(both.encode()).hexdigest() == file.published
