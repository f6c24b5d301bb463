"""Kingma, Salimans and Welling (2015), tables 1 and 2, eq. 5, appendix F and the paragraph on speed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.ksw2015.gradient_variance import NO_NOISE, GradientVarianceSettings, gradient_variance
from fsvi_bench.papers.ksw2015.image_source import ImageSource
from fsvi_bench.papers.ksw2015.layers import NoiseSettings
from fsvi_bench.papers.ksw2015.minibatch_law import MinibatchLaw, MinibatchLawSettings, minibatch_law
from fsvi_bench.papers.ksw2015.network import NetworkSettings
from fsvi_bench.papers.ksw2015.timing import StepTimeSettings, step_times
from fsvi_bench.papers.ksw2015.train import TrainSettings
from fsvi_bench.papers.ksw2015.variance_claims import (
    BATCH,
    LAYERS,
    LOCAL,
    PAPER_TIME_RATIO,
    PARAMETERS,
    POINT,
    Measured,
    Tables,
    Timed,
    bounds,
    cells,
    paper_ratio,
    ratio,
    statistics,
    typical,
)
from fsvi_bench.papers.parts import Plain
from fsvi_bench.presenting.figures import BLUE, GREEN, LARGE, NORMAL, PAGE_WIDTH, SMALL, VERMILLION, tidy
from fsvi_bench.presenting.tables import Table
from fsvi_bench.running.executors import use_one_thread
from fsvi_bench.seeds import derive_seed

KINDS = {"table 1": ("variational-b", "weight"), "table 2": ("variational-a", "unit")}  # noise, one α for each of what


class TimingSettings(BaseModel):
    """Every repeat is a ratio; it is the median of some rounds, each of which takes every estimator in turn."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    width: int = Field(ge=1)
    minibatch: int = Field(ge=1)
    rounds: int = Field(ge=1)
    repeats: int = Field(ge=1)


class Settings(BaseModel):
    """`networks` of each kind; `minibatch` and `repetitions` are those of measuring, not of training."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    networks: int = Field(ge=1)
    width: int
    hidden_layers: int
    checkpoints: tuple[Annotated[int, Field(ge=0)], ...]
    minibatch: int
    repetitions: int
    coordinates: int
    training: TrainSettings  # for as many epochs as the last checkpoint asks for
    law: MinibatchLawSettings
    timing: TimingSettings

    @model_validator(mode="after")
    def _early_and_late(self) -> Settings:
        if sum(epochs > 0 for epochs in set(self.checkpoints)) < 2:
            raise ValueError("checkpoints need two numbers of epochs above 0, since a claim compares early with late")
        return self


# --- Parts ------------------------------------------------------------------------------------------------------------


class Training(Plain):
    """A network to be trained and measured; the laws are those of the trained network."""

    table: str
    network: int
    images: ImageSource
    variance: GradientVarianceSettings
    laws: tuple[MinibatchLawSettings, ...]


class Timing(Plain):
    images: ImageSource
    repeats: int
    settings: StepTimeSettings


def train_and_measure(training: Training) -> Measured:
    use_one_thread()
    images = training.images.load()
    found = gradient_variance(images, training.variance)
    laws = tuple(law for settings in training.laws for law in minibatch_law(found.network, images, settings))
    return Measured(entries=found.entries, laws=laws, test_error=found.run.test_error[-1])


def time_steps(timing: Timing) -> Timed:
    use_one_thread()
    images = timing.images.load()
    times = [step_times(images, timing.settings) for _ in range(timing.repeats)]
    names = timing.settings.estimators
    return Timed(
        seconds={name: tuple(each.seconds[name] for each in times) for name in names},
        ratio_to_local={name: tuple(each.ratio_to_local[name] for each in times) for name in names},
    )


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    images, device = ImageSource.find(laboratory), laboratory.device
    trainings = list(_trainings(settings, images, device))
    results = laboratory.parts.compute(train_and_measure, trainings, Measured)
    tables: Tables = {
        name: [result for training, result in zip(trainings, results, strict=True) if training.table == name]
        for name in KINDS
    }
    network, of = NetworkSettings(settings.timing.width, settings.hidden_layers), settings.timing
    timing = Timing(
        images=images,
        repeats=of.repeats,
        settings=StepTimeSettings(network, of.minibatch, of.rounds, device=device),
    )
    (timed,) = laboratory.parts.compute(time_steps, [timing], Timed)  # alone, so that no other part disturbs it
    return Findings(
        _draw(tables),
        [*(_table(tables, name, images.name) for name in KINDS), _eq_5(tables), _appendix_f(tables), _times(timed)],
        statistics(tables, timed),
        {"images": images.name, **{name: [network.model_dump() for network in tables[name]] for name in KINDS}},
    )


def _trainings(settings: Settings, images: ImageSource, device: str) -> Iterable[Training]:
    checkpoints = tuple(sorted(set(settings.checkpoints)))
    for table, network in product(KINDS, range(settings.networks)):
        kind, granularity = KINDS[table]
        seed = derive_seed("ksw2015-variance", network) % 2**31
        variance = GradientVarianceSettings(
            NetworkSettings(settings.width, settings.hidden_layers, NoiseSettings(kind, granularity=granularity)),
            replace(settings.training, epochs=checkpoints[-1], seed=seed),
            checkpoints,
            settings.minibatch,
            settings.repetitions,
            coordinates=settings.coordinates,
            device=device,
        )
        samplings = ("with-replacement", "without-replacement") if table == "table 1" else ()
        laws = tuple(replace(settings.law, sampling=sampling, seed=seed) for sampling in samplings)
        yield Training(table=table, network=network, images=images, variance=variance, laws=laws)


# --- Tables -----------------------------------------------------------------------------------------------------------


def _table(tables: Tables, name: str, images: str) -> Table:
    networks, rows = tables[name], []
    for parameter in PARAMETERS:
        estimators = (LOCAL, POINT, BATCH, NO_NOISE) if parameter == "theta" else (LOCAL, POINT, BATCH)
        for cell, estimator in product(cells(networks[0], parameter, after_training=False), estimators):
            variance = float(np.exp(np.mean(np.log(typical(networks, [cell], estimator)))))
            to_local = ratio(networks, [cell], estimator, LOCAL)
            rows.append((*cell, estimator, variance, *to_local, paper_ratio(name, cell, estimator)))
    return Table(
        title=f"{name.capitalize()}: variance of gradients on {images}, geometric mean over networks; ratio to local"
        " with its 95% interval, and the paper's",
        columns=("epochs", "layer", "parameter", "estimator", "variance", "to local", "low", "high", "paper"),
        rows=tuple(rows),
    )


def _eq_5(tables: Tables) -> Table:
    fits = [(number, law) for number, measured in enumerate(tables["table 1"]) for law in measured.laws]
    rows = [
        (
            number,
            law.sampling,
            law.estimator,
            law.fitted_V.value,
            law.fitted_V.standard_error,
            law.law.V,
            law.fitted_C.value,
            law.fitted_C.standard_error,
            law.law.shared,
            law.chi_square,
        )
        for number, law in fits
        if law.sampling == "with-replacement"
    ]
    return Table(
        title=f"Eq. 5: V and C of V/M + (1 - 1/M) C, fitted to {len(fits[0][1].sizes)} sizes M and from passes over all"
        " data [nats^2]",
        columns=("network", "sampling", "estimator", "V", "error", "V of passes", "C", "error", "C of passes", "chi^2"),
        rows=tuple(rows),
    )


def _appendix_f(tables: Tables) -> Table:
    return Table(
        title="Appendix F: bound over exact variance without replacement, as printed (48) and corrected (ours), with"
        " 95% intervals over networks",
        columns=("estimator", "M", "printed", "low", "high", "corrected", "low", "high"),
        rows=tuple((row.estimator, row.M, *row.printed, *row.corrected) for row in bounds(tables["table 1"])),
    )


def _times(timed: Timed) -> Table:
    paper = {LOCAL: 1.0, POINT: PAPER_TIME_RATIO}
    return Table(
        title="Seconds per training step, median over repeats; ratio to local, mean with its 95% interval, and the"
        " paper's",
        columns=("estimator", "seconds", "to local", "low", "high", "paper"),
        rows=tuple(
            (name, float(np.median(seconds)), *Statistic.of_mean(timed.ratio_to_local[name]), paper.get(name))
            for name, seconds in timed.seconds.items()
        ),
    )


# --- Figure -----------------------------------------------------------------------------------------------------------

COLOURS = {POINT: VERMILLION, BATCH: BLUE, NO_NOISE: GREEN, LOCAL: "black"}
NAMES = {POINT: "sample per point", BATCH: "sample per minibatch", NO_NOISE: "no noise", LOCAL: "local"}
BOUNDS = (("printed", "--", "eq. 48 as printed"), ("corrected", "-", "corrected (ours)"))
MARKERS = {"theta": "o", "log_alpha": "^"}


def _draw(tables: Tables) -> Figure:
    figure = Figure(figsize=(PAGE_WIDTH, 6.0), layout="constrained")
    (first, second), (law, bound) = figure.subplots(2, 2)
    second.sharey(first)
    for axes, name, title in ((first, "table 1", "independent"), (second, "table 2", "correlated")):
        _ratios(axes, tables, name)
        axes.set_title(f"{name.capitalize()}: {title} weight noise")
    _label(first, "epochs of training, by layer", "gradient variance / that of local")
    _label(second, "epochs of training, by layer", "")
    _draw_law(law, tables["table 1"])
    _draw_bounds(bound, tables["table 1"])
    handles = [Line2D([], [], color=COLOURS[e], marker="s", linestyle="", label=NAMES[e]) for e in COLOURS]
    for marker, name in ((MARKERS["theta"], "θ"), (MARKERS["log_alpha"], "log α"), ("x", "θ, the paper's (MNIST)")):
        handles.append(Line2D([], [], color="0.4", marker=marker, linestyle="", label=name))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=SMALL)
    return figure


def _ratios(axes: Axes, tables: Tables, name: str) -> None:
    """One column for each layer and checkpoint; bars are 95% intervals over networks."""
    columns = [(cell.layer, cell.epochs) for cell in cells(tables[name][0], "theta", after_training=False)]
    for (estimator, at), parameter in product(((POINT, -0.27), (BATCH, 0.0), (NO_NOISE, 0.27)), PARAMETERS):
        if (estimator, parameter) == (NO_NOISE, "log_alpha"):
            continue
        for column, cell in enumerate(cells(tables[name][0], parameter, after_training=False)):
            found, x = ratio(tables[name], [cell], estimator, LOCAL), column + at
            if parameter == "log_alpha":
                x += 0.09
            axes.plot([x], [found.value], MARKERS[parameter], color=COLOURS[estimator], markersize=4.5)
            if np.isfinite(found.high):
                axes.vlines(x, found.low, found.high, color=COLOURS[estimator], linewidth=1)
            printed = paper_ratio(name, cell, estimator)
            if printed is not None:
                axes.plot([x - 0.09], [printed], "x", color=COLOURS[estimator], markersize=5, alpha=0.7)
    axes.set_yscale("log")
    axes.axhline(1, color="black", linewidth=0.8)
    half = len(columns) // len(LAYERS)
    axes.axvline(half - 0.5, color="0.8", linewidth=0.8)
    words = [
        f"{epochs}\n{layer if place % half == half // 2 else ' '}" for place, (layer, epochs) in enumerate(columns)
    ]
    axes.set_xticks(range(len(columns)), words)


def _draw_law(axes: Axes, networks: Sequence[Measured]) -> None:
    """Relative to the variance of one point; means over networks with their standard errors."""
    for estimator, marker in ((LOCAL, "o"), (BATCH, "s")):
        laws = [network.law(estimator, "with-replacement") for network in networks]
        sizes, colour = laws[0].sizes, COLOURS[estimator]
        seen = np.array([[v.value / law.law.V for v in law.variances] for law in laws])
        error = seen.std(0, ddof=1) / len(laws) ** 0.5 if len(laws) > 1 else None
        axes.errorbar(sizes, seen.mean(0), yerr=error, fmt=marker, color=colour, markersize=4, elinewidth=1)
        expected = [_relative(law) for law in laws]
        axes.plot(sizes, np.mean(expected, axis=0), color=colour, linewidth=1.2)
    axes.loglog()
    axes.set_title("Eq. 5: dots measured, lines predicted")
    _label(axes, "minibatch size M", "Var[mean log likelihood] / V")


def _relative(law: MinibatchLaw) -> list[float]:
    return [value / law.law.V for value in law.predicted]


def _draw_bounds(axes: Axes, networks: Sequence[Measured]) -> None:
    rows = bounds(networks)
    for (kind, style, words), (estimator, marker) in product(BOUNDS, ((LOCAL, "o"), (BATCH, "s"))):
        mine = [row for row in rows if row.estimator == estimator]
        M, values = [row.M for row in mine], [getattr(row, kind).value for row in mine]
        axes.plot(M, values, style, color=COLOURS[estimator], marker=marker, markersize=4, linewidth=1.2)
        if estimator == LOCAL:
            away = 8 if kind == "corrected" else -14
            axes.annotate(words, (M[0], values[0]), (0, away), textcoords="offset points", fontsize=SMALL)
    axes.set_xscale("log")
    axes.margins(y=0.2)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_title("Appendix F: without replacement")
    _label(axes, "minibatch size M", "bound / exact variance")


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
    tidy(axes, SMALL)
    axes.title.set_fontsize(LARGE)


KSW2015_VARIANCE = Experiment("ksw2015-variance", Settings, investigate)
