"""KL against steps and against seconds on one data set: median over cells, band between the quartiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fsvi_bench.presenting.curves import spread_frame
from fsvi_bench.presenting.figures import NO_LOGARITHM
from fsvi_bench.presenting.plots import FigureSpec, Layer, Panel
from fsvi_bench.presenting.report.appearance import look
from fsvi_bench.presenting.report.strips import WIDTH
from fsvi_bench.presenting.report.study import FAMILIES, REFERENCE, Entry, Study
from fsvi_bench.presenting.traces import spread_by_second, spread_by_step

MOST_POINTS = 40  #: of a curve; more cannot be told apart at this width
DASHES = ("-", "--", ":", "-.")  #: of a method's several settings
TALL, LOW, WIDEST = 3.1, 2.6, 5.6  #: inches of a panel
ALONG = {"steps": "training steps", "seconds": "training seconds per cell"}
LEGEND_COLUMNS = 5


def curves_of(study: Study, dataset: str) -> pd.DataFrame:
    """The KL of each entry that has traces, at places greater than 0; of q's moments where its own is infinite."""
    found = []
    for entry in study.entries_on(dataset):
        traces = study.traces(dataset, entry)
        singular = any(math.isinf(trace.points[-1].kl) for trace in traces)
        score = "kl_moment_matched" if singular else "kl"
        told = {"method": entry.method, "family": entry.family, "size": _size(entry), "of_moments": singular}
        told["name"] = " ".join([entry.method, *(w for w in entry.settings.split() if not w.startswith("M="))])
        for along, spread in (("steps", spread_by_step), ("seconds", spread_by_second)):
            found.append(_thinned(spread_frame(spread(traces, score))).assign(**told, along=along))
    curves = pd.concat(found, ignore_index=True)
    return curves[np.isfinite(curves["median"])]


def _size(entry: Entry) -> float:
    """How many measurement points, if that is a number."""
    size = entry.hyperparameters.get("M")
    return size if isinstance(size, int | float) else math.nan


def _thinned(curve: pd.DataFrame) -> pd.DataFrame:
    """At most so many points, evenly on a logarithmic axis; the last one stays, and what lies at 0 has no place."""
    curve = curve[curve["place"] > 0]
    if len(curve) <= MOST_POINTS:
        return curve
    along = np.log(curve["place"] / curve["place"].iloc[0])
    return curve.groupby((along / along.iloc[-1] * (MOST_POINTS - 1)).round()).tail(1)


def draw_curves(study: Study, dataset: str, curves: pd.DataFrame) -> Figure:
    """Families from left to right, against steps above and against seconds below; with several M, a row for each.

    An entry without measurement points stands in the rows of every number of them. The dashed line is the KL of the
    best q of the family, where that is not 0.
    """
    families = [family for family in FAMILIES if family in set(curves["family"])]
    sizes = sorted(curves["size"].dropna().unique())
    several = len(sizes) > 1
    places = (
        list(product(sizes, families, ALONG)) if several else [(None, f, along) for along in ALONG for f in families]
    )
    columns = len(families) * (len(ALONG) if several else 1)
    spec = FigureSpec(
        height=len(places) // columns * (LOW if several else TALL)
        + 0.2 * math.ceil(curves["name"].nunique() / LEGEND_COLUMNS),
        width=min(WIDTH, WIDEST * columns),
        columns=columns,
        sharey="all",
        legend=LEGEND_COLUMNS,
        panels=tuple(_panel(curves, *where, *divmod(place, columns)) for place, where in enumerate(places)),
    )
    return spec.of({"curves": curves, "best": _best(study, dataset)})


def _best(study: Study, dataset: str) -> pd.DataFrame:
    """The KL of the best q of each family, where that is not 0."""
    entries = [entry for entry in study.entries_on(dataset) if entry.method == REFERENCE]
    found = [
        (entry.family, study.rows[dataset, entry].scores["kl"].mean)
        for entry in entries
        if study.rows[dataset, entry].finished
    ]
    best = pd.DataFrame(found, columns=["family", "kl"])
    return best[best["kl"] > NO_LOGARITHM]


def _panel(curves: pd.DataFrame, size: float | None, family: str, along: str, row: int, column: int) -> Panel:
    moments = curves.loc[curves["family"] == family, "of_moments"].any()
    where = {"family": family, "along": along} | ({} if size is None else {"size": [size, math.nan]})
    best = Layer(
        kind="hline",
        frame="best",
        where={"family": family},
        y="kl",
        colour=look(REFERENCE).light,
        width=0.9,
        style="--",
    )
    title = f"{family}: KL of q’s moments" if moments else family
    ylabel = "KL, nats" if size is None else f"KL, nats; M = {size:g}"
    known = curves[["lower_quartile", "median"]].clip(lower=NO_LOGARITHM)
    return Panel(
        title="" if row else title,
        x=ALONG[along],
        y="" if column else ylabel,
        xscale="log",
        yscale="log",
        ylim=(known.min(axis=None) / 1.5, known["median"].max() * 1.5),  # wide bands above may leave the panel
        ticks=5,
        legend=None,
        layers=(*_layers(curves, where), best),
    )


def _layers(curves: pd.DataFrame, where: dict[str, Any]) -> Iterator[Layer]:
    """A band and a line for each method; its several settings have line styles of their own."""
    for method, own in curves.groupby("method", sort=False):
        seen = look(method)
        of = {
            "frame": "curves",
            "where": where | {"method": method},
            "by": "name",
            "x": "place",
            "y": "median",
            "colour": seen.light,
        }
        styles = dict(zip(own["name"].unique(), DASHES, strict=False))
        yield Layer(kind="band", low="lower_quartile", high="upper_quartile", **of)
        yield Layer(
            kind="linepoints", label="{}", marker=seen.marker, style=styles, every=(sum(method.encode()) % 5, 6), **of
        )
