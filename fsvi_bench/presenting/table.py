"""Result tables for a terminal."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from fsvi_bench.presenting.summary import SHOWN, Estimate, Row
from fsvi_bench.presenting.tables import in_words
from fsvi_bench.presenting.traces import Spread
from fsvi_bench.running.cell import Record
from fsvi_bench.scoring.scores import Scores
from fsvi_bench.tasks.certificate import Certificate
from fsvi_bench.tasks.refit import Refit

COLUMNS = {name: score["heading"] for name, score in SHOWN.items()}
NARROW_COLUMNS = tuple(name for name, score in SHOWN.items() if "narrow" in score)
UNLIMITED = 10_000  #: characters
HUGE = 1e9  #: from here on a number is told by its power of ten
ROUNDING = 1e-9  #: a KL below this in size is rounding; its size is shown, an error bar would say nothing
OWN_PRIOR = "Own prior: the method's model has another prior than the task's, and its KL contains the mismatch."
UNITS = "KL in nats; NLPD in nats per test point and RMSE in the target's original unit."
MEDIANS = "Medians over splits."
OVER_SPLITS, ONE_SPLIT = "Median and quartiles over splits.", "Of one split each."
DIVERGED = "Splits that diverged count as infinite KLs."
MEANS = "Means and standard errors: fsvi-bench report."


def result_table(rows: Sequence[Row], width: int) -> Table:
    """Median and quartiles over splits, one line per data set, method, family and settings.

    Where `width` is short there are fewer quartiles, and then fewer columns.
    """
    lost = any(row.diverged and row.finished for row in rows)
    several = lost or any(row.splits > 1 for row in rows)
    caption = f"{OVER_SPLITS} {UNITS} {MEANS}" if several else f"{ONE_SPLIT} {UNITS}"
    if lost:
        caption += f" {DIVERGED}"
    if any(row.hyperparameters.get("prior") == "own" for row in rows):
        caption += f" {OWN_PRIOR}"
    whole, narrow = score_columns(rows), {name: COLUMNS[name] for name in NARROW_COLUMNS}
    needed: list[int] = []
    for columns, quartiles in product((whole, narrow), (tuple(whole), ("kl",), ())):
        said = caption if quartiles else caption.replace(OVER_SPLITS, MEDIANS)
        if columns is narrow:
            said += f" At {needed[2]} columns all scores are shown."
        elif needed and several:
            said += f" At {needed[0]} columns all quartiles are shown."
        table = _result_table(rows, columns, quartiles, said)
        needed.append(_needed_width(table, wrapped=bool(needed)))
        if needed[-1] <= width:
            break
    return table


def score_columns(rows: Sequence[Row]) -> dict[str, str]:
    """Scores that a table of these rows shows, with their headings. For a Gaussian the KL of the moments is the KL."""
    singular = any("kl" not in row.scores or math.isinf(row.scores["kl"].mean) for row in rows if row.finished)
    return {name: heading for name, heading in COLUMNS.items() if singular or name != "kl_moment_matched"}


def _needed_width(table: Table, wrapped: bool = False) -> int:
    """Of all columns, with the methods' names on one line or on several."""
    names, console = table.columns[1], Console(width=UNLIMITED)
    names.max_width = names.min_width if wrapped else None
    needed = Measurement.get(console, console.options, table).maximum
    names.max_width = None
    return needed


def _result_table(rows: Sequence[Row], columns: Mapping[str, str], quartiles: Sequence[str], caption: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", pad_edge=False)
    for heading in ("data set", "method", "splits", *columns.values()):
        left = heading in ("data set", "method")
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading != "method")
    table.columns[1].min_width = max((len(word) for row in rows for word in (row.method, row.family)), default=0)
    told_apart = varying_settings(rows)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        label = " ".join(filter(None, [row.method, row.family, settings_words(row, told_apart[row.method])]))
        cells = [_cell(row, name, name in quartiles) for name in columns]
        last = following is None or following.dataset != row.dataset
        table.add_row(row.dataset, label, count_words(row), *cells, end_section=last)
    return table


def varying_settings(rows: Sequence[Row]) -> dict[str, list[str]]:
    """For each method, the names of the settings in which its rows differ: the rest would fill the table."""
    seen: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        for name, value in row.hyperparameters.items():
            seen[row.method][name].add(str(value))
    return {row.method: [name for name, values in seen[row.method].items() if len(values) > 1] for row in rows}


def settings_words(row: Row, settings: Sequence[str]) -> str:
    """Those settings as `name=value`, and whether the method's model has a prior of its own."""
    told = [f"{name}={row.hyperparameters[name]}" for name in settings if name in row.hyperparameters]
    if row.hyperparameters.get("prior") == "own" and "prior" not in settings:
        told.append("(own prior)")
    return " ".join(told)


def _cell(row: Row, name: str, quartiles: bool) -> str:
    if not row.finished:
        return unfinished_word(row)
    if name not in row.scores:
        return "–"
    return "=" if same_as_kl(row, name) else format_spread(row.spreads[name], quartiles)


def same_as_kl(row: Row, name: str) -> bool:
    """Whether this is the KL of q's moments, and q's own: it is that of every Gaussian."""
    return name == "kl_moment_matched" and row.scores.get("kl") == row.scores[name]


def unfinished_word(row: Row) -> str:
    """What became of a row none of whose cells has scores."""
    return {0: "failed", row.cells: "diverged"}.get(row.diverged, "not ok")


def count_words(row: Row) -> str:
    """How many splits went into a row's scores, and how many of its cells did not."""
    return str(row.splits) if row.finished == row.cells else f"{row.splits} ({row.cells - row.finished} not ok)"


def format_spread(spread: Spread, quartiles: bool = True) -> str:
    """`36.7 [36.3, 37.1]`; of equal numbers and of rounding errors the median alone."""
    ends = spread.lower_quartile, spread.upper_quartile
    if not quartiles or spread.smallest == spread.largest or max(map(abs, ends)) < ROUNDING:
        return three_digits(spread.median)
    return f"{three_digits(spread.median)} [{', '.join(map(three_digits, ends))}]"


def three_digits(value: float) -> str:
    """`0.0123`, `36.7`, `12346`; what is rounding, small or huge by its power of ten."""
    if not math.isfinite(value) or not value:
        return in_words(value)
    size = abs(value)
    if not 1e-3 <= size < 1e6:
        return f"{value:.{0 if size < ROUNDING else 2}e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:.{max(0, 2 - math.floor(math.log10(size)))}f}"


def format_estimate(estimate: Estimate) -> str:
    """`36.71 ± 0.42`: as many decimals as show two digits of the error; what is small or huge in powers of ten."""
    mean, error = estimate.mean, estimate.standard_error
    if not math.isfinite(mean):
        return "∞" if mean > 0 else str(mean)
    if abs(mean) < ROUNDING and (mean or (error or 0) < ROUNDING):
        return f"{mean:.0e}" if mean else "0"
    if not error or not math.isfinite(error):
        return f"{mean:#.4g}".removesuffix(".") if mean else "0"
    exponent = math.floor(math.log10(abs(mean))) if 0 < abs(mean) < 1e-3 or abs(mean) >= HUGE else 0
    decimals = max(0, 1 - math.floor(math.log10(error)) + exponent)
    mantissas = f"{mean / 10**exponent:.{decimals}f} ± {error / 10**exponent:.{decimals}f}"
    return f"({mantissas})e{exponent}" if exponent else mantissas


def _facts(lines: Mapping[str, str], title: str | None = None, justify: str = "right") -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=False, title=title, title_justify="left", pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify=justify, overflow="fold")  # type: ignore[arg-type]
    for line in lines.items():
        table.add_row(*line)
    return table


def score_table(scores: Scores) -> Table:
    """Every score of one posterior, one per line; of a spectrum its ends and its median."""
    lines: dict[str, str] = {}
    for name, value in scores.model_dump(exclude={"overconfidence": {"quantiles"}}).items():
        items = {f"{name} {key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
        lines |= {label: _score(item) for label, item in items.items()}
    return _facts(lines)


def _score(value: float | bool | tuple[float, float] | None) -> str:
    if value is None:
        return "does not apply"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " to ".join(in_words(end, 10) for end in (value if isinstance(value, tuple) else [value]))


def task_table(path: Path, certificate: Certificate) -> Table:
    """A task's certificate, one statement per line."""
    c = certificate
    lines = {
        "data set": f"{c.dataset} split {c.split}",
        "task SHA-256": c.task_sha256,
        "training points, features": f"N = {c.N}, k = {c.k}",
        "noise variance, jitter": f"{c.noise_variance:.6g}, {c.jitter:g}",
        "log evidence": f"{c.log_evidence:.10g} nats",
        "collapsed bound": f"{c.bound:.10g} nats ({c.bound / c.N:+.5f} per point)",
        "condition of k(Z,Z) + jitter": f"{c.condition_inducing:.3g}",
        "condition of the precision": f"{c.condition_precision:.3g}",
    }
    for check in c.posterior_checks:
        kl = "" if check.kl is None else f", KL {check.kl:.1e}"
        apart = (
            f"mean to {check.mean_relative_difference:.1e}, covariance to {check.covariance_relative_difference:.1e}"
        )
        lines[f"exact posterior by {check.method}"] = apart + kl
    if (fit := c.fit) is not None:
        lines["fit"] = f"{fit.iterations} iterations, {fit.evaluations} evaluations, {fit.seconds:.1f} s: {fit.message}"
        lines["gradient at the end"] = f"{fit.gradient_norm:.3g} (largest component)"
    return _facts(lines, str(path), "left")


def refit_lines(refit: Refit) -> Iterator[str]:
    """What became of a second fit of an official task: the verdict, then each quantity of both with its tolerance."""
    agrees = "agrees with" if refit.holds else "DEPARTS from"
    verdict = "is the official task, to the last bit" if refit.identical else f"{agrees} the official task"
    yield f"{refit.dataset} split {refit.split}: the refit {verdict}"
    for d in refit.distances:
        exceeded = "" if d.holds else ", which is exceeded"
        yield (
            f"    {d.what}: official {d.frozen:.6f}, refitted {d.refitted:.6f}; "
            f"{d.apart:.2g} {d.unit} apart, tolerance {d.tolerance:g}{exceeded}"
        )
    if refit.other_versions:
        yield f"    fitted with other versions: {'; '.join(refit.other_versions)}"


def failures(records: Sequence[Record]) -> Iterator[str]:
    """One line per cell that failed or diverged, whatever its reason's own lines."""
    for record in records:
        if record.status != "ok":
            name = f"{record.dataset} split {record.split} {record.method} {record.family} seed {record.seed}"
            yield f"{name}: {record.status}: {' '.join(str(record.reason).split())}"
