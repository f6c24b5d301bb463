"""KL(q ‖ P_D) against steps, far beyond the paper's budget: which objectives converge, which drift.

    python benchmarks/drift.py --out DIR [--workers N] [--max-steps 40000] [--splits 0-4]

FIXEDA and RANDA on boston, both by Adam at 0.01, both families, M = 20 and 80; draws DIR/drift.png and .svg from the
traces.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fsvi_bench.presenting.looks import BLUE, VERMILLION
from fsvi_bench.running.cell import Record
from fsvi_bench.running.executors import LocalExecutor, available_cores
from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources, run
from fsvi_bench.running.store import Store, load_traces
from fsvi_bench.threads import use_one_thread

STYLES = {
    ("full", 80): (BLUE, "-"),
    ("full", 20): (BLUE, "--"),
    ("ffg", 80): (VERMILLION, "-"),
    ("ffg", 20): (VERMILLION, "--"),
}


def moved_apart(places: Sequence[float], least: float) -> list[float]:
    """Places at least so far apart, in the same order, none above 1 unless all would not fit, and moved little."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for below, index in pairwise(order):
        moved[index] = max(moved[index], moved[below] + least)
    ceiling = 1.0
    for index in reversed(order):
        moved[index] = min(moved[index], ceiling)
        ceiling = moved[index] - least
    return moved


def curves(records: list[Record], store: Store) -> dict[tuple[str, str, int], np.ndarray]:
    """(method, family, M) -> [splits, points, 2]: steps and KL, of the cells that got to the end."""
    found: dict[tuple[str, str, int], list[np.ndarray]] = {}
    sound = [record for record in records if record.status == "ok"]
    traces = load_traces(sound, store.root)
    for record in sound:
        points = [(point.steps, point.kl) for point in traces[record.cell].points]
        found.setdefault((record.method, record.family, record.hyperparameters["M"]), []).append(np.array(points))
    return {key: np.stack(values) for key, values in found.items()}


def draw(found: dict[tuple[str, str, int], np.ndarray], out: Path) -> None:
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axes = figure.subplots(1, 2)
    ends: dict[Axes, list[tuple[float, float, str]]] = {ax: [] for ax in axes}
    for ax, method, title in zip(
        axes, ("fixed-a", "rand-a"), ("FIXEDA: one A for the whole run", "RANDA: a new A each step"), strict=True
    ):
        for (name, family, M), values in sorted(found.items(), key=lambda item: (item[0][1], -item[0][2])):
            if name != method:
                continue
            colour, line = STYLES[family, M]
            steps, kl = values[0, 1:, 0], values[:, 1:, 1]
            lower, middle, upper = np.quantile(kl, (0.25, 0.5, 0.75), axis=0)
            ax.fill_between(steps, lower, upper, color=colour, alpha=0.15, linewidth=0)
            ax.plot(steps, middle, line, color=colour, linewidth=1.6, label=f"{family}, M = {M}")
            ends[ax].append((steps[-1], middle[-1], colour))
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("steps of Adam", fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, which="major", color="0.9", linewidth=0.6)
        ax.axvline(15000, color="0.6", linewidth=0.8, linestyle=":")
    low = min(ax.get_ylim()[0] for ax in axes)
    high = max(ax.get_ylim()[1] for ax in axes)
    for ax in axes:
        ax.set_ylim(low, high)
        say_where_they_end(ax, ends[ax])
    axes[0].set_ylabel("KL(q ‖ exact posterior), nats", fontsize=9)
    axes[0].legend(fontsize=8, frameon=False)
    axes[1].annotate(
        "paper's budget",
        (15000, high),
        xytext=(-4, -4),
        textcoords="offset points",
        fontsize=8,
        ha="right",
        va="top",
        color="0.4",
    )
    for suffix in ("png", "svg"):
        figure.savefig(out / f"drift.{suffix}", dpi=200)


def say_where_they_end(ax: Axes, ends: list[tuple[float, float, str]]) -> None:
    """The last KL behind each curve, moved apart where two would stand on each other."""
    low, high = np.log(ax.get_ylim())
    heights = [(np.log(kl) - low) / (high - low) for _, kl, _ in ends]
    for (steps, kl, colour), height in zip(ends, moved_apart(heights, 0.05), strict=True):
        ax.annotate(
            f"{kl:.0f}", (steps, height), xycoords=ax.get_xaxis_transform(), xytext=(4, 0), textcoords="offset points",
            fontsize=8, va="center", color=colour,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--max-steps", type=int, default=40000)
    parser.add_argument("--splits", default="0-4")
    arguments = parser.parse_args()
    use_one_thread()
    request = Request(
        datasets=["boston"],
        methods=["fixed-a", "rand-a"],
        splits=arguments.splits,
        measurement_points=(20, 80),
        max_steps=arguments.max_steps,
        options={"optimizer": "adam", "minibatch": "full"},
    )
    store = Store(arguments.out)
    records, _ = run(make_plan(request), store, Resources(executor=LocalExecutor(arguments.workers)), Silent())
    for record in records:
        if record.status != "ok":
            print(f"{record.dataset} split {record.split} {record.method} {record.family}: {record.reason}")
    found = curves(records, store)
    for (method, family, M), values in sorted(found.items()):
        told = ", ".join(
            f"{int(step)}: {np.median(values[:, i, 1]):.1f}"
            for i, step in enumerate(values[0, :, 0])
            if step in (1000, 10000) or i + 1 == values.shape[1]
        )
        print(f"{method} {family} M={M}: median KL at steps {told}")
    draw(found, arguments.out)


if __name__ == "__main__":
    main()
