"""The long parts of measuring Kingma, Salimans and Welling's (2015) gradient variances: networks to be trained."""

from __future__ import annotations

from itertools import product
from typing import get_args

from fsvi_bench.papers.ksw2015.data import ImageSource
from fsvi_bench.papers.ksw2015.gradient_variance import (
    GradientVariance,
    Sampling,
    VarianceSettings,
    gradient_variance,
    with_estimator,
)
from fsvi_bench.papers.ksw2015.minibatch_law import MinibatchLaw, MinibatchLawSettings, minibatch_law
from fsvi_bench.papers.ksw2015.network import NetworkSettings, build
from fsvi_bench.papers.ksw2015.train import TrainSettings
from fsvi_bench.papers.parts import Plain
from fsvi_bench.running.executors import use_one_thread


class Training(Plain):
    """A network to be trained and measured; where there are settings for laws, these are of the trained network."""

    table: str
    network: int
    images: ImageSource
    settings: NetworkSettings
    training: TrainSettings
    variance: VarianceSettings
    law: MinibatchLawSettings | None
    device: str


class Measured(Plain):
    variances: list[GradientVariance]
    laws: list[MinibatchLaw]
    test_error: float  # share, at the end


def train_and_measure(job: Training) -> Measured:
    use_one_thread()
    images, seed = job.images.load(), job.training.seed
    network = build(images, job.settings, seed, job.device)
    variances, run = gradient_variance(network, images, job.training, job.variance)
    laws = [
        minibatch_law(with_estimator(network, estimator), images, job.law, sampling, seed)
        for sampling, estimator in product(get_args(Sampling), ("local", "per-minibatch"))
        if job.law
    ]
    return Measured(variances=variances, laws=laws, test_error=run.test_error[-1])
