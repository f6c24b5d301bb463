"""The style of figures and methods; figures as files, and as parts of light and dark pages.

Methods differ in their markers as well as in their colours, the first of which are Okabe and Ito's.
"""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib import style
from matplotlib.figure import Figure

from fsvi_bench.files import write_atomically
from fsvi_bench.resources import read_yaml

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
#: Colours of figures in light mode; the page's style sheet has their dark counterparts under the same names.
GROUND = {
    "ink": "#1c2127", "muted": "#68707a", "rule": "#dfe3e8", "band": "#f6f7f9", "paper": "#ffffff", "failed": "#b3362b"
}  # fmt: skip
ASSETS = Path(__file__).parent / "assets"
STYLE = ASSETS / "figures.mplstyle"  #: Matplotlib's settings for every figure
SPECS: dict[str, dict[str, Any]] = read_yaml(ASSETS / "figures.yaml")  # type: ignore[assignment]
PAGE_WIDTH = 7.0  #: inches; the text width of a printed page, at which no letter is smaller than 8 points
DOTS_PER_INCH = 200
DOTS_IN_REPORT = 150  #: per inch, for figures as wide as a page


@dataclass(frozen=True)
class Look:
    """Colours for light and dark mode, and a marker that identifies it without colour."""

    light: str
    dark: str
    marker: str


_LOOKS: dict[str, Any] = read_yaml(ASSETS / "looks.yaml")  # type: ignore[assignment]
LOOKS = {method: Look(**look) for method, look in _LOOKS["methods"].items()}
_OTHERS = [Look(**look) for look in _LOOKS["others"]]


def method_place(method: str) -> tuple[int, str]:
    """Sort key of methods: the exact posterior first, external methods last, by name."""
    return ([*LOOKS].index(method), "") if method in LOOKS else (len(LOOKS), method)


def look(method: str) -> Look:
    """Colours and marker of a method. Those of an external method depend on its name only."""
    return LOOKS.get(method) or _OTHERS[sum(method.encode()) % len(_OTHERS)]


def looks(methods: pd.Series[str]) -> pd.DataFrame:
    """The columns `light`, `dark` and `marker` for these rows."""
    return pd.DataFrame([vars(look(method)) for method in methods], methods.index)


def colour_variables(dark: bool) -> dict[str, str]:
    """Custom properties of the page's style sheet for the colours of methods, by name."""
    return {colour_variable(each): each.dark if dark else each.light for each in (*LOOKS.values(), *_OTHERS)}


def colour_variable(each: Look) -> str:
    """The custom property with its colour."""
    return f"c-{each.light[1:]}"


def figure_style() -> AbstractContextManager[None]:
    """Matplotlib's settings for figures in pages."""
    return style.context(ASSETS / "report.mplstyle")


def write_figure(figure: Figure, stem: Path, dots_per_inch: int = DOTS_PER_INCH) -> list[Path]:
    """Writes `stem`.png and `stem`.svg atomically; equal figures give equal bytes.

    Raises:
        InputError: the folder cannot be written.
    """
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for path in paths:
        write_atomically(path, figure_bytes(figure, stem.name, path.suffix[1:], dots_per_inch))
    return paths


def figure_bytes(figure: Figure, name: str, kind: str, dots_per_inch: int = DOTS_PER_INCH) -> bytes:
    """A figure as `png` or `svg`; the identifiers in an SVG depend on its name."""
    content = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    with style.context([STYLE, {"svg.hashsalt": name}]):
        figure.savefig(content, format=kind, dpi=dots_per_inch, metadata=metadata)
    return content.getvalue()


@dataclass(frozen=True)
class Drawing:
    """A figure in a page: its markup, width in CSS pixels, texts, and the names of its files."""

    svg: Markup
    width: int
    description: str
    files: tuple[str, ...]
    subject: str = ""


def write_drawing(figure: Figure, name: str, folder: Path, description: str, subject: str = "") -> Drawing:
    """Writes a figure as PNG and SVG, and returns it for the page.

    Raises:
        InputError: the folder cannot be written.
    """
    paths = write_figure(figure, folder / name, DOTS_IN_REPORT)
    svg = Markup(svg_for_page(paths[1].read_text(encoding="utf-8")))  # Matplotlib has escaped the texts in it
    width = round(96 * float(figure.get_figwidth()))
    return Drawing(svg, width, description, tuple(path.name for path in paths), subject)


def svg_for_page(svg: str) -> str:
    """The markup of an SVG file for use in HTML: without its style sheet, and with fonts and colours of the page."""
    # Matplotlib repeats each text as a comment; nothing refers to identifiers that end in numbers.
    removed = r"<(metadata|style)\b.*?</\1>|<!--.*?-->| id=\"[^\"]*_\d+\"|xlink:(?=href)| font-family: [^;\"]*;?"
    svg = re.sub(removed, "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r"^<svg\b[^>]*?viewBox=\"([^\"]*)\"[^>]*>", r'<svg viewBox="\1" aria-hidden="true">', svg)
    for variable, colour in {**GROUND, **colour_variables(dark=False)}.items():
        svg = re.sub(rf"{colour}\b", f"var(--{variable})", svg)
    return re.sub(r">\s+<", "><", re.sub(r"\n\s*", " ", svg)).strip()


def inline_svg(figure: Figure, name: str) -> Markup:
    """A figure for a page whose policy forbids inline styles: they become attributes."""

    def attributes(style: re.Match[str]) -> str:
        return re.sub(r"\s*([\w-]+):\s*([^;]+);?", r' \1="\2"', style[1])

    svg = svg_for_page(figure_bytes(figure, name, "svg").decode())
    sized = svg.replace("<svg ", f'<svg width="{96 * figure.get_figwidth():.0f}" ', 1)
    return Markup(re.sub(r' style="([^"]*)"', attributes, sized))
