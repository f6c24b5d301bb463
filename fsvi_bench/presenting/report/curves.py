"""KL against steps and against seconds on one data set: median over cells, band between the quartiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fsvi_bench.posteriors.base import Family
from fsvi_bench.presenting.figures import NO_LOGARITHM
from fsvi_bench.presenting.plots import FigureSpec, Layer, Panel
from fsvi_bench.presenting.report.appearance import BAND, look
from fsvi_bench.presenting.report.strips import WIDTH, power
from fsvi_bench.presenting.report.study import FAMILIES, REFERENCE, Entry, Study
from fsvi_bench.presenting.traces import Spread, spread_by_second, spread_by_step

MOST_POINTS = 40  #: of a curve; more cannot be told apart at this width
DASHES = ("-", "--", ":", "-.")  #: of a method's several settings
TALL, LOW, WIDEST = 3.1, 2.6, 5.6  #: inches of a panel
ALONG = {"steps": "training steps", "seconds": "training seconds per cell"}
LEGEND_COLUMNS = 5
COLUMNS = ["entry", "of_moments", "along", "place", "median", "lower_quartile", "upper_quartile"]


def curves_of(study: Study, dataset: str) -> pd.DataFrame:
    """The KL of each entry that has traces, at places greater than 0; of q's moments where its own is infinite."""
    found = [pd.DataFrame(columns=COLUMNS)]
    for entry in study.entries_on(dataset):
        if traces := study.traces(dataset, entry):
            singular = any(math.isinf(trace.points[-1].kl) for trace in traces)
            score = "kl_moment_matched" if singular else "kl"
            for along, spread in (("steps", spread_by_step), ("seconds", spread_by_second)):
                told: dict[str, Any] = {"entry": entry, "of_moments": singular, "along": along}
                found.append(_thinned(spread(traces, score)).assign(**told))
    return pd.concat(found[1:] or found)[COLUMNS]


def _thinned(curve: Sequence[tuple[float, Spread]]) -> pd.DataFrame:
    """At most so many points, evenly on a logarithmic axis; the last one stays, and what lies at 0 has no place."""
    points = pd.DataFrame(
        [{"place": place, **vars(spread)} for place, spread in curve if place > 0], columns=COLUMNS[3:]
    )
    if len(points) <= MOST_POINTS:
        return points
    along = np.log(points["place"] / points["place"].iloc[0])
    return points.groupby((along / along.iloc[-1] * (MOST_POINTS - 1)).round()).tail(1)


def draw_curves(study: Study, dataset: str, curves: pd.DataFrame) -> Figure:
    """Families from left to right, against steps above and against seconds below; with several M, a row for each."""
    entries = list(dict.fromkeys(curves["entry"]))
    families = [family for family in FAMILIES if any(entry.family == family for entry in entries)]
    sizes = sorted({size for entry in entries if (size := _size(entry)) is not None})
    places: list[tuple[float | None, Family, str]] = [(None, family, along) for along in ALONG for family in families]
    if several := len(sizes) > 1:
        places = list(product(sizes, families, ALONG))
    columns = len(families) * (len(ALONG) if several else 1)
    rows, names = len(places) // columns, _names(entries)
    figure = FigureSpec(
        height=rows * (LOW if several else TALL) + 0.2 * math.ceil(len(set(names.values())) / LEGEND_COLUMNS),
        width=min(WIDTH, WIDEST * columns),
        columns=columns,
        sharey="all",
        legend=LEGEND_COLUMNS,
        panels=tuple(_panel(study, dataset, *place, names, curves) for place in places),
    ).of({"curves": curves[np.isfinite(curves["median"].astype(float))]})
    for place, axes in enumerate(figure.axes):
        _lay_out(axes, *divmod(place, columns))
    return figure


def _panel(
    study: Study,
    dataset: str,
    size: float | None,
    family: Family,
    along: str,
    names: Mapping[Entry, str],
    curves: pd.DataFrame,
) -> Panel:
    """A family against steps or seconds, and of one number of measurement points if these are told apart.

    An entry without measurement points stands in the panels of every number of them. The dashed line is the KL of the
    best q of the family, where that is not 0.
    """
    layers = []
    here = [e for e in names if e.family == family and (size is None or _size(e) in (None, size))]
    for entry in here:
        seen, where = look(entry.method), {"entry": entry, "along": along}
        own = list(dict.fromkeys(name for each, name in names.items() if each.method == entry.method))
        of: dict[str, Any] = {"frame": "curves", "where": where, "optional": True, "x": "place", "y": "median", "colour": seen.light}
        ends: dict[str, Any] = {"low": "lower_quartile", "high": "upper_quartile"}
        line: dict[str, Any] = {"label": names[entry], "style": DASHES[own.index(names[entry]) % len(DASHES)]}
        line |= {"marker": seen.marker, "every": (sum(entry.method.encode()) % 5, 6)}
        layers += [Layer(kind="band", **of, **ends), Layer(kind="linepoints", **of, **line)]
    for exact in study.entries_on(dataset):
        best = study.rows[dataset, exact].scores.get("kl")
        if (exact.method, exact.family) == (REFERENCE, family) and best is not None and best.mean > NO_LOGARITHM:
            layers.append(Layer(kind="hline", y=best.mean, colour=look(REFERENCE).light, width=0.9, style="--"))
    of_family = curves["entry"].map(lambda entry: entry.family == family)
    moments = curves[of_family.astype(bool)]["of_moments"].any()
    return Panel(
        title="" if along != "steps" else f"{family}: KL of q’s moments" if moments else family,
        x=ALONG[along],
        y="KL, nats" if size is None else f"KL, nats; M = {size}",
        xscale="log",
        yscale="log",
        ylim=_limits(curves),
        legend=None,
        layers=tuple(layers),
    )


def _size(entry: Entry) -> float | None:
    """How many measurement points, if that is a number: what is not told by panels stands in all of them."""
    size = entry.hyperparameters.get("M")
    return size if isinstance(size, int | float) else None


def _names(entries: Sequence[Entry]) -> dict[Entry, str]:
    """Method and settings, M apart: panels tell that, lines tell the rest."""
    return {e: " ".join([e.method, *(w for w in e.settings.split() if not w.startswith("M="))]) for e in entries}


def _limits(curves: pd.DataFrame) -> tuple[float, float]:
    """From the least quartile to the greatest median: wide bands above may leave the panel."""
    known = curves[["lower_quartile", "median"]].astype(float)
    known = known[np.isfinite(known) & (known > NO_LOGARITHM)]
    low, high = known["lower_quartile"].min() / 1.5, known["median"].max() * 1.5
    return (low, high) if low < high else (0.1, 10.0)


def _lay_out(axes: Axes, row: int, column: int) -> None:
    """Numbers as they are read; those of y stand at the first panel of a row, families above the first row."""
    axes.set_title("" if row else axes.get_title(loc="left"), loc="left", fontweight="bold")
    axes.set_facecolor(BAND)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=5))
        axis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
        axis.set_minor_locator(NullLocator())
    axes.grid()
    if column:
        axes.set_ylabel("")
