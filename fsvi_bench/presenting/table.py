"""Result tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from fsvi_bench.presenting.summary import Estimate, Row
from fsvi_bench.running.cell import Record
from fsvi_bench.scoring.scores import Scores
from fsvi_bench.tasks.certificate import Certificate
from fsvi_bench.tasks.refit import Distance, Refit

COLUMNS = {
    "kl": "KL(q‖P_D)",
    "kl_moment_matched": "of its moments",
    "kl_mean_term": "mean term",
    "predictive_kl_test": "predictive KL, test",
    "predictive_kl_box": "box",
    "nlpd": "NLPD",
    "rmse": "RMSE",
}
NARROW_COLUMNS = ("kl", "nlpd", "rmse")
UNLIMITED = 10_000  #: characters
HUGE = 1e9  #: from here on a number is told by its power of ten
ROUNDING = 1e-9  #: a KL below this in size is rounding; its size is shown, an error bar would say nothing


def result_table(rows: Sequence[Row], width: int) -> Table:
    """Mean ± standard error over splits, one line per data set, method and family; fewer columns if width is short."""
    caption = f"{OVER_SPLITS if any(row.splits > 1 for row in rows) else ONE_SPLIT} {UNITS}"
    if any(row.hyperparameters.get("prior") == "own" for row in rows):
        caption += f" {OWN_PRIOR}"
    columns = score_columns(rows)
    whole = _result_table(rows, columns, caption)
    needed = _needed_width(whole)
    if needed <= width:
        return whole
    fewer = {name: COLUMNS[name] for name in NARROW_COLUMNS}
    return _result_table(rows, fewer, f"{caption} More columns from a width of {needed} on.")


def score_columns(rows: Sequence[Row]) -> dict[str, str]:
    """Scores that a table of these rows shows, with their headings. For a Gaussian the KL of the moments is the KL."""
    singular = any("kl" not in row.scores or math.isinf(row.scores["kl"].mean) for row in rows if row.finished)
    return {name: heading for name, heading in COLUMNS.items() if singular or name != "kl_moment_matched"}


def _needed_width(table: Table) -> int:
    console = Console(width=UNLIMITED)
    return Measurement.get(console, console.options, table).maximum


def _result_table(rows: Sequence[Row], columns: Mapping[str, str], caption: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", pad_edge=False)
    for heading in ("data set", "method", "splits"):
        table.add_column(heading, justify="right" if heading == "splits" else "left", no_wrap=True)
    for heading in columns.values():
        table.add_column(heading, justify="right", no_wrap=True)
    told_apart = varying_settings(rows)
    for index, row in enumerate(rows):
        last = index + 1 == len(rows) or rows[index + 1].dataset != row.dataset
        cells = [_cell(row, name) for name in columns]
        table.add_row(row.dataset, _label(row, told_apart[row.method]), count_words(row), *cells, end_section=last)
    return table


OWN_PRIOR = "Own prior: the method's model has another prior than the task's, and its KL contains the mismatch."
OVER_SPLITS, ONE_SPLIT = "mean ± standard error over splits (they overlap: not independent).", "Of one split each."
UNITS = "KL in nats; NLPD in nats per test point and RMSE in the target's original unit."


def varying_settings(rows: Sequence[Row]) -> dict[str, list[str]]:
    """For each method, the names of the settings in which its rows differ: the rest would fill the table."""
    seen: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        names = seen.setdefault(row.method, {})
        for name, value in row.hyperparameters.items():
            names.setdefault(name, set()).add(str(value))
    return {method: [name for name, values in names.items() if len(values) > 1] for method, names in seen.items()}


def settings_words(row: Row, settings: Sequence[str]) -> str:
    """Those settings as `name=value`, and whether the method's model has a prior of its own."""
    told = [f"{name}={row.hyperparameters[name]}" for name in settings if name in row.hyperparameters]
    if row.hyperparameters.get("prior") == "own" and "prior" not in settings:
        told.append("(own prior)")
    return " ".join(told)


def _label(row: Row, settings: Sequence[str]) -> str:
    return " ".join(filter(None, [row.method, row.family, settings_words(row, settings)]))


def _cell(row: Row, name: str) -> str:
    if not row.finished:
        return unfinished_word(row)
    return format_score(row, name) if name in row.scores else "–"


def format_score(row: Row, name: str) -> str:
    """A score that a row has; the KL of q's moments as `=` where it is q's own, as of every Gaussian."""
    same = name == "kl_moment_matched" and row.scores.get("kl") == row.scores[name]
    return "=" if same else format_estimate(row.scores[name])


def unfinished_word(row: Row) -> str:
    """What became of a row none of whose cells has scores."""
    return {0: "failed", row.cells: "diverged"}.get(row.diverged, "not ok")


def count_words(row: Row) -> str:
    """How many splits went into a row's means, and how many of its cells did not."""
    return str(row.splits) if row.finished == row.cells else f"{row.splits} ({row.cells - row.finished} not ok)"


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


def score_table(scores: Scores) -> Table:
    """Every score of one posterior, one per line; of a spectrum its ends and its median."""
    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, value in scores.model_dump(exclude={"overconfidence": {"quantiles"}}).items():
        items = {f"{name} {key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
        for label, item in items.items():
            table.add_row(label, _score(item))
    return table


def _score(value: float | bool | tuple[float, float] | None) -> str:
    if value is None:
        return "does not apply"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " to ".join(short(end, 10) for end in value)
    return short(value, 10)


def task_table(path: Path, certificate: Certificate) -> Table:
    """A task's certificate, one statement per line."""
    table = Table(box=box.SIMPLE_HEAD, show_header=False, title=str(path), title_justify="left", pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    fit = certificate.fit
    lines: dict[str, object] = {
        "data set": f"{certificate.dataset} split {certificate.split}",
        "task SHA-256": certificate.task_sha256,
        "training points, features": f"N = {certificate.N}, k = {certificate.k}",
        "noise variance, jitter": f"{certificate.noise_variance:.6g}, {certificate.jitter:g}",
        "log evidence": f"{certificate.log_evidence:.10g} nats",
        "collapsed bound": f"{certificate.bound:.10g} nats ({certificate.bound / certificate.N:+.5f} per point)",
        "condition of k(Z,Z) + jitter": f"{certificate.condition_inducing:.3g}",
        "condition of the precision": f"{certificate.condition_precision:.3g}",
    }
    for check in certificate.posterior_checks:
        mean, covariance = check.mean_relative_difference, check.covariance_relative_difference
        kl = "" if check.kl is None else f", KL {check.kl:.1e}"
        lines[f"exact posterior by {check.method}"] = f"mean to {mean:.1e}, covariance to {covariance:.1e}{kl}"
    if fit is not None:
        lines["fit"] = f"{fit.iterations} iterations, {fit.evaluations} evaluations, {fit.seconds:.1f} s: {fit.message}"
        lines["gradient at the end"] = f"{fit.gradient_norm:.3g} (largest component)"
    for name, value in lines.items():
        table.add_row(name, str(value))
    return table


def refit_lines(refit: Refit) -> Iterator[str]:
    """What became of a second fit of an official task: the verdict, then each quantity of both with its tolerance."""
    place = f"{refit.dataset} split {refit.split}"
    if refit.identical:
        yield f"{place}: the refit is the official task, to the last bit"
    else:
        yield f"{place}: the refit {'agrees with' if refit.holds else 'DEPARTS from'} the official task"
    for distance in refit.distances:
        yield f"    {_distance_words(distance)}"
    if refit.other_versions:
        yield f"    fitted with other versions: {'; '.join(refit.other_versions)}"


def _distance_words(distance: Distance) -> str:
    values = f"official {distance.frozen:.6f}, refitted {distance.refitted:.6f}"
    apart = f"{distance.apart:.2g} {distance.unit} apart, tolerance {distance.tolerance:g}"
    return f"{distance.what}: {values}; {apart}{'' if distance.holds else ', which is exceeded'}"


def failures(records: Sequence[Record]) -> Iterator[str]:
    """One line per cell that failed or diverged, whatever its reason's own lines."""
    for record in records:
        if record.status != "ok":
            name = f"{record.dataset} split {record.split} {record.method} {record.family} seed {record.seed}"
            yield f"{name}: {record.status}: {' '.join(str(record.reason).split())}"


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | int | float | None]]) -> Table:
    """Words and numbers as they are, numbers to four digits."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for place, heading in enumerate(columns):
        words = all(isinstance(row[place], str) for row in rows)
        table.add_column(heading, justify="left" if words else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(_plain, row))
    return table


def _plain(value: str | int | float | None) -> str:
    if value is None:
        return "–"
    return short(value) if isinstance(value, float) else str(value)


def short(value: float, digits: int = 4) -> str:
    """A number to so many digits; infinity as its sign."""
    return f"{value:.{digits}g}".replace("inf", "∞")
