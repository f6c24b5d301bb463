"""Scores of a posterior known by its samples: bias-corrected estimates with intervals.

All rest on the delete-a-group jackknife (Quenouille 1956, Tukey 1958): the samples are dealt to G groups, every score
is computed without each group in turn, and the scatter of these G values tells both the bias of order 1/S, which is
taken off, and the standard error. Consecutive samples share a group, as neighbours in a Markov chain should.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision, gaussian_w2, normal_log_density
from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.posteriors.samples import SamplesPosterior
from fsvi_bench.scoring.predictive import exact_predictive, nodes, predictive_moments, standard_normal
from fsvi_bench.tasks.task import Task

GROUPS = 20
FLAT = 1e-10  #: a weight's deviation given those before it, over its own: below, the covariance is singular
STEP = 0.75  #: of the integrals, in standard deviations of the exact predictive; the samples' own noise is far larger
ROWS = 1024  #: densities of so many targets under one group's samples are held at once


class SampleEstimates(NamedTuple):
    """Scores by name, and the 95% intervals of those that are estimates."""

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]


def sample_estimates(q: SamplesPosterior, problem: Task) -> SampleEstimates:
    """Estimates of the scores that exist for every distribution with moments.

    Raises:
        InputError: a group's complement has no more samples than there are weights, so that its covariance is singular.
    """
    if q.k >= q.S - -(-q.S // GROUPS):
        raise InputError(f"the posterior has {q.S} samples of {q.k} weights, too few for their covariance; draw more")
    groups = list(q.samples.tensor_split(GROUPS))
    whole = _moment_scores(q.samples, problem)
    without = [_moment_scores(torch.cat(groups[:g] + groups[g + 1 :]), problem) for g in range(GROUPS)]
    whole_predictive, without_predictive = _predictive_scores(groups, problem)
    values, intervals = {}, {}
    for name in (*whole, *whole_predictive):
        full = whole.get(name, whole_predictive.get(name, 0.0))
        parts = [each[name] for each in (without if name in whole else without_predictive)]
        values[name], intervals[name] = _jackknife(full, parts)
    # A distance is the root of what was corrected: its square is smooth where it is 0, and it is not.
    values["w2_moments"] = max(values.pop("w2_moments_squared"), 0.0) ** 0.5
    low, high = intervals.pop("w2_moments_squared")
    intervals["w2_moments"] = (max(low, 0.0) ** 0.5, max(high, 0.0) ** 0.5)
    return SampleEstimates(values, intervals)


def _jackknife(whole: float, without: list[float]) -> tuple[float, tuple[float, float]]:
    """Bias-corrected estimate and t-interval from a score of all samples and those without each group; infinite where
    one of them is."""
    if not all(map(math.isfinite, (whole, *without))):
        return math.inf, (math.inf, math.inf)
    G, parts = len(without), torch.tensor(without, dtype=torch.float64)
    corrected = G * whole - (G - 1) * float(parts.mean())
    error = float(((G - 1) / G * (parts - parts.mean()).square().sum()).sqrt())
    from scipy.stats import t as student_t  # half a second to import, for samples alone

    half = float(student_t.ppf(0.975, G - 1)) * error
    return corrected, (corrected - half, corrected + half)


def _moment_scores(samples: Float[Tensor, "S k"], problem: Task) -> dict[str, float]:
    """Scores of the Gaussian with the samples' mean and covariance (divisor S − 1)."""
    exact, truth = problem.truth.posterior, problem.truth
    mean = samples.mean(0)
    tril = tril_of_gram(samples - mean) / (len(samples) - 1) ** 0.5
    kl = gaussian_kl_to_precision(mean, tril, *exact)
    # A direction in which the samples do not vary, but for rounding.
    deviations = tril.square().sum(-1).sqrt()
    rounding = 16 * torch.finfo(samples.dtype).eps * samples.abs().amax(0)
    flat = bool((tril.diagonal() <= FLAT * deviations + rounding).any())
    predictive = predictive_moments(problem, problem.Phi_test, mean, tril)
    error = problem.y_test - predictive.mean
    return {
        "kl_moment_matched": math.inf if flat else float(kl.total),
        "kl_mean_term": float(kl.mean),
        "w2_moments_squared": float(gaussian_w2(mean, tril, exact.mean, truth.covariance_tril).square()),
        "nlpd_moment_matched": predictive.nlpd(problem),
        "rmse": float(error.square().mean().sqrt() * problem.frozen.target_std),
    }


def _predictive_scores(
    groups: list[Float[Tensor, "S k"]], problem: Task
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """NLPD and predictive KLs of the mixture of the samples' predictives N(φᵀw_s, σ²), whole and without each group."""
    task, everyone = problem.frozen, range(len(groups))
    at_targets = _log_sums(groups, problem.y_test, problem.Phi_test, task.noise_variance)
    integrals = {
        "predictive_kl_test": _Integral.prepare(groups, problem, problem.Phi_test),
        "predictive_kl_box": _Integral.prepare(groups, problem, problem.Phi_box),
    }
    total = sum(len(group) for group in groups)

    def scores(left_out: int | None) -> dict[str, float]:
        kept = [g for g in everyone if g != left_out]
        S = total if left_out is None else total - len(groups[left_out])
        nlpd = task.target_std.log() + math.log(S) - at_targets[kept].logsumexp(0).mean()
        return {"nlpd": float(nlpd), **{name: each.mean_kl(kept, S) for name, each in integrals.items()}}

    return scores(None), [scores(g) for g in everyone]


class _Integral(NamedTuple):
    """KL(exact predictive ‖ mixture) at n inputs by one fixed trapezoidal rule, group by group."""

    entropy: Float[Tensor, " n"]
    weights: Float[Tensor, " nodes"]
    log_sums: Float[Tensor, "G n nodes"]

    @staticmethod
    def prepare(groups: list[Float[Tensor, "S k"]], problem: Task, Phi: Float[Tensor, "n k"]) -> _Integral:
        exact, z = exact_predictive(problem, Phi), nodes(STEP)
        y = exact.mean[:, None] + exact.variance[:, None].sqrt() * z
        sums = _log_sums(groups, y.flatten(), Phi.repeat_interleave(len(z), 0), problem.frozen.noise_variance)
        return _Integral(exact.entropy(), STEP * standard_normal(z), sums.view(len(groups), len(Phi), -1))

    def mean_kl(self, kept: list[int], S: int) -> float:
        """Mean over the inputs, of the mixture of the S samples in the groups that are kept."""
        log_density = self.log_sums[kept].logsumexp(0) - math.log(S)
        return float((-self.entropy - (self.weights * log_density).sum(-1)).mean())


def _log_sums(
    groups: list[Float[Tensor, "S k"]],
    y: Float[Tensor, " P"],
    Phi: Float[Tensor, "P k"],
    noise_variance: Float[Tensor, ""],
) -> Float[Tensor, "G P"]:
    """log Σ_s N(y_i; φ_iᵀw_s, σ²) over the samples of each group."""
    found = torch.empty(len(groups), len(y), dtype=torch.float64)
    for g, group in enumerate(groups):
        for start in range(0, len(y), ROWS):
            rows = slice(start, start + ROWS)
            means = Phi[rows] @ group.mT
            values = normal_log_density(y[rows, None].expand_as(means), means, noise_variance.expand_as(means))
            found[g, rows] = values.logsumexp(-1)
    return found
