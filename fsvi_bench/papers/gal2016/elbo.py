"""Gal (2016), section 6.4: does the ELBO tell which dropout probability predicts best?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.gal2016.mc_dropout import ElboGridSettings, McDropoutResult, McDropoutSettings, mc_dropout
from fsvi_bench.papers.gal2016.regression_data import waves
from fsvi_bench.papers.intervals import least, magnitude, of_difference, of_ratio, rank_correlation
from fsvi_bench.papers.parts import Plain
from fsvi_bench.presenting.figures import BLUE, GREEN, LARGE, NORMAL, PAGE_WIDTH, SMALL, VERMILLION, tidy
from fsvi_bench.presenting.tables import Table
from fsvi_bench.running.executors import use_one_thread

CLAIMED_RATES, CLAIMED_PRECISIONS = {0.0, 0.5, 0.75, 0.9}, {10.0, 20.0, 50.0}  # that claims are about
MARKERS = "osD^vPX*<>"  # by p
LOOK = ((BLUE, "o"), (VERMILLION, "s"), (GREEN, "D"))

Grid = Mapping[tuple[float, float], Sequence[McDropoutResult]]  # by (τ, p), repeats in order


class Settings(BaseModel):
    """Every p with every τ, `repeats` times on the same data."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    drop_rates: tuple[float, ...]
    precisions: tuple[float, ...]
    repeats: int = Field(ge=1)
    N: int = Field(ge=1)
    N_test: int = Field(ge=2)
    network: McDropoutSettings

    @model_validator(mode="after")
    def _holds_what_claims_need(self) -> Settings:
        if not (set(self.drop_rates) >= CLAIMED_RATES and set(self.precisions) == CLAIMED_PRECISIONS):
            needed = f"drop_rates {sorted(CLAIMED_RATES)} and precisions {sorted(CLAIMED_PRECISIONS)}"
            raise ValueError(f"the claims need {needed}")
        return self


class Training(Plain):
    """One data set and the network to be trained on it."""

    drop_rate: float
    precision: float
    N: int
    N_test: int
    data_seed: int
    network: McDropoutSettings


class Trained(Plain):
    result: McDropoutResult


def train_and_measure(training: Training) -> Trained:
    use_one_thread()
    return Trained(result=mc_dropout(waves(training.N, training.N_test, training.data_seed), training.network))


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    network = replace(settings.network, device=laboratory.device)
    of = ElboGridSettings(
        settings.drop_rates, settings.precisions, settings.repeats, settings.N, settings.N_test, network
    )
    trainings = [
        Training(
            drop_rate=point.drop_rate,
            precision=point.precision,
            N=of.N,
            N_test=of.N_test,
            data_seed=network.seed,
            network=point,
        )
        for point in of.points()
    ]
    grid: dict[tuple[float, float], list[McDropoutResult]] = {}
    for part in laboratory.parts.compute(train_and_measure, trainings, Trained):
        grid.setdefault((part.result.precision, part.result.drop_rate), []).append(part.result)
    deviation = float(waves(of.N, of.N_test, network.seed).y_test.double().std())
    return Findings(_draw(grid, deviation), [_correlations(grid), _networks(grid)], statistics(grid, deviation))


# --- Statistics -------------------------------------------------------------------------------------------------------


def statistics(grid: Grid, deviation: float) -> dict[str, Statistic]:
    """Intervals are over repeats, which are paired: they share start, masks and minibatches for all p and τ.

    Args:
        deviation: the test targets' standard deviation.
    """

    def values(what: str, precision: float, rate: float) -> list[float]:
        return [getattr(result, what) for result in grid[precision, rate]]

    def gain(what: str, precision: float, rate: float) -> Statistic:
        """At p = 0.5 over another p."""
        return of_difference(values(what, precision, 0.5), values(what, precision, rate))

    precisions, rates = sorted({tau for tau, _ in grid}), sorted({p for _, p in grid})
    likelihood, other_rates = "test_log_likelihood", [p for p in rates if p != 0.5]
    underfit = of_ratio(values("test_rmse", 50, 0.75), values("test_rmse", 50, 0.5))
    unconverged = Statistic.of_mean([rmse / deviation for rmse in values("test_rmse", 50, 0.9)])
    from_20, from_50 = (of_difference(values("elbo", 10, 0.5), values("elbo", tau, 0.5)) for tau in (20, 50))
    return {
        "tau = 50: rank correlation of ELBO and test log likelihood over p": _correlation(grid, 50, likelihood),
        "tau = 20: rank correlation of ELBO and test log likelihood over p": _correlation(grid, 20, likelihood),
        "tau = 10: test log likelihood at p = 0.5 less that at p = 0": gain(likelihood, 10, 0.0),
        "tau = 10: ELBO at p = 0.5 less that at p = 0": gain("elbo", 10, 0.0),
        "tau = 50: size of the rank correlation of ELBO and test RMSE over p": magnitude(
            _correlation(grid, 50, "test_rmse")
        ),
        "tau = 50: test log likelihood at p = 0.5 less that at p = 0": gain(likelihood, 50, 0.0),
        "tau = 50: RMSE at p = 0.75 over that at p = 0.5": underfit,
        "tau = 50: RMSE at p = 0.9 over the sd of the test targets": unconverged,
        "every tau: ELBO at p = 0.5 less that at any other p, least": least(
            [gain("elbo", tau, p) for tau in precisions for p in other_rates]
        ),
        "p = 0.5: ELBO at tau = 10 less that at other tau, least": least([from_20, from_50]),
    }


def _correlation(grid: Grid, precision: float, what: str) -> Statistic:
    """Mean over repeats of the rank correlation over p of the ELBO and something else."""
    repeats = zip(*(results for (tau, _), results in grid.items() if tau == precision), strict=True)
    return Statistic.of_mean(
        [rank_correlation([r.elbo for r in repeat], [getattr(r, what) for r in repeat]) for repeat in repeats]
    )


# --- Tables and figure ------------------------------------------------------------------------------------------------


def _correlations(grid: Grid) -> Table:
    rows = []
    for tau in sorted({tau for tau, _ in grid}):
        for what, name in (("test_log_likelihood", "test log likelihood"), ("test_rmse", "test RMSE")):
            rows.append((tau, name, *_correlation(grid, tau, what)))
    return Table(
        title="Rank correlation (Spearman) over p with the ELBO: mean over repeats and its 95% interval",
        columns=("tau", "of the ELBO and", "correlation", "low", "high"),
        rows=tuple(rows),
    )


def _networks(grid: Grid) -> Table:
    columns = (
        "elbo", "expected_log_likelihood", "kl_weights", "kl_entropy", "discrete_constant", "test_log_likelihood",
        "test_rmse",
    )  # fmt: skip
    rows = [
        (tau, p, repeat, *(getattr(result, column) for column in columns))
        for (tau, p), results in sorted(grid.items())
        for repeat, result in enumerate(results)
    ]
    return Table(
        title="Every network: ELBO (no constant), expected log likelihood and test log likelihood in nats per point;"
        " the KL's terms and constant in nats",
        columns=("tau", "p", "repeat", *columns),
        rows=tuple(rows),
    )


def _draw(grid: Grid, deviation: float) -> Figure:
    """Above, as in figures 6.1 and 6.4, each precision by itself; below, what lies behind."""
    figure = Figure(figsize=(PAGE_WIDTH, 4.8), layout="constrained")
    axes = figure.subplots(2, 3)
    for at, tau, (colour, marker) in zip(axes[0], sorted({tau for tau, _ in grid}), LOOK, strict=True):
        _path(at, grid, tau)
        _label(at, "ELBO [nats per point]", "test log likelihood [nats per point]" if at is axes[0, 0] else "")
        at.set_title(f"τ = {tau:g}", fontsize=LARGE)
        for below, what in ((axes[1, 0], "elbo"), (axes[1, 1], "test_log_likelihood"), (axes[1, 2], "test_rmse")):
            _over_rates(below, grid, tau, what, colour, marker)
    _label(axes[1, 0], "drop probability p", "ELBO [nats per point]")
    _label(axes[1, 1], "drop probability p", "test log likelihood [nats per point]")
    _label(axes[1, 2], "drop probability p", "test RMSE")
    axes[1, 2].axhline(deviation, color="black", linewidth=0.8, linestyle=(0, (4, 3)))
    axes[1, 2].annotate("sd of y", (0, deviation), (0, 3), textcoords="offset points", fontsize=SMALL)
    axes[1, 2].set_ylim(bottom=0)
    axes[1, 0].legend(fontsize=SMALL, frameon=False)
    look = {"fontsize": SMALL, "title_fontsize": SMALL, "frameon": False, "borderpad": 0, "handletextpad": 0.1}
    axes[0, 0].legend(title="drop probability p", ncols=2, loc="lower right", columnspacing=0.6, **look)
    return figure


def _path(axes: Axes, grid: Grid, tau: float) -> None:
    """Dots of networks, darker for smaller p, and a line through their means in the order of p."""
    found = [(p, results) for (precision, p), results in sorted(grid.items()) if precision == tau]
    points = [np.array([(result.elbo, result.test_log_likelihood) for result in results]) for _, results in found]
    axes.plot(*np.array([each.mean(0) for each in points]).T, color="0.6", linewidth=0.8, zorder=1)
    shades = colormaps["viridis"](np.linspace(0, 0.95, len(found)))
    for (p, _), each, shade, marker in zip(found, points, shades, cycle(MARKERS), strict=False):
        axes.plot(*each.T, marker, color=shade, markersize=5, markeredgewidth=0, label=f"{p:g}")
    axes.margins(0.08)


def _over_rates(axes: Axes, grid: Grid, tau: float, what: str, colour: str, marker: str) -> None:
    found = [(p, [getattr(r, what) for r in results]) for (t, p), results in sorted(grid.items()) if t == tau]
    means = [np.mean(values) for _, values in found]
    axes.plot([p for p, _ in found], means, color=colour, linewidth=1.3, label=f"τ = {tau:g}")
    for p, values in found:
        axes.plot([p] * len(values), values, marker, color=colour, alpha=0.5, markersize=4, markeredgewidth=0)


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
    tidy(axes, SMALL)


GAL2016_ELBO = Experiment("gal2016-elbo", Settings, investigate)
