"""The validation as tables and as a page of Markdown, both from its numbers alone."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from scipy import stats

from fsvi_bench.papers.claims import Verdict
from fsvi_bench.papers.validation.numbers import Numbers, SplitNumbers
from fsvi_bench.presenting.tables import Table

SIGNIFICANCE = 0.05
WORTH_SAYING = 0.005  #: nats, of a mean NLPD
TEMPLATES = Path(__file__).parent


def render_page(numbers: Numbers, quick: bool, verdicts: Sequence[Verdict]) -> str:
    """The page in Markdown; its figure lies beside it."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(fill=_fill, gap=_gap_in_words)
    return environment.get_template("validation.md.jinja").render(
        numbers=numbers,
        quick=quick,
        stem="validation-quick" if quick else "validation",
        verdicts=verdicts,
        overview=[_overview(numbers.of(name)) for name in numbers.datasets],
        beside_gpflow=[_beside_gpflow(numbers, name) for name in numbers.datasets_of_gpflow],
        per_split_gpflow=[_gpflow_split(row) for row in numbers.splits if row.gpflow is not None],
        per_split_dropout=[_dropout_split(row) for row in numbers.splits if row.dropout is not None],
        facts=_facts(numbers),
    )


def _fill(text: str) -> str:
    """A paragraph, its lines filled anew: numbers have other lengths than their places in the template."""
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False) + "\n"


def _gap_in_words(nats: float) -> str:
    return f"{abs(nats):.4f} nats per point {'below' if nats < 0 else 'above'}"


def rank_correlation(splits: Sequence[SplitNumbers]) -> float:
    """Spearman's, of MC dropout's RMSE and the exact posterior's over one data set's splits."""
    return float(stats.spearmanr(*_rmses(splits)).statistic)


def _rmses(splits: Sequence[SplitNumbers]) -> tuple[list[float], list[float]]:
    pairs = [(row.exact.rmse, row.dropout.rmse) for row in splits if row.dropout is not None]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


def _uncorrelated(splits: Sequence[SplitNumbers]) -> bool:
    """By these splits alone, taken as independent, the rank correlation might be 0."""
    return not stats.spearmanr(*_rmses(splits), alternative="greater").pvalue < SIGNIFICANCE


def _overview(rows: Sequence[SplitNumbers]) -> list[str]:
    dropout = [row.dropout for row in rows if row.dropout is not None]
    return [
        rows[0].dataset,
        str(len(rows)),
        _mean([row.exact.nlpd for row in rows], ".3f"),
        _mean([row.titsias.nlpd for row in rows], ".3f"),
        _mean([found.nlpd for found in dropout], ".3f"),
        _mean([row.exact.rmse for row in rows], "#.3g"),
        _mean([found.rmse for found in dropout], "#.3g"),
        f"{rank_correlation(rows):.2f}",
    ]


def _mean(values: Sequence[float], digits: str) -> str:
    """Mean ± standard error, the latter with two digits."""
    error = stdev(values) / len(values) ** 0.5
    return f"{fmean(values):{digits}} ± {error:.2g}"


def _beside_gpflow(numbers: Numbers, name: str) -> list[str]:
    shared = numbers.shared_with_gpflow(name)
    ours, theirs = [row.titsias for row, _ in shared], [found for _, found in shared]
    return [
        name,
        str(len(shared)),
        f"{fmean(found.bound_per_point for found in ours):.4f}",
        f"{fmean(found.bound_per_point for found in theirs):.4f}",
        f"{fmean(row.exact.nlpd for row, _ in shared):.4f}",
        f"{fmean(found.nlpd for found in ours):.4f}",
        f"{fmean(found.nlpd for found in theirs):.4f}",
        f"{fmean(found.rmse for found in ours):#.4g}",
        f"{fmean(found.rmse for found in theirs):#.4g}",
    ]


def _gpflow_split(row: SplitNumbers) -> list[str]:
    ours, theirs = row.titsias, row.gpflow
    assert theirs is not None
    return [
        f"{row.dataset} {row.split}",
        f"{ours.bound_per_point:.4f}",
        f"{theirs.bound_per_point:.4f}",
        f"{ours.noise_variance:#.3g}",
        f"{theirs.noise_variance:#.3g}",
        f"{row.exact.nlpd:.4f}",
        f"{ours.nlpd:.4f}",
        f"{theirs.nlpd:.4f}",
        f"{ours.rmse:#.4g}",
        f"{theirs.rmse:#.4g}",
    ]


def _dropout_split(row: SplitNumbers) -> list[str]:
    assert row.dropout is not None
    return [
        f"{row.dataset} {row.split}",
        f"{row.exact.nlpd:.3f}",
        f"{row.titsias.nlpd:.3f}",
        f"{row.dropout.nlpd:.3f}",
        f"{row.exact.rmse:#.3g}",
        f"{row.dropout.rmse:#.3g}",
    ]


def _facts(numbers: Numbers) -> dict[str, Any]:
    """What the page's text says in numbers; extremes as (value, where)."""
    by_gap = sorted((row for row in numbers.splits if row.gpflow is not None), key=_bound_gap)
    shares = [(fmean(row.missing_share for row in numbers.of(name)), name) for name in numbers.datasets]
    moved = [(fmean(row.exact.nlpd - row.titsias.nlpd for row in numbers.of(name)), name) for name in numbers.datasets]
    jitter = [
        (abs(row.nlpd_with_less_jitter - row.exact.nlpd), f"{row.dataset} split {row.split}")
        for row in numbers.splits
        if row.nlpd_with_less_jitter is not None
    ]
    better = {name: _better_than_dropout(numbers.of(name)) for name in numbers.datasets}
    return {
        "worst": by_gap[0],
        "best": by_gap[-1],
        "largest_mean_nlpd_gap": max(
            abs(numbers.mean_gap_to_gpflow(name, "nlpd")) for name in numbers.datasets_of_gpflow
        ),
        "shortfall": _shortfall(numbers),
        "uncorrelated": [
            f"{name} ({rank_correlation(rows):.2f}, {len(rows)} splits)"
            for name, rows in ((name, numbers.of(name)) for name in numbers.datasets)
            if _uncorrelated(rows)
        ],
        "unconverged": sum(not row.converged for row in numbers.splits),
        "most_missing": max(shares),
        "least_missing": min(shares),
        "most_moved": max(moved),
        "gained": [f"{-nats:.3f} on {name}" for nats, name in sorted(moved) if nats <= -WORTH_SAYING],
        "jitter": max(jitter),
        "unfactorised": len(numbers.splits) - len(jitter),
        "ours_better": [name for name, is_better in better.items() if is_better],
        "dropout_better": [name for name, is_better in better.items() if not is_better],
    }


def _shortfall(numbers: Numbers) -> dict[str, Any]:
    """The data set on which our bound is furthest below GPflow's, its worst split, and what the others come to."""
    name = min(numbers.datasets_of_gpflow, key=lambda name: numbers.mean_gap_to_gpflow(name, "bound_per_point"))
    worst, *others = sorted((row for row, _ in numbers.shared_with_gpflow(name)), key=_bound_gap)
    return {
        "dataset": name,
        "split": worst.split,
        "gap": _bound_gap(worst),
        "others": len(others),
        "gap_of_others": fmean(_bound_gap(row) for row in others) if others else None,
    }


def _bound_gap(row: SplitNumbers) -> float:
    assert row.gpflow is not None
    return row.titsias.bound_per_point - row.gpflow.bound_per_point


def _better_than_dropout(rows: Sequence[SplitNumbers]) -> bool:
    """By mean NLPD."""
    return fmean(row.exact.nlpd - row.dropout.nlpd for row in rows if row.dropout is not None) < 0


def tables(numbers: Numbers) -> list[Table]:
    """For a terminal and a spreadsheet: unrounded means over splits."""
    return [
        Table(
            title="NLPD [nats] and RMSE [target's unit], means over standard splits",
            columns=("data set", "splits", "NLPD exact", "Titsias", "MC dropout", "RMSE exact", "MC dropout"),
            rows=tuple(_means(numbers.of(name)) for name in numbers.datasets),
        ),
        Table(
            title="Our sparse GPs less GPflow's, means over the splits that GPflow was run on",
            columns=("data set", "splits", "bound per point [nats]", "Titsias NLPD [nats]", "RMSE"),
            rows=tuple(_gaps(numbers, name) for name in numbers.datasets_of_gpflow),
        ),
    ]


def _means(rows: Sequence[SplitNumbers]) -> tuple[str | int | float, ...]:
    dropout = [row.dropout for row in rows if row.dropout is not None]
    return (
        rows[0].dataset,
        len(rows),
        fmean(row.exact.nlpd for row in rows),
        fmean(row.titsias.nlpd for row in rows),
        fmean(found.nlpd for found in dropout),
        fmean(row.exact.rmse for row in rows),
        fmean(found.rmse for found in dropout),
    )


def _gaps(numbers: Numbers, name: str) -> tuple[str | int | float, ...]:
    fields = ("bound_per_point", "nlpd", "rmse")
    gaps = (numbers.mean_gap_to_gpflow(name, field) for field in fields)
    return (name, len(numbers.shared_with_gpflow(name)), *gaps)
