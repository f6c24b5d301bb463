"""Templates with everything escaped, and what all pages share."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fsvi_bench.leaderboard.site import words
from fsvi_bench.presenting.figures import ASSETS as REPORT_ASSETS
from fsvi_bench.presenting.report.appearance import colour_variable, colour_variables, look
from fsvi_bench.presenting.report.page import duration
from fsvi_bench.presenting.report.page import marker as drawn_marker

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("early.js", "site.js", "student.js", "compare.js")
#: Nothing but files of the site; a script or a style within a page would not run even if a stranger's text were one.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"


def render(template: str, depth: int, **context: Any) -> bytes:
    """A page; `depth` is how many folders below the first page it lies."""
    page = _environment().get_template(template).render(root="../" * depth, policy=POLICY, **context)
    return (page.rstrip() + "\n").encode()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(marker=marker, duration=duration, colour=colour)
    named = ("digits", "signed", "interval", "fixed", "full", "ordinal", "visible")
    environment.filters.update({name: getattr(words, name) for name in named}, listed=words.join)
    return environment


@cache
def marker(method: str) -> Markup:
    """A method's marker in its colour."""
    return drawn_marker(method)


def colour(method: str) -> str:
    """The class that gives a drawing a method's colour."""
    return f"by-{colour_variable(look(method))}"


def asset_files() -> dict[str, bytes]:
    """Style sheet and scripts by their paths in the site."""
    files = {f"assets/{name}": (ASSETS / name).read_bytes() for name in SCRIPTS}
    return files | {"assets/style.css": _style().encode()}


def _style() -> str:
    """The report's own style first, so that both look alike."""
    light, dark = (_root(colour_variables(dark=ground)) for ground in (False, True))
    classes = "\n".join(f".by-{name} {{ --mark: var(--{name}); }}" for name in colour_variables(dark=False))
    shared = (REPORT_ASSETS / "page.css").read_text(encoding="utf-8")
    own = (ASSETS / "site.css").read_text(encoding="utf-8")
    variables = f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n@media print {{ {light} }}"
    return f"{variables}\n{classes}\n{shared}\n{own}"


def _root(variables: dict[str, str]) -> str:
    return ":root { " + " ".join(f"--{name}: {value};" for name, value in variables.items()) + " }"
