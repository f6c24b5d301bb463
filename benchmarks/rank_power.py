"""How far apart mean ranks must be for the leaderboard to distinguish two entries, by simulation.

    python benchmarks/rank_power.py

Log scores of method m on data set d, task t and seed s are μ_m + a_md + b_mdt + c_mdts, independent normals. The
standard deviations of a, between data sets, and of b + c, between splits with a seed each, are those of log10 KL in
`docs/study/scores.csv.gz` with M = 80, relative to the mean over methods on each split; RANDA with full covariances, which
diverges on naval, is left out. Half of the variance of b + c is the
seed's, which the study, with one seed, does not tell; `--seed-share` changes it. The μ_m are equally spaced, at several
distances. Simulated boards are ranked as the leaderboard ranks runs, and two entries are distinguished by its rule: the
bootstrap separates them, and their mean ranks differ by Nemenyi's critical difference. The true mean ranks follow from
the model. Printed is the true difference at which two entries are distinguished on 80% of the boards.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm, rankdata

from fsvi_bench.statistics.bootstrap import bootstrap_run_ranks, separated
from fsvi_bench.statistics.ranks import critical_difference

STUDY = Path(__file__).parents[1] / "docs" / "study" / "scores.csv.gz"
#: Data sets, tasks and seeds, by number of methods.
DESIGNS = {7: ((15, 5, 3), (7, 20, 1), (7, 5, 3), (15, 5, 1), (15, 20, 3)), 20: ((15, 5, 3), (7, 20, 1))}
SPACINGS = np.geomspace(0.05, 1.6, 12)  #: of the μ_m, in standard deviations of a + b + c
BOARDS, RESAMPLES, POWER = 200, 1000, 0.8
WIDTH = 0.25  #: of bins of true differences


def deviations() -> tuple[float, float]:
    """Standard deviations of log10 KL between data sets, and between splits within them, for a method."""
    runs = pd.read_csv(STUDY).query("method != 'exact' and status == 'ok' and kl > 0 and M == 80 and kl_jitter == 0")
    runs["method"] = runs["method"] + runs["family"]
    logs = np.log10(runs.groupby(["dataset", "split", "method"])["kl"].median()).unstack().dropna(axis=1)
    logs = logs.sub(logs.mean(axis=1), axis=0)
    within = logs.groupby("dataset").var().mean().mean()
    between = logs.groupby("dataset").mean().var().mean() - within / logs.groupby("dataset").size().mean()
    return float(max(between, 0.0) ** 0.5), float(within**0.5)


def true_ranks(means: np.ndarray) -> np.ndarray:
    """Expected ranks of methods whose scores have the variance 1."""
    return 0.5 + norm.cdf((means[:, None] - means) / 2**0.5).sum(1)


def distinguished(means: np.ndarray, design: tuple[int, int, int], shares: tuple[float, float, float],
                  stream: np.random.Generator) -> np.ndarray:  # fmt: skip
    """[a, b]: whether a is distinguished from b on one simulated board."""
    (D, T, S), M = design, len(means)
    a, b, c = (share**0.5 * stream.standard_normal((*shape, M)) for share, shape in
               zip(shares, ((D, 1, 1), (D, T, 1), (D, T, S)), strict=True))  # fmt: skip
    ranks = rankdata(means + a + b + c, axis=-1).mean(2)
    found = bootstrap_run_ranks({f"{d:02d}": ranks[d].T for d in range(D)}, stream, RESAMPLES)
    return separated(found, critical_difference(M, D))


def needed(M: int, design: tuple[int, int, int], shares: tuple[float, float, float]) -> float:
    """The smallest true difference of mean ranks from which on the power is reached; NaN if it never is."""
    stream, gaps, hits = np.random.default_rng(0), [], []
    pairs = np.array(list(combinations(range(M), 2)))
    for spacing in SPACINGS:
        means = spacing * np.arange(M)
        ranks = true_ranks(means)
        gaps.append(ranks[pairs[:, 1]] - ranks[pairs[:, 0]])
        boards = [distinguished(means, design, shares, stream)[pairs[:, 0], pairs[:, 1]] for _ in range(BOARDS)]
        hits.append(np.mean(boards, 0))
    table = pd.DataFrame({"gap": np.concatenate(gaps), "power": np.concatenate(hits)})
    power = table.groupby((table["gap"] / WIDTH).round() * WIDTH)["power"].mean()[::-1].cummin()[::-1]
    return float(np.interp(POWER, power, power.index)) if power.max() >= POWER else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed-share", type=float, default=0.5)
    share = parser.parse_args().seed_share
    between, within = deviations()
    print(
        f"log10 KL: deviation {between:.2f} between data sets, {within:.2f} between splits; seeds: {share:.0%} of its variance"
    )
    whole = between**2 + within**2
    shares = (between**2 / whole, (1 - share) * within**2 / whole, share * within**2 / whole)
    for M, designs in DESIGNS.items():
        for design in designs:
            critical, found = critical_difference(M, design[0]), needed(M, design, shares)
            print(
                f"{M} methods, {' × '.join(map(str, design))}: critical difference {critical:.2f}, 80% power from {found:.2f} ranks",
                flush=True,
            )


if __name__ == "__main__":
    main()
