"""How far apart mean ranks must be for the leaderboard to distinguish two entries, by simulation.

    python benchmarks/rank_power.py

Log scores of method m on data set d, task t and seed s are μ_m + a_md + b_mdt + c_mdts, independent normals. The
standard deviations of a, between data sets, and of b + c, between splits with a seed each, are those of log10 KL in
`docs/study/scores.csv.gz` with M = 80, relative to the mean over methods on each split; RANDA with full covariances, which
diverges on naval, is left out. Half of the variance of b + c is the seed's (`--seed-share` changes it): more than in
`v2`, whose shares are printed first, so that further seeds gain as much as they could. The μ_m are equally spaced, at
several distances. Simulated boards are ranked as the leaderboard ranks runs. Two entries are distinguished if one outranks the
other (`statistics/all_pairs.py`), or with `--nemenyi` by the rule of earlier versions: if a bootstrap over data sets and
tasks separates them, and their mean ranks differ by Nemenyi's critical difference. The true mean ranks follow from the
model. Printed is the true difference at which two entries are distinguished on 80% of the boards, and the shares of
boards on which any two equally good entries are: if all are equal, if half of them are and the others worse, and the
same with skewed noise. The last line is about two entries with equal mean ranks, of which one is usually a rank ahead
and rarely ten behind: the test takes the usual for better.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm, rankdata, studentized_range

from fsvi_bench.statistics.all_pairs import LEVEL, pairwise_p_values
from fsvi_bench.statistics.bootstrap import bootstrap_run_ranks

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "docs" / "study" / "scores.csv.gz"
RESULTS = ROOT / "leaderboard" / "results" / "v2"
SCORES = ("kl", "joint_predictive_kl_test", "joint_predictive_kl_box", "mmd2")
#: Data sets, tasks and seeds, by number of methods; with a fourth number, so many tasks have these seeds and the others one.
DESIGNS: dict[int, tuple[tuple[int, ...], ...]] = {
    7: ((15, 5, 3), (15, 5, 3, 1), (7, 20, 1), (7, 5, 3), (15, 5, 1), (15, 20, 3)),
    20: ((15, 5, 3), (7, 20, 1)),
    30: ((15, 5, 3), (10, 5, 1), (7, 5, 1)),
}
SPACINGS = np.geomspace(0.05, 1.6, 12)  #: of the μ_m, in standard deviations of a + b + c
BOARDS, NULL_BOARDS, RESAMPLES, POWER = 200, 400, 1000, 0.8
WIDTH = 0.25  #: of bins of true differences

Design = tuple[int, ...]
Shares = tuple[float, float, float]


def deviations() -> tuple[float, float]:
    """Standard deviations of log10 KL between data sets, and between splits within them, for a method."""
    runs = pd.read_csv(STUDY).query("method != 'exact' and status == 'ok' and kl > 0 and M == 80 and kl_jitter == 0")
    runs["method"] = runs["method"] + runs["family"]
    logs = np.log10(runs.groupby(["dataset", "split", "method"])["kl"].median()).unstack().dropna(axis=1)
    logs = logs.sub(logs.mean(axis=1), axis=0)
    within = logs.groupby("dataset").var().mean().mean()
    between = logs.groupby("dataset").mean().var().mean() - within / logs.groupby("dataset").size().mean()
    return float(max(between, 0.0) ** 0.5), float(within**0.5)


def seed_shares(without: str = "") -> dict[str, float]:
    """By score: the variance of its logarithm between seeds on a task, as a share of that between the tasks of a data
    set with one seed each, relative to the mean over entries. Both are means over the entries whose seeds differ and
    over data sets. `without` leaves out an entry altogether."""
    paths = [path for path in sorted(RESULTS.glob("*.json")) if path.stem != without]
    results = {path.stem: json.loads(path.read_text())["cells"] for path in paths}
    cells = pd.concat({entry: pd.json_normalize(each) for entry, each in results.items()}, names=["entry"])
    ranked = cells.query("kind == 'ranked' and status == 'ok'").reset_index("entry")
    shares = {}
    for score in SCORES:
        values = pd.to_numeric(ranked[f"scores.{score}"], errors="coerce")
        logs = ranked.assign(log=np.log10(values.where(np.isfinite(values) & (values > 0)))).dropna(subset="log")
        seeds = logs.query("number == 0").groupby(["dataset", "entry"])["log"].var().unstack()
        seeds = seeds.loc[:, seeds.max() > 0]
        tasks = logs.query("seed == 0").pivot(index=["dataset", "number"], columns="entry", values="log")[seeds.columns]
        within = tasks.sub(tasks.mean(axis=1), axis=0).groupby("dataset").var()
        shares[score] = float(seeds.mean().mean() / within.mean().mean())
    return shares


def true_ranks(means: np.ndarray) -> np.ndarray:
    """Expected ranks of methods whose scores have the variance 1."""
    return 0.5 + norm.cdf((means[:, None] - means) / 2**0.5).sum(1)


def nemenyi(ranks: np.ndarray, stream: np.random.Generator) -> np.ndarray:
    """[a, b]: whether the bootstrap of the ranks [D, T, M] separates a from b, and Nemenyi's test does."""
    D, _, M = ranks.shape
    found = bootstrap_run_ranks({f"{d:02d}": ranks[d].T for d in range(D)}, stream, RESAMPLES)
    X = found.resampled.T
    lead = found.mean_rank - found.mean_rank[:, None]
    critical = studentized_range.ppf(0.95, M, np.inf) * (M * (M + 1) / (12 * D)) ** 0.5
    return (lead >= critical) & (np.array([(row < X).mean(1) for row in X]) >= 0.975)


def distinguished(means: np.ndarray, design: Design, shares: Shares, stream: np.random.Generator, old: bool,
                  skewed: bool = False) -> np.ndarray:  # fmt: skip
    """[a, b]: whether a is distinguished from b on one simulated board, as the better one."""
    (D, T, S), M = design[:3], len(means)
    a, b, c = (share**0.5 * stream.standard_normal((*shape, M)) for share, shape in
               zip(shares, ((D, 1, 1), (D, T, 1), (D, T, S)), strict=True))  # fmt: skip
    if skewed:
        a = shares[0] ** 0.5 * (stream.exponential(size=a.shape) ** 2 - 2) / 20**0.5  # of variance 1
    of_seeds = rankdata(means + a + b + c, axis=-1)
    replicated = design[3] if len(design) > 3 else T
    ranks = np.concatenate([of_seeds[:, :replicated].mean(2), of_seeds[:, replicated:, 0]], axis=1)
    if old:
        return nemenyi(ranks, stream)
    mean_ranks = ranks.mean((0, 1))
    return (pairwise_p_values(ranks.mean(1).T) <= LEVEL) & (mean_ranks[:, None] < mean_ranks)


def false_positives(M: int, design: Design, shares: Shares, old: bool) -> list[float]:
    """The shares of boards on which truly equal entries are distinguished."""
    stream, half = np.random.default_rng(1), np.where(np.arange(M) < M // 2, 0.0, 1.0 + np.arange(M) / M)
    found = []
    for means, skewed in ((np.zeros(M), False), (half, False), (half, True)):
        equal = means[:, None] == means
        boards = (distinguished(means, design, shares, stream, old, skewed) for _ in range(NULL_BOARDS))
        found.append(float(np.mean([board[equal].any() for board in boards])))
    return found


def usually_ahead(D: int) -> float:
    """The share of boards on which the entry that is usually a rank ahead and rarely ten behind counts as better."""
    stream = np.random.default_rng(1)
    lead = np.where(stream.random((NULL_BOARDS, D)) < 10 / 11, 1.0, -10.0)
    return float(np.mean([pairwise_p_values(np.stack([11 - each, np.full(D, 11.0)]))[0, 1] <= LEVEL for each in lead]))


def needed(M: int, design: Design, shares: Shares, old: bool) -> float:
    """The smallest true difference of mean ranks from which on the power is reached; NaN if it never is."""
    stream, gaps, hits = np.random.default_rng(0), [], []
    pairs = np.array(list(combinations(range(M), 2)))
    for spacing in SPACINGS:
        means = spacing * np.arange(M)
        ranks = true_ranks(means)
        gaps.append(ranks[pairs[:, 1]] - ranks[pairs[:, 0]])
        boards = [distinguished(means, design, shares, stream, old)[pairs[:, 0], pairs[:, 1]] for _ in range(BOARDS)]
        hits.append(np.mean(boards, 0))
    table = pd.DataFrame({"gap": np.concatenate(gaps), "power": np.concatenate(hits)})
    power = table.groupby((table["gap"] / WIDTH).round() * WIDTH)["power"].mean()[::-1].cummin()[::-1]
    return float(np.interp(POWER, power, power.index)) if power.max() >= POWER else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed-share", type=float, default=0.5)
    parser.add_argument("--nemenyi", action="store_true")
    arguments = parser.parse_args()
    share, old = arguments.seed_share, arguments.nemenyi
    for without in ("", "ivon-ffg"):  # on energy, IVON's seeds differ more than those of all others together
        shown = {score: f"{each:.0%}" for score, each in seed_shares(without).items()}
        print("v2: seeds' share of the variance", without and f"without {without}", shown)
    between, within = deviations()
    print(
        f"log10 KL: deviation {between:.2f} between data sets, {within:.2f} between splits; seeds: {share:.0%} of its variance"
    )
    whole = between**2 + within**2
    shares = (between**2 / whole, (1 - share) * within**2 / whole, share * within**2 / whole)
    for M, designs in DESIGNS.items():
        for design in designs:
            equal, half, skewed = false_positives(M, design, shares, old)
            print(
                f"{M} methods, {' × '.join(map(str, design))}: 80% power from {needed(M, design, shares, old):.2f} ranks; "
                f"wrong on {equal:.1%} of boards, {half:.1%} if half are equal, {skewed:.1%} if also skewed",
                flush=True,
            )
    if not old:
        print("usually a rank ahead, rarely ten behind:", {D: f"{usually_ahead(D):.1%}" for D in (8, 12, 15)})


if __name__ == "__main__":
    main()
