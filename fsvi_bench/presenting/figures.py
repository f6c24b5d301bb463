"""What all figures share: colours that are safe for colour-blind readers (Okabe and Ito's palette), sizes, files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from matplotlib import style
from matplotlib.figure import Figure

from fsvi_bench.files import write_atomically
from fsvi_bench.maths.blr import predictive_variance
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.tasks.task import Task

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
STYLE = Path(__file__).parent / "assets" / "figures.mplstyle"  #: Matplotlib's settings for every figure
PAGE_WIDTH = 7.0  #: inches of a printed page's text; at this width no letter is smaller than 8 points
SMALL = 8.0  #: points
DOTS_PER_INCH = 200
FAINT = 0.4  #: opacity of what is over fewer cells than planned
NO_LOGARITHM = 1e-9  #: a KL below this is 0 but for rounding, which a logarithmic axis cannot show


def curve(problem: Task, q: Posterior) -> pd.DataFrame:
    """f under q, without noise, at a problem's test inputs in rising order: mean, deviation, and ±2 of these.

    Raises:
        ValueError: the problem's inputs have more than one dimension.
    """
    if problem.X.shape[1] != 1:
        raise ValueError(f"inputs have {problem.X.shape[1]} dimensions, only one can be drawn")
    x, order = problem.X_test[:, 0].sort()
    Phi, no_noise = problem.Phi_test[order], torch.zeros((), dtype=torch.float64)
    deviation = predictive_variance(Phi, q.covariance_tril(), no_noise).sqrt()
    found = pd.DataFrame({"x": x, "mean": Phi @ q.mean, "sd": deviation})
    return found.assign(low=found["mean"] - 2 * found["sd"], high=found["mean"] + 2 * found["sd"])


def span(values: Sequence[int]) -> str:
    """From the least to the greatest, as `3–20`; one number if they are equal."""
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low}–{high}"


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
