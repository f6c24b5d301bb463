"""How the variance of the estimated log likelihood falls with the minibatch size M, measured and predicted.

Everything is per training point: the estimate is (1/M) Σ log p(y_i | x_i, w) over a minibatch, and L_i one summand.

 * With replacement (Kingma, Salimans and Welling 2015, eq. 5): Var = V/M + (1 − 1/M) C, where V is the variance of one
   L_i over data and noise, and C the covariance of two. Where every point has noise of its own C = 0; where the
   minibatch shares its noise C = Var_ε[mean_n L_n(ε)] ≥ 0, pairs that draw the same point twice included.
 * Without replacement (appendix F), exactly, with l_n = E_ε L_n and v_n = Var_ε L_n:
   Var = (1/M) ((N − M)/(N − 1) Var_n[l_n] + mean v_n) + (1 − 1/M) mean_{i≠j} Cov_ε[L_i, L_j].
   From Var = Var_S[E_ε] + E_S[Var_ε], with Var_S of a mean of M out of N.

The paper's bound (48) has (mean_n l_n)² where this has Var_n[l_n], and the latter may well be the larger: a trained
network is certain of most images and very wrong about a few. The bound becomes valid with mean_n l_n², which is what
(N²/M²) Σ Var[s_i] l_i² ≤ (N/M) Σ l_i² gives; `corrected_bound` is that one, `paper_bound` the printed one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from fsvi_bench.errors import InputError
from fsvi_bench.papers.ksw2015.data import Images
from fsvi_bench.papers.ksw2015.gradient_variance import (
    Estimate,
    Minibatches,
    check_sampling,
    mean_variance,
    with_estimator,
)
from fsvi_bench.papers.ksw2015.network import Classifier
from fsvi_bench.papers.streams import stream


@dataclass(frozen=True)
class MinibatchLawSettings:
    """`repetitions` minibatches per size; `passes` over all training data for the prediction."""

    sizes: tuple[int, ...] = (1, 3, 10, 30, 100, 300, 1000)
    repetitions: int = 1000
    passes: int = 1000
    estimators: tuple[str, ...] = ("local", "per-minibatch")
    sampling: str = "with-replacement"
    seed: int = 0

    def __post_init__(self) -> None:
        check_sampling(self.sampling)
        if len(set(self.sizes)) < 2 or min(self.sizes) < 1 or self.repetitions < 3 or self.passes < 3:
            raise InputError(
                f"got sizes {self.sizes}, {self.repetitions} repetitions and {self.passes} passes, expected at least"
                " two different positive sizes and at least 3 of each"
            )
        if self.sampling == "fixed":
            raise InputError("got sampling 'fixed', expected minibatches that are drawn: with- or without-replacement")

    @classmethod
    def paper(cls, sampling: str = "with-replacement") -> MinibatchLawSettings:
        return cls(sampling=sampling)

    @classmethod
    def quick(cls, sampling: str = "with-replacement") -> MinibatchLawSettings:
        return cls(sizes=(1, 3, 10, 30, 100, 300), repetitions=300, passes=300, sampling=sampling)


@dataclass(frozen=True)
class Law:
    """What one estimator's variance is made of, from passes over all training data. See the module's docstring."""

    N: int
    mean_log_likelihood: float  # mean_n l_n
    second_moment: float  # mean_n l_n²
    variance_of_means: float  # Var_n[l_n], dividing by N
    mean_variance: float  # mean_n v_n
    shared: float  # Var_ε[mean_n L_n], 0 where no noise is shared
    excess_kurtosis: float  # of one L_i over data and noise

    @property
    def V(self) -> float:
        return self.variance_of_means + self.mean_variance

    @property
    def covariance_of_pairs(self) -> float:
        """mean over i ≠ j of Cov_ε[L_i, L_j]."""
        return (self.N * self.shared - self.mean_variance) / (self.N - 1) if self.shared else 0.0

    def with_replacement(self, M: int) -> float:
        return self.V / M + (1 - 1 / M) * self.shared

    def without_replacement(self, M: int) -> float:
        between = (self.N - M) / (self.N - 1) * self.variance_of_means
        return (between + self.mean_variance) / M + (1 - 1 / M) * self.covariance_of_pairs

    def predicted(self, M: int, sampling: str) -> float:
        return self.with_replacement(M) if sampling == "with-replacement" else self.without_replacement(M)

    def error_of_a_variance(self, M: int, R: int, sampling: str) -> float:
        """Standard error to expect of the variance of R estimates, the shared part taken as Gaussian."""
        return self.predicted(M, sampling) * math.sqrt(2 / (R - 1) + max(self.excess_kurtosis, 0.0) / (M * R))

    def paper_bound(self, M: int) -> float:
        return self._bound(self.mean_log_likelihood**2, M)

    def corrected_bound(self, M: int) -> float:
        return self._bound(self.second_moment, M)

    def _bound(self, of_the_data: float, M: int) -> float:
        return (of_the_data + self.mean_variance) / M + (1 - 1 / self.N) * self.covariance_of_pairs


@dataclass(frozen=True)
class MinibatchLaw:
    """One estimator: variances by minibatch size, V and C of eq. 5 fitted to them, and the prediction beside."""

    estimator: str
    sampling: str
    sizes: tuple[int, ...]
    variances: tuple[Estimate, ...]
    fitted_V: Estimate
    fitted_C: Estimate
    chi_square: float  # of the fit, on len(sizes) − 2 degrees of freedom
    law: Law

    @property
    def predicted(self) -> tuple[float, ...]:
        return tuple(self.law.predicted(M, self.sampling) for M in self.sizes)


def minibatch_law(network: Classifier, images: Images, settings: MinibatchLawSettings) -> tuple[MinibatchLaw, ...]:
    """For a fixed network with noise. Sizes, estimators and the prediction have random streams of their own."""
    images = images.to(next(network.parameters()).device)
    return tuple(_one_estimator(network, images, settings, estimator) for estimator in settings.estimators)


def _one_estimator(network: Classifier, images: Images, settings: MinibatchLawSettings, estimator: str) -> MinibatchLaw:
    noisy = with_estimator(network, estimator)
    variances = tuple(_variance_at(noisy, images, settings, M) for M in settings.sizes)
    generator = stream(images.x_train.device, "minibatch law", settings.seed, estimator, "passes")
    everything = torch.arange(len(images.x_train), device=images.x_train.device)
    passes = torch.stack([log_likelihoods(noisy, images, everything, generator) for _ in range(settings.passes)])
    law = law_of(passes, shares_noise=estimator == "per-minibatch")
    errors = [law.error_of_a_variance(M, settings.repetitions, settings.sampling) for M in settings.sizes]
    V, C, chi_square = fit_law(settings.sizes, [v.value for v in variances], errors)
    return MinibatchLaw(estimator, settings.sampling, settings.sizes, variances, V, C, chi_square, law)


def _variance_at(network: Classifier, images: Images, settings: MinibatchLawSettings, M: int) -> Estimate:
    device, parts = images.x_train.device, ("minibatch law", settings.seed, network.settings.noise.estimator, M)
    noise = stream(device, *parts, "noise")
    batches = Minibatches(len(images.x_train), M, settings.sampling, stream("cpu", *parts, "rows"))
    estimates = [
        log_likelihoods(network, images, next(batches).to(device), noise).mean() for _ in range(settings.repetitions)
    ]
    return mean_variance(torch.stack(estimates)[:, None])


@torch.no_grad()
def log_likelihoods(
    network: Classifier, images: Images, rows: Tensor, generator: torch.Generator
) -> Float[Tensor, " M"]:
    """log p(y_i | x_i, w) of each row with one draw of the noise, in float64."""
    logits = network(images.x_train[rows], generator)
    return -cross_entropy(logits.double(), images.y_train[rows], reduction="none").cpu()


def law_of(passes: Float[Tensor, "R N"], shares_noise: bool) -> Law:
    """The parts of the law from R draws of all N log likelihoods, freed from the bias of R draws."""
    R, N = passes.shape
    means, variances = passes.mean(0), passes.var(0)
    mean_of_variances = float(variances.mean())
    shared = float(passes.mean(1).var()) if shares_noise else 0.0
    # A mean over R passes carries noise of its own: v_n / R in its square, and in its variance over n that, less the
    # part that all n share.
    excess = mean_of_variances / R
    own = excess - (shared / R if shares_noise else excess / N)
    return Law(
        N,
        float(means.mean()),
        float(means.square().mean()) - excess,
        float(means.var(correction=0)) - own,
        mean_of_variances,
        shared,
        float(_excess_kurtosis(passes)),
    )


def _excess_kurtosis(values: Tensor) -> Tensor:
    centred = values - values.mean()
    return centred.pow(4).mean() / centred.square().mean().square() - 3


def fit_law(
    sizes: Sequence[int], variances: Sequence[float], errors: Sequence[float]
) -> tuple[Estimate, Estimate, float]:
    """Weighted least squares of V/M + (1 − 1/M) C; returns V, C and χ².

    The errors must not come from the same draws as the variances: a heavy tail raises both at once, so that weights
    from the draws themselves would favour the variances that came out low.
    """
    if not all(error > 0 for error in errors):
        raise InputError("got a variance without an error, expected noise in every minibatch; choose a noisy network")
    inverse, scale = 1 / np.array(sizes, dtype=float), np.array(errors)
    design = np.column_stack([inverse, 1 - inverse]) / scale[:, None]
    target = np.array(variances) / scale
    covariance = np.linalg.inv(design.T @ design)
    coefficients = covariance @ design.T @ target
    V, C = (Estimate(float(c), float(e)) for c, e in zip(coefficients, np.sqrt(np.diag(covariance)), strict=True))
    return V, C, float(np.square(target - design @ coefficients).sum())
