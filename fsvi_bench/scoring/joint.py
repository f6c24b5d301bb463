"""KL(exact ‖ q) of the first 1, 10 and 100 targets together, noise included (Osband et al. 2022).

The joint distribution shows what single predictions cannot: which errors occur together under q. It exists for every q.
For Gaussians it is a closed form, and for one target an integral (`predictive`), except with `samples`. Otherwise
−E log q(y) is estimated from draws y of the exact posterior, with control variates whose expectations are known. The
density of n functions is a finite sum; that of dropout is estimated for each y (`maths.switched_joint`), and so is that
of the distribution that `samples` were drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.gaussian import LOG_2PI, gaussian_kl
from fsvi_bench.maths.linalg import identity, logdet_of_tril, solve_tril, tril_of_gram
from fsvi_bench.maths.shapes import Features
from fsvi_bench.maths.switched_joint import component_log_density, log_density_ratio
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.dropout import SwitchedPosterior
from fsvi_bench.posteriors.functions import FunctionSamplesPosterior
from fsvi_bench.posteriors.samples import SamplesPosterior
from fsvi_bench.scoring.predictive import Integrals, exact_predictive, functions_kl, predictive_kl, spread_in_noise
from fsvi_bench.seeds import derive_seed, derived_generator
from fsvi_bench.tasks.task import Task

COUNTS = (1, 10, 100)
NO_JOINT = dict.fromkeys(map(str, COUNTS))
DRAWS = 1000  #: draws y of the exact posterior
SWITCHED_DRAWS = 200  #: the first of them, for dropout, where a density takes as long as that of 10,000 functions
GROUPS, GROUP_SIZE = 4, 32  #: groups of particles that estimate one density
SAMPLE_GROUPS = 20  #: groups of consecutive samples
BLOCK = 2048  #: functions whose densities are in memory at once, for each draw: 16 MB
#: Mean bias of log q(y), in nats, up to which it is known well enough to be subtracted. Above, the estimated KL is an
#: upper bound in expectation (Jensen), and the stated error is the value itself.
KNOWN = 0.1
ROUNDING = 1e-12  #: relative rounding error of log densities
#: Smallest deviation of a control variate, relative to the terms whose sum it is. Smaller ones are rounding, and so is
#: the control's mean: least squares then takes it for the constant, and particles 10²⁰ too wide had 67 nats, not 10⁴³.
VISIBLE = 1e-14
#: The largest spread of dropout's predictive, in noise deviations, at which its density is computed. Rounding hides the
#: noise: at this spread, errors are 0.001 nats for 10 targets and 0.004 for 100; at a hundred times as much, NaN.
MAX_SPREAD = 1e6


class Law(NamedTuple):
    """A Gaussian of t targets."""

    mean: Float[Tensor, " t"]
    tril: Float[Tensor, "t t"]

    @staticmethod
    def of(mean: Float[Tensor, " t"], factor: Float[Tensor, "t r"], noise_variance: Float[Tensor, ""]) -> Law:
        """The Gaussian with this mean and the covariance FFᵀ + σ²I."""
        noise = noise_variance.sqrt() * identity(len(mean), factor)
        return Law(mean, tril_of_gram(torch.cat([factor.mT, noise])))

    def log_density(self, y: Float[Tensor, "R t"]) -> Float[Tensor, " R"]:
        """Log density of each row, in nats."""
        squares = solve_tril(self.tril, (y - self.mean).mT).square().sum(0)
        return -0.5 * (squares + logdet_of_tril(self.tril) + len(self.mean) * LOG_2PI)

    def entropy(self) -> Float[Tensor, ""]:
        """Entropy in nats."""
        return 0.5 * (logdet_of_tril(self.tril) + len(self.mean) * (LOG_2PI + 1))


class Estimate(NamedTuple):
    """A value and its standard error: None for a closed form, the imprecision for an integral. Without a value it could
    not be computed."""

    value: float | None
    error: float | None = None


def joint_scores(q: Posterior | FunctionSamplesPosterior, problem: Task) -> dict[str, dict[str, float | None] | None]:
    """`joint_predictive_kl_test` and `_box` by the number of inputs, with errors if they are estimates."""
    found: dict[str, dict[str, float | None] | None] = {}
    for place, Phi in (("test", problem.Phi_test), ("box", problem.Phi_box)):
        name = f"joint_predictive_kl_{place}"
        values: dict[str, float | None] = {**NO_JOINT}
        errors: dict[str, float | None] = {**NO_JOINT}
        for count in (each for each in COUNTS if each <= len(Phi)):
            values[str(count)], errors[str(count)] = joint_predictive_kl(q, problem, place, count)
        estimated = any(error is not None for error in errors.values())
        found |= {name: values, f"{name}_error": errors if estimated else None}
    return found


def joint_predictive_kl(q: Posterior | FunctionSamplesPosterior, problem: Task, place: str, count: int) -> Estimate:
    """KL(exact ‖ q) in nats of the targets at the first `count` inputs of `test` or `box`.

    There is no value for dropout and spike-and-slab beyond `MAX_SPREAD`.

    Draws depend on the task and the inputs alone; dropout and spike-and-slab have the first `SWITCHED_DRAWS` of them.
    """
    Phi, noise = (problem.Phi_test if place == "test" else problem.Phi_box)[:count], problem.frozen.noise_variance
    exact = Law.of(Phi @ problem.truth.posterior.mean, Phi @ problem.truth.covariance_tril, noise)
    if isinstance(q, FunctionSamplesPosterior):
        f = (q.f_test if place == "test" else q.f_box)[:, :count]
        own = Law.of(f.mean(0), (f - f.mean(0)).mT / len(f) ** 0.5, noise)
    else:
        own = Law.of(Phi @ q.mean, Phi @ q.covariance_tril(), noise)
    if isinstance(q, Posterior) and _is_gaussian(q):
        return Estimate(float(gaussian_kl(*exact, *own)))
    if isinstance(q, SwitchedPosterior) and spread_in_noise(q, problem, Phi) > MAX_SPREAD:
        return Estimate(None)
    # Draws of one target rarely reach a kink of log q, and do not show in their own spread that they missed it.
    single: Integrals | None = None
    if count == 1 and isinstance(q, FunctionSamplesPosterior):
        single = functions_kl(f, exact_predictive(problem, Phi), noise)
    elif count == 1 and isinstance(q, SwitchedPosterior):
        single = predictive_kl(q, problem, Phi)
    if single is not None and single.imprecision is not None:  # else it is too expensive
        return Estimate(single.kl.item(), single.imprecision.item())
    purpose = ("joint predictive KL", problem.sha256, place, count)
    draws = SWITCHED_DRAWS if isinstance(q, SwitchedPosterior) else DRAWS
    y = exact.mean + torch.from_numpy(derived_generator(*purpose).standard_normal((draws, count))) @ exact.tril.mT
    if isinstance(q, FunctionSamplesPosterior):
        density = _functions(y, f, noise)
    elif isinstance(q, SamplesPosterior):
        density = _samples(y, q.samples, own, Phi, noise)
    else:
        assert isinstance(q, SwitchedPosterior)
        seed = derive_seed(*purpose, "particles")
        density = _switched(y, q, own, Phi, noise, torch.Generator().manual_seed(seed))
    return _estimate(density, y, exact, own, noise)


def _is_gaussian(q: Posterior) -> bool:
    """Whether q's joint predictive is Gaussian."""
    return not isinstance(q, SamplesPosterior) and not (isinstance(q, SwitchedPosterior) and q.singular)


class Densities(NamedTuple):
    """Log densities in nats, their negative bias, the sampling error of their mean due to the draws that estimate the
    density, and by how much the mean may be too low because too few of these draws are near some y."""

    log_density: Float[Tensor, " R"]
    bias: Float[Tensor, " R"]
    sampling: float = 0.0
    unseen: float = 0.0


def _functions(y: Float[Tensor, "R t"], f: Float[Tensor, "n t"], noise_variance: Float[Tensor, ""]) -> Densities:
    """log (1/n) Σ_i N(y; f_i, σ²I)."""
    (log_sum, _) = _log_sums(y, torch.split(f, BLOCK), noise_variance)
    return Densities(log_sum - math.log(len(f)), torch.zeros_like(log_sum))


def _samples(
    y: Float[Tensor, "R t"], samples: Float[Tensor, "S k"], own: Law, Phi: Features, noise_variance: Float[Tensor, ""]
) -> Densities:
    """log E N(y; Φw, σ²I) over the distribution of the samples.

    The bias is (1/Ŝ − 1/S)/2 with Ŝ = (Σ p_i)²/Σ p_i², the effective number of samples at y. That is at most ½, even
    where y is beyond all samples and log p̄ hundreds of nats too low; where the bias exceeds what counts as known, the
    Gaussian with the samples' moments says by how much. The sampling error comes from the influence of each sample on
    the mean, 1 − mean_y p_i/p̄; neighbours in a chain share one of 20 groups.
    """
    S, parts = len(samples), torch.split(samples, BLOCK)
    log_sum, log_squares = _log_sums(y, (w @ Phi.mT for w in parts), noise_variance)
    log_density = log_sum - math.log(S)
    bias = 0.5 * ((log_squares - 2 * log_sum).exp() - 1 / S)
    missing = torch.where(bias > KNOWN, own.log_density(y) - log_density, 0.0).clamp(min=0.0)
    ratios = [(_log_normals(y, w @ Phi.mT, noise_variance) - log_sum[:, None]).exp().mean(0) for w in parts]
    groups = torch.stack([group.mean() for group in torch.cat(ratios).tensor_split(SAMPLE_GROUPS)]) * S
    return Densities(log_density, bias, float(groups.std()) / SAMPLE_GROUPS**0.5, float(missing.mean()))


def _log_sums(
    y: Float[Tensor, "R t"], functions: Iterable[Float[Tensor, "_ t"]], noise_variance: Float[Tensor, ""]
) -> Float[Tensor, "2 R"]:
    """log Σ N(y; f, σ²I) and log Σ N(y; f, σ²I)² over all functions."""
    sums = torch.full((2, len(y)), -torch.inf, dtype=y.dtype)
    for f in functions:
        logs = _log_normals(y, f, noise_variance)
        sums = torch.logaddexp(sums, torch.stack([logs.logsumexp(-1), (2 * logs).logsumexp(-1)]))
    return sums


def _log_normals(
    y: Float[Tensor, "R t"], f: Float[Tensor, "n t"], noise_variance: Float[Tensor, ""]
) -> Float[Tensor, "R n"]:
    constant = y.shape[1] * (noise_variance.log() + LOG_2PI)
    return -0.5 * (torch.cdist(y, f).square() / noise_variance + constant)


def _switched(
    y: Float[Tensor, "R t"],
    q: SwitchedPosterior,
    own: Law,
    Phi: Features,
    noise_variance: Float[Tensor, ""],
    generator: torch.Generator,
) -> Densities:
    """Log densities of dropout or spike-and-slab: logarithms of means of unbiased estimates by independent groups.

    Where y is far from all but a few of the 2ᵏ Gaussians, all groups can miss these. Then one of them, found by a
    search, has a larger density than they say.
    """
    switches = q.switches()
    ratios = log_density_ratio(y, Phi, switches, noise_variance, generator, GROUPS, GROUP_SIZE)
    log_density = own.log_density(y) + ratios.logsumexp(-1) - math.log(GROUPS)
    missing = (component_log_density(y, Phi, switches, noise_variance) - log_density).clamp(min=0.0)
    return Densities(log_density, ratios.var(-1) / (2 * GROUPS), unseen=float(missing.mean()))


def _estimate(
    density: Densities, y: Float[Tensor, "R t"], exact: Law, own: Law, noise_variance: Float[Tensor, ""]
) -> Estimate:
    """−H(exact) − E log q(y). The control variates are the log densities of the exact law, of the Gaussian with q's
    moments and of q's mean with the noise alone, whose expectations are −H(exact) − KL(exact ‖ that law). Controls
    whose deviations rounding hides are left out."""
    entropy = exact.entropy()
    point = Law(own.mean, noise_variance.sqrt() * identity(len(own.mean), own.tril))
    controls = []
    for law in (exact, own, point):
        logs, kl = law.log_density(y), gaussian_kl(*exact, *law)
        control = logs + entropy + kl
        if control.std() > VISIBLE * max(float(logs.abs().max()), float(kl)):
            controls.append(control.numpy())
    biased = max(float(density.bias.mean()), density.unseen)
    values = density.log_density + (density.bias if biased <= KNOWN else 0.0)
    design = np.stack([np.ones(len(y)), *controls], -1)
    size = design.std(0) + (design.std(0) == 0)
    coefficients, _, rank, _ = np.linalg.lstsq(design / size, values.numpy(), rcond=1e-10)
    residuals = values.numpy() - design / size @ coefficients
    deviation = math.hypot(*residuals) / max(1, len(y) - rank) ** 0.5  # whose square may overflow
    value = -float(entropy) - float(coefficients[0])
    known = biased if biased <= KNOWN else abs(value)
    rounding = ROUNDING * float(values.abs().max())
    return Estimate(value, math.hypot(deviation / len(y) ** 0.5, density.sampling, known, rounding))
