"""The long parts of Kingma, Salimans and Welling's (2015) tables 1 and 2: networks to be trained and timed."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import cast, get_args

import torch
from pydantic import PositiveInt
from torch.utils.benchmark import Timer

from fsvi_bench.papers.ksw2015.data import Images, ImageSource
from fsvi_bench.papers.ksw2015.estimates import (
    MinibatchLawSettings,
    Sampling,
    VarianceSettings,
    fit_law,
    gradient_variances,
    measure_law,
)
from fsvi_bench.papers.ksw2015.layers import ESTIMATORS, Classifier, Estimator, Kind, NoiseSettings
from fsvi_bench.papers.ksw2015.train import TrainSettings, error_rate, split, step, train
from fsvi_bench.papers.parts import Plain, Row
from fsvi_bench.papers.streams import stream
from fsvi_bench.running.executors import use_one_thread

Rows = list[dict[str, str | int | float]]


class Training(Plain):
    """A network to be trained and measured; where there are settings for laws, these are of the trained network."""

    table: str
    network: int
    images: ImageSource
    noise: NoiseSettings
    width: int
    training: TrainSettings
    variance: VarianceSettings
    law: MinibatchLawSettings | None


def train_and_measure(job: Training) -> Row:
    """Trains with the local estimator; measures all of them at each checkpoint, on the averaged weights.

    `test_error` is a share, at the end; of the trained network there are `laws`, with their fits, and their `sizes`.
    """
    use_one_thread()
    images, seed = job.images.load(), job.training.seed
    kept, _ = split(images, job.training)
    started = Classifier(images, job.noise, job.width, seed)
    variances: Rows = []
    for epochs, network in enumerate(train(started, kept, job.training)):
        if epochs in job.variance.checkpoints:
            variances.extend(gradient_variances(network, images, job.variance, seed, epochs))
    laws, sizes = measure_laws(network, images, job.law, seed) if job.law else ([], [])
    test_error = error_rate(network, images.x_test, images.y_test)
    return Row(variances=variances, laws=laws, sizes=sizes, test_error=test_error)


def measure_laws(network: Classifier, images: Images, settings: MinibatchLawSettings, seed: int) -> tuple[Rows, Rows]:
    """The law of each estimator and way to draw minibatches, and its minibatch sizes."""
    laws: Rows = []
    sizes: Rows = []
    cases: list[tuple[Sampling, Estimator]] = list(product(get_args(Sampling), ("local", "per-minibatch")))
    for sampling, estimator in cases:
        law, found = measure_law(network, images, settings, sampling, estimator, seed)
        case = {"sampling": sampling, "estimator": estimator, "N": law.N, "V_of_passes": law.V}
        fit = fit_law(*found[["M", "variance", "expected_error"]].to_numpy().T)
        laws.append({**law._asdict(), **case, **fit, "sizes": len(found)})
        sizes.extend(cast(Rows, found.assign(**case).to_dict("records")))
    return laws, sizes


# --- Speed (KSW, section 5: 1,635 s per epoch with a sample per point, 7.4 s local) -----------------------------------

TIMED: dict[str, tuple[Kind, Estimator]] = {
    "no-dropout": ("none", "local"),
    **{estimator: ("variational-b", estimator) for estimator in ESTIMATORS},
}


class TimingSettings(Plain):
    """Every repeat is a ratio; it is the median of some rounds, each of which takes every estimator in turn, so that a
    busy machine slows all of them."""

    width: PositiveInt
    minibatch: PositiveInt
    rounds: PositiveInt
    repeats: PositiveInt


class Timing(Plain):
    settings: TimingSettings
    images: ImageSource


class Timed(Plain):
    rounds: list[dict[str, float]]  # seconds by estimator, and the `repeat` that a round is of


def time_steps(timing: Timing) -> Timed:
    """Forward, backward and Adam's update of one minibatch, KL included, on one thread and warm."""
    images, settings = timing.images.load(), timing.settings
    timers = {name: _timer(name, timing, images) for name in TIMED}
    return Timed(
        rounds=[
            {"repeat": repeat, **{name: timer.timeit(1).mean for name, timer in timers.items()}}
            for repeat, _ in product(range(settings.repeats), range(settings.rounds))
        ]
    )


def _timer(name: str, timing: Timing, images: Images) -> Timer:
    (kind, estimator), M = TIMED[name], timing.settings.minibatch
    network, N = Classifier(images, NoiseSettings(kind=kind), timing.settings.width, 0), len(images.x_train)
    optimizer, draws = torch.optim.Adam(network.parameters()), stream(images.x_train.device, "step times", 0, name)
    one = partial(step, network, optimizer, images.x_train[:M], images.y_train[:M], draws, 1 / N, estimator)
    return Timer("step()", globals={"step": one})
