"""Predictive densities of every kind of posterior at a problem's inputs: NLPD, coverage, KL from the exact one's.

The exact posterior and Gaussian approximations predict Gaussians; Bernoulli dropout and spike-and-slab predict mixtures
whose density is exact to a reported precision (`fsvi_bench.maths.mixtures`).

Coverage is calibration: how many test targets lie within the central intervals of the predictive. The central
p-interval leaves (1 − p)/2 of the predictive, noise included, on either side. Of N_test targets a calibrated model
covers p, give or take √(p(1 − p)/N_test): hence beside the exact posterior's own coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fsvi_bench.maths.blr import negative_log_predictive_density, predictive_variance
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision, gaussian_w2, normal_kl, normal_log_density
from fsvi_bench.maths.mixtures import MixtureLogDensity, mixture_cdf, mixture_log_density, mixture_log_density_along
from fsvi_bench.maths.shapes import Features, Matrix, Vector
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.dropout import SwitchedPosterior
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.posteriors.samples import DrawnPosterior
from fsvi_bench.tasks.task import Task

LEVELS = {"50": 0.5, "90": 0.9, "95": 0.95}  #: of the intervals whose coverage is scored
CHUNK = 2**21  #: numbers at a time: 16 MB

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

    mean: Float[Tensor, " N"]
    variance: Float[Tensor, " N"]

    def entropy(self) -> Float[Tensor, " N"]:
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

    def coverage(self, problem: Task) -> dict[str, float]:
        """Share of the test targets within the Gaussian's central 50, 90 and 95% intervals."""
        return _shares(torch.erf((problem.y_test - self.mean).abs() / (2 * self.variance).sqrt()))


def predictive_moments(problem: Task, Phi: Features, mean: Vector, tril: Matrix) -> Predictive:
    """Of a posterior with this mean and covariance factor."""
    return Predictive((Phi @ mean[:, None])[:, 0], predictive_variance(Phi, tril, problem.frozen.noise_variance))


def exact_predictive(problem: Task, Phi: Features) -> Predictive:
    """The exact posterior's."""
    return predictive_moments(problem, Phi, problem.truth.posterior.mean, problem.truth.covariance_tril)


def map_predictive_kl(problem: Task, Phi: Features) -> float:
    """Mean over inputs of KL(exact predictive ‖ N(φᵀm, σ²)): of a point mass at the exact mean m (MAP)."""
    exact = exact_predictive(problem, Phi)
    noise = problem.frozen.noise_variance.expand_as(exact.mean)
    return float(normal_kl(*exact, exact.mean, noise).mean())


def moment_scores(mean: Vector, tril: Matrix, problem: Task) -> dict[str, float]:
    """Scores of the Gaussian with these moments."""
    truth, predictive = problem.truth, predictive_moments(problem, problem.Phi_test, mean, tril)
    kl = gaussian_kl_to_precision(mean, tril, *truth.posterior)
    return {
        "kl_moment_matched": float(kl.total),
        "kl_mean_term": float(kl.mean),
        "w2_moments": float(gaussian_w2(mean, tril, truth.posterior.mean, truth.covariance_tril)),
        "nlpd_moment_matched": predictive.nlpd(problem),
        "rmse": predictive.rmse(problem),
    }


def spread_in_noise(q: Posterior, problem: Task, Phi: Features) -> float:
    """The largest predictive standard deviation in noise deviations: by this the cost of a mixture's density grows."""
    noise_variance = problem.frozen.noise_variance
    return float((predictive_variance(Phi, q.covariance_tril(), noise_variance) / noise_variance).max().sqrt())


def mixture_nlpd(q: SwitchedPosterior, problem: Task) -> tuple[float, float] | tuple[None, None]:
    """NLPD of a mixture, and how far the worst test point's log density may be off (nats); None beyond `FAR`."""
    if spread_in_noise(q, problem, problem.Phi_test) > FAR:
        return None, None
    task = problem.frozen
    mixture = mixture_log_density(problem.y_test, problem.Phi_test, q.switches(), task.noise_variance)
    return float(task.target_std.log() - mixture.log_density.mean()), float(mixture.imprecision.max())


def particles_log_density(
    y: Float[Tensor, "P m"], Phi: Float[Tensor, "P k"], q: ParticlesPosterior, noise_variance: Float[Tensor, ""]
) -> Float[Tensor, "P m"]:
    """log (1/n) Σ_i N(y; φᵀw_i, σ²) at m targets for each row of features."""
    found, rows = torch.empty_like(y), max(1, CHUNK // (q.n * y.shape[1]))
    blocks = (torch.split(of, rows) for of in (found, y, Phi))
    for part, targets, features in zip(*blocks, strict=True):
        f = (features @ q.particles.mT)[:, None, :]
        part[:] = normal_log_density(targets[..., None], f, noise_variance).logsumexp(-1) - math.log(q.n)
    return found


def particles_nlpd(q: ParticlesPosterior, problem: Task) -> float:
    """NLPD of the mixture of the particles' predictives, in the target's original unit."""
    task = problem.frozen
    log_density = particles_log_density(problem.y_test[:, None], problem.Phi_test, q, task.noise_variance)
    return float(task.target_std.log() - log_density.mean())


def coverage(q: Posterior, problem: Task) -> dict[str, float] | None:
    """Share of the test targets within q's central 50, 90 and 95% predictive intervals.

    Gaussians by their moments, mixtures (dropout, spike-and-slab, samples) by their distribution function, to 1e-9;
    None for a mixture whose atoms lie too far apart, as for its density.
    """
    if isinstance(q, DrawnPosterior):
        return _shares((2 * samples_cdf(q.draws, problem) - 1).abs())
    if not isinstance(q, SwitchedPosterior):
        return predictive_moments(problem, problem.Phi_test, q.mean, q.covariance_tril()).coverage(problem)
    if spread_in_noise(q, problem, problem.Phi_test) > FAR:
        return None
    below = mixture_cdf(problem.y_test, problem.Phi_test, q.switches(), problem.frozen.noise_variance).probability
    return None if bool(below.isnan().any()) else _shares((2 * below - 1).abs())


def samples_cdf(samples: Float[Tensor, "S k"], problem: Task) -> Float[Tensor, " N_test"]:
    """P(Y ≤ y) at the test targets under the mixture of the samples' predictives N(φᵀw_s, σ²)."""
    Phi, y, scale = problem.Phi_test, problem.y_test, (2 * problem.frozen.noise_variance).sqrt()
    total = torch.zeros_like(y)
    for part in torch.split(samples, max(1, CHUNK // len(y))):
        total += torch.erfc((Phi @ part.mT - y[:, None]) / scale).sum(-1)  # 2Φ: torch's own Φ is ten times as slow
    return total / (2 * len(samples))


def _shares(contents: Float[Tensor, " N_test"]) -> dict[str, float]:
    """Of the targets whose central interval, the one that ends at the target, has no more than the level's content."""
    return {name: int((contents <= p).sum()) / len(contents) for name, p in LEVELS.items()}


def predictive_kl(q: Posterior, problem: Task, Phi: Features) -> Float[Tensor, " N"] | None:
    """KL(exact predictive ‖ q's predictive) at each input, one-dimensional densities with the noise included.

    None for a mixture beyond `FAR_IN_INTEGRALS`, or whose densities are too `DEAR`.
    """
    exact = exact_predictive(problem, Phi)
    if isinstance(q, ParticlesPosterior):
        noise_variance = problem.frozen.noise_variance
        return kl_from_normal(exact, Phi, lambda y, rows: particles_log_density(y, rows, q, noise_variance))
    if not isinstance(q, SwitchedPosterior):
        return normal_kl(*exact, *predictive_moments(problem, Phi, q.mean, q.covariance_tril()))
    if spread_in_noise(q, problem, Phi) > FAR_IN_INTEGRALS:
        return None
    weights = q.switches()

    def density(y: Float[Tensor, "P m"], rows: Float[Tensor, "P k"]) -> MixtureLogDensity:
        return mixture_log_density_along(y, rows, weights, problem.frozen.noise_variance)

    if too_dear(exact, Phi, density):
        return None
    return kl_from_normal(exact, Phi, lambda y, rows: density(y, rows).log_density)


def too_dear(
    exact: Predictive,
    Phi: Features,
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


def kl_from_normal(exact: Predictive, Phi: Features, log_density: LogDensity) -> Float[Tensor, " N"]:
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
