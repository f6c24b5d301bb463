"""What the search for default settings changed: trained methods with the settings from before it, and with those of today.

    python benchmarks/defaults.py [--out build/defaults] [--splits 5] [--dataset NAME]...

trains both on all data sets with official tasks but diabetes, resumes where it stopped, and writes `benchmarks/defaults.md`: medians over
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
    "boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht", "airfoil", "elevators", "kin40k",
    "parkinsons", "pol", "pumadyn32nm", "skillcraft", "sml",
)  # fmt: skip
METHODS = ("rand-a", "ssge", "mean-field-vi", "gaussian-dropout", "variational-dropout", "sparse-variational-dropout")
BEFORE = {
    "lr": 0.01, "off_diagonal_lr": 1.0, "lr_schedule": "constant", "averaging": 0.0, "parametrisation": "weights", "initial_scale": 1.0,
    "minibatch": 80, "max_steps": 15_000,
}  # fmt: skip
ROW = ["dataset", "method", "family"]
SCORES = {
    "KL(q‖P_D)": "kl", "joint predictive KL, test": "joint_predictive_kl_test.10",
    "joint predictive KL, box": "joint_predictive_kl_box.10", "objective gap": "objective_gap",
}  # fmt: skip


def trained(folder: Path, dataset: str, splits: int, options: dict[str, object]) -> pd.DataFrame:
    """The cells of one data set."""
    begun = time.perf_counter()
    found = fsvi_bench.run(
        datasets=[dataset], methods=METHODS, splits=f"0-{splits - 1}", options=options, out=folder, wandb="off"
    )
    print(f"{dataset}, {folder.name}: {time.perf_counter() - begun:.0f} s", flush=True)
    return found


def medians(cells: pd.DataFrame) -> pd.DataFrame:
    """Medians over splits. Scores of a run that diverged are infinite; a score that no run has is NaN."""
    lost, scores = cells["status"] != "ok", cells[list(SCORES.values())].astype(float)
    scores = scores.mask(lost, math.inf, axis=0).where(scores.notna().any(), math.nan, axis=1)
    grouped = pd.concat([cells[ROW], scores, lost.rename("diverged")], axis=1).groupby(ROW, sort=False)
    return grouped[list(SCORES.values())].median().join(grouped["diverged"].sum())


def table(before: pd.DataFrame, today: pd.DataFrame) -> str:
    """A Markdown table with `before → today` in each cell."""
    heads = ["data set", "method", *SCORES, "diverged"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for row, new in today.iterrows():
        old = before.reindex([row]).iloc[0]
        pairs = [f"{digits(old[name])} → {digits(new[name])}" for name in SCORES.values()]
        lost = f"{old['diverged']:.0f} → {new['diverged']:.0f}".replace("nan", "–")
        lines.append(f"| {row[0]} | {row[1]} {row[2]} | {' | '.join(pairs)} | {lost} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/defaults"))
    parser.add_argument("--splits", type=int, default=5, help="the first so many")
    parser.add_argument("--dataset", action="append", choices=DATASETS)
    given = parser.parse_args()
    datasets = given.dataset or DATASETS
    runs = {
        name: pd.concat(
            [trained(given.out / name, each, given.splits, options) for each in datasets], ignore_index=True
        )
        for name, options in (("before", BEFORE), ("today", {}))
    }
    text = table(medians(runs["before"]), medians(runs["today"]))
    Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
