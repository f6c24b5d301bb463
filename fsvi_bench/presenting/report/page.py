"""The page: every section's material, rendered into one file that needs nothing else."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle

from fsvi_bench.files import require_writable_directory, write_atomically
from fsvi_bench.presenting.report.appearance import (
    Drawing,
    colour_variable,
    colour_variables,
    figure_style,
    look,
    write_drawing,
)
from fsvi_bench.presenting.report.calibration_strips import draw_calibration
from fsvi_bench.presenting.report.comparison import RANKED, rankings
from fsvi_bench.presenting.report.curves import curves_of, draw_curves
from fsvi_bench.presenting.report.origin import origin
from fsvi_bench.presenting.report.overview import overview
from fsvi_bench.presenting.report.reading import read_results
from fsvi_bench.presenting.report.score_strips import draw_kl, draw_nlpd
from fsvi_bench.presenting.report.spectrum_strips import draw_spectrum
from fsvi_bench.presenting.report.strips import rows_of_panels
from fsvi_bench.presenting.report.study import Study, make_study
from fsvi_bench.presenting.report.tables import result_tables
from fsvi_bench.presenting.report.troubles import troubles

ASSETS = Path(__file__).parent / "assets"
PAGE = "report.html"
FEW_LINES = 60  #: of all result tables together, up to which all are open at first
MOST_PANELS = 8  #: in one row of a figure
FEW_CURVES = 3  #: data sets whose curves are open at first
_LINK_TO_FIGURE = re.compile(r'href="((?:kl|nlpd|curves|spectrum|calibration)(?:-\d+)?\.(?:png|svg))"')


def write_report(root: Path, folder: Path) -> Path:
    """Reads an output folder and writes `folder`/report.html with its figures as PNG and SVG beside it.

    Equal records and traces give equal files. Figures of an earlier report in that folder that this one does not have
    are removed.

    Raises:
        InputError: `root` holds no records, or what it holds does not go together; `folder` cannot be written.
    """
    study = make_study(read_results(root))
    require_writable_directory(folder, "report folder", "choose another with --out")
    with figure_style():
        figures = _figures(study, folder)
    path = folder / PAGE
    earlier = _figures_named_in(path)
    write_atomically(path, render(study, figures, root).encode())
    for name in earlier - set(figures.files()):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
    return path


def _figures_named_in(page: Path) -> set[str]:
    """Names of the figures beside an earlier report: only what it links to, since the folder may hold other things."""
    try:
        return set(_LINK_TO_FIGURE.findall(page.read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return set()


@dataclass(frozen=True)
class Figures:
    """Drawings by subject; `curves` by data set."""

    kl: list[Drawing]
    nlpd: list[Drawing]
    curves: dict[str, Drawing]
    spectrum: list[Drawing]
    calibration: list[Drawing]

    def files(self) -> list[str]:
        """Names of all files beside the page."""
        drawings = [*self.kl, *self.nlpd, *self.curves.values(), *self.spectrum, *self.calibration]
        return [name for drawing in drawings for name in drawing.files]


def _figures(study: Study, folder: Path) -> Figures:
    def strips(
        name: str, draw: Callable[[Study, Sequence[str]], Figure], words: str, most: int = MOST_PANELS
    ) -> list[Drawing]:
        rows = rows_of_panels(_with_results(study), most)
        named = [(name if len(rows) == 1 else f"{name}-{place}", row) for place, row in enumerate(rows, 1)]
        return [write_drawing(draw(study, row), stem, folder, f"{words}: {', '.join(row)}") for stem, row in named]

    curves = {}
    for place, dataset in enumerate(study.datasets, 1):
        if found := curves_of(study, dataset):
            words = f"KL against training steps and seconds on {dataset}"
            curves[dataset] = write_drawing(draw_curves(study, dataset, found), f"curves-{place}", folder, words)
    return Figures(
        kl=strips("kl", draw_kl, "KL to the exact posterior by method"),
        nlpd=strips("nlpd", draw_nlpd, "NLPD by method"),
        curves=curves,
        spectrum=strips("spectrum", draw_spectrum, "Variance of q over the exact one by method"),
        calibration=strips("calibration", draw_calibration, "Coverage of predictive intervals by method", most=4),
    )


def _with_results(study: Study) -> list[str]:
    return [d for d in study.datasets if any(row.finished for (name, _), row in study.rows.items() if name == d)]


def render(study: Study, figures: Figures, root: Path) -> str:
    """The page's text."""
    tables = result_tables(study)
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(marker=marker, asset=_asset, duration=duration)
    page = environment.get_template("page.html.j2").render(
        study=study,
        root=root.resolve().name or str(root),
        overview=overview(study),
        tables=tables,
        few_lines=sum(len(table.lines) for table in tables) <= FEW_LINES,
        few_curves=len(figures.curves) <= FEW_CURVES,
        rankings=rankings(study),
        ranked=RANKED,
        figures=figures,
        drawing=drawing,
        troubles=troubles(study),
        origin=origin(study),
        light=colour_variables(dark=False),
        dark=colour_variables(dark=True),
    )
    return page.rstrip() + "\n"


def _asset(name: str) -> Markup:
    """A style sheet or script of ours, as it is."""
    return Markup((ASSETS / name).read_text(encoding="utf-8"))


def drawing(of: Drawing) -> Markup:
    """An SVG that matplotlib wrote; it has escaped the texts in it."""
    return Markup(of.svg)


def marker(method: str) -> Markup:
    """A method's marker in its colour, as wide as a letter."""
    style = MarkerStyle(look(method).marker)
    path = style.get_path().transformed(style.get_transform())
    parts = [
        {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}[int(code)]
        + ("" if code == 79 else " ".join(f"{x:.2f} {-y:.2f}" for x, y in points.reshape(-1, 2)))
        for points, code in path.iter_segments(simplify=False)
    ]
    drawn = f'<path d="{"".join(parts)}" fill="var(--{colour_variable(look(method))})"/>'
    return Markup(f'<svg class="marker" viewBox="-0.7 -0.7 1.4 1.4" aria-hidden="true">{drawn}</svg>')


def duration(seconds: float) -> str:
    """`42 s`, `12 min`, `3.4 h`, `2.1 days`."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.3g} s"
