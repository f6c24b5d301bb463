"""The paper's claims, judged from the study's table: by data set and jitter, once all planned splits are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.cells import LOST, in_words
from fsvi_bench.papers.claims import Claim
from fsvi_bench.presenting.looks import NO_LOGARITHM
from fsvi_bench.statistics.resampled_t import paired_differences

M = 80  #: the paper's default
FEWEST_SPLITS = 2  #: with which there is an interval
#: What a claim is about, by the first words of its statistic; of KLs the logarithms.
_COLUMNS = {
    "log KL": "kl",
    "log KL mean term": "kl_mean_term",
    "training log likelihood above exact's": "log_likelihood_excess",
    "the mean's training log likelihood above exact's": "mean_log_likelihood_excess",
    "log variance ratio in the box": "log_variance_ratio",
}
_OUTCOMES = ("held", "did not hold", "undecided", "not judged", "incomplete")


class StudyClaim(Claim):
    """A claim on every data set, or on those that it names."""

    datasets: tuple[str, ...] = Field(default=(), exclude=True)


def judge_study(cells: pd.DataFrame, claims: Sequence[StudyClaim]) -> pd.DataFrame:
    """A row for every claim on every data set and jitter on which it was planned (NaN for claims on EXACT alone).

    There is a `value` with its interval once every planned split is there and has a value; `splits` have one,
    `finished` have a record, and `agreeing` of the `splits` are on the claimed side by themselves.

    Raises:
        InputError: a claim names a statistic that there is not.
    """
    rows = []
    for claim in claims:
        here = cells[cells["dataset"].isin(claim.datasets or cells["dataset"])]
        places = _differences(claim.statistic, here).groupby(["dataset", "kl_jitter"], dropna=False)
        for (dataset, jitter), splits in places:
            rows.append({"dataset": dataset, "kl_jitter": jitter} | _judged(claim, splits))
    return pd.DataFrame(rows)


def _differences(statistic: str, cells: pd.DataFrame) -> pd.DataFrame:
    """By planned split, what the statistic is the mean of, and whether it is finished.

    A KL that is 0 but for rounding counts as the least that a figure shows; what diverged or failed is infinitely far
    from everything, and tells nothing of likelihoods and variances.
    """
    kind, _, names = statistic.partition(": ")
    if kind not in _COLUMNS:
        raise InputError(f"burt2020-study.yaml: there is no statistic '{statistic}'; mend the file")
    value = cells[_COLUMNS[kind]]
    if kind.startswith("log KL"):
        value = np.log(value.clip(lower=NO_LOGARITHM)).mask(cells["status"].isin(LOST), np.inf)
    size = (", M = " + cells["M"].astype("string")).where(cells["M"].fillna(M) != M, "")
    line = cells["method"] + " " + cells["family"] + size
    cells = cells.assign(value=value, finished=cells["status"] != "missing")
    first, *others = (cells[line == name] for name in names.split(" - "))
    for other in others:
        jitter = [] if other["kl_jitter"].isna().all() else ["kl_jitter"]  # EXACT stands beside each
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
    # Not of survivors: a split that diverged where that tells nothing leaves no verdict.
    if len(values) < max(len(splits), FEWEST_SPLITS):
        return row | {"outcome": "not judged"}
    verdict = claim.judge(values.tolist())
    return row | verdict.model_dump(include={"value", "low", "high"}) | {"outcome": verdict.outcome}


def verdict_table(judged: pd.DataFrame) -> pd.DataFrame:
    """Claims against where they held: each data set once, without jitter, with how many of its splits are on the
    claimed side by themselves; and where the outcome is another with jitter, if all splits are there with it."""
    judged = judged[judged["splits"] > 0]  # the others have nothing to be judged by yet
    judged = judged.assign(place=[_place(row) for row in judged.itertuples()])
    jittered = judged["kl_jitter"] > 0
    plain = judged[~jittered]
    table = plain.pivot_table("place", "says", "outcome", ", ".join, sort=False)
    table = table.reindex(columns=[name for name in _OUTCOMES if name in (*_OUTCOMES[:3], *table)])
    if jittered.any():
        both = judged[jittered].merge(plain, on=["statistic", "says", "dataset"], suffixes=("", "_without"))
        known = (both[["outcome", "outcome_without"]] != "incomplete").all(axis=1)
        moved = both[known & (both["outcome"] != both["outcome_without"])]
        told = moved["place"] + ": " + moved["outcome"]
        table["another outcome with jitter"] = told.groupby(moved["says"]).agg(", ".join)
    return table.astype(object).fillna("–").rename_axis(index="claim", columns=None).reset_index()


def _place(row: Any) -> str:
    """Such as `boston (1e-6) 19/20`."""
    jitter = f" ({in_words(row.kl_jitter)})" if row.kl_jitter > 0 else ""
    of_planned = f" of {row.planned}" if row.outcome == "incomplete" else ""
    return f"{row.dataset}{jitter} {row.agreeing}/{row.splits}{of_planned}"
