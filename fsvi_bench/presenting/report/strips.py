"""KL, NLPD, spectrum and coverage: a line per method, family and settings, a panel per data set.

The figures follow 2 to 4 of Burt et al. (2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fsvi_bench.presenting.plots import FigureSpec, Layer, Panel
from fsvi_bench.presenting.report.appearance import FAILED, INK, MUTED, PAPER, look
from fsvi_bench.presenting.report.study import REFERENCE, Entry, Study
from fsvi_bench.presenting.summary import Estimate, Row
from fsvi_bench.presenting.tables import Frames

WIDTH = 12.0  #: inches; the page's text is as wide
WIDEST_PANEL = 5.2
LINE, METHOD_GAP = 0.2, 0.45  #: inches per line; the gap between methods as a share of it
AROUND = 1.0  #: inches above and below the panels
LETTER = 0.068  #: inches, about, of a letter beside a line
MOST_LETTERS = 65  #: of names beside the lines; longer ones are cut short (the tables have them whole)
REACH = (1e-6, 1e6)  #: of the spectrum's axis: beyond it a variance of q is gone, or unbounded
LEVELS = {"50": 0.0, "90": 0.35, "95": 1.0}  #: of predictive intervals, and how full their marks are
QUARTILES = ("least", "lower", "value", "upper", "greatest")
WORDS = Layer(kind="words", frame="lines", y="place", text="words", colour=MUTED)
Values = dict[
    str, Any
]  #: `value` (in one panel's line at most NaN), its `low` and `high`, and what else a figure shows


def draw_kl(study: Study, datasets: Sequence[str]) -> Figure:
    """Mean KL with its standard error; open marks are KLs of the moments where q's own is infinite or unknown.

    At the right stands how many cells did not finish.
    """
    lines = _lines(study, datasets, lambda dataset, entry: [_kl(study.rows[dataset, entry])])
    lacking = Layer(kind="words", frame="lines", y="place", text="lacking", at=1.02, colour=FAILED)
    marks = _marks(lines, kind="intervals", fill="fill", beyond="place")
    label = "KL(q ‖ exact posterior), nats"
    return _figure({"lines": lines}, label, marks, WORDS, lacking, sharex="all", xscale="log")


def _kl(row: Row) -> Values:
    own = row.scores.get("kl")
    whole = own is not None and math.isfinite(own.mean)
    lacking = f"{row.cells - row.finished}/{row.cells}" if 0 < row.finished < row.cells else ""
    value = own if whole else row.scores.get("kl_moment_matched")
    return {**_estimated(value), "fill": float(whole), "lacking": lacking}


def _estimated(value: Estimate | None) -> Values:
    """A mean and its standard error."""
    if value is None:
        return dict.fromkeys(("value", "low", "high"), math.nan)
    error = math.nan if value.standard_error is None else value.standard_error
    return {"value": value.mean, "low": value.mean - error, "high": value.mean + error}


def draw_nlpd(study: Study, datasets: Sequence[str]) -> Figure:
    """Mean NLPD with its standard error on each data set's own axis; a line stands at the exact posterior's."""
    lines = _lines(study, datasets, lambda *place: [_estimated(study.rows[place].scores.get("nlpd"))])
    where = {"method": REFERENCE, "family": "full"}
    exact = Layer(kind="vline", frame="lines", where=where, x="value", colour=MUTED, width=0.8, style="--")
    marks = _marks(lines, kind="intervals", beyond="place")
    return _figure(
        {"lines": lines}, "NLPD, nats per test point in the target's own unit", marks, WORDS, exact, fence=True
    )


def draw_spectrum(study: Study, datasets: Sequence[str]) -> Figure:
    """A line from the least to the greatest quantile, thick from 25 to 75 %, with a mark at the median."""

    def of(dataset: str, entry: Entry) -> list[Values]:
        # Every fifth of the 21 quantiles: 0, 25, 50, 75 and 100 %.
        return [dict(zip(QUARTILES, median_spectrum(study, dataset, entry)[::5], strict=True))]

    lines = _lines(study, datasets, of)
    whole = _marks(lines, kind="intervals", low="least", high="greatest", marker="none", width=1.1)
    middle = _marks(lines, kind="intervals", low="lower", high="upper", marker="none", width=4.6, alpha=0.42)
    median = _marks(lines, kind="points", size=6.4, edge=PAPER, beyond="place")
    one = Layer(kind="vline", x=1.0, colour=INK, width=0.8)
    seen = lines[["least", "value", "greatest"]].to_numpy(float)
    seen = seen[(seen > REACH[0]) & (seen < REACH[1])]
    limits = (min([0.1, *seen]) / 1.5, max([10.0, *seen]) * 1.5)
    label = "variance of q over the exact one, by direction (S*⁻¹ᐟ² S S*⁻¹ᐟ²)"
    return _figure({"lines": lines}, label, whole, middle, median, WORDS, one, xscale="log", xlim=limits)


def median_spectrum(study: Study, dataset: str, entry: Entry) -> list[float]:
    """Each quantile of the spectrum (0, 5, ..., 100 %), its median over the cells."""
    return np.median(study.finished(dataset, entry)["overconfidence.quantiles"].tolist(), axis=0).tolist()


def draw_calibration(study: Study, datasets: Sequence[str]) -> Figure:
    """Open, tinted and full marks for 50, 90 and 95 %; dotted lines at these levels, solid ones at the exact's own."""

    def of(dataset: str, entry: Entry) -> list[Values]:
        found = 100 * mean_coverage(study, dataset, entry)
        ends = {"low": found["50"], "high": found["95"]}
        return [{"value": found[level], "fill": fill, **ends} for level, fill in LEVELS.items()]

    lines = _lines(study, datasets, of)
    exact = [{"dataset": name, "level": 100 * level} for name in datasets for level in exact_coverage(study, name)]
    between = _marks(lines, kind="intervals", where={"fill": 0.0}, marker="none", width=0.7, alpha=0.5)
    marks = _marks(lines, kind="points", fill="fill")
    levels = [Layer(kind="vline", x=float(level), colour=MUTED, width=0.9, style=":") for level in LEVELS]
    own = Layer(kind="vline", frame="exact", x="level", colour=INK, width=0.7)
    label = "% of test targets within the central 50 % (open), 90 % (tinted) and 95 % (full) intervals"
    frames = {"lines": lines, "exact": pd.DataFrame(exact)}
    return _figure(frames, label, between, marks, WORDS, *levels, own, xticks=[50, 90, 95], ticks=None)


def mean_coverage(study: Study, dataset: str, entry: Entry) -> pd.Series[float]:
    """Level -> share of test targets inside, over splits (seeds averaged first); missing where it does not apply."""
    return _by_level(study.finished(dataset, entry), "coverage")


def exact_coverage(study: Study, dataset: str) -> pd.Series[float]:
    """The same of the exact posterior, over all splits on which anything finished."""
    finished = pd.concat([study.finished(dataset, entry) for entry in study.entries_on(dataset)])
    return _by_level(finished.drop_duplicates("split"), "coverage_exact")


def _by_level(finished: pd.DataFrame, name: str) -> pd.Series[float]:
    columns = {f"{name}.{level}": level for level in LEVELS}
    shares = finished[["split", *columns]].rename(columns=columns).astype(float)
    return shares.groupby("split").mean().mean().where(shares.notna().all())


def _lines(study: Study, datasets: Sequence[str], of: Callable[[str, Entry], list[Values]]) -> pd.DataFrame:
    """What `of` says about each entry on each data set, and words where it says nothing, with the places of lines."""
    lines = pd.DataFrame({"entry": study.entries_on(*datasets)})
    lines["method"] = [entry.method for entry in lines["entry"]]
    lines["family"] = [entry.family for entry in lines["entry"]]
    lines["place"] = lines.index + METHOD_GAP * lines.groupby("method", sort=False).ngroup()
    # A method's name stands beside its first line only.
    names = zip(lines["entry"], lines.duplicated("method"), strict=True)
    lines["name"] = [shorten(e.variant if again else f"{e.method}   {e.variant}", MOST_LETTERS) for e, again in names]
    found = [
        {"dataset": dataset, "entry": entry, "words": "unknown" if row.finished else "none finished", **values}
        for dataset in datasets
        for entry in study.entries_on(dataset)
        for row in [study.rows[dataset, entry]]
        for values in (of(dataset, entry) if row.finished else [{"value": math.nan}])
    ]
    shown = pd.DataFrame(found).merge(lines, on="entry")
    return shown.assign(words=shown["words"].where(shown["value"].isna(), ""))


def _marks(lines: pd.DataFrame, **settings: Any) -> Layer:
    """A layer in the colours of the methods, with their markers."""
    found = {method: look(method) for method in lines["method"]}
    looks = {"colour": {method: each.light for method, each in found.items()}}
    looks |= {"marker": {method: each.marker for method, each in found.items()}}
    common = {"frame": "lines", "x": "value", "y": "place", "by": "method", "size": 5.6, "width": 1.1, "caps": 0.0}
    return Layer(**common | looks | settings)


def _figure(
    frames: Frames, label: str, *layers: Layer, sharex: Literal["none", "all"] = "none", **settings: Any
) -> Figure:
    """A panel for each data set of the frame `lines`; `label` is that of the axes below."""
    lines = frames["lines"]
    panels = lines["dataset"].nunique()
    common = {"horizontal": True, "names": "name", "groups": "method", "ticks": 3 if panels > 4 else 5}
    panel = Panel(layers=layers, **common | settings)
    spec = FigureSpec(
        height=AROUND + LINE * (lines["place"].max() + 1),
        width=min(WIDTH, LETTER * lines["name"].str.len().max() + 0.5 + WIDEST_PANEL * panels),
        columns=panels,
        sharex=sharex,
        sharey="all",
        x=label,
        each="dataset",
        panels=(panel,),
    )
    return spec.of(frames)


def shorten(words: str, letters: int) -> str:
    """Words of at most so many letters, the last an ellipsis where some are cut off."""
    return words if len(words) <= letters else f"{words[: letters - 1].rstrip()}…"
