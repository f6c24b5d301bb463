"""The stationary distribution of Langevin samplers with a constant step, on a Gaussian N(m, Λ⁻¹) (U = −log density).

Steps are given as a fraction h of the largest stable step; λ is an eigenvalue of Λ.

* Unadjusted Langevin (Welling and Teh 2011): w ← w − (ε/2)∇U + √ε ξ, stable for ελ < 4; ε = 4h/λ_max. With
  a = 1 − ελ/2 the variance along an eigenvector obeys s = a²s + ε, so s = ε/(1 − a²) = 1/(λ(1 − ελ/4)).
* With friction α (Chen, Fox and Guestrin 2014, eq. 15): v ← (1 − α)v − η∇U + √(2αη) ξ, w ← w + v, stable for
  ηλ < 2(2 − α); η = 2(2 − α)h/λ_max. With a = Var w, b = Cov(w, v), c = Var v, w ← w + v gives b = c/2 and
  ηλa = c(2 − α)/2, and then the variance of v gives c = 2η/(2 − α − ηλ/2). So a = 1/(λ(1 − ηλ/(2(2 − α)))).

Both are 1/(λ(1 − hλ/λ_max)). A minibatch's gradient adds noise, whose covariance depends on w (`minibatch_covariance`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.linalg import identity

MAX_ROUNDS, TOLERANCE = 10_000, 1e-12  #: of the fixed point for minibatches; relative


Number = float | Float[Tensor, "..."]  #: of one problem, or of several


class Dynamics(NamedTuple):
    """One direction's linear recursion x ← A x + (noise in the last component), x = w, or (w, v)."""

    force: Number  #: what the gradient is multiplied by: ε/2, or η
    injected: Number  #: variance of the injected noise: ε, or 2αη
    friction: float | None = None  #: α

    def matrix(self, eigenvalues: Float[Tensor, " k"]) -> Float[Tensor, "k d d"]:
        """A for each eigenvalue λ of Λ. With friction x is (w, v) just before w ← w + v: v' = (1−α)v − ηλ(w + v)."""
        pull = self.force * eigenvalues
        if self.friction is None:
            return (1 - pull)[:, None, None]
        one = torch.ones_like(pull)
        rows = (one, one), (-pull, 1 - self.friction - pull)
        return torch.stack([torch.stack(row, -1) for row in rows], -2)


def langevin(largest: Number, share: float) -> Dynamics:
    """SGLD with ε = 4·share/λ_max."""
    epsilon = 4 * share / largest
    return Dynamics(epsilon / 2, epsilon)


def underdamped(largest: Number, share: float, friction: float) -> Dynamics:
    """SGHMC with η = 2(2 − α)·share/λ_max."""
    eta = 2 * (2 - friction) * share / largest
    return Dynamics(eta, 2 * friction * eta, friction)


def stationary_kl(eigenvalues: Float[Tensor, " k"], share: float) -> float:
    """KL(q ‖ N(m, Λ⁻¹)) in nats of the stationary q under gradients of all rows: ½ Σ [r/(1−r) + log(1−r)] with
    r = hλ/λ_max.

    Args:
        eigenvalues: all k of Λ.
        share: h; from 1 on there is no stationary distribution, and the KL is infinite.
    """
    if share >= 1:
        return math.inf
    shrunk = share * eigenvalues / eigenvalues.max()
    return float(0.5 * (shrunk / (1 - shrunk) + torch.log1p(-shrunk)).sum())


def precision_basis(
    Phi: Float[Tensor, "N k"], noise_variance: Float[Tensor, ""]
) -> tuple[Float[Tensor, " k"], Float[Tensor, "k k"]]:
    """Eigenvalues of Λ = ΦᵀΦ/σ² + I, descending, and its eigenvectors V, by singular values of Φ/σ."""
    N, k = Phi.shape
    _, s, Vh = torch.linalg.svd(Phi / noise_variance.sqrt(), full_matrices=k > N)  # all k of V, but not N x N of U
    eigenvalues = torch.ones(k, dtype=Phi.dtype, device=Phi.device)
    eigenvalues[: len(s)] += s.square()
    return eigenvalues, Vh.mT


class Regression(NamedTuple):
    """Bayesian linear regression in the basis of Λ's eigenvectors, its rows in units of the noise."""

    eigenvalues: Float[Tensor, " k"]  #: of Λ = ΦᵀΦ/σ² + I
    rows: Float[Tensor, "N k"]  #: φᵢᵀV/σ
    residuals: Float[Tensor, " N"]  #: (φᵢᵀm − yᵢ)/σ at the posterior mean m
    mean: Float[Tensor, " k"]  #: Vᵀm

    @staticmethod
    def of(
        Phi: Float[Tensor, "N k"], y: Float[Tensor, " N"], noise_variance: Float[Tensor, ""], mean: Float[Tensor, " k"]
    ) -> Regression:
        """From features, targets and the posterior mean."""
        sigma = noise_variance.sqrt()
        eigenvalues, V = precision_basis(Phi, noise_variance)
        return Regression(eigenvalues, Phi @ V / sigma, (Phi @ mean - y) / sigma, V.mT @ mean)

    def gradient_noise(self, covariance: Float[Tensor, "k k"], n: int) -> Float[Tensor, "k k"]:
        """E Cov(N/n Σ_S ψᵢ | w) over w ~ (m, covariance), S being n of N rows without replacement.

        With ψᵢ = φᵢ(φᵢᵀw − yᵢ)/σ² it is N(N − n)/(n(N − 1)) times E[Σψᵢψᵢᵀ − (Σψᵢ)(Σψᵢ)ᵀ/N], where
        E(φᵢᵀw − yᵢ)² = rᵢ² + φᵢᵀΣφᵢ and E Σψᵢ = −m.
        """
        N = len(self.rows)
        squares = self.residuals.square() + ((self.rows @ covariance) * self.rows).sum(-1)
        curvature = torch.diag(self.eigenvalues - 1)
        of_sum = torch.outer(self.mean, self.mean) + curvature @ covariance @ curvature
        return N * (N - n) / (n * (N - 1)) * ((self.rows.mT * squares) @ self.rows - of_sum / N)


def minibatch_covariance(problem: Regression, dynamics: Dynamics, n: int) -> Float[Tensor, "k k"] | None:
    """Covariance of w under the stationary distribution with gradients of n fresh rows per step, in Λ's eigenvectors.

    The mean is m, since gradients are unbiased. The covariance solves a discrete Lyapunov equation whose noise depends
    on it, linearly: by the fixed point, which converges if and only if the second moments do. The distribution is not
    Gaussian.

    Returns:
        None where the second moments diverge, or are so close to diverging that the iteration does not settle.
    """
    propagate = _Lyapunov(dynamics.matrix(problem.eigenvalues))
    injected = dynamics.injected * identity(len(problem.eigenvalues), problem.rows)
    covariance = torch.zeros_like(injected)
    for _ in range(MAX_ROUNDS):
        noise = injected + dynamics.force**2 * problem.gradient_noise(covariance, n)
        new = propagate(noise)
        change = float((new - covariance).abs().max() / new.abs().max())
        covariance = new
        if not math.isfinite(change):
            return None
        if change < TOLERANCE:
            return covariance
    return None


class _Lyapunov:
    """X with X_ij = A_i X_ij A_jᵀ + N_ij e eᵀ, e the last component: of x_i = (w_i, v_i), Cov(w_i, w_j) is kept."""

    def __init__(self, A: Float[Tensor, "k d d"]) -> None:
        k, d = A.shape[:2]
        kron = torch.einsum("iac,jbd->ijabcd", A, A).reshape(k, k, d * d, d * d)
        last = torch.zeros(d * d, 1, dtype=A.dtype)
        last[-1] = 1
        self.gain = torch.linalg.solve(identity(d * d, A) - kron, last.expand(k, k, d * d, 1))[..., 0, 0]

    def __call__(self, noise: Float[Tensor, "k k"]) -> Float[Tensor, "k k"]:
        return self.gain * noise


def moments_kl(eigenvalues: Float[Tensor, " k"], covariance: Float[Tensor, "k k"]) -> float:
    """KL(N(m, Σ) ‖ N(m, Λ⁻¹)) = ½[tr ΛΣ − k − log det ΛΣ], Σ in Λ's eigenvectors."""
    root = eigenvalues.sqrt()
    relative = torch.linalg.eigvalsh(root[:, None] * covariance * root)
    return float(0.5 * (relative - 1 - relative.log()).sum())
