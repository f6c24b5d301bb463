"""The result table of records on a terminal, and how numbers over splits are written there and in reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import pandas as pd
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Terminal

from fsvi_bench.presenting.summary import ROW, SHOWN, cells_of, summary_of
from fsvi_bench.presenting.tables import Table, in_words
from fsvi_bench.running.cell import Record

UNLIMITED = 10_000  #: characters
HUGE = 1e9  #: from here on a number is told by its power of ten
ROUNDING = 1e-9  #: a KL below this in size is rounding; its size is shown, an error bar would say nothing
OWN_PRIOR = "Own prior: the method's model has another prior than the task's, and its KL contains the mismatch."
UNITS = "KL in nats; NLPD in nats per test point and RMSE in the target's original unit."
MEDIANS = "Medians over splits."
OVER_SPLITS, ONE_SPLIT = "Median and quartiles over splits.", "Of one split each."
DIVERGED = "Splits that diverged count as infinite KLs."
MEANS = "Means and standard errors: fsvi-bench report DIR --json."


def result_table(records: Sequence[Record], width: int) -> Terminal:
    """Median and quartiles over splits, one line per data set, method, family and settings.

    Where `width` is short there are fewer quartiles, and then fewer columns.
    """
    summary = summary_of(cells_of(records))
    lost = (summary["diverged"] * summary["ok"]).any()
    several = lost or (summary["splits"] > 1).any()
    remarks = [OVER_SPLITS, UNITS, MEANS] if several else [ONE_SPLIT, UNITS]
    remarks += [DIVERGED] if lost else []
    caption = " ".join(filter(None, [*remarks, own_prior(summary)]))
    whole = shown_scores(summary)
    narrow = [score for score in whole if "narrow" in SHOWN[score]]
    needed: list[int] = []
    for scores, quartiles in product((whole, narrow), (whole, ["kl"], [])):
        said = caption if quartiles else caption.replace(OVER_SPLITS, MEDIANS)
        if scores is narrow:
            said += f" At {needed[2]} columns all scores are shown."
        elif needed and several:
            said += f" At {needed[0]} columns all quartiles are shown."
        table = _terminal(summary, scores, quartiles, said)
        needed.append(_least_width(table))
        if needed[-1] <= width:
            break
    return table


def own_prior(summary: pd.DataFrame) -> str:
    """What to say beside rows of which some have a prior of their own."""
    return OWN_PRIOR if summary["settings"].str.contains('"prior":"own"').any() else ""


def shown_scores(summary: pd.DataFrame) -> list[str]:
    """Scores that a table of these rows shows. For a Gaussian the KL of the moments is the KL."""
    kl = summary[(summary["score"] == "kl") & (summary["ok"] > 0)]["mean"]
    return [score for score in SHOWN if score != "kl_moment_matched" or not kl.map(math.isfinite).all()]


def _terminal(summary: pd.DataFrame, scores: Sequence[str], quartiles: Sequence[str], caption: str) -> Terminal:
    rows = []
    for (dataset, method, family, _), numbers in summary.groupby(ROW, sort=False):
        first, by_score = numbers.iloc[0], numbers.set_index("score")
        label = " ".join(filter(None, [method, family, first["words"]]))
        lost = f" ({first['cells'] - first['ok']} not ok)" if first["ok"] < first["cells"] else ""
        texts = [written(by_score.loc[score], partial(format_spread, quartiles=score in quartiles)) for score in scores]
        rows.append((dataset, label, f"{first['splits']}{lost}", *texts))
    columns = ("data set", "method", "splits", *(SHOWN[score]["heading"] for score in scores))
    table = Table(title="", columns=columns, rows=tuple(rows)).terminal(columns[:2], caption, sections=True)
    for column in table.columns:
        column.no_wrap = column.header != "method"
    table.columns[1].min_width = max((len(word) for row in rows for word in row[1].split()), default=0)
    return table


def _least_width(table: Terminal) -> int:
    """Of all columns, with the methods' names on several lines."""
    names, console = table.columns[1], Console(width=UNLIMITED)
    names.max_width = names.min_width
    least = Measurement.get(console, console.options, table).maximum
    names.max_width = None
    return least


def written(number: pd.Series, form: Callable[[pd.Series], str]) -> str:
    """A line of a summary in this form, or in its place what became of the cells or that the score does not apply."""
    if not number["ok"]:
        return {0: "failed", number["cells"]: "diverged"}.get(number["diverged"], "not ok")
    if math.isnan(number["mean"]):
        return "–"
    return "=" if number["repeats_kl"] else form(number)


def format_spread(number: pd.Series, quartiles: bool = True) -> str:
    """`36.7 [36.3, 37.1]`; of equal numbers and of rounding errors the median alone."""
    ends = number["lower_quartile"], number["upper_quartile"]
    if not quartiles or number["smallest"] == number["largest"] or max(map(abs, ends)) < ROUNDING:
        return three_digits(number["median"])
    return f"{three_digits(number['median'])} [{', '.join(map(three_digits, ends))}]"


def three_digits(value: float) -> str:
    """`0.0123`, `36.7`, `12346`; what is rounding, small or huge by its power of ten."""
    if not math.isfinite(value) or not value:
        return in_words(value)
    size = abs(value)
    if not 1e-3 <= size < 1e6:
        return f"{value:.{0 if size < ROUNDING else 2}e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:.{max(0, 2 - math.floor(math.log10(size)))}f}"


def format_mean(number: pd.Series) -> str:
    """`36.71 ± 0.42`: as many decimals as show two digits of the error; what is small or huge in powers of ten."""
    mean, error = number["mean"], number["standard_error"]
    if not math.isfinite(mean):
        return in_words(mean)
    if abs(mean) < ROUNDING and (mean or not error >= ROUNDING):
        return f"{mean:.0e}" if mean else "0"
    if not 0 < error < math.inf:
        return f"{mean:#.4g}".removesuffix(".")
    exponent = math.floor(math.log10(abs(mean))) if 0 < abs(mean) < 1e-3 or abs(mean) >= HUGE else 0
    decimals = max(0, 1 - math.floor(math.log10(error)) + exponent)
    mantissas = f"{mean / 10**exponent:.{decimals}f} ± {error / 10**exponent:.{decimals}f}"
    return f"({mantissas})e{exponent}" if exponent else mantissas
