"""How correlated scores of overlapping splits are, estimated from disjoint subsets of kin40k and protein.

    python benchmarks/split_correlation.py [--subsets 40] [--rows 500] [--splits 3] [--workers 2]

Nadeau and Bengio (2003) assume the correlation n_test/(n_train + n_test), 0.1 for 90/10 splits, of errors on test
sets. Here each subset stands for a data set of its own: its splits share rows with each other and with no other
subset. The intraclass correlation of a score (one-way analysis of variance, interval from the F distribution) is
therefore what the assumption is about. Var(mean of J splits)/E[s²] = 1/J + ρ/(1 − ρ), so ρ/(1 − ρ) replaces
n_test/n_train in the correction.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import f as f_distribution

from fsvi_bench import fit, make_task, score
from fsvi_bench.errors import TaskRefused
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.raw import load_raw

DATASETS = ("kin40k", "protein")
LEVEL = 0.95


def scores_of(place: tuple[str, int, int, int]) -> dict[str, float]:
    """Scores of one split of one subset: log10 KLs of three methods, their ratio, and the exact posterior's NLPD."""
    dataset, subset, split, rows = place
    raw = load_raw(load_card(dataset), 0)
    chosen = np.random.default_rng(0).permutation(len(raw.y))[subset * rows : (subset + 1) * rows]
    found: dict[str, float] = {"dataset": dataset, "subset": subset, "split": split}  # type: ignore[dict-item]
    try:
        task = make_task(raw.X[chosen], raw.y[chosen], seed=split + 1, name=f"{dataset}-{subset}")
    except TaskRefused:
        return found
    kl = {
        "EXACT-FFG": score(fit("exact", task, family="ffg"), task)["kl"],
        "natural gradients": score(fit("rand-a-ngd", task, family="full"), task)["kl"],
        "RANDA": score(fit("rand-a", task, family="full", max_steps=1000), task)["kl"],
    }
    found |= {f"log10 KL of {name}": math.log10(value) for name, value in kl.items()}
    found["log10 KL ratio, RANDA to natural gradients"] = math.log10(kl["RANDA"] / kl["natural gradients"])
    found["NLPD of the exact posterior"] = score(fit("exact", task, family="full"), task)["nlpd"]
    return found


class Correlation(NamedTuple):
    """An intraclass correlation with its interval."""

    value: float
    low: float
    high: float


def intraclass(table: np.ndarray) -> Correlation:
    """ICC(1) of groups in rows (Shrout and Fleiss 1979)."""
    groups, size = table.shape
    between = size * table.mean(1).var(ddof=1)
    within = table.var(axis=1, ddof=1).mean()
    degrees = groups - 1, groups * (size - 1)
    quantiles = f_distribution.ppf([0.5 + LEVEL / 2, 0.5 - LEVEL / 2], *degrees)
    ends = [(ratio - 1) / (ratio + size - 1) for ratio in between / within / np.array([1.0, *quantiles])]
    return Correlation(*ends)


def lines(cells: pd.DataFrame, splits: int) -> Iterator[str]:
    """A Markdown table."""
    yield "| data set | score | ρ | 95% interval | ρ/(1 − ρ) |\n|---|---|---:|---|---:|"
    for dataset, of_dataset in cells.groupby("dataset", sort=False):
        for name in cells.columns[3:]:
            wide = of_dataset.pivot(index="subset", columns="split", values=name).dropna()
            assert wide.shape[1] == splits
            found = intraclass(wide.to_numpy())
            factor = found.value / (1 - found.value)
            yield f"| {dataset} | {name} | {found.value:.2f} | {found.low:.2f} to {found.high:.2f} | {factor:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--subsets", type=int, default=40)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    places = [(*place, given.rows) for place in product(DATASETS, range(given.subsets), range(given.splits))]
    with ProcessPoolExecutor(given.workers) as pool:
        cells = pd.DataFrame(list(pool.map(scores_of, places)))
    print(*lines(cells, given.splits), sep="\n")
    print(f"{int(cells.isna().any(axis=1).sum())} of {len(cells)} splits had no certified task")


if __name__ == "__main__":
    main()
