"""Methods on networks: their data, and the scores of functions drawn from their posteriors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from fsvi_bench.methods.base import Method
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.networks.official import CertifiedNetwork
from fsvi_bench.networks.reference import Functions
from fsvi_bench.networks.scores import NetworkScores, Score, score_functions
from fsvi_bench.networks.task import PLACES, Training
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.gaussian import FactorGaussian, GaussianPosterior
from fsvi_bench.posteriors.samples import DrawnPosterior
from fsvi_bench.seeds import derive_seed

DRAWS = 1000  #: functions that are scored, unless q is a set of particles


class NetworkProblem(NamedTuple):
    """A certified network task with its training data."""

    frozen: CertifiedNetwork
    training: Training


def network_data(problems: Sequence[NetworkProblem]) -> NetworkData:
    """The problems of a method; they have one model."""
    tasks = [problem.frozen.task for problem in problems]
    rows = [(*problem.training, task.noise_variance) for problem, task in zip(problems, tasks, strict=True)]
    return NetworkData.of(tasks[0].network, rows)


def score_network(method: Method, place: int, q: Posterior, problem: NetworkProblem) -> tuple[NetworkScores, Functions]:
    """The scores of one problem's q, and the functions behind them; KL(q ‖ P_D) is among them if q has a density.

    Raises:
        InputError: the functions are so large that scores overflow, or q has too few.
    """
    task = problem.frozen.task
    draws, seed = None if isinstance(q, DrawnPosterior) else DRAWS, derive_seed("network scores", task.sha256)
    f = [method.functions(place, task.inputs[where], draws, seed) for where in PLACES]
    scores = score_functions(functions := Functions(*f), task, problem.frozen.reference)
    if (kl := _kl(method, place, q, problem.frozen, seed)) is None:
        return scores, functions
    return scores.model_copy(update={"scores": {"kl": kl, **scores.scores}}), functions


@torch.no_grad()
def _kl(method: Method, place: int, q: Posterior, network: CertifiedNetwork, seed: int) -> Score | None:
    """log Z − ELBO over the weights of q, with the errors of both; None unless q is a Gaussian with a density.

    It counts every labelling of the hidden units as a mode of its own: a q around one of them pays up to log 2^H·H!.
    """
    if not (method.is_network and isinstance(q, GaussianPosterior | FactorGaussian)) or q.singular:
        return None
    nll = method.problems.only(place).nll(q.sample(DRAWS, seed)[None])[0]
    tril = q.covariance_tril()
    to_prior = 0.5 * (tril.square().sum() + q.mean.square().sum() - q.k) - tril.diagonal().log().sum()
    log_z = network.certificate.log_z
    error = (float(nll.var()) / DRAWS + log_z.error**2) ** 0.5
    return Score(value=log_z.value + float(nll.mean() + to_prior), error=error, floor=None, floor_error=None)
