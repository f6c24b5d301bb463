"""Shared by methods with noisy weights: options, and estimators of the expected squared error.

For f = Φw with independent w_i = centre_i + spread_i e_i (e of mean 0 and variance 1), E‖y − f‖²/2 is
½‖y − Φ centre‖² + ½ Σ_i φ_iᵀφ_i spread_i² for any distribution of e; `exact` computes this. The other estimators sample
(Kingma, Salimans and Welling 2015, section 2): `per-minibatch` draws one set of weights per step, `per-point` one per
row, and `local` draws the function values from N(Φ centre, Φ² spread²), which uses only the first two moments of e.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import PositiveFloat
from torch import Tensor

from fsvi_bench.maths.batching import matvec
from fsvi_bench.maths.bernoulli_dropout import bernoulli_moments
from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.methods.base import EVALUATION_DRAWS, AdamOptions, Method, MethodOptions
from fsvi_bench.methods.data import Batch, Rows, TaskData, sampled_nll
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.posteriors.trainable import Dropout

Estimator = Literal["exact", "local", "per-point", "per-minibatch"]


class NoisyOptions(AdamOptions):
    """How the expected error is estimated.

    `noise` A adds noise before the linear map, to each input (KSW's type A); B adds it after, to each output. These
    tasks have one output, so both give the same q and differ only in their default estimator: `per-point` for A,
    `local` for B. `exact` is the expectation in closed form, which exists for a linear model.
    """

    noise: Literal["A", "B"] = "B"
    estimator: Literal["default"] | Estimator = "default"

    @property
    def chosen_estimator(self) -> Estimator:
        if self.estimator == "default":
            return "per-point" if self.noise == "A" else "local"
        return self.estimator


class PriorLengthscale(AdamOptions):
    """Standard deviation 1/l of the prior's weights; the task's prior has l = 1."""

    l: PositiveFloat = 1.0  # noqa: E741 -- the literature's letter


class NoisyMethod(Method):
    """A method whose likelihood term is an expected squared error under independent weight noise."""

    @classmethod
    def is_deterministic(cls, options: MethodOptions) -> bool:
        return (options.chosen_estimator, options.minibatch) == ("exact", "full")  # type: ignore[attr-defined]

    def data(self) -> TaskData:
        return self._data(compress=self.options.chosen_estimator == "exact")

    def expected_nll(
        self,
        centre: Float[Tensor, "B k"],
        spread: Float[Tensor, "B k"],
        batch: Batch,
        weights: Callable[[int], Tensor] | None = None,
    ) -> Float[Tensor, " B"]:
        """−E_q[log p(y|w)] for w with these means and standard deviations, by the estimator set in the options.

        Args:
            weights: returns n draws of w for each problem, [B, n, k]; by default w = centre + spread·e, e ~ N(0, I).
        """
        if self.is_network and not self.training and weights is not None:
            return sampled_nll(weights(EVALUATION_DRAWS), batch.rows).mean(-1)
        estimator = self.options.chosen_estimator if self.training else "exact"
        if estimator == "exact":
            return exact_nll(centre, spread, batch.rows)
        if estimator == "local":
            draws = self.streams.normal("function noise", batch.rows.y.shape[1])
            return local_nll(centre, spread, batch.rows, draws)
        n = batch.rows.y.shape[1] if estimator == "per-point" else 1
        if weights is not None:
            return weights_nll(weights(n), batch.rows)
        e = self.streams.normal("weight noise", n, centre.shape[-1])
        return weights_nll(centre[:, None] + spread[:, None] * e, batch.rows)


class MaskedMethod(NoisyMethod):
    """−E_q[log p(y|w)] plus the quasi-KL to N(0, l⁻²I) for w = m∘ε, ε_i ~ Bernoulli(p_i) (Gal 2016, before eq. 6.4)."""

    families = ("bernoulli",)

    @abstractmethod
    def masks(self, q: Dropout, n: int) -> Float[Tensor, "B n k"]:
        """n draws of ε for each problem."""

    def loss(self, q: Dropout, batch: Batch) -> Float[Tensor, " B"]:
        """The quasi-KL is −E_q log N(w; 0, l⁻²I) minus the masks' entropy. Every mask's entropy counts, even if
        m_i = 0 and its two atoms coincide."""
        m, p, l = q.m, q.retain_probability, self.options.l  # noqa: E741 -- the literature's letter
        nll = self.expected_nll(*bernoulli_moments(m, p), batch, lambda n: m[:, None] * self.masks(q, n))
        decay = 0.5 * l**2 * (p * (m * m)).sum(-1)
        return nll + decay - q.entropy + m.shape[-1] * (0.5 * LOG_2PI - math.log(l))

    def details(self) -> Sequence[Mapping[str, float] | None]:
        """The mean retain probability; on networks of the output weights, the only ones that are dropped."""
        p = self.posterior().retain_probabilities
        dropped = p[..., self.problems.model.outputs] if self.is_network else p
        return [{"retain_probability": each} for each in dropped.mean(-1).tolist()]


def exact_nll(centre: Float[Tensor, "B k"], spread: Float[Tensor, "B k"], rows: Rows) -> Float[Tensor, " B"]:
    """The closed form, whose only noise is that of the minibatch."""
    residual = rows.y - matvec(rows.Phi, centre)
    squares = rows.Phi.square().sum(-2)[:, : centre.shape[-1]]
    return rows.constant + 0.5 * ((residual * residual).sum(-1) + (squares * (spread * spread)).sum(-1))


def local_nll(
    centre: Float[Tensor, "B k"], spread: Float[Tensor, "B k"], rows: Rows, noise: Float[Tensor, "B n"]
) -> Float[Tensor, " B"]:
    """The local reparameterisation: function values drawn from their normal distribution."""
    variance = matvec(rows.Phi.square(), spread * spread)
    # A padding row has variance 0, where the square root has no finite gradient.
    moved = variance > 0
    deviation = torch.where(moved, torch.where(moved, variance, 1.0).sqrt(), 0.0)
    residual = matvec(rows.Phi, centre) + deviation * noise - rows.y
    return rows.constant + 0.5 * (residual * residual).sum(-1)


def weights_nll(w: Float[Tensor, "B s k"], rows: Rows | NetworkData) -> Float[Tensor, " B"]:
    """With one set of weights (s = 1), or one per row (s = n)."""
    if w.shape[1] == 1:
        return sampled_nll(w, rows)[:, 0]
    if isinstance(rows, NetworkData):
        return rows.nll_by_row(w)
    residual = (rows.Phi[..., : w.shape[-1]] * w).sum(-1) - rows.y
    return rows.constant + 0.5 * (residual * residual).sum(-1)
