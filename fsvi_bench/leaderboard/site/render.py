"""Templates of the report's kit, under a policy by which nothing but the site's own files is run or drawn."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment
from markupsafe import Markup
from matplotlib.figure import Figure

from fsvi_bench.leaderboard.board import Standing
from fsvi_bench.leaderboard.entry import DEVELOPMENT_DATASETS, BuiltIn
from fsvi_bench.leaderboard.site import words
from fsvi_bench.presenting.figures import ASSETS as SHARED
from fsvi_bench.presenting.figures import figure_bytes
from fsvi_bench.presenting.report.appearance import colour_variable, look, svg_for_page
from fsvi_bench.presenting.report.page import environment

if TYPE_CHECKING:
    from fsvi_bench.leaderboard.site.pages import Site

ASSETS = Path(__file__).parent / "assets"
FILTERS = ("digits", "fixed", "full", "sentence", "signed")
SCRIPTS = (SHARED / "page.js", ASSETS / "site.js", ASSETS / "compare.js")


def render(template: str, depth: int, site: Site, **context: Any) -> bytes:
    """A page; `depth` is how many folders below the first page it lies."""
    shared = {"root": "../" * depth, "site": site, "board": site.board, "edition": site.board.edition}
    return (_environment().get_template(template).render(shared, **context).rstrip() + "\n").encode()


@cache
def _environment() -> Environment:
    found = environment(ASSETS, SHARED)
    found.finalize = words.visible
    found.globals.update(titles=words.TABLES, scores=words.SCORES, development=DEVELOPMENT_DATASETS)
    found.globals.update(method_name=method_name, colour=colour)
    found.filters.update({name: getattr(words, name) for name in FILTERS})
    return found


def method_name(standing: Standing) -> str:
    """What decides an entry's marker and colour: its built-in method, or its class."""
    method = standing.entry.manifest.method
    return method.name if isinstance(method, BuiltIn) else method.class_


def colour(standing: Standing) -> str:
    """The custom property of its colour."""
    return f"var(--{colour_variable(look(method_name(standing)))})"


def asset_files() -> dict[str, bytes]:
    """Style sheet and scripts by their paths in the site; the report's own style comes first."""
    shared = _environment().get_template("style.css.j2").render()
    style = f"{shared}\n{(ASSETS / 'site.css').read_text(encoding='utf-8')}"
    return {"assets/style.css": style.encode()} | {f"assets/{path.name}": path.read_bytes() for path in SCRIPTS}


def inline(figure: Figure, name: str) -> Markup:
    """A figure as part of a page. Its styles become attributes, since the policy lets no page style itself."""

    def attributes(style: re.Match[str]) -> str:
        return re.sub(r"\s*([\w-]+):\s*([^;]+);?", r' \1="\2"', style[1])

    svg = svg_for_page(figure_bytes(figure, name, "svg").decode())
    sized = svg.replace("<svg ", f'<svg width="{96 * figure.get_figwidth():.0f}" ', 1)
    return Markup(re.sub(r' style="([^"]*)"', attributes, sized))
