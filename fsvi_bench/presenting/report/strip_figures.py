"""KL, NLPD, spectrum and coverage by method, all data sets side by side, as in figures 2 to 4 of Burt et al. (2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fsvi_bench.presenting.figures import NO_LOGARITHM
from fsvi_bench.presenting.report.appearance import INK, MUTED
from fsvi_bench.presenting.report.strips import Strip, draw_strips, linear, logarithmic
from fsvi_bench.presenting.report.study import REFERENCE, Entry, Study
from fsvi_bench.presenting.summary import Estimate

Row = Any

ROOM_FOR_COUNTS = 0.3  #: of the axis, at its right end, where cells that did not finish are counted
OUTLIER = 5.0  #: times the distance from the best NLPD to the median one: what is farther is written, not drawn
LOWEST = 1e-6  #: a ratio of variances that is less is drawn as a line to the edge: the variance of q is gone
LEVELS = {"50": 0.0, "90": 0.35, "95": 1.0}  #: of predictive intervals, and how full their marks are
DASHED = (0, (4, 3))
ZERO, UNKNOWN = Strip(words="◂ 0", side="left"), Strip(words="unknown")


def draw_kl(study: Study, datasets: Sequence[str]) -> Figure:
    """Mean KL with its standard error; open marks are KLs of the moments where q's own is infinite."""
    rows = {key: row for key, row in study.rows.items() if key[0] in datasets}
    figure, panels = draw_strips(
        study, datasets, "KL(q ‖ exact posterior), nats", lambda dataset, entry: _kl_strip(rows[dataset, entry])
    )
    found = (_kl_drawn(row)[0] for row in rows.values())
    shown = [value.mean for value in found if value is not None and NO_LOGARITHM <= value.mean < math.inf]
    low, high = (min(shown) / 3, max(shown) * 3) if shown else (0.1, 10.0)
    if any(row.finished < row.cells for row in rows.values()):
        high *= (high / low) ** ROOM_FOR_COUNTS
    for axes in panels.values():
        logarithmic(axes, low, high, len(datasets))
    return figure


def _kl_drawn(row: Row) -> tuple[Estimate | None, bool]:
    """The KL, or that of q's moments where it is infinite or unknown; and whether it is q's own."""
    own = row.scores.get("kl")
    if own is not None and math.isfinite(own.mean):
        return own, True
    return row.scores.get("kl_moment_matched"), False


def _kl_strip(row: Row) -> Strip:
    value, own = _kl_drawn(row)
    strip = UNKNOWN
    if value is not None:
        strip = Strip([(value.mean, float(own))], _ends(value))
        if math.isinf(value.mean):
            strip = Strip(words="∞ ▸", side="right")
        elif value.mean < NO_LOGARITHM:
            strip = ZERO
    return replace(strip, lacking=f"{row.cells - row.finished}/{row.cells}") if row.finished < row.cells else strip


def _ends(value: Estimate) -> tuple[float, float] | None:
    error = value.standard_error
    return None if error is None else (value.mean - error, value.mean + error)


def draw_nlpd(study: Study, datasets: Sequence[str]) -> Figure:
    """Mean NLPD with its standard error on each data set's own axis; a line stands at the exact posterior's."""
    found = {key: row.scores["nlpd"] for key, row in study.rows.items() if "nlpd" in row.scores}
    limits = {dataset: _nlpd_limits([v for key, v in found.items() if key[0] == dataset]) for dataset in datasets}

    def strip_of(dataset: str, entry: Entry) -> Strip:
        value = found.get((dataset, entry))
        if value is None:
            return UNKNOWN
        if value.mean <= limits[dataset][1]:
            return Strip([(value.mean, 1.0)], _ends(value))
        return Strip(words=f"{value.mean:.3g} ▸".replace("inf", "∞"), side="right")

    label = "NLPD, nats per test point in the target's own unit"
    figure, panels = draw_strips(study, datasets, label, strip_of)
    for (dataset, entry), value in found.items():
        if dataset in panels and (entry.method, entry.family) == (REFERENCE, "full"):
            panels[dataset].axvline(value.mean, color=MUTED, linewidth=0.8, linestyle=DASHED, zorder=1)
    for dataset, axes in panels.items():
        linear(axes, *limits[dataset], len(datasets))
    return figure


def _nlpd_limits(found: Sequence[Estimate]) -> tuple[float, float]:
    """From the lowest mean on; what is far above the median would flatten the rest, and is written at the edge."""
    frame = pd.DataFrame([(v.mean, v.standard_error or 0.0) for v in found], columns=["mean", "error"])
    frame = frame[np.isfinite(frame["mean"])]
    if frame.empty:
        return 0.0, 1.0
    least = frame["mean"].min()
    reach = max(OUTLIER * (frame["mean"].median() - least), 1e-3 * abs(least), 1e-9)
    low = high = least + reach
    for _ in range(3):  # what falls within for the bars of others brings its own
        drawn = frame[frame["mean"] <= high]
        low, high = (drawn["mean"] - drawn["error"]).min(), (drawn["mean"] + drawn["error"]).max()
    margin = 0.06 * (high - low) or 0.05 * max(abs(low), 1.0)
    return low - margin, high + margin


def draw_spectrum(study: Study, datasets: Sequence[str]) -> Figure:
    """A line from the least to the greatest quantile, thick from 25 to 75 %, with a mark at the median."""
    spectra = {
        key: median_spectrum(study, *key) for key, row in study.rows.items() if key[0] in datasets and row.finished
    }
    values = [v for spectrum in spectra.values() for v in spectrum if LOWEST < v < math.inf]
    low, high = min([0.1, *values]) / 1.5, min(max([10.0, *values]), 1e6) * 1.5

    def strip_of(dataset: str, entry: Entry) -> Strip:
        if spectra[dataset, entry][-1] < low:
            return ZERO
        # Every fifth of the 21 quantiles: 0, 25, 50, 75 and 100 %.
        least, lower, middle, upper, greatest = np.clip(spectra[dataset, entry][::5], low, high).tolist()
        return Strip([(middle, 1.0)], (least, greatest), (lower, upper), framed=True)

    label = "variance of q over the exact one, by direction (S*⁻¹ᐟ² S S*⁻¹ᐟ²)"
    figure, panels = draw_strips(study, datasets, label, strip_of)
    for axes in panels.values():
        logarithmic(axes, low, high, len(datasets))
        axes.axvline(1.0, color=INK, linewidth=0.8, zorder=1)
    return figure


def median_spectrum(study: Study, dataset: str, entry: Entry) -> list[float]:
    """Each quantile of the spectrum (0, 5, ..., 100 %), its median over the cells."""
    return np.median(study.finished(dataset, entry)["overconfidence.quantiles"].tolist(), axis=0).tolist()


def draw_calibration(study: Study, datasets: Sequence[str]) -> Figure:
    """Open, half and full marks for 50, 90 and 95 %; dotted lines at these levels, solid ones at the exact's own."""
    coverages = {key: mean_coverage(study, *key) for key, row in study.rows.items() if row.finished}

    def strip_of(dataset: str, entry: Entry) -> Strip:
        found = coverages[dataset, entry]
        if found.isna().any():
            return UNKNOWN
        marks = [(found[level], fullness) for level, fullness in LEVELS.items()]
        return Strip(marks, faint=(found["50"], found["95"]))

    label = "share of test targets within the central 50 % (open), 90 % (tinted) and 95 % (full) intervals"
    figure, panels = draw_strips(study, datasets, label, strip_of)
    for dataset, axes in panels.items():
        least = min(
            [0.45, *(found["50"] for key, found in coverages.items() if key[0] == dataset and found["50"] >= 0)]
        )
        axes.set_xlim(max(least - 0.05, -0.02), 1.02)
        axes.set_xticks([int(level) / 100 for level in LEVELS], ["50 %", "90", "95"])
        exact = exact_coverage(study, dataset)
        for level in LEVELS:
            axes.axvline(int(level) / 100, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
            axes.axvline(exact[level], color=INK, linewidth=0.7, zorder=1)
    return figure


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
