"""`fsvi-bench reproduce burt2020-study`: records to tables, tables to the page, its figures and all its tables.

Equal tables give equal bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict

from fsvi_bench.errors import InputError
from fsvi_bench.files import write_atomically
from fsvi_bench.papers.base import Outcome, Reproduction, Workshop
from fsvi_bench.papers.burt2020.scores import scores_by_line
from fsvi_bench.papers.burt2020.study.claims import StudyClaim, judge_study, verdict_table
from fsvi_bench.papers.burt2020.study.collect import collect
from fsvi_bench.papers.burt2020.study.summary import frames_of, page_tables
from fsvi_bench.papers.burt2020.study.table import (
    CELLS_FILE,
    Tables,
    as_text,
    continued,
    kept_words,
    read_tables,
    write_tables,
)
from fsvi_bench.papers.experiment import figure_of, path_of, validated
from fsvi_bench.papers.pages import render
from fsvi_bench.papers.places import Cells, holds_records, run_or_find
from fsvi_bench.presenting.figures import write_figure
from fsvi_bench.presenting.plots import FigureSpec
from fsvi_bench.presenting.tables import TableSpec, as_csv
from fsvi_bench.resources import read_yaml
from fsvi_bench.running.plan import Plan, Request, make_plan
from fsvi_bench.running.prepare import require_data

PAGE = "study"  #: `study.md` and the folder `study` beside it
PER_FIGURE = 4  #: data sets of figures 3 and 4, in alphabetic order, as in the paper
FIGURE_DOTS_PER_INCH = 120


class StudyFile(BaseModel):
    """`conf/reproductions/burt2020-study.yaml`: what is run, the claims with their thresholds, and what is shown."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    summary: str
    protocol: str
    quick: dict[str, Any]
    published: str  #: SHA-256 of both tables, as CSV, that the page's sentences are about
    claims: tuple[StudyClaim, ...]
    tables: tuple[TableSpec, ...]
    figures: dict[str, FigureSpec]


class Study(Reproduction):
    """The whole protocol as a page.

    A folder with records gives `study/scores.csv.gz` and `curves.csv.gz` from these; in one without, such as `docs`,
    they are read. `study.md` and its figures are made from these two files alone. Where there are both, cells without
    a record keep their lines: a study goes on elsewhere once both files are copied there, by `fsvi-bench run`
    (`--compute` would compute all of it). To publish it, copy them into `docs`, and write what came out into
    `study.md.j2` and the table's hash into `burt2020-study.yaml`.
    """

    name, shows_unfinished, takes_days = "burt2020-study", True, True

    @property
    def file(self) -> StudyFile:
        """Raises InputError if it does not validate."""
        path = path_of(self.name)
        return validated(StudyFile, read_yaml(path), path)

    @property
    def summary(self) -> str:
        return self.file.summary

    def plan(self, quick: bool) -> Plan:
        """What the study consists of."""
        file = self.file
        return make_plan(Request(protocol=file.protocol, **(file.quick if quick else {})))

    def check(self, quick: bool, data_dir: Path | None) -> None:
        require_data(self.plan(quick), data_dir)

    def make(self, workshop: Workshop) -> Outcome:
        """Raw data are needed for records, not for tables.

        Raises:
            InputError: the folder holds neither records nor tables of the study, or tables that do not go with its
                records.
        """
        stem, cells = workshop.stem(PAGE), Cells()
        written: list[Path] = []
        if workshop.compute or holds_records(workshop.root):
            cells = run_or_find(self.plan(workshop.quick), workshop, self.name)
            data_dir = workshop.resources.data_dir
            found = collect(cells.records, cells.missing, workshop.root, data_dir, workshop.progress)
            # What is whole needs no earlier table, and writes over a damaged one.
            if cells.missing and (stem / CELLS_FILE).is_file():
                earlier = read_tables(stem)
                if told := kept_words(found, earlier):
                    workshop.progress.note(f"{stem / CELLS_FILE}: {told}")
                found = continued(found, earlier)
            written = write_tables(found, stem)
        elif not (stem / CELLS_FILE).is_file():
            raise InputError(
                f"{workshop.root} holds neither records nor {stem.name}/{CELLS_FILE}; name the folder of the study's "
                "runs with --out, or let --compute compute it"
            )
        tables = read_tables(stem)
        judged = judge_study(tables.cells, self.file.claims)
        written += write_page(tables, judged, self.file, stem, workshop.quick)
        return Outcome(
            name=self.name,
            quick=workshop.quick,
            files=written,
            computed=cells.computed,
            reused=cells.reused,
            tables=(TableSpec(title="Claims", frame="claims").of({"claims": verdict_table(judged)}),),
            records=cells.records,
            missing=int(tables.cells["status"].eq("missing").sum()),
        )


def write_page(tables: Tables, judged: pd.DataFrame, file: StudyFile, stem: Path, quick: bool) -> list[Path]:
    """Writes `stem`.md, with figures and all tables in the folder `stem`.

    Raises:
        InputError: a folder cannot be written.
    """
    frames = frames_of(tables, judged)
    figures = {
        name: spec.of(frames)
        for name, spec in file.figures.items()
        if len(frames[spec.panels[0].layers[0].frame or ""])
    }
    begun = sorted(tables.cells.loc[tables.cells["status"] != "missing", "dataset"].unique())
    for place in range(0, len(begun), PER_FIGURE):
        here = tables.cells[tables.cells["dataset"].isin(begun[place : place + PER_FIGURE])]
        scores = figure_of("burt2020-fig3").of({"scores": scores_by_line(here, quick)})
        figures[f"scores-{place // PER_FIGURE + 1}"] = scores
    texts = {
        stem.with_name(f"{stem.name}.md"): page_of(tables, judged, file, sorted(figures), stem.name, quick),
        stem / "tables.csv": as_csv([spec.of(frames) for spec in file.tables]),
    }
    for path, text in texts.items():
        write_atomically(path, text.encode())
    return [*texts, *(write_figure(figure, stem / name, FIGURE_DOTS_PER_INCH)[0] for name, figure in figures.items())]


def page_of(
    tables: Tables, judged: pd.DataFrame, file: StudyFile, figures: Sequence[str], folder: str, quick: bool
) -> str:
    """The page's text. Sentences about results appear only beside the published tables."""
    text = render(
        Path(__file__).with_name("study.md.j2"),
        **page_tables(tables, judged),
        published=is_published(tables, file),
        cells=tables.cells,
        missing=tables.cells["status"].eq("missing").sum(),
        figures=figures,
        folder=folder,
        quick=quick,
    )
    return text + "\n"


def is_published(tables: Tables, file: StudyFile) -> bool:
    """Whether these are the tables that the page's sentences are about."""
    both = as_text(tables.cells) + as_text(tables.curves)
    return hashlib.sha256(both.encode()).hexdigest() == file.published


BURT2020_STUDY = Study()
