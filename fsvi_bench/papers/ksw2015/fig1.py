"""Kingma, Salimans and Welling (2015), figure 1a: test error over network width for seven kinds of dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator
from pydantic import BaseModel, ConfigDict, Field

from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.intervals import greatest, of_difference, of_ratio
from fsvi_bench.papers.ksw2015.image_source import ImageSource
from fsvi_bench.papers.ksw2015.network import VARIANTS
from fsvi_bench.papers.ksw2015.train import TrainSettings, WidthSweepSettings, width_sweep_point
from fsvi_bench.papers.parts import Plain
from fsvi_bench.presenting.figures import BLUE, GREEN, LARGE, NORMAL, PAGE_WIDTH, PURPLE, SMALL, VERMILLION, tidy
from fsvi_bench.presenting.summary import estimate
from fsvi_bench.presenting.tables import Table
from fsvi_bench.running.executors import use_one_thread

LOOK: dict[str, tuple[str, str, str, str]] = {  # name in the legend, colour, line, marker
    "no-dropout": ("no dropout", "black", ":", "x"),
    "binary": ("binary", PURPLE, "-.", "D"),
    "gaussian-a": ("Gaussian A", BLUE, "--", "o"),
    "gaussian-b": ("Gaussian B", VERMILLION, "--", "s"),
    "variational-a": ("variational A", BLUE, "-", "o"),
    "variational-b": ("variational B", VERMILLION, "-", "s"),
    "variational-a2": ("variational A2", GREEN, "-", "^"),
}
LEARNT = ("variational-a", "variational-b", "variational-a2")


class Settings(BaseModel):
    """Every variant with every width, `repeats` times."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    widths: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=2)
    repeats: int = Field(ge=1)
    granularity: str
    kl: str
    training: TrainSettings


class Training(Plain):
    """One network to be trained."""

    variant: str
    width: int
    repeat: int
    granularity: str
    kl: str
    training: TrainSettings
    images: ImageSource
    device: str


class Trained(Plain):
    """Its test error after the epoch that the validation set chose, and its layers' drop rates at the end."""

    test_error: float
    best_epoch: int
    drop_rates: tuple[float, ...]

    @property
    def percent(self) -> float:
        return 100 * self.test_error

    @property
    def mean_rate(self) -> float:
        return float(np.mean(self.drop_rates))


Sweep = Mapping[tuple[str, int], Sequence[Trained]]  # by variant and width, repeats in order


def train_and_test(training: Training) -> Trained:
    use_one_thread()
    settings = WidthSweepSettings(
        granularity=training.granularity, kl=training.kl, training=training.training, device=training.device
    )
    images = training.images.load()
    run = width_sweep_point(images, settings, training.variant, training.width, training.repeat).run
    return Trained(test_error=run.best_test_error, best_epoch=run.best_epoch, drop_rates=run.drop_rates)


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    images, device = ImageSource.find(laboratory), laboratory.device
    common = {name: getattr(settings, name) for name in ("granularity", "kl", "training")}
    trainings = [
        Training(variant=variant, width=width, repeat=repeat, images=images, device=device, **common)
        for variant in VARIANTS
        for width in sorted(settings.widths)
        for repeat in range(settings.repeats)
    ]
    sweep: dict[tuple[str, int], list[Trained]] = {}
    results = laboratory.parts.compute(train_and_test, trainings, Trained)
    for training, trained in zip(trainings, results, strict=True):
        sweep.setdefault((training.variant, training.width), []).append(trained)
    networks = [
        {"variant": training.variant, "width": training.width, "repeat": training.repeat, **trained.model_dump()}
        for training, trained in zip(trainings, results, strict=True)
    ]
    numbers = {"images": images.name, "networks": networks}
    return Findings(_draw(sweep, images.name), [_errors(sweep, images.name)], statistics(sweep), numbers)


# --- Statistics -------------------------------------------------------------------------------------------------------


def statistics(sweep: Sweep) -> dict[str, Statistic]:
    """Errors in percentage points; intervals over repeats, which share their start across variants."""
    widths = sorted({width for _, width in sweep})
    ends = (widths[0], widths[-1])

    def errors(variant: str, over: Sequence[int] = widths) -> list[float]:
        """By repeat, the mean over widths."""
        return list(np.mean([[run.percent for run in sweep[variant, width]] for width in over], axis=0))

    def less(variant: str, other: str) -> Statistic:
        return of_difference(errors(variant), errors(other))

    gains = [
        np.mean([np.subtract(errors(f"gaussian-{t}", [w]), errors(f"variational-{t}", [w])) for t in "ab"], axis=0)
        for w in ends
    ]
    others = [variant for variant in VARIANTS if variant not in ("no-dropout", "variational-a2")]
    rates = {key: [run.mean_rate for run in runs] for key, runs in sweep.items()}
    return {
        "variational A less Gaussian A, mean over widths": less("variational-a", "gaussian-a"),
        "variational B less Gaussian B, mean over widths": less("variational-b", "gaussian-b"),
        "variational A less binary, mean over widths": less("variational-a", "binary"),
        "variational B less binary, mean over widths": less("variational-b", "binary"),
        "gain of variational over Gaussian: smallest width less largest": of_difference(*map(list, gains)),
        "A2 less any other dropout, mean over widths, greatest": greatest(
            [less("variational-a2", other) for other in others]
        ),
        "learnt drop rate at the smallest width over that at the largest, greater of A and B": greatest(
            [of_ratio(rates[variant, ends[0]], rates[variant, ends[1]]) for variant in LEARNT[:2]]
        ),
    }


# --- Table and figure -------------------------------------------------------------------------------------------------


def _errors(sweep: Sweep, images: str) -> Table:
    rows = []
    for (variant, width), runs in sweep.items():
        error, epoch = Statistic.of_mean([run.percent for run in runs]), np.mean([run.best_epoch for run in runs])
        rates = np.mean([run.drop_rates for run in runs], axis=0)
        means = (float(rates[0]), float(np.mean(rates[1:]))) if variant in LEARNT else (None, None)
        spread = (error.low, error.high) if len(runs) > 1 else (None, None)
        rows.append((LOOK[variant][0], width, error.value, *spread, float(epoch), *means))
    return Table(
        title=f"Test error on {images} [%]: mean over repeats and its 95% interval; drop rates where they are learnt",
        columns=("dropout", "width", "error", "low", "high", "epochs", "rate of the inputs", "rate of hidden layers"),
        rows=tuple(rows),
    )


def _draw(sweep: Sweep, images: str) -> Figure:
    figure = Figure(figsize=(PAGE_WIDTH, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
    for place, variant in enumerate(LOOK):
        _line(left, sweep, variant, lambda run: run.percent, place - 3)
    for place, variant in enumerate(LEARNT):
        _line(right, sweep, variant, lambda run: run.mean_rate, place - 1)
    widths = sorted({width for _, width in sweep})
    start = next(iter(sweep["gaussian-a", widths[0]])).mean_rate
    right.axhline(start, color="black", linewidth=0.8, linestyle=(0, (4, 3)), label="fixed: binary and Gaussian")
    right.legend(handles=right.lines[-1:], loc="lower left", frameon=False, fontsize=SMALL)
    right.set_ylim(0, 0.55)
    left.set_yscale("log")
    left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.yaxis.set_major_formatter(lambda error, _: f"{error:g}")
    left.yaxis.set_minor_locator(NullLocator())
    _label(left, widths, f"test error on {images} [%]", "Test error")
    _label(right, widths, "α/(1+α), mean over layers", "Learnt drop rate")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=SMALL)
    return figure


def _line(axes: Axes, sweep: Sweep, variant: str, measure: Callable[[Trained], float], place: int) -> None:
    """Means over repeats with standard errors, moved sideways a little so that bars do not hide each other."""
    name, colour, style, marker = LOOK[variant]
    widths = np.array(sorted({width for _, width in sweep}))
    found = [estimate([measure(run) for run in sweep[variant, width]]) for width in widths]
    axes.errorbar(
        widths * 1.015**place,
        [each.mean for each in found],
        yerr=[each.standard_error or 0.0 for each in found],
        color=colour,
        linestyle=style,
        marker=marker,
        markersize=4,
        linewidth=1.2,
        elinewidth=0.8,
        label=name,
    )


def _label(axes: Axes, widths: Sequence[int], y: str, title: str) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(widths)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda width, _: f"{width:g}")
    axes.set_xlabel("units in each hidden layer", fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
    axes.set_title(title)
    tidy(axes, SMALL)
    axes.title.set_fontsize(LARGE)


KSW2015_FIG1 = Experiment("ksw2015-fig1", Settings, investigate)
