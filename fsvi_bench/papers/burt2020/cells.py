"""What the figures of Burt et al. (2020) share: cells as a tidy frame, the numbers of marks, and words for settings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from fsvi_bench.files import canonical_json
from fsvi_bench.methods.registry import load_method
from fsvi_bench.papers.places import Place
from fsvi_bench.presenting.summary import ROW, Estimate, cells_of, estimate, summary_of
from fsvi_bench.presenting.traces import spread_of
from fsvi_bench.running.cell import Record

NAMED = ["dataset", "split", "seed", "method", "family"]
SETTINGS = {"M": "Int64", "kl_jitter": "float64", "max_steps": "Int64"}  #: <NA> or NaN for what a method does not have
LINE = ["dataset", "method", "family", "M", "kl_jitter"]  #: the columns that make one line of tables and one mark
_IN_JSON = {*NAMED, "hyperparameters", "task_sha256", "cell", "status", "reason"}


def frame_of(records: Sequence[Record], missing: Sequence[Place] = ()) -> pd.DataFrame:
    """A row per planned cell: names, settings, status ("missing" without a record), KL and NLPD."""
    planned: list[Record | Place] = [*records, *missing]
    rows = [
        {name: getattr(each, name) for name in NAMED}
        | {name: each.hyperparameters.get(name) for name in (*SETTINGS, "lr", "minibatch")}
        | {"status": getattr(each, "status", "missing")}
        | {name: getattr(getattr(each, "scores", None), name, None) for name in ("kl", "nlpd")}
        for each in planned
    ]
    return pd.DataFrame(rows).astype({**SETTINGS, "kl": "float64", "nlpd": "float64"})


def spread_by_line(cells: pd.DataFrame, score: str) -> pd.DataFrame:
    """Of each line: median, quartiles, mean and its standard error over splits, and how many are finished and planned.

    NaN where nothing finished, and for the standard error of one split and of infinite values.
    """
    lines = [
        dict(zip(LINE, line, strict=True))
        | _spread(group[score].dropna())
        | {"finished": group["status"].eq("ok").sum(), "planned": len(group)}
        for line, group in cells.groupby(LINE, sort=False, dropna=False)
    ]
    return pd.DataFrame(lines).astype({"M": SETTINGS["M"]})


def _spread(values: pd.Series) -> dict[str, float | None]:
    if values.empty:
        return dict.fromkeys(("median", "lower", "upper", "mean", "error"), np.nan)
    spread, mean = spread_of(values.to_numpy()), estimate(values.tolist())
    quartiles = {"lower": spread.lower_quartile, "upper": spread.upper_quartile}
    return {"median": spread.median, **quartiles, "mean": mean.mean, "error": mean.standard_error}


def cell_numbers(record: Record) -> dict[str, Any]:
    """A record as it stands in a figure's JSON file."""
    scores = {name: getattr(record.scores, name, None) for name in ("kl", "kl_mean_term", "nlpd")}
    return record.model_dump(include=_IN_JSON) | scores


@dataclass(frozen=True)
class Row:
    """One line of the result table. `cells` counts the records, `finished` those that went into the scores."""

    dataset: str
    method: str
    family: str
    hyperparameters: dict[str, object]
    cells: int
    finished: int
    scores: dict[str, Estimate]  #: without those that do not apply to some record


def summarise(records: Sequence[Record]) -> list[Row]:
    """Means over splits."""
    rows = []
    for (dataset, method, family, settings), lines in summary_of(cells_of(records)).groupby(ROW, sort=False):
        known = lines.dropna(subset="mean")
        errors = known["standard_error"].astype(object).where(known["standard_error"].notna(), None)
        scores = dict(zip(known["score"], map(Estimate, known["mean"].tolist(), errors), strict=True))
        counts = map(int, lines[["cells", "ok"]].iloc[0])
        rows.append(Row(dataset, method, family, json.loads(settings), *counts, scores))
    return rows


def rows_of(records: Sequence[Record], missing: Sequence[Place]) -> list[tuple[Row, int]]:
    """Rows with how many of their cells are missing; a row of which all are has no estimates."""
    lacking = Counter(map(_key, missing))
    rows = [(row, lacking.pop(_key(row), 0)) for row in summarise(records)]
    for (dataset, method, family, settings), count in lacking.items():
        rows.append((Row(dataset, method, family, json.loads(settings), 0, 0, {}), count))
    return rows


def score_numbers(name: str, quick: bool, records: Sequence[Record], missing: Sequence[Place]) -> dict[str, Any]:
    """The JSON file of a figure of scores: means and standard errors over splits, null where nothing finished.

    `cells` have a record, `finished` of these have scores, and `missing` more have yet to be computed. KL is in nats,
    NLPD in nats per test point in the target's original unit.
    """
    shown = ("dataset", "method", "family", "hyperparameters", "cells", "finished")
    rows = [
        {field: getattr(row, field) for field in shown}
        | {"missing": lacking}
        | {score: asdict(row.scores[score]) if score in row.scores else None for score in ("kl", "nlpd")}
        for row, lacking in rows_of(records, missing)
    ]
    cells = [cell_numbers(record) for record in records]
    return {"format": "fsvi-reproduction/1", "figure": name, "quick": quick, "rows": rows, "cells": cells}


def title_of(method: str) -> str:
    """A method's name in print."""
    return load_method(method).defaults.title


def is_jittered(hyperparameters: Mapping[str, Any]) -> bool:
    """Whether the functional KL had jitter in training."""
    return bool(hyperparameters.get("kl_jitter"))


def jitter_label(jitters: pd.Series) -> str:
    """The jitters there are, such as `1e-6`."""
    return " or ".join(f"{value:g}".replace("e-0", "e-") for value in sorted(jitters[jitters > 0].unique())) or "none"


def budget(cells: pd.DataFrame, quick: bool) -> str:
    """What the settings say about measurement points, minibatches and steps, in a few words; nothing of what none has.

    `minibatch: M` ties both sizes together, as in the paper: what M does and what the minibatch does cannot be told
    apart, so the words name both.
    """
    sized = cells.dropna(subset="M")
    tied = sized["minibatch"].eq("M")
    others = "; ".join(map(title_of, sized.loc[~tied, "method"].unique()))
    names, whole = ("|A| = minibatch = ", f" ({others}: all rows)" if others else "") if tied.any() else ("", "")
    words = [f"{names}M = {values(sized['M'])}{whole}"] if len(sized) else []
    said = ", ".join([*words, *steps_in_words(cells)])
    return f"{said} (quick look: the paper takes more)" if quick and said else said


def steps_in_words(cells: pd.DataFrame) -> list[str]:
    """The steps that most methods may take, and which take others; nothing if none takes steps."""
    takers = cells.dropna(subset="max_steps").groupby("max_steps", sort=False)["method"].unique()
    if takers.empty:
        return []
    usual = takers.map(len).idxmax()
    others = [f"{title_of(name)}: {steps:,}" for steps, names in takers.drop(usual).items() for name in names]
    return [f"up to {usual:,} steps" + (f" ({'; '.join(others)})" if others else "")]


def values(column: pd.Series) -> str:
    """Values in the order of their first appearance."""
    found = column.dropna().unique().tolist()
    return " or ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in found) or "–"


def incompleteness(missing: Sequence[Place]) -> str:
    """What a title adds where cells have yet to be computed."""
    return f"; {len(missing):,} cells still missing" if missing else ""


def _key(of: Row | Place) -> tuple[str, str, str, str]:
    return of.dataset, of.method, of.family, canonical_json(of.hyperparameters)
