"""Predictive densities of every kind of posterior at a problem's inputs: NLPD, coverage, KL from the exact predictive.

The exact posterior and Gaussian approximations predict Gaussians. Bernoulli dropout and spike-and-slab predict mixtures
whose density is exact to a reported precision (`fsvi_bench.maths.mixtures`), and n functions a mixture of n Gaussians.

Coverage measures calibration: the fraction of test targets within the central intervals of the predictive. The central
p-interval leaves (1 − p)/2 of the predictive, noise included, on either side. A calibrated model covers a share p of
N_test targets, with standard error √(p(1 − p)/N_test). So it is reported together with the exact posterior's coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
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
from fsvi_bench.posteriors.samples import DrawnPosterior
from fsvi_bench.tasks.task import Task

LEVELS = {"50": 0.5, "90": 0.9, "95": 0.95}  #: levels of the intervals whose coverage is scored
CHUNK = 2**21  #: numbers at a time: 16 MB

#: Range of the integrals in standard deviations of the exact predictive. It leaves out 6e-14 of the mass.
REACH = 7.5
#: First and smallest distance between nodes, in the same unit, and the change (nats) above which the distance is
#: halved again. Where log q is smooth, the rule converges geometrically, and its error is about the square
#: of the last change; where it has kinks, between atoms many noise deviations apart, about the change itself.
COARSE, FINE, REFINE = 1.0, 1 / 16, 1e-6
#: Smallest distance for sums over n functions, and the maximum number of densities for it (about 20 s).
FINEST, DENSITIES = 1 / 1024, 2**31

#: The largest spread, the predictive standard deviation in noise deviations, at which a mixture's density is computed
#: at single targets and in integrals. A density takes about 2 ms at 400 and 30 ms at 4,000, and an integral over 1,000
#: inputs needs 30,000 of them.
MAX_SPREAD, MAX_SPREAD_IN_INTEGRALS = 5000.0, 500.0
#: Rare large jumps are expensive whatever the spread. The work per coarse node (`MixtureLogDensity.work`) is measured
#: at PILOTS inputs, and the integral is not computed if it exceeds MAX_WORK. At that limit the coarse nodes of 1,000
#: inputs take 80 s, and all nodes at most 16 times as long.
PILOTS, MAX_WORK = 16, 2.0**20

#: Log densities, noise included, of m ascending targets at each of the inputs with these indices.
LogDensity = Callable[[Float[Tensor, "P m"], Int[Tensor, " P"]], Float[Tensor, "P m"]]


class Predictive(NamedTuple):
    """Mean and variance of a target, noise included, at n inputs."""

    mean: Float[Tensor, " N"]
    variance: Float[Tensor, " N"]

    def entropy(self) -> Float[Tensor, " N"]:
        """Entropy of the Gaussians with these variances."""
        return 0.5 * (2 * math.pi * math.e * self.variance).log()

    def at(self, rows: Int[Tensor, " P"], z: Float[Tensor, " m"]) -> Float[Tensor, "P m"]:
        """Targets at these numbers of standard deviations from the means of these rows."""
        return self.mean[rows, None] + self.variance[rows, None].sqrt() * z

    def nlpd(self, problem: Task) -> float:
        """Mean negative log density of the Gaussian at the test targets, in their original unit."""
        target_std = problem.frozen.target_std
        return float(negative_log_predictive_density(problem.y_test, self.mean, self.variance, target_std))

    def rmse(self, problem: Task) -> float:
        """Root mean square error of the mean at the test targets, in their original unit."""
        return float((problem.y_test - self.mean).square().mean().sqrt() * problem.frozen.target_std)

    def coverage(self, problem: Task) -> dict[str, float]:
        """Fraction of the test targets within the Gaussian's central 50, 90 and 95% intervals."""
        return _shares(torch.erf((problem.y_test - self.mean).abs() / (2 * self.variance).sqrt()))


def predictive_moments(problem: Task, Phi: Features, mean: Vector, tril: Matrix) -> Predictive:
    """The predictive of a posterior with this mean and covariance factor."""
    return Predictive((Phi @ mean[:, None])[:, 0], predictive_variance(Phi, tril, problem.frozen.noise_variance))


def exact_predictive(problem: Task, Phi: Features) -> Predictive:
    """The predictive of the exact posterior."""
    return predictive_moments(problem, Phi, problem.truth.posterior.mean, problem.truth.covariance_tril)


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
    """The largest predictive standard deviation in noise deviations; the cost of a mixture's density grows with it."""
    noise_variance = problem.frozen.noise_variance
    return float((predictive_variance(Phi, q.covariance_tril(), noise_variance) / noise_variance).max().sqrt())


def mixture_nlpd(q: SwitchedPosterior, problem: Task) -> tuple[float, float] | tuple[None, None]:
    """NLPD of a mixture, and the largest error of a test point's log density (nats); None above `MAX_SPREAD`."""
    if spread_in_noise(q, problem, problem.Phi_test) > MAX_SPREAD:
        return None, None
    task = problem.frozen
    mixture = mixture_log_density(problem.y_test, problem.Phi_test, q.switches(), task.noise_variance)
    return float(task.target_std.log() - mixture.log_density.mean()), float(mixture.imprecision.max())


def coverage(q: Posterior, problem: Task) -> dict[str, float] | None:
    """Fraction of the test targets within q's central 50, 90 and 95% predictive intervals.

    Gaussians by their moments, mixtures (dropout, spike-and-slab, draws) by their distribution function, to 1e-9; None
    for a mixture whose atoms lie too far apart, as for its density.
    """
    if isinstance(q, DrawnPosterior):
        parts = torch.split(q.draws, max(1, CHUNK // len(problem.y_test)))
        return functions_coverage((problem.Phi_test @ w.mT for w in parts), problem)
    if not isinstance(q, SwitchedPosterior):
        return predictive_moments(problem, problem.Phi_test, q.mean, q.covariance_tril()).coverage(problem)
    if spread_in_noise(q, problem, problem.Phi_test) > MAX_SPREAD:
        return None
    below = mixture_cdf(problem.y_test, problem.Phi_test, q.switches(), problem.frozen.noise_variance).probability
    return None if bool(below.isnan().any()) else _shares((2 * below - 1).abs())


def functions_coverage(functions: Iterable[Float[Tensor, "N_test _"]], problem: Task) -> dict[str, float]:
    """The same for the mixture of N(f, σ²) over all functions, which are given in parts."""
    return _shares((2 * functions_cdf(functions, problem) - 1).abs())


def functions_cdf(functions: Iterable[Float[Tensor, "N_test _"]], problem: Task) -> Float[Tensor, " N_test"]:
    """P(Y ≤ y) at the test targets under that mixture."""
    y, scale, n = problem.y_test, (2 * problem.frozen.noise_variance).sqrt(), 0
    total = torch.zeros_like(y)
    for f in functions:
        total += torch.erfc((f - y[:, None]) / scale).sum(-1)  # 2Φ; torch's Φ takes ten times as long
        n += f.shape[1]
    return total / (2 * n)


def _shares(contents: Float[Tensor, " N_test"]) -> dict[str, float]:
    """Fraction of targets in each level's central interval: the one that ends at the target has at most this level."""
    return {name: int((contents <= p).sum()) / len(contents) for name, p in LEVELS.items()}


class Integrals(NamedTuple):
    """KLs at each input in nats, and their estimated absolute errors; None for closed forms."""

    kl: Float[Tensor, " N"]
    imprecision: Float[Tensor, " N"] | None = None


def predictive_kl(q: Posterior, problem: Task, Phi: Features) -> Integrals | None:
    """KL(exact predictive ‖ q's predictive) at each input, one-dimensional densities with the noise included.

    None for a mixture that is too expensive: beyond `MAX_SPREAD_IN_INTEGRALS` or `MAX_WORK`.
    """
    exact = exact_predictive(problem, Phi)
    if not isinstance(q, SwitchedPosterior):
        return Integrals(normal_kl(*exact, *predictive_moments(problem, Phi, q.mean, q.covariance_tril())))
    if spread_in_noise(q, problem, Phi) > MAX_SPREAD_IN_INTEGRALS:
        return None
    weights = q.switches()

    def density(y: Float[Tensor, "P m"], rows: Int[Tensor, " P"]) -> MixtureLogDensity:
        return mixture_log_density_along(y, Phi[rows], weights, problem.frozen.noise_variance)

    if too_expensive(exact, density):
        return None
    return kl_from_normal(exact, lambda y, rows: density(y, rows).log_density)


def too_expensive(
    exact: Predictive, density: Callable[[Float[Tensor, "P m"], Int[Tensor, " P"]], MixtureLogDensity]
) -> bool:
    """Whether the coarse nodes at `PILOTS` inputs, evenly spaced, take more than `MAX_WORK` on average."""
    N, z = len(exact.mean), nodes(COARSE)
    pilots = torch.linspace(0, N - 1, min(PILOTS, N)).round().long()
    left = MAX_WORK * len(pilots) * len(z)
    for pilot in torch.split(pilots, 1):  # one by one, to stop early
        left -= float(density(exact.at(pilot, z), pilot).work.sum())
        if left < 0:
            return True
    return False


def functions_kl(f: Float[Tensor, "n N"], exact: Predictive, noise_variance: Float[Tensor, ""]) -> Integrals:
    """KL(exact predictive ‖ mixture of N(f_i, σ²)) at each input."""

    def log_density(y: Float[Tensor, "P m"], rows: Int[Tensor, " P"]) -> Float[Tensor, "P m"]:
        return functions_log_density(y, f[:, rows], noise_variance)

    fine = max(FINEST, 2 * REACH * f.numel() / DENSITIES)
    return kl_from_normal(exact, log_density, min(FINE, fine))


def functions_log_density(
    y: Float[Tensor, "P m"], f: Float[Tensor, "n P"], noise_variance: Float[Tensor, ""]
) -> Float[Tensor, "P m"]:
    """log (1/n) Σ_i N(y; f_i, σ²) at m targets for each input."""
    found, rows = torch.empty_like(y), max(1, CHUNK // (len(f) * y.shape[1]))
    blocks = torch.split(found, rows), torch.split(y, rows), torch.split(f.mT, rows)
    for part, targets, values in zip(*blocks, strict=True):
        part[:] = normal_log_density(targets[..., None], values[:, None, :], noise_variance).logsumexp(-1)
    return found - math.log(len(f))


def kl_from_normal(exact: Predictive, log_density: LogDensity, fine: float = FINE) -> Integrals:
    """KL(N(mean, variance) ‖ q_i) at each input for any log density, by the trapezoidal rule with halved steps.

    −½ log 2πe·variance − E log q_i(mean + sd·z), z standard normal. For a smooth integrand with Gaussian tails the rule
    is as precise as Gauss–Hermite's, and all nodes are used again when the step is halved. The imprecision is the
    change in the last halving.
    """
    expected, imprecision = torch.full_like(exact.mean, torch.inf), torch.full_like(exact.mean, torch.inf)
    rows, sums, z, step = torch.arange(len(exact.mean)), torch.zeros_like(exact.mean), nodes(COARSE), COARSE
    while len(rows) and step >= fine:
        # Σ_j φ(z_j) log q(mean + sd z_j), φ the standard normal density.
        sums = sums + (log_density(exact.at(rows, z), rows) * standard_normal(z)).sum(-1)
        imprecision[rows] = (step * sums - expected[rows]).abs()
        expected[rows] = step * sums
        moving = ~(imprecision[rows] <= REFINE)
        rows, sums = rows[moving], sums[moving]
        z, step = nodes(step, 0.5 * step), 0.5 * step
    return Integrals(-exact.entropy() - expected, imprecision)


def nodes(step: float, offset: float = 0.0) -> Float[Tensor, " nodes"]:
    """Nodes of the trapezoidal rule, in standard deviations."""
    count = int(REACH / step)
    return torch.arange(-count, count + 1, dtype=torch.float64) * step + offset


def standard_normal(z: Float[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    """The density of N(0, 1)."""
    return normal_log_density(z, torch.zeros_like(z), torch.ones_like(z)).exp()
