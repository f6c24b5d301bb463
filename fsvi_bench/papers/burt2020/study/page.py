"""The study's page, `study.md`: made from its table and nothing else, so that equal tables give equal bytes."""

from __future__ import annotations

from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import ValidationError

from fsvi_bench.errors import InputError
from fsvi_bench.files import write_atomically
from fsvi_bench.papers.burt2020.numbers import steps_in_words
from fsvi_bench.papers.burt2020.sizes import LOWEST
from fsvi_bench.papers.burt2020.study import along, findings, progress, summary, verdicts
from fsvi_bench.papers.burt2020.study.claims import Judged
from fsvi_bench.papers.burt2020.study.figures import study_figures
from fsvi_bench.papers.burt2020.study.table import Tables
from fsvi_bench.papers.claims import Verdict
from fsvi_bench.papers.experiment import ExperimentNumbers
from fsvi_bench.presenting.figures import write_figure
from fsvi_bench.presenting.tables import Table

TEMPLATE = "study.md.j2"
#: Experiments of their own whose numbers the page shows, if `reproduce NAME --out FOLDER` has left them there.
EXPERIMENTS = {
    "burt2020-theory": "Propositions 3 to 9 in numbers",
    "burt2020-roots": "The KL of EXACT-FFG by feature root",
    "burt2020-shrinkage": "SSGE's score against the true one",
}
MOST_ROWS = 40  #: of an experiment's table that the page repeats
FIGURE_DOTS_PER_INCH = 120


def write_page(tables: Tables, judged: list[Judged], stem: Path, folder: Path, quick: bool) -> list[Path]:
    """Writes `stem`.md, with figures and what else it shows in `folder`.

    Raises:
        InputError: a folder cannot be written, or an experiment's numbers there are not what their name says.
    """
    figures = {}
    for name, figure in study_figures(tables, quick):
        path, _ = write_figure(figure, folder / name, FIGURE_DOTS_PER_INCH)
        figures[name] = path
    page = stem.with_name(stem.name + ".md")
    text = render(tables, judged, list(figures), folder, quick)
    write_atomically(page, text.encode())
    return [page, *figures.values()]


def render(tables: Tables, judged: list[Judged], figures: list[str], folder: Path, quick: bool) -> str:
    """The page's text; `folder` is named in links, and looked through for experiments.

    Raises:
        InputError: an experiment's file is not one.
    """
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["markdown"] = markdown
    rows = summary.size_rows(tables.cells, summary.datasets_of(tables.cells))
    return environment.get_template(TEMPLATE).render(
        **_tables(tables, judged),
        quick=quick,
        lowest=f"{LOWEST:g}",
        folder=folder.name,
        command=f"fsvi-bench reproduce burt2020-study{' --quick' if quick else ''} --out DIR",
        figures=figures,
        statuses=Counter(cell.status for cell in tables.cells),
        planned=len(tables.cells),
        findings=findings.findings(tables),
        rising=summary.rising_words(tables.cells),
        alike=summary.alike_words(tables.cells),
        stalls=along.stall_words(tables.curves),
        unseen=verdicts.unseen_words(judged),
        risen=along.risen_words(tables.curves),
        risen_least=f"{along.RISEN:g}",
        falling=along.falling_words(tables.curves),
        falling_least=f"{along.FALLING:g}",
        verdict_count=sum(each.verdict is not None for each in judged),
        not_begun=sorted({*summary.datasets_of(tables.cells)} - {*summary.begun_datasets(tables.cells)}),
        unnamed_kernels=any(cell.hardware and "MKL" not in cell.hardware for cell in tables.cells),
        jittered=sorted({cell.dataset for cell in tables.cells if cell.kl_jitter}),
        hardware=sorted({cell.hardware for cell in tables.cells if cell.hardware}),
        steps=" ".join(steps_in_words([row for row, _ in rows])),
        experiments=[_experiment(name, title, folder) for name, title in EXPERIMENTS.items()],
    )


def markdown(table: Table) -> str:
    """A table in GitHub's Markdown; None as a dash."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return summary.number(value)
    return "–" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def _tables(tables: Tables, judged: list[Judged]) -> dict[str, Table]:
    cells, curves = tables
    return {
        "overview": summary.overview_table(cells),
        "ranges": findings.ranges_table(cells),
        "progress": progress.progress_table(cells),
        "lacking": progress.missing_table(cells),
        "unbegun": progress.unbegun_table(cells),
        "results": summary.results_table(cells),
        "sizes": summary.sizes_table(cells),
        "verdicts": verdicts.verdict_table(judged),
        "judgements": verdicts.judgement_table(judged),
        "provenance": summary.provenance_table(cells),
        "spectrum": summary.spectrum_table(cells),
        "optimum": summary.optimum_table(cells),
        "other_optimum": summary.optimum_table(cells, summary.at_another_size),
        "drift": along.drift_table(cells, curves),
        "other_drift": along.drift_table(cells, curves, summary.at_another_size),
        "jitter": summary.jitter_table(cells),
    }


def _experiment(name: str, title: str, folder: Path) -> dict[str, Any]:
    """What an experiment left in the folder, or that it has yet to be made."""
    path = folder / f"{name}.json"
    here = {"name": name, "title": title, "found": path.is_file()}
    if not here["found"]:
        return here
    try:
        numbers = ExperimentNumbers.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise InputError(
            f"{path} is not the numbers of {name} ({type(error).__name__}); make them again with `reproduce {name}`"
        ) from error
    if numbers.figure != name:
        raise InputError(f"{path} holds the numbers of {numbers.figure}; make them again with `reproduce {name}`")
    short = [table for table in numbers.tables if len(table.rows) <= MOST_ROWS]
    long = [(table.title, len(table.rows)) for table in numbers.tables if len(table.rows) > MOST_ROWS]
    figure = f"{name}.png" if (folder / f"{name}.png").is_file() else None
    claims = _claims(numbers.claims)
    return {**here, "quick": numbers.quick, "claims": claims, "tables": short, "long": long, "figure": figure}


def _claims(judged: tuple[Verdict, ...]) -> Table:
    """Each claim above the statistic that was found."""
    rows = []
    for v in judged:
        outcome = "held" if v.holds else "undecided" if v.undecided else "did not hold"
        interval = "" if v.low == v.high else f" [{summary.number(v.low)}, {summary.number(v.high)}]"
        claim = f"{v.says}<br><sub>{escape(v.statistic, quote=False)}</sub>"
        rows.append((claim, summary.number(v.value) + interval, f"{v.side} {v.threshold:g}", outcome))
    columns = ("claim, and below it what was found", "found", "claimed", "outcome")
    return Table(title="Claims", columns=columns, rows=tuple(rows))
