"""Scores of a posterior known by its samples: bias-corrected estimates with intervals.

All rest on the delete-a-group jackknife (Quenouille 1956, Tukey 1958): the samples are dealt to G groups, every score
is computed without each group in turn, and the scatter of these G values tells both the bias of order 1/S, which is
taken off, and the standard error. Consecutive samples share a group, as neighbours in a Markov chain should.
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
FLAT = 1e-10  #: a weight's deviation given those before it, over its own: below, the covariance is singular
STEP = 0.75  #: of the integrals, in standard deviations of the exact predictive; the samples' own noise is far larger
ROWS = 1024  #: densities of so many targets under one group's samples are held at once


def sample_estimates(q: SamplesPosterior, problem: Task) -> dict[str, Any]:
    """Estimates of the scores that exist for every distribution with moments, and `intervals`: their 95% intervals.

    Raises:
        InputError: a group's complement has no more samples than there are weights, so that its covariance is singular.
    """
    if q.k >= q.S - -(-q.S // GROUPS):
        raise InputError(f"the posterior has {q.S} samples of {q.k} weights, too few for their covariance; draw more")
    groups = q.samples.tensor_split(GROUPS)
    predictive = _predictive_scores(groups, problem)

    def scores(left_out: int | None) -> dict[str, float]:
        kept = [g for g in range(GROUPS) if g != left_out]
        samples = torch.cat([groups[g] for g in kept])
        return _moment_scores(samples, problem) | predictive(kept, len(samples))

    whole, without = scores(None), [scores(g) for g in range(GROUPS)]
    estimates = {name: _jackknife(value, [each[name] for each in without]) for name, value in whole.items()}
    # A distance is the root of what was corrected.
    estimates["w2_moments"] = tuple(max(value, 0.0) ** 0.5 for value in estimates["w2_moments"])
    values: dict[str, Any] = {name: estimate for name, (estimate, _, _) in estimates.items()}
    return values | {"intervals": {name: (low, high) for name, (_, low, high) in estimates.items()}}


def _jackknife(whole: float, without: list[float]) -> tuple[float, ...]:
    """Bias-corrected estimate and t-interval from a score of all samples and those without each group; infinite where
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
    # A direction in which the samples do not vary, but for rounding.
    deviations = tril.square().sum(-1).sqrt()
    rounding = 16 * torch.finfo(samples.dtype).eps * samples.abs().amax(0)
    if bool((tril.diagonal() <= FLAT * deviations + rounding).any()):
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
