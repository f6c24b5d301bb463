"""Kingma, Salimans and Welling (2015), figure 1a: test error over network width for seven kinds of dropout."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Annotated, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator
from pydantic import Field

from fsvi_bench.papers.claims import Statistic, Values
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.ksw2015.data import ImageSource
from fsvi_bench.papers.ksw2015.layers import Granularity, Kind, Kl, NoiseSettings
from fsvi_bench.papers.ksw2015.network import NetworkSettings, build
from fsvi_bench.papers.ksw2015.train import TrainSettings, train
from fsvi_bench.papers.parts import Plain
from fsvi_bench.running.executors import use_one_thread
from fsvi_bench.seeds import derive_seed

VARIANTS: dict[str, tuple[Kind, float]] = {  # noise and scale of the KL; A2 is type A with a third of the KL
    "no dropout": ("none", 1.0),
    "binary": ("bernoulli", 1.0),
    "Gaussian A": ("gaussian-a", 1.0),
    "Gaussian B": ("gaussian-b", 1.0),
    "variational A": ("variational-a", 1.0),
    "variational A2": ("variational-a", 1 / 3),
    "variational B": ("variational-b", 1.0),
}


class Settings(Plain):
    """Every variant with every width, `repeats` times."""

    widths: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=2)
    repeats: int = Field(ge=1)
    granularity: Granularity
    kl: Kl
    training: TrainSettings


class Training(Plain):
    """One network to be trained."""

    variant: str
    width: int
    repeat: int
    noise: NoiseSettings
    training: TrainSettings
    images: ImageSource
    device: str


class Trained(Plain):
    """Its test error after the epoch that the validation set chose, and its layers' drop rates at the end."""

    test_error: float
    best_epoch: int
    drop_rates: tuple[float, ...]


def train_and_test(job: Training) -> Trained:
    use_one_thread()
    images, settings = job.images.load(), NetworkSettings(noise=job.noise, width=job.width)
    network = build(images, settings, job.training.seed, job.device)
    run = train(network, images, job.training)
    error = run.test_error[run.best_epoch - 1]
    return Trained(test_error=error, best_epoch=run.best_epoch, drop_rates=network.drop_rates())


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    images, device, jobs = ImageSource.find(laboratory), laboratory.device, []
    for variant, width, repeat in product(VARIANTS, sorted(settings.widths), range(settings.repeats)):
        kind, kl_scale = VARIANTS[variant]
        noise = NoiseSettings(kind=kind, granularity=settings.granularity, kl=settings.kl)
        seed = derive_seed("width sweep", settings.training.seed, repeat) % 2**31  # the same start for every variant
        training = settings.training.model_copy(update={"kl_scale": kl_scale, "seed": seed})
        place: dict[str, Any] = {"variant": variant, "width": width, "repeat": repeat}
        jobs.append(Training(**place, noise=noise, training=training, images=images, device=device))
    results = laboratory.parts.compute(train_and_test, jobs, Trained)
    networks = pd.DataFrame(
        [
            job.model_dump(include={"variant", "width", "repeat"}) | trained.model_dump()
            for job, trained in zip(jobs, results, strict=True)
        ]
    )
    rates = np.array(networks["drop_rates"].tolist())  # layers in columns
    networks = networks.assign(
        images=images.name,
        error=100 * networks["test_error"],
        rate=rates.mean(1),
        rate_of_inputs=rates[:, 0],
        rate_of_hidden=rates[:, 1:].mean(1),
    )
    return Findings(
        frames={"networks": networks, "points": _points(networks)},
        statistics=statistics(networks),
        drawings={"ticks": partial(_ticks, sorted(settings.widths))},
    )


def statistics(networks: pd.DataFrame) -> dict[str, Values]:
    """By repeat, which share their start across variants; errors in percentage points."""
    errors, rates = (
        networks.pivot(index=["variant", "width"], columns="repeat", values=name) for name in ("error", "rate")
    )
    mean: Any = errors.groupby("variant").mean()
    gain: Any = sum(errors.loc[f"Gaussian {kind}"] - errors.loc[f"variational {kind}"] for kind in "AB") / 2  # by width
    others = mean.drop(["no dropout", "variational A2"])
    return {
        **{
            f"variational {kind} less {other}, mean over widths": list(
                mean.loc[f"variational {kind}"] - mean.loc[other]
            )
            for other, kind in (("Gaussian A", "A"), ("Gaussian B", "B"), ("binary", "A"), ("binary", "B"))
        },
        "gain of variational over Gaussian: smallest width less largest": list(gain.iloc[0] - gain.iloc[-1]),
        "A2 less any other dropout, mean over widths, greatest": {
            other: list(mean.loc["variational A2"] - mean.loc[other]) for other in others.index
        },
        "learnt drop rate at the smallest width over that at the largest, greater of A and B": {
            name: list(rates.xs(name).iloc[0] / rates.xs(name).iloc[-1]) for name in ("variational A", "variational B")
        },
    }


def _points(networks: pd.DataFrame) -> pd.DataFrame:
    """Means over repeats, with 95% intervals and standard errors of the error and the drop rate."""
    runs = networks.groupby(["variant", "width", "images"], sort=False)
    points = runs[["error", "best_epoch", "rate", "rate_of_inputs", "rate_of_hidden"]].mean()
    points[["low", "high"]] = [Statistic.of_mean(list(error))[1:] for _, error in runs["error"]]
    for name in ("error", "rate"):
        points[f"{name}_low"] = points[name] - runs[name].sem()
        points[f"{name}_high"] = points[name] + runs[name].sem()
    points = points.reset_index()
    learnt = points["variant"].str.startswith("variational")
    for name in ("rate_of_inputs", "rate_of_hidden"):
        points[name] = points[name].astype(object).where(learnt, None)
    # Moved sideways a little, so that bars do not hide each other.
    return points.assign(place=points["width"] * 1.015 ** (points["variant"].map(list(VARIANTS).index) - 3))


def _ticks(widths: list[int], axes: Axes) -> None:
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.minorticks_off()
    if axes.get_yscale() == "log":
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")


KSW2015_FIG1 = Experiment("ksw2015-fig1", Settings, investigate)
