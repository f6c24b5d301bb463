"""Estimated scores of posteriors that are given by draws, with their bias removed and with intervals.

All use the delete-a-group jackknife (Quenouille 1956, Tukey 1958). The draws are divided into G groups, and every score
is computed without each group in turn. These G values estimate the bias of order 1/S, which is subtracted, and the
standard error. Groups hold consecutive draws, since neighbours in a Markov chain are correlated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from scipy.special import stdtrit
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.gaussian import normal_log_density
from fsvi_bench.posteriors.samples import SamplesPosterior
from fsvi_bench.scoring.predictive import exact_predictive, moment_scores, nodes, standard_normal
from fsvi_bench.tasks.task import Task

GROUPS = 20
FLAT = 1e-10  #: smallest ratio of a weight's deviation given earlier ones to its own; below: singular
STEP = 0.75  #: of the integrals, in standard deviations of the exact predictive; sampling errors are far larger
#: Bias of the density's scores, in nats, up to which it is subtracted. If few draws come near a target, or none reaches
#: the exact predictive's tails, it is not of order 1/S.
MAX_BIAS = 0.1
OF_DENSITY = ("nlpd", "predictive_kl_test", "predictive_kl_box")
ROWS = 1024  #: targets whose densities under one group's samples are in memory at once


def sample_estimates(q: SamplesPosterior, problem: Task) -> dict[str, Any]:
    """Estimates of the scores that exist for every distribution with moments, and `intervals`: their 95% intervals.

    Raises:
        InputError: a group's complement has no more samples than there are weights, so its covariance is singular.
    """
    if q.k >= q.S - -(-q.S // GROUPS):
        raise InputError(f"the posterior has {q.S} samples of {q.k} weights, too few for their covariance; draw more")
    groups = q.samples.tensor_split(GROUPS)
    predictive = _predictive_scores(groups, problem)

    def scores(left_out: int | None) -> dict[str, float]:
        kept = [g for g in range(GROUPS) if g != left_out]
        samples = torch.cat([groups[g] for g in kept])
        return _moment_scores(samples, problem) | predictive(kept, len(samples))

    return _estimates(scores)


def _estimates(scores: Callable[[int | None], dict[str, float]]) -> dict[str, Any]:
    """Estimates from the scores of all draws, and of the draws without each group."""
    whole, without = scores(None), [scores(g) for g in range(GROUPS)]
    estimates = {name: _jackknife(value, [each[name] for each in without]) for name, value in whole.items()}
    # The jackknife corrects the squared distance; the score is its root.
    estimates["w2_moments"] = tuple(max(value, 0.0) ** 0.5 for value in estimates["w2_moments"])
    values: dict[str, Any] = {name: estimate for name, (estimate, _, _) in estimates.items()}
    for name in OF_DENSITY:
        if name in values and abs(values[name] - whole[name]) > MAX_BIAS:
            values[name] = None
            del estimates[name]
    return values | {"intervals": {name: (low, high) for name, (_, low, high) in estimates.items()}}


def is_flat(draws: Float[Tensor, "n k"], tril: Float[Tensor, "k k"]) -> bool:
    """Whether the draws do not vary in some direction, except by rounding."""
    deviations = tril.square().sum(-1).sqrt()
    rounding = 16 * torch.finfo(draws.dtype).eps * draws.abs().amax(0)
    return bool((tril.diagonal() <= FLAT * deviations + rounding).any())


def _jackknife(whole: float, without: list[float]) -> tuple[float, ...]:
    """Bias-corrected estimate and t-interval from a score of all samples and those without each group; infinite if
    one of them is."""
    if not all(map(math.isfinite, (whole, *without))):
        return (math.inf,) * 3
    G, parts = len(without), torch.tensor(without, dtype=torch.float64)
    corrected = G * whole - (G - 1) * float(parts.mean())
    error = float(((G - 1) / G * (parts - parts.mean()).square().sum()).sqrt())
    half = float(stdtrit(G - 1, 0.975)) * error
    return corrected, corrected - half, corrected + half


def _moment_scores(samples: Float[Tensor, "S k"], problem: Task) -> dict[str, float]:
    """Scores of the Gaussian with the samples' moments; the distance is squared, since its root is not smooth at 0."""
    q = SamplesPosterior(samples)
    tril = q.covariance_tril()
    scores = moment_scores(q.mean, tril, problem)
    scores["w2_moments"] *= scores["w2_moments"]
    if is_flat(samples, tril):
        scores["kl_moment_matched"] = math.inf
    return scores


def _predictive_scores(
    groups: Sequence[Float[Tensor, "S k"]], problem: Task
) -> Callable[[list[int], int], dict[str, float]]:
    """NLPD and predictive KLs of the mixture of the predictives N(φᵀw_s, σ²) of the S samples in the groups kept."""
    task, z = problem.frozen, nodes(STEP)
    at_targets = _log_sums(groups, problem.y_test, problem.Phi_test, task.noise_variance)
    integrals = {}
    for name, Phi in (("predictive_kl_test", problem.Phi_test), ("predictive_kl_box", problem.Phi_box)):
        exact = exact_predictive(problem, Phi)
        y = exact.at(torch.arange(len(Phi)), z)
        sums = _log_sums(groups, y.flatten(), Phi.repeat_interleave(len(z), 0), task.noise_variance)
        integrals[name] = exact.entropy(), sums.view(len(groups), *y.shape)

    def scores(kept: list[int], S: int) -> dict[str, float]:
        found = {"nlpd": float(task.target_std.log() + math.log(S) - at_targets[kept].logsumexp(0).mean())}
        for name, (entropy, sums) in integrals.items():
            # KL(exact predictive ‖ mixture) at each input by one fixed trapezoidal rule.
            log_density = sums[kept].logsumexp(0) - math.log(S)
            found[name] = float((-entropy - (STEP * standard_normal(z) * log_density).sum(-1)).mean())
        return found

    return scores


def _log_sums(
    groups: Sequence[Float[Tensor, "S k"]],
    y: Float[Tensor, " P"],
    Phi: Float[Tensor, "P k"],
    noise_variance: Float[Tensor, ""],
) -> Float[Tensor, "G P"]:
    """log Σ_s N(y_i; φ_iᵀw_s, σ²) over the samples of each group."""
    found = torch.empty(len(groups), len(y), dtype=torch.float64)
    blocks = torch.split(found, ROWS, 1), torch.split(y, ROWS), torch.split(Phi, ROWS)
    for part, targets, rows in zip(*blocks, strict=True):
        for place, group in enumerate(groups):
            part[place] = normal_log_density(targets[:, None], rows @ group.mT, noise_variance).logsumexp(-1)
    return found
