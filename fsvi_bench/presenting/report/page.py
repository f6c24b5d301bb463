"""The page: every section's material, rendered into one file that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.markers import MarkerStyle

from fsvi_bench.files import require_writable_directory, write_atomically
from fsvi_bench.presenting.report.appearance import (
    ASSETS,
    Drawing,
    colour_variable,
    colour_variables,
    figure_style,
    look,
    write_drawing,
)
from fsvi_bench.presenting.report.figures import curves_of, draw_curves, draw_strips
from fsvi_bench.presenting.report.sections import sections
from fsvi_bench.presenting.report.study import Study, read_study

PAGE = "report.html"
_LINK_TO_FIGURE = re.compile(r'href="((?:kl|nlpd|curves|spectrum|calibration)(?:-\d+)?\.(?:png|svg))"')
#: How many panels they have in a row at most, and what they show.
STRIPS = {
    "kl": (8, "KL to the exact posterior by method"),
    "nlpd": (8, "NLPD by method"),
    "spectrum": (8, "Variance of q over the exact one by method"),
    "calibration": (4, "Coverage of predictive intervals by method"),
}
Figures = dict[str, list[Drawing]]  #: by section


def write_report(root: Path, folder: Path) -> Path:
    """Reads an output folder and writes `folder`/report.html with its figures as PNG and SVG beside it.

    Equal records and traces give equal files. Figures of an earlier report in that folder that this one does not have
    are removed.

    Raises:
        InputError: `root` holds no records, or what it holds does not go together; `folder` cannot be written.
    """
    study = read_study(root)
    require_writable_directory(folder, "report folder", "choose another with --out")
    with figure_style():
        figures = _figures(study, folder)
    path = folder / PAGE
    # Only what an earlier report links to: the folder may hold other things.
    earlier = _LINK_TO_FIGURE.findall(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else []
    write_atomically(path, render(study, figures, root).encode())
    for name in {*earlier} - {file for drawings in figures.values() for each in drawings for file in each.files}:
        (folder / name).unlink(missing_ok=True)
    return path


def _figures(study: Study, folder: Path) -> Figures:
    shown = sorted(study.summary.loc[study.summary["ok"] > 0, "dataset"].unique())
    figures: Figures = {}
    for name, (most, words) in STRIPS.items():
        rows = rows_of_panels(shown, most)
        stems = [name] if len(rows) == 1 else [f"{name}-{place}" for place in range(1, len(rows) + 1)]
        figures[name] = [
            write_drawing(draw_strips(name, study, row), stem, folder, f"{words}: {', '.join(row)}")
            for stem, row in zip(stems, rows, strict=True)
        ]
    figures["curves"] = []
    for place, dataset in enumerate(study.datasets, 1):
        if not (curves := curves_of(study, dataset)).empty:
            words, figure = f"KL against training steps and seconds on {dataset}", draw_curves(study, dataset, curves)
            figures["curves"].append(write_drawing(figure, f"curves-{place}", folder, words, dataset))
    return figures


def rows_of_panels(datasets: Sequence[str], most: int) -> list[list[str]]:
    """Data sets in as few rows of at most so many as there can be, of nearly equal length."""
    rows = -(-len(datasets) // most)
    return [row.tolist() for row in np.array_split(list(datasets), rows)] if rows else []


def render(study: Study, figures: Figures, root: Path) -> str:
    """The page's text."""
    template = environment(ASSETS).get_template("report.html.j2")
    page = template.render(root=root.resolve().name or str(root), figures=figures, **sections(study))
    return page.rstrip() + "\n"


def environment(*folders: Path) -> Environment:
    """Templates of these folders with everything escaped, and what all pages share: `base.html.j2` is one to extend."""
    loader = FileSystemLoader(folders)
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.globals.update(marker=marker, asset=_asset, duration=duration, colours=colour_variables)
    return found


def _asset(name: str) -> Markup:
    """A style sheet or script of ours, as it is."""
    return Markup((ASSETS / name).read_text(encoding="utf-8"))


def marker(method: str) -> Markup:
    """A method's marker in its colour, as wide as a letter."""
    style = MarkerStyle(look(method).marker)
    path = style.get_path().transformed(style.get_transform())
    commands: Iterable[str] = (
        {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}[int(code)]
        + ("" if code == 79 else " ".join(f"{x:.2f} {-y:.2f}" for x, y in points.reshape(-1, 2)))
        for points, code in path.iter_segments(simplify=False)
    )
    drawn = f'<path d="{"".join(commands)}" fill="var(--{colour_variable(look(method))})"/>'
    return Markup(f'<svg class="marker" viewBox="-0.7 -0.7 1.4 1.4" aria-hidden="true">{drawn}</svg>')


def duration(seconds: float) -> str:
    """`42 s`, `12 min`, `3.4 h`, `2.1 days`."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.3g} s"
