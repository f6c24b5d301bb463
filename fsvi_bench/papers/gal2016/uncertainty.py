"""Gal (2016), section 6.7: what a network knows and what it cannot know, over the number of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Annotated

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field

from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.gal2016.concrete import ConcreteResult, ConcreteSettings, UncertaintySettings, concrete_dropout
from fsvi_bench.papers.gal2016.regression_data import line
from fsvi_bench.papers.intervals import greatest, least, magnitude, of_difference, of_ratio, rank_correlation
from fsvi_bench.papers.parts import Plain
from fsvi_bench.presenting.figures import BLUE, LARGE, NORMAL, PAGE_WIDTH, PALETTE, SMALL, tidy
from fsvi_bench.presenting.tables import Table
from fsvi_bench.running.executors import use_one_thread

NOISE = 1.0  # the standard deviation in y = 2x + 8 + N(0, 1)

BySize = Mapping[int, Sequence[ConcreteResult]]  # repeats in order


class Settings(BaseModel):
    """`repeats` data sets and networks at every N of `sizes`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=2)
    repeats: int = Field(ge=1)
    N_test: int = Field(ge=1)
    network: ConcreteSettings


class Training(Plain):
    """One data set and the network to be trained on it."""

    N: int
    N_test: int
    network: ConcreteSettings


class Trained(Plain):
    result: ConcreteResult


def train_and_measure(training: Training) -> Trained:
    use_one_thread()
    data = line(training.N, training.N_test, training.network.seed)
    return Trained(result=concrete_dropout(data, training.network))


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    network = replace(settings.network, device=laboratory.device)
    grid = UncertaintySettings(tuple(sorted(settings.sizes)), settings.repeats, settings.N_test, network)
    trainings = [Training(N=N, N_test=settings.N_test, network=point) for N, point in grid.points()]
    trained = laboratory.parts.compute(train_and_measure, trainings, Trained)
    by_size: dict[int, list[ConcreteResult]] = {}
    for part in trained:
        by_size.setdefault(part.result.N, []).append(part.result)
    tables = [_uncertainties(by_size), _drop_rates(by_size)]
    networks = [{**asdict(part.result), "seconds": None} for part in trained]  # a clock's reading is no result
    return Findings(_draw(by_size), tables, statistics(by_size), {"networks": networks})


# --- Statistics -------------------------------------------------------------------------------------------------------


def statistics(by_size: BySize) -> dict[str, Statistic]:
    """Intervals are over repeats; "least" and "greatest" are over layers or sizes, the worst case for its claim."""
    smallest, largest = by_size[min(by_size)], by_size[max(by_size)]
    hidden = range(1, len(largest[0].drop_rates))

    def rates(of: Sequence[ConcreteResult], layer: int) -> list[float]:
        return [result.drop_rates[layer] for result in of]

    def errors(of: Sequence[ConcreteResult]) -> list[float]:
        return [abs(result.aleatoric - NOISE) for result in of]

    at_most = [Statistic.of_mean(rates(largest, layer)) for layer in hidden]
    return {
        "rank correlation of N and epistemic sd": Statistic.of_mean(_over_sizes(by_size)),
        "epistemic sd at the largest N over that at the smallest": of_ratio(
            [result.epistemic for result in largest], [result.epistemic for result in smallest]
        ),
        "largest N: error of the aleatoric sd": magnitude(
            Statistic.of_mean([result.aleatoric - NOISE for result in largest])
        ),
        "error of the aleatoric sd at the largest N less that at the smallest": of_difference(
            errors(largest), errors(smallest)
        ),
        "predictive sd: relative range over the last decade of N": Statistic.of_mean(_last_decade(by_size)),
        "smallest N: p of the hidden layers, least": least(
            [Statistic.of_mean(rates(smallest, layer)) for layer in hidden]
        ),
        "p at the largest N less that at the smallest, hidden layers, greatest": greatest(
            [of_difference(rates(largest, layer), rates(smallest, layer)) for layer in hidden]
        ),
        "largest N: p of the hidden layers, least": least(at_most),
        "largest N: p of the hidden layers, greatest": greatest(at_most),
        "p of the first layer, greatest over N": greatest(
            [Statistic.of_mean(rates(results, 0)) for results in by_size.values()]
        ),
    }


def _over_sizes(by_size: BySize) -> list[float]:
    """For each repeat, the rank correlation of N and the epistemic standard deviation."""
    sizes, repeats = list(by_size), zip(*by_size.values(), strict=True)
    return [rank_correlation(sizes, [result.epistemic for result in repeat]) for repeat in repeats]


def _last_decade(by_size: BySize) -> list[float]:
    """For each repeat, (largest − smallest) over mean of the predictive standard deviations from a tenth of N up."""
    late = [results for N, results in by_size.items() if max(by_size) <= 10 * N]
    deviations = np.array([[result.predictive for result in results] for results in late])
    return list((deviations.max(0) - deviations.min(0)) / deviations.mean(0))


# --- Tables and figure ------------------------------------------------------------------------------------------------

MEASURED: dict[str, Callable[[ConcreteResult], float]] = {
    "epistemic sd": lambda result: result.epistemic,
    "aleatoric sd": lambda result: result.aleatoric,
    "predictive sd": lambda result: result.predictive,
}
SCORED: dict[str, Callable[[ConcreteResult], float]] = {
    **MEASURED,
    "test log likelihood": lambda result: result.test_log_likelihood,
    "test RMSE": lambda result: result.test_rmse,
}


def _uncertainties(by_size: BySize) -> Table:
    rows = []
    for (N, results), (name, measure) in product(by_size.items(), SCORED.items()):
        values = [measure(result) for result in results]
        rows.append((N, name, float(np.median(values)), float(np.mean(values)), min(values), max(values)))
    return Table(
        title="Uncertainties and RMSE [units of y], log likelihood per point [nats], over repeats",
        columns=("N", "of the test points", "median", "mean", "least", "greatest"),
        rows=tuple(rows),
    )


def _drop_rates(by_size: BySize) -> Table:
    layers = range(len(next(iter(by_size.values()))[0].drop_rates))
    rates = {N: np.mean([result.drop_rates for result in results], axis=0) for N, results in by_size.items()}
    return Table(
        title="Learnt drop probability by layer, from the inputs up: mean over repeats",
        columns=("N", *(f"layer {layer + 1}" for layer in layers)),
        rows=tuple((N, *map(float, each)) for N, each in rates.items()),
    )


def _draw(by_size: BySize) -> Figure:
    """One dot per network, and lines through their medians."""
    figure = Figure(figsize=(PAGE_WIDTH, 4.6), layout="constrained")
    axes = figure.subplots(2, 2)
    titles = ("Epistemic", "Aleatoric", "Predictive")
    for at, title, (name, measure) in zip(axes.flat[:3], titles, MEASURED.items(), strict=True):
        _dots(at, by_size, measure, BLUE)
        if name != "epistemic sd":
            at.axhline(NOISE, color="black", linewidth=0.8, linestyle=(0, (4, 3)))
            at.annotate(
                "sd of the noise", (0, NOISE), (3, -10), ("axes fraction", "data"), "offset points", fontsize=SMALL
            )
        _label(at, title, f"{name} [units of y]")
        _cut(at, by_size, measure)
    axes[0, 0].text(0.98, 0.97, "dots: networks\nlines: medians", transform=axes[0, 0].transAxes, fontsize=SMALL,
                    ha="right", va="top")  # fmt: skip
    for layer, (colour, marker) in enumerate(zip(PALETTE, "osD^", strict=True)):
        if layer < len(next(iter(by_size.values()))[0].drop_rates):
            name = "1 (inputs)" if layer == 0 else str(layer + 1)
            _dots(axes[1, 1], by_size, partial(_rate_of, layer), colour, name, marker)
    _label(axes[1, 1], "Learnt dropout", "drop probability p")
    axes[1, 1].set_ylim(0, 0.75)
    axes[1, 1].legend(title="layer", fontsize=SMALL, title_fontsize=SMALL, frameon=False, ncols=4, loc="upper center")
    return figure


def _cut(axes: Axes, by_size: BySize, measure: Callable[[ConcreteResult], float]) -> None:
    """From 0 to what most networks need; a variance that grows without bounds off the data is named at the edge."""
    values = [(N, measure(result)) for N, results in by_size.items() for result in results]
    limit = 4 * float(np.median([value for _, value in values]))
    axes.set_ylim(0, 1.1 * max([NOISE, *(value for _, value in values if value <= limit)]))
    for N in by_size:
        beyond = [value for n, value in values if n == N and not value <= limit]
        if beyond:
            words = "▲ " + ", ".join(f"{value:.2g}" for value in beyond)
            axes.annotate(words, (N, 1), (-3, -1), ("data", "axes fraction"), "offset points", fontsize=SMALL, va="top",
                          color=BLUE)  # fmt: skip


def _rate_of(layer: int, result: ConcreteResult) -> float:
    return result.drop_rates[layer]


def _dots(
    axes: Axes,
    by_size: BySize,
    measure: Callable[[ConcreteResult], float],
    colour: str,
    name: str = "",
    marker: str = "o",
) -> None:
    medians = [np.median([measure(result) for result in results]) for results in by_size.values()]
    axes.plot(list(by_size), medians, color=colour, linewidth=1.3, marker=marker, markersize=4, label=name)
    for N, results in by_size.items():
        values = [measure(result) for result in results]
        axes.plot([N] * len(values), values, marker, color=colour, alpha=0.35, markersize=4, markeredgewidth=0)


def _label(axes: Axes, title: str, y: str) -> None:
    axes.set_xscale("log")
    axes.set_title(title)
    axes.set_xlabel("number of training points N", fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
    tidy(axes, SMALL)
    axes.title.set_fontsize(LARGE)


GAL2016_UNCERTAINTY = Experiment("gal2016-uncertainty", Settings, investigate)
