"""What all figures share: colours that are safe for colour-blind readers (Okabe and Ito's palette), sizes, files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure

from fsvi_bench.files import write_atomically
from fsvi_bench.resources import read_yaml

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ASSETS = Path(__file__).parent / "assets"
STYLE = ASSETS / "figures.mplstyle"  #: Matplotlib's settings for every figure
SPECS: dict[str, dict[str, Any]] = read_yaml(ASSETS / "figures.yaml")  # type: ignore[assignment]
PAGE_WIDTH = 7.0  #: inches of a printed page's text; at this width no letter is smaller than 8 points
SMALL = 8.0  #: points
DOTS_PER_INCH = 200
NO_LOGARITHM = 1e-9  #: a KL below this is 0 but for rounding, which a logarithmic axis cannot show


def write_figure(figure: Figure, stem: Path, dots_per_inch: int = DOTS_PER_INCH) -> list[Path]:
    """Writes `stem`.png and `stem`.svg, each whole or not at all; equal figures give equal bytes.

    Raises:
        InputError: the folder cannot be written.
    """
    paths = []
    for kind in ("png", "svg"):
        path = stem.with_name(f"{stem.name}.{kind}")
        write_atomically(path, figure_bytes(figure, stem.name, kind, dots_per_inch))
        paths.append(path)
    return paths


def figure_bytes(figure: Figure, name: str, kind: str, dots_per_inch: int = DOTS_PER_INCH) -> bytes:
    """A figure as `png` or `svg`; its name salts the identifiers within an SVG."""
    content = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    with style.context([STYLE, {"svg.hashsalt": name}]):
        figure.savefig(content, format=kind, dpi=dots_per_inch, metadata=metadata)
    return content.getvalue()
