"""Methods on networks: their data, and the scores of functions drawn from their posteriors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from fsvi_bench.errors import InputError
from fsvi_bench.maths.gaussian import gaussian_kl_standard_normal
from fsvi_bench.methods.networks import Linearised, NetworkData
from fsvi_bench.networks.official import CertifiedNetwork
from fsvi_bench.networks.reference import FEWEST, Functions
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


@torch.no_grad()
def score_network(
    q: Posterior, space: NetworkData | Linearised, network: CertifiedNetwork
) -> tuple[NetworkScores, Functions]:
    """The scores of q, and the functions behind them; KL(q ‖ P_D) is among them if q has a density.

    Args:
        space: the one problem as a method sees it, on the CPU: what q is over.

    Raises:
        InputError: the functions are so large that scores overflow, or q has too few.
    """
    task, seed = network.task, derive_seed("network scores", network.sha256)
    w = q.draws if isinstance(q, DrawnPosterior) else q.sample(DRAWS, seed)
    if len(w) < FEWEST:
        raise InputError(
            f"q has {len(w)} particles, expected {FEWEST} or more for scores with standard errors; use more particles"
        )
    f = [space.functions(w[None], task.inputs[where][None], seed)[0] for where in PLACES]
    scores = score_functions(functions := Functions(*f), task, network.reference)
    if (kl := _kl(q, space, network, seed)) is None:
        return scores, functions
    return scores.model_copy(update={"scores": {"kl": kl, **scores.scores}}), functions


def _kl(q: Posterior, space: NetworkData | Linearised, network: CertifiedNetwork, seed: int) -> Score | None:
    """log Z − ELBO over the weights of q, with the errors of both; None unless q is a Gaussian with a density.

    The posterior has 2^H·H! equivalent modes: the KL of a q around one of them is larger by up to log 2^H·H!.
    """
    if not (isinstance(space, NetworkData) and isinstance(q, GaussianPosterior | FactorGaussian)) or q.singular:
        return None
    nll = space.nll(q.sample(DRAWS, seed)[None])[0]
    to_prior = gaussian_kl_standard_normal(q.mean, q.covariance_tril())
    log_z = network.certificate.log_z
    error = (float(nll.var()) / DRAWS + log_z.error**2) ** 0.5
    return Score(value=log_z.value + float(nll.mean() + to_prior), error=error, floor=None, floor_error=None)
