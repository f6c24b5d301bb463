"""The report's figures: the frames that `assets/figures.yaml` is about, and how large each figure is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fsvi_bench.presenting.curves import spread_frame
from fsvi_bench.presenting.figures import NO_LOGARITHM
from fsvi_bench.presenting.plots import FigureSpec
from fsvi_bench.presenting.report.appearance import ASSETS, look
from fsvi_bench.presenting.report.study import FAMILIES, REFERENCE, Entry, Study
from fsvi_bench.presenting.traces import spread_by_second, spread_by_step
from fsvi_bench.resources import read_yaml

SPECS: dict[str, dict[str, Any]] = read_yaml(ASSETS / "figures.yaml")  # type: ignore[assignment]
WIDTH = 12.0  #: inches; the page's text is as wide
WIDEST = 5.2  #: inches of a panel
LINE, METHOD_GAP = 0.2, 0.45  #: inches per line; the gap between methods as a share of it
AROUND = 1.0  #: inches above and below strips
LETTER = 0.068  #: inches, about, of a letter beside a line
MOST_LETTERS = 65  #: of names beside the lines; longer ones are cut short (the tables have them whole)
LEVELS = ("50", "90", "95")  #: of predictive intervals, in %
MOST_POINTS = 40  #: of a curve; more cannot be told apart at this width
DASHES = ("-", "--", ":", "-.")  #: of a method's several settings
COURSE = 2.6  #: inches of a panel of curves


def draw_strips(name: str, study: Study, datasets: Sequence[str]) -> Figure:
    """A figure of `STRIPS` with panels for these data sets side by side."""
    lines = lines_of(study, datasets)
    exact = [{"dataset": name, "level": level} for name in datasets for level in exact_coverage(study, name)]
    spec = FigureSpec(
        **SPECS[name],
        height=AROUND + LINE * (lines["place"].max() + 1),
        width=min(WIDTH, LETTER * lines["name"].str.len().max() + 0.5 + WIDEST * len(datasets)),
        columns=len(datasets),
    )
    return spec.of({"lines": lines, "exact": pd.DataFrame(exact)})


def lines_of(study: Study, datasets: Sequence[str]) -> pd.DataFrame:
    """What strips show: a row per data set and entry, with the place of its line; words where a score is missing."""
    entries = pd.DataFrame({"entry": study.entries_on(*datasets)})
    for name in ("method", "family"):
        entries[name] = [getattr(entry, name) for entry in entries["entry"]]
    entries["place"] = entries.index + METHOD_GAP * entries.groupby("method", sort=False).ngroup()
    # A method's name stands beside its first line only.
    first = ~entries.duplicated("method")
    names = [
        f"{e.method}   {e.variant}" if named else e.variant for e, named in zip(entries["entry"], first, strict=True)
    ]
    entries["name"] = [shorten(name, MOST_LETTERS) for name in names]
    rows = [_line(study, dataset, entry) for dataset in datasets for entry in study.entries_on(dataset)]
    lines = pd.DataFrame(rows).merge(entries, on="entry").assign(one=1.0)
    for score in ("kl", "nlpd", "middle", "inside_50"):
        missing = [~lines["any_finished"], lines[score].isna()]
        lines[f"{score}_words"] = np.select(missing, ["none finished", "unknown"], "")
    return lines


def _line(study: Study, dataset: str, entry: Entry) -> dict[str, Any]:
    row = study.row(dataset, entry)
    cells, ok = row[["cells", "ok"]].iloc[0]
    whole = math.isfinite(row.loc["kl", "mean"])
    line = {"dataset": dataset, "entry": entry, "any_finished": ok > 0, "kl_own": float(whole)}
    line |= {"colour": look(entry.method).light, "marker": look(entry.method).marker}
    line["lacking"] = f"{cells - ok}/{cells}" if 0 < ok < cells else ""
    line |= _estimated("kl", row.loc["kl" if whole else "kl_moment_matched"])
    line |= _estimated("nlpd", row.loc["nlpd"])
    if ok:
        # Every fifth of the 21 quantiles: 0, 25, 50, 75 and 100 %.
        names = ("least", "lower", "middle", "upper", "greatest")
        line |= dict(zip(names, median_spectrum(study, dataset, entry)[::5], strict=True))
        line |= {f"inside_{level}": share for level, share in mean_coverage(study, dataset, entry).items()}
    return line


def _estimated(score: str, number: pd.Series) -> dict[str, float]:
    """A mean, and from where to where its standard error reaches; of one split only the mean."""
    mean, error = number["mean"], number["standard_error"]
    return {score: mean, f"{score}_low": mean - error, f"{score}_high": mean + error}


def median_spectrum(study: Study, dataset: str, entry: Entry) -> list[float]:
    """Each quantile of the spectrum (0, 5, ..., 100 %), its median over the cells."""
    return np.median(study.finished(dataset, entry)["overconfidence.quantiles"].tolist(), axis=0).tolist()


def mean_coverage(study: Study, dataset: str, entry: Entry) -> pd.Series[float]:
    """Level -> % of test targets inside, over splits (seeds averaged first); missing where it does not apply."""
    return _by_level(study.finished(dataset, entry), "coverage")


def exact_coverage(study: Study, dataset: str) -> pd.Series[float]:
    """The same of the exact posterior, over all splits on which anything finished."""
    finished = pd.concat([study.finished(dataset, entry) for entry in study.entries_on(dataset)])
    return _by_level(finished.drop_duplicates("split"), "coverage_exact")


def _by_level(finished: pd.DataFrame, name: str) -> pd.Series[float]:
    columns = {f"{name}.{level}": level for level in LEVELS}
    shares = 100 * finished[[*columns]].rename(columns=columns).astype(float)
    return shares.groupby(finished["split"]).mean().mean().where(shares.notna().all())


def shorten(words: str, letters: int) -> str:
    """Words of at most so many letters, the last an ellipsis where some are cut off."""
    return words if len(words) <= letters else f"{words[: letters - 1].rstrip()}…"


def draw_curves(study: Study, dataset: str, curves: pd.DataFrame) -> Figure:
    """A row of panels for each family, against steps and against seconds; with several M, a row for each of them.

    The dashed line is the KL of the best q of the family, where that is not 0.
    """
    panels = curves[["panel", "family"]].drop_duplicates()
    exact = [entry for entry in study.entries_on(dataset) if entry.method == REFERENCE]
    kls = {entry.family: study.row(dataset, entry).loc["kl", "mean"] for entry in exact}
    found = [(family, kl) for family, kl in kls.items() if kl > NO_LOGARITHM]
    best = pd.DataFrame(found, columns=["family", "kl"]).merge(panels)
    families = panels["family"].nunique()
    columns = 2 * (families if len(panels) > families else 1)
    size = {"height": 0.6, "row_height": COURSE, "width": min(WIDTH, WIDEST * columns), "columns": columns}
    return FigureSpec(**SPECS["curves"], **size).of({"curves": curves, "best": best})


def curves_of(study: Study, dataset: str) -> pd.DataFrame:
    """The KL of each entry that has traces, at places greater than 0; of q's moments where its own is infinite.

    An entry without measurement points stands in the panels of every number of them.
    """
    curves = pd.concat([_course(study, dataset, entry) for entry in study.entries_on(dataset)])
    curves = curves[np.isfinite(curves["median"])]
    shown = ["lower_quartile", "median", "upper_quartile"]
    curves[shown] = curves[shown].clip(NO_LOGARITHM, 1.5 * curves["median"].max())  # bands may be far wider
    settings = curves.drop_duplicates("name")
    styles = [DASHES[place % len(DASHES)] for place in settings.groupby("method").cumcount()]
    curves["style"] = curves["name"].map(dict(zip(settings["name"], styles, strict=True)))
    sizes = sorted(curves["size"].dropna().unique()) or [math.nan]
    panels = []
    for size, family in product(sizes, FAMILIES):
        own = curves[(curves["family"] == family) & curves["size"].isin([size, math.nan])]
        title = family + (": KL of q’s moments" if own["of_moments"].any() else "")
        panels.append(own.assign(panel=f"{title}; M = {size:g}" if len(sizes) > 1 else title))
    return pd.concat(panels, ignore_index=True)


def _course(study: Study, dataset: str, entry: Entry) -> pd.DataFrame:
    traces, size = study.traces(dataset, entry), entry.hyperparameters.get("M")
    singular = any(math.isinf(trace.points[-1].kl) for trace in traces)
    score = "kl_moment_matched" if singular else "kl"
    along = {"steps": spread_by_step(traces, score), "seconds": spread_by_second(traces, score)}
    curves = {name: _thinned(spread_frame(spreads)) for name, spreads in along.items()}
    return (
        pd.concat(curves, names=["along", None])
        .reset_index("along")
        .assign(
            family=entry.family,
            method=entry.method,
            name=" ".join([entry.method, *(w for w in entry.settings.split() if not w.startswith("M="))]),
            size=size if isinstance(size, int | float) else math.nan,
            of_moments=singular,
            colour=look(entry.method).light,
            marker=look(entry.method).marker,
            every=[(sum(entry.method.encode()) % 5, 6)] * sum(map(len, curves.values())),
        )
    )


def _thinned(curve: pd.DataFrame) -> pd.DataFrame:
    """At most so many points, evenly on a logarithmic axis; the last one stays, and what lies at 0 has no place."""
    curve = curve[curve["place"] > 0]
    if len(curve) <= MOST_POINTS:
        return curve
    along = np.log(curve["place"] / curve["place"].iloc[0])
    return curve.groupby((along / along.iloc[-1] * (MOST_POINTS - 1)).round()).tail(1)
