"""The study's page, `study.md`, its figures and all its tables: made from the two tables and nothing else, so that
equal tables give equal bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fsvi_bench.files import write_atomically
from fsvi_bench.papers.burt2020.scores import scores_by_line
from fsvi_bench.papers.burt2020.study.claims import verdict_table
from fsvi_bench.papers.burt2020.study.settings import StudyFile
from fsvi_bench.papers.burt2020.study.summary import frames_of, page_tables
from fsvi_bench.papers.burt2020.study.table import Tables, as_text
from fsvi_bench.papers.experiment import figure_of
from fsvi_bench.presenting.figures import write_figure
from fsvi_bench.presenting.tables import TableSpec, as_csv

TEMPLATE = "study.md.j2"
PER_FIGURE = 4  #: data sets of figures 3 and 4, in alphabetic order, as in the paper
FIGURE_DOTS_PER_INCH = 120


def write_page(tables: Tables, judged: pd.DataFrame, file: StudyFile, stem: Path, quick: bool) -> list[Path]:
    """Writes `stem`.md, with figures and all tables in the folder `stem`.

    Raises:
        InputError: a folder cannot be written.
    """
    frames = frames_of(tables, judged)
    every, page = stem / "tables.csv", stem.with_name(stem.name + ".md")
    write_atomically(every, as_csv([spec.of(frames) for spec in file.tables]).encode())
    begun = tables.cells[tables.cells["status"] != "missing"]
    names = sorted(begun["dataset"].unique())
    figures = {
        name: spec.of(frames)
        for name, spec in file.figures.items()
        if len(frames[spec.panels[0].layers[0].frame or ""])
    }
    for place in range(0, len(names), PER_FIGURE):
        here = tables.cells[tables.cells["dataset"].isin(names[place : place + PER_FIGURE])]
        scores = figure_of("burt2020-fig3").of({"scores": scores_by_line(here, quick)})
        figures[f"scores-{place // PER_FIGURE + 1}"] = scores
    drawn = [write_figure(figure, stem / name, FIGURE_DOTS_PER_INCH)[0] for name, figure in figures.items()]
    write_atomically(page, render(tables, judged, file, sorted(figures), stem.name, quick).encode())
    return [page, every, *drawn]


def render(tables: Tables, judged: pd.DataFrame, file: StudyFile, figures: list[str], folder: str, quick: bool) -> str:
    """The page's text. Sentences about results appear only beside the published tables."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    shown = page_tables(tables) | {"verdicts": verdict_table(judged)}
    return environment.get_template(TEMPLATE).render(
        {name: _markdown(frame) for name, frame in shown.items()},
        published=is_published(tables, file),
        command=f"fsvi-bench reproduce burt2020-study{' --quick' if quick else ''} --out DIR",
        figures=figures,
        folder=folder,
        missing=tables.cells["status"].eq("missing").sum(),
        planned=len(tables.cells),
        datasets=tables.cells["dataset"].nunique(),
        splits=tables.cells["split"].nunique(),
        quick=quick,
    )


def is_published(tables: Tables, file: StudyFile) -> bool:
    """Whether these are the tables that the page's sentences are about."""
    both = as_text(tables.cells) + as_text(tables.curves)
    return hashlib.sha256(both.encode()).hexdigest() == file.published


def _markdown(frame: pd.DataFrame) -> str:
    return TableSpec(title="", frame="").of({"": frame}).markdown() if len(frame) else ""
