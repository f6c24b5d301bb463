"""Predictive densities of every kind of posterior at a problem's inputs, and their divergence from the exact one's.

The exact posterior and Gaussian approximations predict Gaussians; Bernoulli dropout and spike-and-slab predict mixtures
whose density is exact to a reported precision (`fsvi_bench.maths.mixtures`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fsvi_bench.maths.blr import negative_log_predictive_density, predictive_variance
from fsvi_bench.maths.gaussian import normal_kl, normal_log_density
from fsvi_bench.maths.mixtures import (
    MixtureLogDensity,
    SwitchedWeights,
    bernoulli_dropout_weights,
    mixture_log_density,
    mixture_log_density_along,
    spike_and_slab_weights,
)
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior
from fsvi_bench.tasks.task import Task

#: Standard deviations of the exact predictive that an integral against it spans: beyond, 6e-14 of its mass is left.
REACH = 7.5
#: Distance of nodes, in the same unit, at the start and at the end of the halving, and the change (nats) by one halving
#: that asks for another. Where log q is smooth the rule converges geometrically, and about the square of the last
#: change is left; where it has kinks, between atoms that lie far apart in noise deviations, about the change itself.
COARSE, FINE, REFINE = 1.0, 1 / 16, 1e-6

#: Predictive standard deviations in noise deviations up to which a mixture's density is computed: one takes about 2 ms
#: at 400 and 30 ms at 4,000, and an integral over 1,000 inputs needs 30,000 of them.
FAR, FAR_IN_INTEGRALS = 5000.0, 500.0
#: Rare large jumps are dear at any spread. So an integral is given up if at so many inputs its coarse nodes take more
#: work each (`MixtureLogDensity.work`) than this, with which those of 1,000 inputs take 80 s, and all nodes at most
#: 16 times as long.
PILOTS, DEAR = 16, 2.0**20

#: At m ascending targets for each row of features, noise included.
LogDensity = Callable[[Float[Tensor, "P m"], Float[Tensor, "P k"]], Float[Tensor, "P m"]]


class Predictive(NamedTuple):
    """Mean and variance of a target, noise included, at n inputs."""

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]

    def entropy(self) -> Float[Tensor, " n"]:
        """Of the Gaussians with these variances."""
        return 0.5 * (2 * math.pi * math.e * self.variance).log()

    def at(self, rows: Int[Tensor, " P"], z: Float[Tensor, " m"]) -> Float[Tensor, "P m"]:
        """Targets so many standard deviations from the means of these rows."""
        return self.mean[rows, None] + self.variance[rows, None].sqrt() * z

    def nlpd(self, problem: Task) -> float:
        """Mean negative log density of the Gaussian at the test targets, in their original unit."""
        target_std = problem.frozen.target_std
        return float(negative_log_predictive_density(problem.y_test, self.mean, self.variance, target_std))

    def rmse(self, problem: Task) -> float:
        """Root mean square error of the mean at the test targets, in their original unit."""
        return float((problem.y_test - self.mean).square().mean().sqrt() * problem.frozen.target_std)


def predictive_moments(
    problem: Task, Phi: Float[Tensor, "n k"], mean: Float[Tensor, " k"], tril: Float[Tensor, "k k"]
) -> Predictive:
    """Of a posterior with this mean and covariance factor."""
    return Predictive((Phi @ mean[:, None])[:, 0], predictive_variance(Phi, tril, problem.frozen.noise_variance))


def exact_predictive(problem: Task, Phi: Float[Tensor, "n k"]) -> Predictive:
    """The exact posterior's."""
    return predictive_moments(problem, Phi, problem.truth.posterior.mean, problem.truth.covariance_tril)


def switched_weights(q: Posterior) -> SwitchedWeights | None:
    """q as independent weights that are on or off; None if it is of another kind."""
    if isinstance(q, BernoulliDropoutPosterior):
        return bernoulli_dropout_weights(q.m, q.retain_probabilities)
    if isinstance(q, SpikeSlabPosterior):
        return spike_and_slab_weights(q.spike_weight, q.slab_mean, q.slab_scale)
    return None


def spread_in_noise(problem: Task, Phi: Float[Tensor, "n k"], tril: Float[Tensor, "k k"]) -> float:
    """The largest predictive standard deviation in noise deviations: by this the cost of a mixture's density grows."""
    noise_variance = problem.frozen.noise_variance
    return float((predictive_variance(Phi, tril, noise_variance) / noise_variance).max().sqrt())


def mixture_nlpd(
    weights: SwitchedWeights, problem: Task, tril: Float[Tensor, "k k"]
) -> tuple[float, float] | tuple[None, None]:
    """NLPD of a mixture, and how far the worst test point's log density may be off (nats); None beyond `FAR`."""
    if spread_in_noise(problem, problem.Phi_test, tril) > FAR:
        return None, None
    task = problem.frozen
    mixture = mixture_log_density(problem.y_test, problem.Phi_test, weights, task.noise_variance)
    return float(task.target_std.log() - mixture.log_density.mean()), float(mixture.imprecision.max())


def predictive_kl(
    q: Posterior, problem: Task, Phi: Float[Tensor, "n k"], tril: Float[Tensor, "k k"]
) -> Float[Tensor, " n"] | None:
    """KL(exact predictive ‖ q's predictive) at each input, one-dimensional densities with the noise included.

    None for a mixture beyond `FAR_IN_INTEGRALS`, or whose densities are too `DEAR`.
    """
    exact, weights = exact_predictive(problem, Phi), switched_weights(q)
    if weights is None:
        return normal_kl(*exact, *predictive_moments(problem, Phi, q.mean, tril))
    if spread_in_noise(problem, Phi, tril) > FAR_IN_INTEGRALS:
        return None

    def density(y: Float[Tensor, "P m"], rows: Float[Tensor, "P k"]) -> MixtureLogDensity:
        return mixture_log_density_along(y, rows, weights, problem.frozen.noise_variance)

    if too_dear(exact, Phi, density):
        return None
    return kl_from_normal(exact, Phi, lambda y, rows: density(y, rows).log_density)


def too_dear(
    exact: Predictive,
    Phi: Float[Tensor, "n k"],
    density: Callable[[Float[Tensor, "P m"], Float[Tensor, "P k"]], MixtureLogDensity],
) -> bool:
    """Whether the coarse nodes at `PILOTS` inputs, evenly among the rows, take more than `DEAR` work on average."""
    pilots, z = torch.linspace(0, len(Phi) - 1, min(PILOTS, len(Phi))).round().long(), nodes(COARSE)
    left = DEAR * len(pilots) * len(z)
    # One after the other, since what is too dear need not be paid whole.
    for pilot in pilots.split(1):  # type: ignore[no-untyped-call]
        left -= float(density(exact.at(pilot, z), Phi[pilot]).work.sum())
        if left < 0:
            return True
    return False


def kl_from_normal(exact: Predictive, Phi: Float[Tensor, "n k"], log_density: LogDensity) -> Float[Tensor, " n"]:
    """KL(N(mean, variance) ‖ q_i) at each input for any log density, by the trapezoidal rule, halved where it must be.

    −½ log 2πe·variance − E log q_i(mean + sd·z), z standard normal: for a smooth integrand with Gaussian tails the rule
    has the precision of Gauss–Hermite's and its nodes serve again when the step is halved.
    """
    expected, rows = torch.full_like(exact.mean, torch.inf), torch.arange(len(Phi))
    sums, z, step = torch.zeros_like(exact.mean), nodes(COARSE), COARSE
    while len(rows) and step >= FINE:
        # Σ_j φ(z_j) log q(mean + sd z_j), φ the standard normal density.
        sums = sums + (log_density(exact.at(rows, z), Phi[rows]) * standard_normal(z)).sum(-1)
        moving = ~((step * sums - expected[rows]).abs() <= REFINE)
        expected[rows] = step * sums
        rows, sums = rows[moving], sums[moving]
        z, step = nodes(step, 0.5 * step), 0.5 * step
    return -exact.entropy() - expected


def nodes(step: float, offset: float = 0.0) -> Float[Tensor, " nodes"]:
    """Where the trapezoidal rule looks, in standard deviations."""
    count = int(REACH / step)
    return torch.arange(-count, count + 1, dtype=torch.float64) * step + offset


def standard_normal(z: Float[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    """The density of N(0, 1)."""
    return normal_log_density(z, torch.zeros_like(z), torch.ones_like(z)).exp()
