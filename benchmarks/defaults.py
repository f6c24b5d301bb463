"""What the search for default settings changed: every trained method with the settings from before it, and with those of today.

    python benchmarks/defaults.py [--out build/defaults] [--splits 0-4] [--dataset NAME]...

trains both on all official data sets, resumes where it stopped, and writes `benchmarks/defaults.md`: medians over
splits of the scores, which the search never looked at, and the number of runs that diverged.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import pandas as pd

import fsvi_bench
from fsvi_bench.presenting.plots import digits

DATASETS = (
    "boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht", "airfoil", "skillcraft", "sml",
)  # fmt: skip
METHODS = (
    "rand-a", "ssge", "mean-field-vi", "gaussian-dropout", "variational-dropout", "sparse-variational-dropout",
    "concrete-dropout",
)  # fmt: skip
BEFORE = {"lr": 0.01, "lr_schedule": "constant", "averaging": 0.0, "off_diagonal_lr": 1.0}
STEPS_BEFORE = 15_000
ROW = ["dataset", "method", "family"]
#: Bernoulli dropout has no density, so its rows have the KL of its moments.
SCORES = {
    "KL(q‖P_D)": "kl", "joint predictive KL, test": "joint_predictive_kl_test.10",
    "joint predictive KL, box": "joint_predictive_kl_box.10", "objective gap": "objective_gap",
}  # fmt: skip


def trained(out: Path, dataset: str, splits: str, before: bool) -> pd.DataFrame:
    """The records of one data set with the settings from before, or with today's."""
    own = {"options": BEFORE, "max_steps": STEPS_BEFORE} if before else {}
    begun = time.perf_counter()
    found = fsvi_bench.run(
        datasets=[dataset],
        methods=METHODS,
        splits=splits,
        out=out / ("before" if before else "today"),
        wandb="off",
        **own,
    )
    print(f"{dataset}, {'before' if before else 'today'}: {time.perf_counter() - begun:.0f} s", flush=True)
    return found.assign(kl=found["kl"].where(found["family"] != "bernoulli", found["kl_moment_matched"]))


def medians(records: pd.DataFrame) -> pd.DataFrame:
    """Medians over splits; distances of a run that diverged are infinite, and unknown gaps are left out."""
    lost = records["status"] != "ok"
    for name in SCORES.values():
        records[name] = records[name].astype(float).mask(lost, math.inf)
    grouped = records.assign(diverged=lost).groupby(ROW, sort=False)
    return grouped[list(SCORES.values())].median().join(grouped["diverged"].sum())


def table(before: pd.DataFrame, today: pd.DataFrame) -> str:
    """A Markdown table with `before → today` in each cell."""
    heads = ["data set", "method", *SCORES, "diverged"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for (dataset, method, family), new in today.iterrows():
        old = before.loc[(dataset, method, family)]
        pairs = [f"{digits(old[name])} → {digits(new[name])}" for name in SCORES.values()]
        lost = f"{old['diverged']:.0f} → {new['diverged']:.0f}"
        lines.append(f"| {dataset} | {method} {family} | {' | '.join(pairs)} | {lost} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/defaults"))
    parser.add_argument("--splits", default="0-4")
    parser.add_argument("--dataset", action="append", choices=DATASETS)
    parser.add_argument("--today", action="store_true", help="train with today's settings only, and write no table")
    given = parser.parse_args()
    found: dict[bool, list[pd.DataFrame]] = {False: [], True: []}
    for name in given.dataset or DATASETS:
        for before in (False,) if given.today else (False, True):
            found[before].append(medians(trained(given.out, name, given.splits, before)))
    if not given.today:
        Path(__file__).with_suffix(".md").write_text(table(pd.concat(found[True]), pd.concat(found[False])))


if __name__ == "__main__":
    main()
