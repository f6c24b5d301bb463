"""GFSVI: the functional KL between Gaussian measures, regularised (Cinquin and Bamler 2024).

At M inputs the regularised KL is RANDA's with jitter γM. For a distribution ρ of inputs, G = E_ρ[φφᵀ], it is

    KL(N(G^½m, G^½SG^½ + γI) ‖ N(0, G + γI)).

With R = G^½SG^½ the objective is ½ tr(PR) − ½ log det(R + γI) + (terms of m), P = (G + γI)⁻¹ + G^{-½}(ΦᵀΦ/σ²)G^{-½}.
Its gradient, P − (R + γI)⁻¹, up to a factor ½, is zero at R = P⁻¹ − γI. Where an eigenvalue of P is at least 1/γ,
that of P⁻¹ − γI is not positive: by the Karush-Kuhn-Tucker conditions R's eigenvalue is then 0, and q has variance 0 in
that direction. For ρ = the training inputs, the eigenvector of G with the eigenvalue g collapses if and only if
g/(γ(g + γ)) ≤ N/σ². So directions with small enough g collapse however small γ is: at γ = 0.1σ²/N, those with
g ≤ σ²/(90N). All collapse if γ ≥ σ²/N. As γ → 0 the optimum is the exact posterior.

For a network, q's function values are those of f(μ) + J(w − μ), linearised at its mean μ. The prior is the Gaussian
process with the covariance of f under the prior of the weights, so as the network gets wider, it becomes the true one.
At M inputs drawn from ρ in each step, of which K is the prior covariance, the regularised KL is

    KL(N(f(μ), JΣJᵀ + γM·I) ‖ N(0, K + γM·I)).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.batching import one_by_one
from fsvi_bench.maths.functional_kl import Gaussian, functional_kl
from fsvi_bench.maths.gaussian import gaussian_kl
from fsvi_bench.maths.linalg import identity
from fsvi_bench.maths.projection import RANK_TOLERANCE, least_squares
from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.data import Batch, MeasurementDesign, distinct_rows
from fsvi_bench.methods.inputs import LawMethod, LawOptions, root_of_second_moment, training_rows
from fsvi_bench.methods.networks import NetworkData, require_part
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.gaussian import FactorGaussian
from fsvi_bench.posteriors.trainable import TrainableGaussian

DEFAULT_SHARE = 0.1  #: γ over σ²/N, at which every direction collapses if ρ is the training inputs


class Gfsvi(LawMethod):
    """E_q[−log p(y|w)] plus the regularised KL under ρ, at its optimum or by Adam; for a network by Adam alone.

    The posterior is given by a factor, since directions may collapse.
    """

    class Options(LawOptions):
        """γ; by default 0.1·σ²/N. For a network, `network_M` inputs from ρ and S weight samples per step."""

        gamma: PositiveFloat | None = None
        network_M: PositiveInt = 80
        S: PositiveInt = 8

        @property
        def design(self) -> MeasurementDesign:
            """As if R/√γ were the features of a measurement set, with a jitter of 1."""
            return MeasurementDesign(1, "box", kl_jitter=1.0)

        @property
        def network_design(self) -> MeasurementDesign:
            """For networks."""
            return MeasurementDesign(self.network_M, self.rho)

    families = ("factor",)
    networks = "weights"

    @classmethod
    def check(cls, options: MethodOptions, problem: TrainingData | NetworkData) -> None:
        super().check(options, problem)
        if not isinstance(problem, NetworkData):
            return
        assert isinstance(options, Gfsvi.Options)
        require_part(problem.model, "prior_covariance", "gfsvi")
        if options.training == "closed-form":
            raise InputError("training=closed-form needs a linear model, got a network; set training=adam")
        needed, there = options.network_design.M_data, min(len(distinct_rows(X)) for X in problem.X)
        if there < needed:
            raise InputError(
                f"a measurement set from rho={options.rho} needs {needed} distinct training inputs, but a split has "
                f"only {there}; choose a smaller network_M"
            )

    @property
    def design(self) -> MeasurementDesign | None:
        return self.options.network_design if self.is_network else super().design

    def initial(self) -> TrainableGaussian:
        return TrainableGaussian("full", len(self.problems), self.problems.k, self.options.off_diagonal_lr, self.basis)

    def root(self, problem: TrainingData) -> Float[Tensor, "k k"]:
        return root_of_second_moment(problem, self.options.rho) / self.gamma(problem) ** 0.5

    def gamma(self, problem: TrainingData) -> float:
        """γ of one problem."""
        return float(self.options.gamma or DEFAULT_SHARE * problem.noise_variance / problem.N)

    def loss(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        regulariser = self.network_kl(q, batch) if self.is_network else functional_kl(q, batch.A)
        return self.mean_nll(q, batch) + regulariser

    def network_kl(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        """The regularised KL at a network's measurement set; as in `measured`, a step holds J constant."""
        network, A = self.problems, batch.X_A
        J, f = network.jacobian(q.mean.detach(), A), network.values(q.mean[:, None], A)[:, 0]
        K = network.prior_covariance(A)
        gamma = DEFAULT_SHARE * batch.rows.least_variance / network.N
        if self.options.gamma:
            gamma = torch.full_like(gamma, self.options.gamma)
        return one_by_one(regularised_kl, f, J, q.root, K, gamma * A.shape[1])

    def posterior(self) -> FactorGaussian:
        q: Any = super().posterior()
        return FactorGaussian(q.mean, q.root)

    def solve_at(self, place: int, problem: TrainingData) -> FactorGaussian:
        mean, factor = optimum(*training_rows(problem), self.root_at(place))
        return FactorGaussian(mean[None], factor[None])


def regularised_kl(
    f: Float[Tensor, "B M"],
    J: Float[Tensor, "B M k"],
    root: Float[Tensor, "B k_filled k_filled"],
    K: Float[Tensor, "B M M"],
    added: Float[Tensor, " B"],
) -> Float[Tensor, " B"]:
    """KL(N(f, JLLᵀJᵀ + aI) ‖ N(0, K + aI)); NaN where a covariance is not positive definite."""
    moved = J @ root[:, : J.shape[-1]]
    noise = added[:, None, None] * identity(J.shape[1], J)
    (tril_q, bad_q), (tril_p, bad_p) = map(torch.linalg.cholesky_ex, (moved @ moved.mT + noise, K + noise))
    return torch.where(bad_q + bad_p == 0, gaussian_kl(f, tril_q, torch.zeros_like(f), tril_p), torch.nan)


def optimum(
    Phi: Float[Tensor, "n k"], y: Float[Tensor, " n"], R: Float[Tensor, "k k"]
) -> tuple[Float[Tensor, " k"], Float[Tensor, "k k"]]:
    """Mean and factor of the optimal q, from rows in units of the noise and R with RᵀR = G/γ.

    In units of √γ: with R = U diag(s) Vᵀ and w = Va the regulariser's precision of the mean is s²/(s² + 1), and P is
    that of s·a, diag(1/(s² + 1)) + BᵀB with B = ΦV/s. The singular values of [B; diag((s² + 1)^{-½})] are the roots of
    P's. Directions w = V₀c that ρ does not constrain have no variance of their own: c is the data's least-squares
    solution given a, c = −(ΦV₀)⁺ΦVa, which minimises the likelihood's curvature in a.
    """
    _, s, Vh = torch.linalg.svd(R)
    mean = least_squares(torch.cat([Phi, (s / (s.square() + 1).sqrt())[:, None] * Vh]), y)
    known = s > RANK_TOLERANCE * s[0]
    V, unseen, s = Vh[known].mT, Vh[~known].mT, s[known]
    if unseen.shape[1]:
        smallest = RANK_TOLERANCE * float(torch.linalg.matrix_norm(Phi, 2))
        V = V - unseen @ torch.linalg.pinv(Phi @ unseen, atol=smallest, rtol=0.0) @ (Phi @ V)
    V = V / s
    rows = torch.cat([Phi @ V, torch.diag((s.square() + 1).rsqrt())])
    _, p, W = torch.linalg.svd(rows, full_matrices=False)
    spread = ((1 - p) * (1 + p)).clamp(min=0).sqrt() / p  # of P⁻¹ − I
    factor = V @ (W.mT * spread)
    return mean, torch.nn.functional.pad(factor, (0, len(V) - len(s)))
