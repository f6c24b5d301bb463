"""Draws the README's first picture from a folder of records, and photographs the leaderboard's first page.

    python docs/make_pictures.py RESULTS docs/exact.png
    python docs/make_pictures.py leaderboard/site/index.html docs/leaderboard.png

The records are those of `fsvi-bench run --dataset yacht --dataset boston ...`; the toy problem is drawn afresh.
The page is that of `fsvi-bench leaderboard build`, as headless Chromium shows it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fsvi_bench.maths.blr import mean_field_optimum_scale
from fsvi_bench.papers.burt2020.toy import curve
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.presenting.plots import FigureSpec, Layer, Panel
from fsvi_bench.presenting.summary import cells_of
from fsvi_bench.running.cell import Record
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import bind_task

TOY_SPLIT = 1
CHROMIUM = "/usr/bin/chromium"
OF_CURVES = {"frame": "curves", "by": "name", "x": "x"}
FIGURE = FigureSpec(
    height=3.4,
    width=10.0,
    columns=2,
    panels=(
        Panel(
            title="Toy problem: mean ± 2 standard deviations of f",
            x="x",
            y="f(x)",
            ylim=(-3.5, None),
            legend={"loc": "lower center", "ncols": 3},
            layers=(
                Layer(kind="band", **OF_CURVES, alpha=0.18),
                *(Layer(**OF_CURVES, y=edge, width=0.8) for edge in ("low", "high")),
                Layer(**OF_CURVES, y="mean", width=1.8, label="{}"),
                Layer(kind="points", frame="data", colour="black", size=2.5, label="training data"),
            ),
        ),
        Panel(
            title="What factorising costs",
            x="20 splits each; bar: mean ± standard error",
            y="KL(EXACT-FFG ‖ exact) [nats]",
            ylim=(0.0, None),
            names="dataset",
            layers=(
                Layer(kind="points", frame="cells", x="place", y="kl", shift="shift", colour="vermillion", alpha=0.35),
                Layer(kind="intervals", frame="means", x="place", y="mean", colour="black", marker="_", size=16),
            ),
        ),
    ),
)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, picture = map(Path, sys.argv[1:])
    if folder.suffix == ".html":
        photograph(folder, picture)
        return
    records = [Record.model_validate_json(path.read_bytes()) for path in sorted(folder.rglob("record.json"))]
    if not records:
        sys.exit(f"{folder} holds no record; name the --out of a run")
    cells_of(records)  # refuses a folder that mixes tasks or versions
    problem = bind_task(build_task(load_card("toy"), TOY_SPLIT).task)
    exact = problem.truth.posterior
    posteriors = {
        "exact posterior": FullGaussian(exact.mean, problem.truth.covariance_tril),
        "factorised (same mean)": FactorisedGaussian(exact.mean, mean_field_optimum_scale(exact.precision_tril)),
    }
    curves = pd.concat([curve(problem, q).assign(name=name) for name, q in posteriors.items()])
    data = pd.DataFrame({"x": problem.X[:, 0], "y": problem.y})
    kls = kl_by_dataset(records)
    means = kls.groupby(["place", "dataset"])["kl"].agg(["mean", "sem"]).reset_index()
    means = means.assign(low=means["mean"] - means["sem"], high=means["mean"] + means["sem"])
    FIGURE.of({"curves": curves, "data": data, "cells": kls, "means": means}).savefig(picture, dpi=160)


def photograph(page: Path, picture: Path) -> None:
    """The upper part of a page, in a browser as wide as the leaderboard's widest table."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        view = chromium.new_page(viewport={"width": 1500, "height": 1200})
        view.goto(page.resolve().as_uri())
        view.screenshot(path=str(picture))
        chromium.close()


def kl_by_dataset(records: Sequence[Record]) -> pd.DataFrame:
    """The KL of every cell of EXACT-FFG, side by side in the column of its data set, the smallest first."""
    finished = [r for r in records if (r.method, r.family) == ("exact", "ffg") and r.scores is not None]
    found = [(r.dataset, load_card(r.dataset).n, r.scores.kl) for r in finished]
    cells = pd.DataFrame(found, columns=["dataset", "n", "kl"]).sort_values("n", kind="stable")
    cells["place"] = cells.groupby("n").ngroup()
    cells["shift"] = 0.36 * (cells.groupby("n").cumcount() / (cells.groupby("n")["kl"].transform("size") - 1) - 0.5)
    return cells


if __name__ == "__main__":
    main()
