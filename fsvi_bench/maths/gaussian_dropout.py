"""Gaussian dropout in Bayesian linear regression: q(w) = N(θ, α diag(θ²)), multiplicative noise N(1, α) on each weight
(Kingma, Salimans and Welling 2015, §3). α is a variance, one per weight or one shared as [*B, 1]."""

from __future__ import annotations

import torch

from fsvi_bench.maths.blr import ridge
from fsvi_bench.maths.domain import require_positive
from fsvi_bench.maths.gaussian import DivergenceTerms, gaussian_kl_to_precision
from fsvi_bench.maths.shapes import Features, Matrix, Shared, Targets, Vector


def gaussian_dropout_scale(theta: Vector, alpha: Shared) -> Vector:
    """Standard deviations √α |θ|.

    Raises:
        InputError: an α that is not positive.
    """
    require_positive("alpha", alpha)
    return alpha.sqrt() * theta.abs()


def gaussian_dropout_kl(
    theta: Vector,
    alpha: Shared,
    exact_mean: Vector,
    precision_tril: Matrix,
) -> DivergenceTerms:
    """KL(N(θ, αθ²) ‖ N(exact_mean, (CCᵀ)⁻¹)); infinite if a θ_i is 0, where q is singular.

    Raises:
        InputError: an α that is not positive.
    """
    tril = torch.diag_embed(gaussian_dropout_scale(theta, alpha))
    return gaussian_kl_to_precision(theta, tril, exact_mean, precision_tril)


def gaussian_dropout_optimum(Phi: Features, y: Targets, alpha: Shared) -> Vector:
    """The θ that maximises E_q[log N(y; Φw, σ²I)] at a fixed α, the whole objective of Gaussian dropout.

    It minimises ‖y − Φθ‖² + Σ α_i φ_iᵀφ_i θ_i², a ridge regression independent of σ. It is also the optimum of
    variational dropout at a fixed α, since the KL to the log-uniform prior depends only on α. A column of zeros gets
    θ_i = 0.

    Raises:
        InputError: an α that is not positive.
    """
    require_positive("alpha", alpha)
    penalty = alpha * Phi.square().sum(-2)
    return ridge(Phi, y, torch.where(penalty > 0, penalty, 1.0))
