"""How methods look, the same in every figure; and figures as part of a page that may be light or dark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from fsvi_bench.presenting.figures import write_figure

#: Colours of a figure on light ground; the page's style sheet has their dark counterparts by the same names.
INK, MUTED, RULE, BAND, PAPER, FAILED = "#1c2127", "#68707a", "#dfe3e8", "#f6f7f9", "#ffffff", "#b3362b"
DOTS_PER_INCH = 150  #: of the PNG files, which are as wide as a page
GROUND = {"ink": INK, "muted": MUTED, "rule": RULE, "band": BAND, "paper": PAPER, "failed": FAILED}


@dataclass(frozen=True)
class Look:
    """Colour on light and on dark ground, and a marker that tells it apart without colour."""

    light: str
    dark: str
    marker: str


#: Okabe and Ito's hues, darkened until they stand 3:1 against white, and more where they are not enough.
#: Methods that share a family, and so a panel, are far apart in hue or in lightness.
LOOKS = {
    "exact": Look("#3a4149", "#c6ccd3", "o"),
    "fixed-a": Look("#0072b2", "#56b4e9", "s"),
    "rand-a": Look("#d55e00", "#f08c3e", "o"),
    "rand-a-ngd": Look("#a87400", "#e6b422", "D"),
    "ssge": Look("#008f68", "#2fc79a", "^"),
    "mean-field-vi": Look("#b5487f", "#e394bd", "v"),
    "gaussian-dropout": Look("#6a4fb0", "#a996e6", "P"),
    "variational-dropout": Look("#7a4a21", "#c99a6b", "X"),
    "sparse-variational-dropout": Look("#11808f", "#5cc9d6", "<"),
    "bernoulli-dropout": Look("#2a5fd0", "#86a9f7", "p"),
    "concrete-dropout": Look("#9a3b3b", "#e38a83", "h"),
    "spike-and-slab": Look("#5f6b00", "#b9c449", ">"),
}
_BUILT_IN = tuple(LOOKS)
_OTHERS = (Look("#7d7d00", "#cfcf52", "d"), Look("#a03fa0", "#df8fdf", "*"), Look("#4d6f80", "#9fbfd0", "8"))


def method_place(method: str) -> tuple[int, str]:
    """Where a method stands among others: the exact posterior first, methods from outside last, by name."""
    return (_BUILT_IN.index(method), "") if method in LOOKS else (len(_BUILT_IN), method)


def look(method: str) -> Look:
    """A method's colours and marker. One from outside gets those that its name decides: the same in every report."""
    return LOOKS.get(method) or _OTHERS[sum(method.encode()) % len(_OTHERS)]


def colour_variables(dark: bool) -> dict[str, str]:
    """Custom properties of the page's style sheet, by name, for every colour of a method."""
    return {colour_variable(each): each.dark if dark else each.light for each in (*LOOKS.values(), *_OTHERS)}


def colour_variable(each: Look) -> str:
    """The custom property that holds its colour."""
    return f"c-{each.light[1:]}"


@contextmanager
def figure_style() -> Iterator[None]:
    """Matplotlib's settings for a report's figures: quiet axes, letters that stay letters."""
    settings = {
        "svg.fonttype": "none",
        "text.parse_math": False,  # names come from outside
        "font.family": ["sans-serif"],
        "text.color": INK,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.linewidth": 0.7,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.major.width": 0.7,
        "ytick.major.width": 0.7,
        "xtick.minor.width": 0.4,
        "grid.color": RULE,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
    }
    with matplotlib.rc_context(settings):  # type: ignore[arg-type]
        yield


@dataclass(frozen=True)
class Drawing:
    """A figure's place in the page: its markup, the names of its files, its width in CSS pixels, and its words."""

    name: str
    svg: str
    width: int
    height: int
    description: str
    files: tuple[str, ...]


def write_drawing(figure: Figure, name: str, folder: Path, description: str) -> Drawing:
    """Writes a figure as PNG and SVG and returns it as it stands in the page.

    Raises:
        InputError: the folder cannot be written.
    """
    paths = write_figure(figure, folder / name, DOTS_PER_INCH)
    width, height = (round(float(inches) * 96) for inches in figure.get_size_inches())
    svg = _for_page(paths[1].read_text(encoding="utf-8"), name)
    return Drawing(name, svg, width, height, description, tuple(path.name for path in paths))


def _for_page(svg: str, name: str) -> str:
    """The markup of an SVG file to stand within HTML: no prologue, names of its own, colours by the page's ground."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.S)  # a style sheet would rule the whole page
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)  # matplotlib repeats each text as a comment
    svg = re.sub(r"^<svg\b[^>]*?viewBox=\"([^\"]*)\"[^>]*>", r'<svg viewBox="\1" aria-hidden="true">', svg)
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", svg).replace("xlink:href", "href")
    svg = re.sub(r" font-family: [^;\"]*;?", "", svg)
    variables = {colour: variable for variable, colour in {**GROUND, **colour_variables(dark=False)}.items()}
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda m: f"var(--{variables[m[0]]})" if m[0] in variables else m[0], svg)
    return re.sub(r">\s+<", "><", re.sub(r"\n\s*", " ", svg)).strip()
