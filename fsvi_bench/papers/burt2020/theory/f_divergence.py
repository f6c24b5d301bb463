"""f-divergences of two Gaussians in closed form, total variation by an integral, and values for singular distributions.

D_f(Q, P) = ∫ f(q/p) dP over {p > 0}, plus f'(∞) Q(p = 0), for f convex with f(1) = 0 (Burt et al. 2020, definition 2).
It is invariant under invertible affine maps, so two Gaussians are given in coordinates in which p = N(0, I) and
q = N(shift, diag(variance)), see `relative`. With a variance of 0, q has no density.

If Q ⊥ P, then D_f(Q, P) = f(0) + f'(∞): on {p > 0} the ratio is 0 and contributes f(0). The paper's appendix B and
propositions 7 and 8 state f'(∞) alone, which is correct only if f(0) = 0, as for f = z log z. It cannot be correct in
general, since f(z) + c(z − 1) gives the same D_f with another f'(∞). For example, total variation with f = ½|z − 1| has
f'(∞) = ½, but is 1 between singular distributions. The statement that the value is the same for all Q ⊥ P, and the
largest possible, holds for f(0) + f'(∞). The paper's f are finite at 0. If f(0) = ∞ is also allowed, KL(P, Q) is the
f-divergence of (Q, P) with f = −log z and f'(∞) = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from scipy import special, stats
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import pad

from fsvi_bench.maths.linalg import logdet_of_tril, solve_tril
from fsvi_bench.maths.projection import RANK_TOLERANCE

Scalar = Float[Tensor, ""]

#: For the path in `log_overlap`: its tilt, the step (halving it changes nothing), its length (the rest contributes the
#: reciprocal for equal distributions, and less for others), and the log of a negligible integrand.
_TILT, _STEP, _LENGTH, _NEGLIGIBLE = 0.3, 1 / 64, 1e13, -45.0


class Relative(NamedTuple):
    """q relative to p: independent coordinates, each N(shift, variance) under q and N(0, 1) under p."""

    shift: Float[Tensor, " M"]
    variance: Float[Tensor, " M"]


@dataclass(frozen=True)
class Generator:
    """A convex f with f(1) = 0, extended to 0, its slope at infinity, and D_f of two Gaussians."""

    name: str
    f: Callable[[float], float]  #: f(0) may be infinite
    slope_at_infinity: float  #: f'(∞) = lim f(z)/z
    divergence: Callable[[Relative], Tensor]

    @property
    def between_singular(self) -> float:
        """D_f(Q, P) for Q ⊥ P, which is also the supremum of D_f: f(0) + f'(∞)."""
        return self.of_event(1.0, 0.0)

    def of_event(self, q: float, p: float) -> float:
        """The lower bound on D_f(Q, P) from an event with these probabilities under Q and P: D_f of two Bernoullis.

        For p = 0 it is f(1 − q) + q f'(∞). If f'(∞) = ∞, as for KL(Q, P), it is infinite for every q > 0.
        """
        return self._share(q, p) + self._share(1 - q, 1 - p)

    def _share(self, q: float, p: float) -> float:
        """p f(q/p), or its limit q f'(∞) for p → 0."""
        if p == 0:
            return q * self.slope_at_infinity if q else 0.0
        return p * self.f(q / p)


def relative(shift: Float[Tensor, " M"], factor_q: Float[Tensor, "M c"], tril_p: Float[Tensor, "M M"]) -> Relative:
    """q = N(m + shift, FFᵀ) relative to p = N(m, LLᵀ); if F has rank r < M, M − r variances are exactly 0.

    Singular values of L⁻¹F at rounding level (below max(M, c) eps of the largest) count as 0.
    """
    whitened = solve_tril(tril_p, torch.cat([factor_q, shift[:, None]], dim=1))
    left, variance = spectrum(whitened[:, :-1], max(factor_q.shape) * torch.finfo(shift.dtype).eps)
    return Relative(left.mT @ whitened[:, -1], variance)


def spectrum(factor: Float[Tensor, "M c"], tolerance: float) -> tuple[Float[Tensor, "M M"], Float[Tensor, " M"]]:
    """Eigenvectors and eigenvalues of FFᵀ, which are 0 for singular values of F below `tolerance` times the largest."""
    left, singular, _ = torch.linalg.svd(factor, full_matrices=True)
    reached = torch.where(singular > tolerance * singular[:1], singular, 0.0).square()
    return left, pad(reached, (0, len(left) - len(reached)))


def kl(of: Relative) -> Scalar:
    """KL(q‖p); infinite if q has no density."""
    shift, variance = of
    return 0.5 * (variance - 1 - variance.log() + shift.square()).sum()


def reverse_kl(of: Relative) -> Scalar:
    """KL(p‖q); infinite if q has no density."""
    shift, variance = of
    terms = (1 + shift.square()) / variance - 1 + variance.log()
    return torch.where((variance > 0).all(), 0.5 * terms.sum(), math.inf)


def log_chernoff(of: Relative, alpha: float | Tensor) -> Tensor:
    """log ∫ q^α p^(1−α): −∞ for a q without density and 0 < α < 1; +∞ if the integral diverges.

    In one coordinate, completing the square with λ = (1 − α)v + α for q's variance v and shift m gives

        ∫ q^α p^(1−α) = v^((1−α)/2) λ^(−½) exp(−½ α(1−α) m²/λ)        (infinite unless λ > 0).

    Complex α, with a last dimension of 1, give the analytic continuation for the integral in `log_overlap`.
    """
    shift, variance = of
    mixed = (1 - alpha) * variance + alpha
    terms = (1 - alpha) * variance.log() - mixed.log() - alpha * (1 - alpha) * shift.square() / mixed
    diverges = (mixed.isreal() & (mixed.real <= 0)).any()
    return torch.where(diverges, math.inf, 0.5 * terms.sum(-1))


def alpha_divergence(of: Relative, alpha: float) -> Scalar:
    """(∫ q^α p^(1−α) − 1) / (α(α − 1)), α neither 0 nor 1; its f is (z^α − αz − 1 + α)/(α(α − 1))."""
    return torch.expm1(log_chernoff(of, alpha)) / (alpha * (alpha - 1))


def log_overlap(of: Relative) -> Scalar:
    """log ∫ min(q, p) = log(1 − TV), to about 12 digits while means are up to about 100 standard deviations apart.

    With the log ratio ℓ = log q/p, min(q, p) = p·min(1, e^ℓ), and min(1, e^ℓ) has the Mellin transform 1/(z(1 − z)):

        ∫ min(q, p) = (1/2πi) ∫ c(z) / (z(1 − z)) dz,    c(z) = ∫ q^z p^(1−z),

    along any path from −i∞ to i∞ that crosses the real axis only between 0 and 1. It crosses at Chernoff's α, the
    minimiser of c. On a straight line the integrand falls only like |z|^(−2−M/2) and oscillates; on a hyperbola that is
    tilted to one side it falls exponentially, and the trapezoidal rule converges exponentially (Weideman and Trefethen
    2007). The tilt is to the side where c stays below c(α) until it is negligible. The hyperbola's scale is the
    distance of α from the poles.
    """
    if not bool((of.variance > 0).all()):
        return of.shift.new_tensor(-math.inf)
    # Equal distributions have no minimum, and values very close to the poles at 0 and 1 are not useful.
    least = minimize_scalar(lambda place: float(log_chernoff(of, place)), bounds=(1e-3, 1 - 1e-3), method="bounded")
    alpha, scale = least.x, min(least.x, 1 - least.x)
    u = torch.arange(0, math.asinh(_LENGTH / scale), _STEP, dtype=torch.float64)
    paths = []
    for tilt in (-_TILT, _TILT):
        turned = u + 1j * tilt
        z = alpha + scale * (math.sin(tilt) + 1j * turned.sinh())
        log_c = log_chernoff(of, z[:, None]) - least.fun
        counts = (log_c.real > _NEGLIGIBLE).cumprod(0).bool()
        paths.append((log_c[counts], (scale * turned.cosh() / (z * (1 - z)))[counts]))
    log_c, rest = min(paths, key=lambda path: float(path[0].real.max()))
    integral = torch.trapezoid((log_c.exp() * rest).real, dx=_STEP)
    return least.fun + (integral / math.pi).log()


def total_variation(of: Relative) -> Scalar:
    """sup |Q(E) − P(E)| over events E, between 0 and 1; see `log_overlap`."""
    return -torch.expm1(log_overlap(of))


def alpha_generator(alpha: float) -> Generator:
    """The generator of the α-divergence for α > 0, α ≠ 1."""

    def f(z: float) -> float:
        return (z**alpha - alpha * z - 1 + alpha) / (alpha * (alpha - 1))

    slope = math.inf if alpha > 1 else 1 / (1 - alpha)
    return Generator(f"alpha = {alpha:g}", f, slope, lambda of: alpha_divergence(of, alpha))


GENERATORS = (
    Generator("KL(Q, P)", lambda z: float(special.rel_entr(z, 1.0)), math.inf, kl),
    Generator("KL(P, Q)", lambda z: float(special.rel_entr(1.0, z)), 0.0, reverse_kl),
    Generator("total variation", lambda z: 0.5 * abs(z - 1), 0.5, total_variation),
    Generator("squared Hellinger", lambda z: 1 - math.sqrt(z), 0.0, lambda of: alpha_divergence(of, 0.5) / 4),
    *map(alpha_generator, (0.25, 0.75, 2.0)),
)


# --- A Gaussian without a density, and the limit of its divergences with vanishing white noise ------------------------
#
# Q = N(μ, FFᵀ) with F (M×k) is the distribution of the values of a linear model with k parameters at M inputs. For
# M > k it is supported on a subspace and singular to every P = N(m, LLᵀ) with a density (Burt et al. 2020, proposition
# 4). Q_ε = Q * N(0, ε²I) has a density. With r = rank F, singular values s_i of F, and N (M×(M−r)) an orthonormal basis
# of the complement of F's range, as ε → 0
#
#     KL(Q_ε‖P) = ½(M − r) log(1/ε²) + constant + O(ε²),        ε² KL(P‖Q_ε) → ½ [tr NᵀLLᵀN + ‖Nᵀ(μ − m)‖²],
#     ∫ q_ε^α p^(1−α) = O(ε^((1−α)(M−r)))  for 0 < α < 1.
#
# The slope is ½(M − k) if F has rank k, and larger if parameters are redundant. If M = r all divergences stay finite. A
# jitter of ε² thus replaces an infinite KL by (M − r) log(1/ε) plus a constant, which may be the larger of the two for
# jitters used in practice. All values are in nats.


class Asymptotics(NamedTuple):
    """The leading terms above."""

    slope: float  #: ½(M − r), of KL(Q_ε‖P) in log(1/ε²)
    constant: float  #: lim KL(Q_ε‖P) − slope · log(1/ε²)
    reverse: float  #: lim ε² KL(P‖Q_ε)


class Event(NamedTuple):
    """The probability of E = {y: ‖Nᵀ(y − μ)‖ ≤ radius} under Q_ε, and an upper bound on it under P. Their difference is
    a lower bound on the total variation."""

    radius: float
    under_q: float
    under_p: float


class Flat(NamedTuple):
    """Q = N(m + shift, FFᵀ) and P = N(m, LLᵀ); no divergence depends on m."""

    shift: Float[Tensor, " M"]
    factor: Float[Tensor, "M k"]
    tril: Float[Tensor, "M M"]

    def seen(self, noise_variance: float) -> Relative:
        """Q_ε relative to P, for any ε² ≥ 0. It has no density if ε = 0 and the rank is below M (`RANK_TOLERANCE`)."""
        left, variance = self._spectrum(noise_variance)
        return relative(self.shift, left * variance.sqrt(), self.tril)

    def asymptotics(self) -> Asymptotics:
        """The leading terms for ε → 0."""
        left, variance = self._spectrum(0.0)
        M, inside = len(variance), variance[variance > 0]
        whitened = solve_tril(self.tril, torch.cat([self.factor, self.shift[:, None]], dim=1)).square().sum()
        outside = left[:, variance == 0].mT @ torch.cat([self.tril, self.shift[:, None]], dim=1)
        constant = 0.5 * (whitened - M + logdet_of_tril(self.tril) - inside.log().sum())
        return Asymptotics(0.5 * (M - len(inside)), float(constant), 0.5 * float(outside.square().sum()))

    def revealing_event(self, noise_variance: float) -> Event:
        """An event with probability near 1 under Q_ε, ε > 0, and near 0 under P: a thin slab around Q's subspace.

        With d = M − r, Q_ε(E) = F_χ²(d)(c) for the radius ε√c, and P(E) is at most the ball's volume times the largest
        density of Nᵀy, V_d (ε√c)^d (2π)^(−d/2) det(NᵀLLᵀN)^(−½), for any mean of P. Their difference is largest at
        c = d log(1/ε²) + log det NᵀLLᵀN, where the derivatives agree; it tends to 1 like ε^d up to powers of c.
        """
        left, variance = self._spectrum(0.0)
        complement = left[:, variance == 0]
        d = complement.shape[1]
        logdet = 2 * float(torch.linalg.svdvals(complement.mT @ self.tril).log().sum())
        squared = max(d * math.log(1 / noise_variance) + logdet, 0.0)
        log_volume = -math.lgamma(0.5 * d + 1) - 0.5 * d * math.log(2)
        under_p = math.exp(log_volume - 0.5 * logdet) * (noise_variance * squared) ** (0.5 * d)
        return Event(math.sqrt(noise_variance * squared), float(stats.chi2.cdf(squared, d)), min(under_p, 1.0))

    def _spectrum(self, noise_variance: float) -> tuple[Float[Tensor, "M M"], Float[Tensor, " M"]]:
        """Eigenvectors and eigenvalues of FFᵀ + ε²I, which are exactly ε² outside the range of F."""
        left, reached = spectrum(self.factor, RANK_TOLERANCE)
        return left, reached + noise_variance
