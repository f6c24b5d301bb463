"""The paper's claims, judged from the study's table by data set and jitter, once all planned splits have finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.cells import LOST, in_words
from fsvi_bench.papers.claims import Claim
from fsvi_bench.presenting.tables import ROUNDING
from fsvi_bench.statistics.resampled_t import paired_differences

M = 80  #: the paper's default
FEWEST_SPLITS = 2  #: for which there is an interval
#: The column of a claim's values, by the first words of its statistic; for KLs, logarithms are used.
_COLUMNS = {
    "log KL": "kl",
    "log KL mean term": "kl_mean_term",
    "training log likelihood above exact's": "log_likelihood_excess",
    "the mean's training log likelihood above exact's": "mean_log_likelihood_excess",
    "log variance ratio in the box": "log_variance_ratio",
}
_OUTCOMES = ("held", "did not hold", "undecided", "not judged", "incomplete")


class StudyClaim(Claim):
    """A claim about every data set, or about those that it names."""

    datasets: tuple[str, ...] = Field(default=(), exclude=True)


def judge_study(cells: pd.DataFrame, claims: Sequence[StudyClaim]) -> pd.DataFrame:
    """One row per claim, data set and jitter for which it was planned (jitter is NaN for claims about EXACT alone).

    `value` and its interval exist once every planned split has finished and has a value. `splits` is the number of
    splits with a value, `finished` the number with a record, and `agreeing` the number of `splits` on the claimed side.

    Raises:
        InputError: a claim names an unknown statistic.
    """
    rows = []
    for claim in claims:
        here = cells[cells["dataset"].isin(claim.datasets or cells["dataset"])]
        places = _differences(claim.statistic, here).groupby(["dataset", "kl_jitter"], dropna=False)
        for (dataset, jitter), splits in places:
            rows.append({"dataset": dataset, "kl_jitter": jitter} | _judged(claim, splits))
    return pd.DataFrame(rows)


def _differences(statistic: str, cells: pd.DataFrame) -> pd.DataFrame:
    """By planned split, the values of which the statistic is the mean, and whether the split has finished.

    A KL that is 0 up to rounding counts as the smallest that a figure shows. Cells that diverged or failed have an
    infinite KL, and no value for likelihoods and variances.
    """
    kind, _, names = statistic.partition(": ")
    if kind not in _COLUMNS:
        raise InputError(f"burt2020-study.yaml: there is no statistic '{statistic}'; fix the file")
    value = cells[_COLUMNS[kind]]
    if kind.startswith("log KL"):
        value = np.log(value.clip(lower=ROUNDING)).mask(cells["status"].isin(LOST), np.inf)
    size = (", M = " + cells["M"].astype("string")).where(cells["M"].fillna(M) != M, "")
    line = cells["method"] + " " + cells["family"] + size
    cells = cells.assign(value=value, finished=cells["status"] != "missing")
    first, *others = (cells[line == name] for name in names.split(" - "))
    for other in others:
        jitter = [] if other["kl_jitter"].isna().all() else ["kl_jitter"]  # EXACT is compared with each jitter
        first = first.merge(other, on=["dataset", "split", *jitter], suffixes=("", "_of_other"))
        first["value"] = paired_differences(*first[["value", "value_of_other"]].to_numpy().T)
        first["finished"] &= first["finished_of_other"]
    return first


def _judged(claim: StudyClaim, splits: pd.DataFrame) -> dict[str, Any]:
    values = splits["value"].dropna()
    agreeing = (values > claim.threshold) if claim.side == "above" else (values < claim.threshold)
    counts = {"agreeing": agreeing.sum(), "splits": len(values), "planned": len(splits)}
    row = claim.model_dump(include={"says", "statistic", "side", "threshold"}) | counts
    if not splits["finished"].all():
        return row | {"outcome": "incomplete"}
    # No verdict on the remaining splits alone: a split that diverged without a value makes the claim "not judged".
    if len(values) < max(len(splits), FEWEST_SPLITS):
        return row | {"outcome": "not judged"}
    verdict = claim.judge(values.tolist())
    return row | verdict.model_dump(include={"value", "low", "high"}) | {"outcome": verdict.outcome}


def verdict_table(judged: pd.DataFrame) -> pd.DataFrame:
    """A table of claims and outcomes: each data set without jitter, with the number of splits on the claimed side; and
    the data sets whose outcome differs with jitter, if all their splits with jitter have finished."""
    judged = judged[judged["splits"] > 0]  # the others have no values yet
    judged = judged.assign(place=[_place(row) for row in judged.itertuples()])
    jittered = judged["kl_jitter"] > 0
    plain = judged[~jittered]
    table = plain.pivot_table("place", "says", "outcome", ", ".join, sort=False)
    table = table.reindex(columns=[name for name in _OUTCOMES if name in (*_OUTCOMES[:3], *table)])
    if jittered.any():
        both = judged[jittered].merge(plain, on=["statistic", "says", "dataset"], suffixes=("", "_without"))
        known = (both[["outcome", "outcome_without"]] != "incomplete").all(axis=1)
        moved = both[known & (both["outcome"] != both["outcome_without"])]
        entries = moved["place"] + ": " + moved["outcome"]
        table["different outcome with jitter"] = entries.groupby(moved["says"]).agg(", ".join)
    return table.astype(object).fillna("–").rename_axis(index="claim", columns=None).reset_index()


def _place(row: Any) -> str:
    """An entry such as `boston (1e-6) 19/20`."""
    jitter = f" ({in_words(row.kl_jitter)})" if row.kl_jitter > 0 else ""
    of_planned = f" of {row.planned}" if row.outcome == "incomplete" else ""
    return f"{row.dataset}{jitter} {row.agreeing}/{row.splits}{of_planned}"
