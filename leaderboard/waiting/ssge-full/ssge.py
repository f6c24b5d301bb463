"""SSGE: RANDA's objective with the gradient of the functional KL estimated from function samples.

The scheme of Sun et al. (2019), functional variational BNNs, as Burt et al. (2020, section 4) benchmark it: the
gradient of KL(Q_A ‖ P_A) is the mean over samples f = Φ_A w of (∇ log q(f) − ∇ log p(f))ᵀ ∂f/∂params, both scores held
constant, and ∇ log q comes from the spectral Stein gradient estimator (Shi, Sun and Zhu 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeFloat
from torch import Tensor
from torch.nn.functional import pad

from fsvi_bench.maths.functional_kl import ALIGNMENT
from fsvi_bench.maths.ssge import spectral_stein_score
from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.descending import FunctionalOptions, Gradient, RandomSetMethod
from fsvi_bench.variational.likelihood import Likelihood
from fsvi_bench.variational.measurement import (
    MeasuredSet,
    MeasurementDesign,
    aligned,
    stream_generator,
)
from fsvi_bench.variational.parameters import FullParameters, Parameters


class SsgeOptions(FunctionalOptions):
    """S function samples a step; the bandwidth is the median rule's unless given.

    `injected_noise` is the standard deviation of FBNN's (0.01 there), which stands in both marginals as jitter does: it
    adds its square to `kl_jitter`.
    """

    S: Annotated[int, Field(ge=2)] = 100
    prior_score: Literal["exact", "ssge"] = "exact"
    eigen_share: Annotated[float, Field(gt=0, le=1)] = 0.99
    bandwidth: Annotated[float, Field(gt=0)] | Literal["median"] = "median"
    injected_noise: NonNegativeFloat = 0.0

    @property
    def noise_variance(self) -> float:
        """Of the noise on the function values of q and of the prior."""
        return self.kl_jitter + self.injected_noise**2

    def design(self) -> MeasurementDesign:
        return MeasurementDesign(self.M, self.draw_A, self.noise_variance, self.rank_tolerance)


class Ssge(RandomSetMethod):
    """Adam on eq. 6 with the spectral Stein estimate of the functional KL's gradient."""

    Options: ClassVar[type[MethodOptions]] = SsgeOptions
    options: SsgeOptions

    def make_gradient(self) -> Gradient:
        samples = FunctionSamples(self.options, self.seeds, aligned(self.problems.k), self.device)

        def gradient(q: Parameters, A: MeasuredSet, likelihood: Likelihood, kl_weight: float) -> Float[Tensor, " B"]:
            return set_stein_gradient(q, A, likelihood, samples, kl_weight)

        return gradient

    def cost(self) -> dict[str, int]:
        return {**super().cost(), "function_samples": self.options.S}


class FunctionSamples:
    """Standard normal draws behind the function samples, from each problem's own streams, drawn on the CPU."""

    def __init__(self, options: SsgeOptions, seeds: Sequence[int], k: int, device: torch.device) -> None:
        self.options, self.device = options, device
        self._weights = [stream_generator(seed, "function samples") for seed in seeds]
        self._prior = [stream_generator(seed, "prior function samples") for seed in seeds]
        self._noise = [stream_generator(seed, "injected noise") for seed in seeds]
        self._prior_noise = [stream_generator(seed, "prior injected noise") for seed in seeds]
        self._k = k

    def weights(self) -> Float[Tensor, "B S k"]:
        """For q's samples of the weights."""
        return self._draw(self._weights, self._k)

    def prior_weights(self) -> Float[Tensor, "B S k"]:
        """Samples of the weights from the prior."""
        return self._draw(self._prior, self._k)

    def noise(self, M: int) -> Float[Tensor, "B S M"]:
        """For the noise on q's function values."""
        return self._draw(self._noise, M)

    def prior_noise(self, M: int) -> Float[Tensor, "B S M"]:
        """For the noise on the prior's function values."""
        return self._draw(self._prior_noise, M)

    def _draw(self, generators: Sequence[np.random.Generator], width: int) -> Float[Tensor, "B S width"]:
        draws = torch.empty(len(generators), self.options.S, width, dtype=torch.float64)
        for place, generator in zip(draws.numpy(), generators, strict=True):
            generator.standard_normal(out=place)
        return draws.to(self.device)


def set_stein_gradient(
    q: Parameters, A: MeasuredSet, likelihood: Likelihood, samples: FunctionSamples, kl_weight: float
) -> Float[Tensor, " B"]:
    """Gradient of −E_q[log p(y|w)] + kl_weight · KL(Q_A ‖ P_A), the KL's by SSGE, handed to q's parameters.

    Returns a number per problem that is not finite if its gradient is not.
    """
    draws = samples.weights()
    S = draws.shape[1]
    spread = draws @ q.factor.mT if isinstance(q, FullParameters) else draws * q.scale[:, None]
    gradient_w = stein_gradient(spread + q.mean[:, None], A, samples) / S
    mean_of_kl = (gradient_w.mT @ draws.new_ones(len(draws), S, 8))[..., 0]
    mean = likelihood.mean_gradient(q.mean).add_(mean_of_kl, alpha=kl_weight)
    if isinstance(q, FullParameters):
        factor = torch.bmm(gradient_w.mT, draws).mul_(kl_weight)
        likelihood.add_factor_gradient(factor, q.factor)
        q.set_gradient(mean, factor)
        return mean.sum(-1)
    # ∂w/∂(log s) = s ε, which is `spread`.
    of_likelihood = q.scale.square() * likelihood.precision_diagonal()
    q.set_gradient(mean, of_likelihood.add_((gradient_w * spread).sum(1), alpha=kl_weight))
    return mean.sum(-1)


def stein_gradient(w: Float[Tensor, "B S k"], A: MeasuredSet, samples: FunctionSamples) -> Float[Tensor, "B S k"]:
    """(∇ log q(f_s) − ∇ log p(f_s))ᵀ Φ_A for each weight sample's function values f_s = Φ_A w_s plus noise."""
    options = samples.options
    fill = -A.Phi_A.shape[1] % ALIGNMENT
    Phi_A, M = pad(A.Phi_A, (0, 0, 0, fill)) if fill else A.Phi_A, A.Phi_A.shape[1]
    noise_scale = math.sqrt(options.noise_variance)

    def function_values(weights: Tensor, noise: Callable[[int], Tensor]) -> Float[Tensor, "B S m"]:
        values = weights @ Phi_A.mT
        if noise_scale:
            values[..., :M] += noise_scale * noise(M)
        return values

    values = function_values(w, samples.noise)
    score = _score(values, None, options)
    if options.prior_score == "exact":
        # −∇ log p(f) = (Φ_AΦ_Aᵀ + noise)⁺f. It is linear, so its mean over the noise is its value without, and
        # Φ_Aᵀ(Φ_AΦ_Aᵀ + noise)⁺Φ_A is WWᵀ in the measurement's basis: without noise, the projector onto the row space.
        return A.measurement.project(w.mT).mT + score @ Phi_A
    prior_values = function_values(samples.prior_weights(), samples.prior_noise)
    return (score - _score(prior_values, values, options)) @ Phi_A


def _score(
    samples: Float[Tensor, "B S M"], queries: Float[Tensor, "B S M"] | None, options: SsgeOptions
) -> Float[Tensor, "B S M"]:
    """The estimate for all problems at once, or one by one where matrices of S×S would not start on cache lines."""
    bandwidth = None if options.bandwidth == "median" else options.bandwidth
    if samples.shape[1] % ALIGNMENT == 0:
        return spectral_stein_score(samples, queries, share=options.eigen_share, bandwidth=bandwidth)
    at = [None] * len(samples) if queries is None else [query[None].clone() for query in queries]
    scores = [
        spectral_stein_score(one[None].clone(), query, share=options.eigen_share, bandwidth=bandwidth)
        for one, query in zip(samples, at, strict=True)
    ]
    return torch.cat(scores)
