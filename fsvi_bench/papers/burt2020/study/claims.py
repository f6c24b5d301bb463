"""The paper's claims, judged from the study's table: by data set and jitter, once all planned splits are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.papers.claims import Claim, Values, Verdict
from fsvi_bench.presenting.figures import NO_LOGARITHM

M = 80  #: the paper's default
FEWEST_SPLITS = 2  #: with which there is an interval
#: What a claim is about, by the first words of its statistic; of KLs the logarithms.
_COLUMNS = {
    "log KL": "kl",
    "log KL, M = 20 above M = 160": "kl",
    "log KL mean term": "kl_mean_term",
    "training log likelihood above exact's": "log_likelihood_excess",
    "the mean's training log likelihood above exact's": "mean_log_likelihood_excess",
    "log variance ratio in the box": "log_variance_ratio",
}


class StudyClaim(Claim):
    """A claim on every data set, or on those that it names."""

    datasets: tuple[str, ...] = ()

    def judge(self, found: Values) -> Verdict:
        return Claim(**self.model_dump(exclude={"datasets"})).judge(found)


def judge_study(cells: pd.DataFrame, claims: Sequence[StudyClaim]) -> pd.DataFrame:
    """A row for every claim on every data set and jitter on which it was planned (NaN for claims on EXACT alone).

    There is a `value` with its interval once every planned split is there and has a value; `splits` have one,
    `finished` have a record, and `agreeing` of the `splits` are on the claimed side by themselves.

    Raises:
        InputError: a claim names a statistic that there is not.
    """
    by_dataset = dict(tuple(cells.groupby("dataset")))
    rows = []
    for claim in claims:
        for dataset in claim.datasets or by_dataset:
            here = by_dataset.get(dataset, cells.iloc[:0])
            jitters = [np.nan] if ": exact " in claim.statistic else sorted(here["kl_jitter"].dropna().unique())
            for jitter in jitters:
                found = _differences(claim.statistic, here[here["kl_jitter"].isna() | (here["kl_jitter"] == jitter)])
                if len(found):
                    rows.append({"dataset": dataset, "kl_jitter": jitter} | _judged(claim, found))
    return pd.DataFrame(rows)


def _differences(statistic: str, cells: pd.DataFrame) -> pd.DataFrame:
    """By split that is planned, what the statistic is the mean of, and whether it is finished."""
    kind, _, names = statistic.partition(": ")
    if kind not in _COLUMNS:
        raise InputError(f"burt2020-study.yaml: there is no statistic '{statistic}'; mend the file")
    lines = [(*each.split(), M) for each in names.split(" - ")]
    if "M = 160" in kind:
        lines = [(*lines[0][:2], 20), (*lines[0][:2], 160)]
    parts = list(_parts(cells, lines, kind))
    both = pd.concat(parts, axis=1, keys=range(len(parts)), join="inner")
    value = both[0]["value"]
    if len(parts) > 1:
        value = (value - both[1]["value"]).mask(value == both[1]["value"], 0.0)  # two infinities are equal
    return pd.DataFrame({"value": value, "finished": both[0]["finished"] & both[len(parts) - 1]["finished"]})


def _parts(cells: pd.DataFrame, lines: Sequence[tuple[Any, ...]], kind: str) -> Iterator[pd.DataFrame]:
    """Of each line by split. A KL that is 0 but for rounding counts as the least that a figure shows; what diverged or
    failed is infinitely far from everything, and tells nothing of likelihoods and variances."""
    for method, family, size in lines:
        sized = cells["M"].isna() if method == "exact" else cells["M"].eq(size).fillna(False)
        part = cells[(cells["method"] == method) & (cells["family"] == family) & sized].set_index("split")
        value = part[_COLUMNS[kind]]
        if kind.startswith("log KL"):
            value = np.log(value.clip(lower=NO_LOGARITHM)).mask(part["status"].isin(["diverged", "failed"]), np.inf)
        yield pd.DataFrame({"value": value, "finished": part["status"] != "missing"})


def _judged(claim: StudyClaim, found: pd.DataFrame) -> dict[str, Any]:
    values = found["value"].dropna()
    agreeing = (values > claim.threshold) if claim.side == "above" else (values < claim.threshold)
    counts = {"agreeing": agreeing.sum(), "splits": len(values), "planned": len(found)}
    row = claim.model_dump(include={"says", "statistic", "side", "threshold"}) | counts
    if not found["finished"].all():
        return row | {"outcome": "incomplete"}
    # Not of survivors: a split that diverged where that tells nothing leaves no verdict.
    if len(values) < max(len(found), FEWEST_SPLITS):
        return row | {"outcome": "not judged"}
    verdict = claim.judge(values.tolist())
    outcome = "held" if verdict.holds else "undecided" if verdict.undecided else "did not hold"
    return row | {"value": verdict.value, "low": verdict.low, "high": verdict.high, "outcome": outcome}


def verdict_table(judged: pd.DataFrame) -> pd.DataFrame:
    """Claims against where they held: each data set once, without jitter, with how many of its splits are on the
    claimed side by themselves; and where the outcome is another with jitter, if all splits are there with it."""
    judged = judged[judged["splits"] > 0]  # the others have nothing to be judged by yet
    jitter = judged["kl_jitter"].map("{:g}".format).astype(str).str.replace("e-0", "e-")
    of_planned = (" of " + judged["planned"].astype(str)).where(judged["outcome"] == "incomplete", "")
    share = judged["agreeing"].astype(str) + "/" + judged["splits"].astype(str) + of_planned
    jittered = judged["kl_jitter"] > 0
    places = judged.assign(
        place=judged["dataset"] + jitter.radd(" (").add(")").where(jittered, "") + " " + share
    )  # boston (1e-6) 19/20
    without = places[~jittered]
    table = without.pivot_table("place", "says", "outcome", ", ".join, sort=False)
    outcomes = ["held", "did not hold", "undecided", "not judged", "incomplete"]
    table = table.reindex(columns=[name for place, name in enumerate(outcomes) if place < 3 or name in table])
    moved = places[jittered].merge(without, on=["statistic", "says", "dataset"], suffixes=("", "_without"))
    known = (moved["outcome"] != "incomplete") & (moved["outcome_without"] != "incomplete")
    moved = moved[known & (moved["outcome"] != moved["outcome_without"])]
    told = (moved["place"] + ": " + moved["outcome"]).groupby(moved["says"]).agg(", ".join)
    if jittered.any():
        table["another outcome with jitter"] = told.reindex(table.index)
    return table.astype(object).fillna("–").rename_axis(index="claim", columns=None).reset_index()
