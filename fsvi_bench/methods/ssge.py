"""SSGE: RANDA's objective with the gradient of the functional KL estimated from function samples.

The scheme of Sun et al. (2019), functional variational BNNs, as Burt et al. (2020, section 4) benchmark it: the
gradient of KL(Q_A ‖ P_A) is the mean over samples f = Φ_A w of (∇ log q(f) − ∇ log p(f))ᵀ ∂f/∂params, both scores held
constant, and ∇ log q comes from the spectral Stein gradient estimator (Shi, Sun and Zhu 2018), or from another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, NamedTuple, Self

import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator
from torch import Tensor
from torch.nn.functional import pad

from fsvi_bench.maths.batching import SIDE, filled
from fsvi_bench.maths.functional_kl import Gaussian, functional_kl
from fsvi_bench.maths.score_estimators import gaussian_score, kef_score, nu_score, stein_score
from fsvi_bench.maths.ssge import spectral_stein_score
from fsvi_bench.methods.base import PositiveShare
from fsvi_bench.methods.data import Batch, MeasurementDesign, expected_nll, sampled_nll
from fsvi_bench.methods.functional import FunctionalMethod, FunctionalOptions


class Regularised(NamedTuple):
    """An estimator of scores that takes samples [B,S,m], λ and a bandwidth."""

    score: Callable[[Tensor, float, float | None], Tensor]
    published: float  #: λ in the code of Zhou, Shi and Zhu (2020)


REGULARISED: Mapping[str, Regularised] = {
    "stein": Regularised(stein_score, 1e-3),
    "kef": Regularised(kef_score, 1e-4),
    "nu": Regularised(nu_score, 1e-5),
}


class Ssge(FunctionalMethod):
    """Adam on eq. 6 with an estimate, by default the spectral Stein one, of the functional KL's gradient.

    A network's function values are its own; the prior's score is estimated from draws of its prior. The objective is
    that of its tangent at q's mean (see `rand_a`).

    Training minimises a surrogate whose gradient is the estimate and whose value has no meaning. The logged `loss` is
    therefore the objective, in closed form at the step's rows and measurement set.
    """

    networks = "weights"

    class Options(FunctionalOptions):
        """S function samples per step; the bandwidth is that of the median rule unless given.

        `injected_noise` is the standard deviation of FBNN's (0.01 there), which stands in both marginals as jitter
        does: it adds its square to `kl_jitter`.

        `score_estimator` is of q's score: SSGE, the Stein gradient estimator (Li and Turner 2018), the kernel
        exponential family's, the ν-method (Zhou, Shi and Zhu 2020), or that of a Gaussian fitted to the samples, which
        must be more than M. `regularisation` is λ of the middle three, relative to the bandwidth; `published`: 1e-3,
        1e-4 and 1e-5. `prior_score` applies to linear models; a network's prior has no known score.
        """

        S: Annotated[int, Field(ge=2)] = 100
        score_estimator: Literal["ssge", "stein", "kef", "nu", "gaussian-oracle"] = "ssge"
        regularisation: Annotated[float, Field(ge=1e-6)] | Literal["published"] = "published"
        prior_score: Literal["exact", "ssge"] = "exact"
        eigen_share: PositiveShare = 0.99
        bandwidth: PositiveFloat | Literal["median"] = "median"
        injected_noise: NonNegativeFloat = 0.0

        @model_validator(mode="after")
        def _enough_samples(self) -> Self:
            if self.score_estimator == "gaussian-oracle" and self.S <= self.M:
                raise ValueError(
                    f"score_estimator=gaussian-oracle fits a Gaussian at M={self.M} inputs to S={self.S} samples; "
                    f"set S to {self.M + 1} or more"
                )
            return self

        @property
        def design(self) -> MeasurementDesign:
            noise_variance = self.kl_jitter + self.injected_noise**2  # on the function values of q and of the prior
            return MeasurementDesign(self.M, self.draw_A, noise_variance, self.rank_tolerance)

    def loss(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        if not self.training:
            return self.closed_form(q, batch)
        w = q.draws(self._normal("function samples", q.mean.shape[-1]))
        if self.is_network:
            values = self._values(w, batch)
            surrogate = (self.score_difference(values.detach(), batch) * values).sum((-2, -1)) / self.options.S
            return sampled_nll(w, batch.rows).mean(-1) + self.kl_weight * surrogate
        # A surrogate whose gradient is the estimate: Σ_s (score_q − score_p)ᵀ Φ_A w_s / S, the scores held constant.
        surrogate = (self.stein_gradient(w.detach(), batch) * w).sum((-2, -1)) / self.options.S
        return expected_nll(q, batch.rows) + self.kl_weight * surrogate

    def closed_form(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        """The objective, which is RANDA's."""
        return self.mean_nll(q, batch) + self.kl_weight * functional_kl(q, self.measured(q, batch))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        q = self.q()
        surrogate = self.loss(q, batch)
        with torch.no_grad():
            logged = self.closed_form(q, batch) if self.is_logged(self.steps_done + 1) else None
        self.note(surrogate.detach(), logged)
        return surrogate.sum()

    @torch.no_grad()
    def stein_gradient(self, w: Float[Tensor, "B S k"], batch: Batch) -> Float[Tensor, "B S k"]:
        """(∇ log q(f_s) − ∇ log p(f_s))ᵀ Φ_A for each weight sample's function values f_s = Φ_A w_s plus noise."""
        if self.options.prior_score == "exact":
            score = self._score(self._noisy(self._values(w, batch), "injected noise"))
            # −∇ log p(f) = (Φ_AΦ_Aᵀ + noise)⁺f. It is linear, so its mean over the noise is its value without, and
            # Φ_Aᵀ(Φ_AΦ_Aᵀ + noise)⁺Φ_A is WWᵀ in the set's basis: without noise, the projector onto the row space.
            return batch.A.project_rows(w) + score @ batch.Phi_A
        return self.score_difference(self._values(w, batch), batch) @ batch.Phi_A

    @torch.no_grad()
    def score_difference(self, values: Float[Tensor, "B S m"], batch: Batch) -> Float[Tensor, "B S m"]:
        """∇ log q(f_s) − ∇ log p(f_s), both from samples."""
        noisy = self._noisy(values, "injected noise")
        prior = self._values(self._normal("prior function samples", filled(self.problems.k)), batch)
        return self._score(noisy) - self._spectral(self._noisy(prior, "prior injected noise"), noisy)

    def _values(self, w: Float[Tensor, "B S k"], batch: Batch) -> Float[Tensor, "B S m"]:
        """At A, filled up."""
        if not self.is_network:
            return w @ batch.Phi_A.mT
        values = self.problems.values(w, batch.X_A)
        return pad(values, (0, -values.shape[-1] % SIDE))

    def _noisy(self, values: Float[Tensor, "B S m"], role: str) -> Float[Tensor, "B S m"]:
        design = self.options.design
        if not design.kl_jitter:
            return values
        noise = design.kl_jitter**0.5 * self._normal(role, design.M)
        return values + pad(noise, (0, values.shape[-1] - design.M))

    def _score(self, samples: Float[Tensor, "B S m"]) -> Float[Tensor, "B S m"]:
        """Of q at its samples."""
        options = self.options
        if options.score_estimator == "ssge":
            return self._spectral(samples)
        # Without the columns that fill up the measurement set, which would count as dimensions.
        values = samples[..., : options.M]
        if options.score_estimator == "gaussian-oracle":
            score = gaussian_score(values, options.rank_tolerance)
        else:
            estimator = REGULARISED[options.score_estimator]
            regularisation = estimator.published if options.regularisation == "published" else options.regularisation
            score = estimator.score(values, regularisation, self._bandwidth)
        return pad(score, (0, samples.shape[-1] - score.shape[-1]))

    def _spectral(self, samples: Float[Tensor, "B S m"], queries: Tensor | None = None) -> Float[Tensor, "B S m"]:
        return spectral_stein_score(samples, queries, share=self.options.eigen_share, bandwidth=self._bandwidth)

    @property
    def _bandwidth(self) -> float | None:
        return None if self.options.bandwidth == "median" else self.options.bandwidth

    def _normal(self, role: str, width: int) -> Float[Tensor, "B S width"]:
        return self.streams.normal(role, self.options.S, width)

    def cost(self) -> dict[str, int]:
        return {**super().cost(), "function_samples": self.options.S}
