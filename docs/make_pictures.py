"""Draws the README's first picture from a folder of records.

    python docs/make_pictures.py RESULTS docs/exact.png

The records are those of `fsvi-bench run --dataset yacht --dataset boston ...`; the toy problem is drawn afresh.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from fsvi_bench.maths.blr import mean_field_optimum_scale
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.presenting.figures import VERMILLION, draw_posteriors, new_figure, tidy
from fsvi_bench.presenting.summary import cells_of
from fsvi_bench.running.cell import Record
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import bind_task

TOY_SPLIT = 1


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, picture = map(Path, sys.argv[1:])
    records = [Record.model_validate_json(path.read_bytes()) for path in sorted(folder.rglob("record.json"))]
    cells_of(records)  # refuses a folder that mixes tasks or versions
    if not records:
        sys.exit(f"{folder} holds no record; name the --out of a run")
    factorised = [record for record in records if record.method == "exact" and record.family == "ffg"]
    by_size = sorted(factorised, key=lambda record: load_card(record.dataset).n)

    figure, (left, right) = new_figure(2, 10, 3.4, ratios=(1.35, 1))
    problem = bind_task(build_task(load_card("toy"), TOY_SPLIT).task)
    exact = problem.truth.posterior
    posteriors = {
        "exact posterior": FullGaussian(exact.mean, problem.truth.covariance_tril),
        "factorised (same mean)": FactorisedGaussian(exact.mean, mean_field_optimum_scale(exact.precision_tril)),
    }
    draw_posteriors(left, problem, posteriors)
    left.set(xlabel="x", ylabel="f(x)", title="Toy problem: mean ± 2 standard deviations of f")
    left.set_ylim(bottom=-3.5)
    left.legend(frameon=False, fontsize=9, loc="lower center", ncols=3)
    draw_kl_by_dataset(right, by_size)
    right.set(
        ylabel="KL(EXACT-FFG ‖ exact) [nats]",
        title="What factorising costs",
        xlabel="20 splits each; bar: mean ± standard error",
        ylim=(0, None),
    )
    figure.savefig(picture, dpi=160)


def draw_kl_by_dataset(axes: Axes, records: Sequence[Record]) -> None:
    """One column per data set: a dot per cell, and the mean over splits with its standard error."""
    names = list(dict.fromkeys(record.dataset for record in records))
    for place, name in enumerate(names):
        values = [r.scores.kl for r in records if r.dataset == name and r.scores is not None]
        spread = np.linspace(-0.18, 0.18, len(values))
        axes.plot(place + spread, values, "o", color=VERMILLION, alpha=0.35, markersize=4, markeredgewidth=0)
        error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None
        axes.errorbar(place, np.mean(values), yerr=error, fmt="_", color="black", markersize=16, capsize=3)
    axes.set_xticks(range(len(names)), names)
    tidy(axes)


if __name__ == "__main__":
    main()
