"""The report page: renders the content of all sections into one self-contained file."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.markers import MarkerStyle

from fsvi_bench.files import require_writable_directory, write_atomically
from fsvi_bench.presenting.looks import (
    ASSETS,
    Drawing,
    colour_variable,
    colour_variables,
    figure_style,
    look,
    write_drawing,
)
from fsvi_bench.presenting.report.figures import curves_of, draw_curves, draw_strips, exact_lines, lines_of
from fsvi_bench.presenting.report.sections import sections
from fsvi_bench.presenting.report.study import Study, read_study
from fsvi_bench.presenting.summary import three_digits
from fsvi_bench.presenting.tables import templates

PAGE = "report.html"
_LINK_TO_FIGURE = re.compile(r'href="((?:kl|nlpd|curves|spectrum|calibration)(?:-\d+)?\.(?:png|svg))"')
STRIPS = {
    "kl": "KL to the exact posterior by method",
    "nlpd": "NLPD by method",
    "spectrum": "Variance of q divided by the exact one, by method",
    "calibration": "Coverage of predictive intervals by method",
}
Figures = dict[str, list[Drawing]]  #: by section


def write_report(root: Path, folder: Path) -> Path:
    """Reads an output folder and writes `folder`/report.html, with its figures as PNG and SVG in the same folder.

    Equal records and traces give equal files. Obsolete figures of an earlier report are removed.

    Raises:
        InputError: `root` has no records, its records do not fit together, or `folder` cannot be written.
    """
    study = read_study(root)
    require_writable_directory(folder, "report folder", "choose another with --out")
    with figure_style():
        figures = _figures(study, folder)
    path = folder / PAGE
    # Only files that the earlier report links to: the folder may contain others.
    earlier = _LINK_TO_FIGURE.findall(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else []
    write_atomically(path, render(study, figures, root).encode(errors="backslashreplace"))
    for name in {*earlier} - {file for drawings in figures.values() for each in drawings for file in each.files}:
        (folder / name).unlink(missing_ok=True)
    return path


def _figures(study: Study, folder: Path) -> Figures:
    figures: Figures = defaultdict(list)
    if study.linear.summary["ok"].any():
        lines, exact = lines_of(study.linear), exact_lines(study.linear)
        shown = ", ".join(lines["dataset"].unique())
        for name, words in STRIPS.items():
            drawing = write_drawing(draw_strips(name, lines, exact), name, folder, f"{words}: {shown}")
            figures[name].append(drawing)
    for place, dataset in enumerate(study.datasets, 1):
        curves = curves_of(study, dataset)
        if len(curves):
            words, figure = f"KL against training steps and seconds on {dataset}", draw_curves(study, dataset, curves)
            figures["curves"].append(write_drawing(figure, f"curves-{place}", folder, words, dataset))
    return figures


def render(study: Study, figures: Figures, root: Path) -> str:
    """The HTML of the page."""
    template = environment(ASSETS).get_template("report.html.j2")
    page = template.render(root=root.resolve().name or str(root), figures=figures, **sections(study))
    return page.rstrip() + "\n"


def environment(*folders: Path) -> Environment:
    """Templates from these folders, with autoescaping and the functions that all pages share; see `base.html.j2`."""
    found = templates(*folders, autoescape=True, undefined=StrictUndefined)
    found.globals.update(marker=marker, asset=_asset, duration=duration, colours=colour_variables)
    return found


def _asset(name: str) -> Markup:
    """A style sheet or script from the assets, unescaped."""
    return Markup((ASSETS / name).read_text(encoding="utf-8"))


def marker(method: str) -> Markup:
    """The marker of a method in its colour, as wide as a letter."""
    style = MarkerStyle(look(method).marker).scaled(100, -100)
    (outline,) = style.get_path().to_polygons(style.get_transform())
    points = " ".join(f"{x:.0f},{y:.0f}" for x, y in np.asarray(outline))
    drawn = f'<polygon points="{points}" fill="var(--{colour_variable(look(method))})"/>'
    return Markup(f'<svg class="marker" viewBox="-70 -70 140 140" aria-hidden="true">{drawn}</svg>')


def duration(seconds: float) -> str:
    """A duration such as `42.0 s`, `12.0 min`, `3.40 h` or `108 days`."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{three_digits(seconds / size)} {unit}"
    return f"{three_digits(seconds)} s"
