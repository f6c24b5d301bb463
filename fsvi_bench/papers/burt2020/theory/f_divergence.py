"""f-divergences of two Gaussians in closed form, total variation by one integral, and their values for singular laws.

D_f(Q, P) = ∫ f(q/p) dP over {p > 0}, plus f'(∞) Q(p = 0), for f convex with f(1) = 0 (Burt et al. 2020, definition 2).
It is the same under any invertible affine map, so two Gaussians enter by what is left: coordinates in which
p = N(0, I) and q = N(shift, diag(variance)), see `relative`. A variance of 0 is a q without a density.

If Q ⊥ P, then D_f(Q, P) = f(0) + f'(∞): on {p > 0} the ratio is 0 and contributes f(0). The paper's appendix B and
propositions 7 and 8 have f'(∞) alone, which is right only where f(0) = 0, as for f = z log z. It cannot be right in
general: f(z) + c(z − 1) gives the same D_f with another f'(∞). Total variation with f = ½|z − 1| has f'(∞) = ½, but is
1 between singular laws. That the value is the same for all Q ⊥ P, and the largest that there is, is true of
f(0) + f'(∞). The paper's f are finite at 0; with f(0) = ∞ allowed as well, KL(P, Q) is the f-divergence of (Q, P) with
f = −log z, and f'(∞) = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import pad

from fsvi_bench.maths.linalg import solve_tril

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
#: Up to where the integral for ∫ min(q, p) has panels of equal width: with many variances other than 1, with few (its
#: integrand falls more slowly); beyond, panels widen up to here at most, and are so many at most.
_MANY, _FEW, _FAR, _WIDENING = 200.0, 2e4, 1e9, 400
#: What may be left out of the integral at its end, as a bound on the modulus beyond.
_TAIL = 1e-13


class Relative(NamedTuple):
    """q seen from p: independent coordinates, each N(shift, variance) under q and N(0, 1) under p."""

    shift: Float[Tensor, " M"]
    variance: Float[Tensor, " M"]


@dataclass(frozen=True)
class Generator:
    """A convex f with f(1) = 0, continued to 0, its slope at infinity, and D_f of two Gaussians."""

    name: str
    f: Callable[[float], float]
    at_zero: float  #: f(0), which may be infinite
    slope_at_infinity: float  #: f'(∞) = lim f(z)/z
    divergence: Callable[[Relative], Tensor]

    @property
    def between_singular(self) -> float:
        """D_f(Q, P) for Q ⊥ P, which is also the least upper bound of D_f."""
        return self.at_zero + self.slope_at_infinity

    def shown_of_q(self, probability: float) -> float:
        """What an event of this probability under Q, and 0 under P, shows of D_f(Q, P): f(1 − p) + p f'(∞).

        It is D_f of Bernoulli(p) and Bernoulli(0), and by data processing no more than D_f(Q, P). With f'(∞) = ∞, as
        for KL(Q, P), it is infinite for every p > 0.
        """
        remaining = self.at_zero if probability == 1 else self.f(1 - probability)
        return remaining + (probability * self.slope_at_infinity if probability > 0 else 0.0)

    def shown_of_p(self, probability: float) -> float:
        """The same of an event with this probability under P, and 0 under Q: (1 − p) f(1/(1 − p)) + p f(0)."""
        left = 1 - probability
        remaining = self.slope_at_infinity if left == 0 else left * self.f(1 / left)
        return remaining + (probability * self.at_zero if probability > 0 else 0.0)


def relative(shift: Float[Tensor, " M"], factor_q: Float[Tensor, "M c"], tril_p: Float[Tensor, "M M"]) -> Relative:
    """q = N(m + shift, FFᵀ) seen from p = N(m, LLᵀ); where F has a rank r < M, M − r variances are exactly 0.

    Singular values of L⁻¹F that are rounding (below max(M, c) eps of the largest) count as 0.
    """
    whitened = solve_tril(tril_p, torch.cat([factor_q, shift[:, None]], dim=1))
    left, singular, _ = torch.linalg.svd(whitened[:, :-1], full_matrices=True)
    rounding = max(factor_q.shape) * torch.finfo(singular.dtype).eps * singular[:1]
    singular = torch.where(singular > rounding, singular, 0.0)
    return Relative(left.mT @ whitened[:, -1], pad(singular.square(), (0, len(shift) - len(singular))))


def kl(of: Relative) -> Float[Tensor, ""]:
    """KL(q‖p); infinity where q has no density."""
    shift, variance = of
    return 0.5 * (variance - 1 - variance.log() + shift.square()).sum()


def reverse_kl(of: Relative) -> Float[Tensor, ""]:
    """KL(p‖q); infinity where q has no density."""
    shift, variance = of
    terms = (1 + shift.square()) / variance - 1 + variance.log()
    return torch.where((variance > 0).all(), 0.5 * terms.sum(), math.inf)


def log_chernoff(of: Relative, alpha: float | Tensor) -> Tensor:
    """log ∫ q^α p^(1−α): −∞ for a q without density and 0 < α < 1; +∞ where the integral diverges.

    In one coordinate, by completing the square, with λ = (1 − α)v + α for q's variance v and shift m,

        ∫ q^α p^(1−α) = v^((1−α)/2) λ^(−½) exp(−½ α(1−α) m²/λ)        (infinite unless λ > 0).

    Complex α, along a last dimension of 1, serve for the integral in `log_overlap`.
    """
    shift, variance = of
    mixed = (1 - alpha) * variance + alpha
    terms = (1 - alpha) * variance.log() - mixed.log() - alpha * (1 - alpha) * shift.square() / mixed
    return torch.where((mixed.real > 0).all(), 0.5 * terms.sum(-1), math.inf)


def alpha_divergence(of: Relative, alpha: float) -> Float[Tensor, ""]:
    """(∫ q^α p^(1−α) − 1) / (α(α − 1)), α neither 0 nor 1; its f is (z^α − αz − 1 + α)/(α(α − 1))."""
    return torch.expm1(log_chernoff(of, alpha)) / (alpha * (alpha - 1))


def log_overlap(of: Relative) -> Float[Tensor, ""]:
    """log ∫ min(q, p) = log(1 − TV), to about 10 digits however small the overlap is.

    With the log ratio ℓ = log q/p, min(q, p) = p·min(1, e^ℓ), and min(1, e^ℓ) has the Mellin transform 1/(α(1 − α)):

        ∫ min(q, p) = (1/2π) ∫ c(α + it) / ((α + it)(1 − α − it)) dt,    c(z) = ∫ q^z p^(1−z),    0 < α < 1.

    At the α of least c, Chernoff's, e^(itℓ) turns slowest. The integrand has modulus at most c(α)/|…| and falls like
    |t|^(−2−M/2) where all M variances differ from 1.
    """
    if not bool((of.variance > 0).all()):
        return of.shift.new_full((), -math.inf)
    # Equal laws have no least value; and a hair from the poles at 0 and 1 nothing is gained.
    least = minimize_scalar(lambda place: float(log_chernoff(of, place)), bounds=(1e-3, 1 - 1e-3), method="bounded")
    alpha = float(least.x)
    t, weights = _line(of, min(alpha, 1 - alpha))
    z = torch.complex(torch.full_like(t, alpha), t)
    level = log_chernoff(of, alpha)
    integrand = (torch.exp(log_chernoff(of, z[:, None]) - level) / (z * (1 - z))).real
    return level + ((integrand * weights).sum() / math.pi).log()


def total_variation(of: Relative) -> Float[Tensor, ""]:
    """sup |Q(E) − P(E)| over events E, between 0 and 1; see `log_overlap`."""
    return -torch.expm1(log_overlap(of))


def generators(alphas: tuple[float, ...] = (0.25, 0.75, 2.0)) -> tuple[Generator, ...]:
    """KL both ways, total variation, squared Hellinger distance and α-divergences for α > 0 other than 1."""
    return (
        Generator("KL(Q, P)", lambda z: z * math.log(z), 0.0, math.inf, kl),
        Generator("KL(P, Q)", lambda z: -math.log(z), math.inf, 0.0, reverse_kl),
        Generator("total variation", lambda z: 0.5 * abs(z - 1), 0.5, 0.5, total_variation),
        Generator(
            "squared Hellinger", lambda z: 1 - math.sqrt(z), 1.0, 0.0, lambda of: -torch.expm1(log_chernoff(of, 0.5))
        ),
        *map(_alpha_generator, alphas),
    )


def _alpha_generator(alpha: float) -> Generator:
    def f(z: float) -> float:
        return (z**alpha - alpha * z - 1 + alpha) / (alpha * (alpha - 1))

    slope = math.inf if alpha > 1 else 1 / (1 - alpha)
    return Generator(f"alpha = {alpha:g}", f, 1 / alpha, slope, lambda of: alpha_divergence(of, alpha))


def _line(of: Relative, pole: float) -> tuple[Float[Tensor, " nodes"], Float[Tensor, " nodes"]]:
    """Gauss–Legendre panels on (0, ∞), fine at the distance of the poles, then short beside the integrand's turns.

    For large t, log c(α + it) → it · ½Σ [m²/(1 − v) − log v] + less, over the variances v other than 1 (those near
    1 with an m of note let it fall like exp(−½t²m²) before that).
    """
    turning = (of.variance.log().abs() > 0.1).nonzero()[:, 0]
    shift, variance = of.shift[turning], of.variance[turning]
    frequency = 0.5 * abs(float((shift.square() / (1 - variance)).sum() - of.variance.log().sum()))
    end = _MANY if len(turning) > 4 else _FEW
    longest = 40 / max(frequency, 1e-9)  # 24 nodes follow a phase of 40
    width = max(min(6.0, longest), 0.5)
    near = np.geomspace(pole / 4, 2.0, max(2, math.ceil(2 * math.log2(8 / pole))))
    edges = np.concatenate([[0.0], near, np.arange(4.0, end, width), _widening(of, end, longest)])
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    t, weights = middle[:, None] + half[:, None] * _NODES, half[:, None] * _WEIGHTS
    return torch.from_numpy(t.ravel()), torch.from_numpy(weights.ravel())


def _widening(of: Relative, end: float, longest: float) -> list[float]:
    """Edges from `end` on, until the modulus beyond is at most `_TAIL`: there the integrand is smooth in log t but for
    its turning, so that panels may widen with t up to the longest that its turning allows.

    |c(α + it)|/c(α) ≤ Π |λ(α)/λ(α + it)|^½ with λ = (1 − z)v + z, and λ(α) ≤ max(v, 1): at most
    Π (1 + ((1 − v)t/max(v, 1))²)^(−¼), which falls. The integral of this over t² from t on is at most this over t.
    """
    ratio = ((1 - of.variance) / of.variance.clamp(min=1)).square().numpy()
    edges = [end]
    while edges[-1] < _FAR and len(edges) < _WIDENING:
        if math.exp(-0.25 * float(np.log1p(ratio * edges[-1] ** 2).sum())) / edges[-1] < _TAIL:
            break
        edges.append(edges[-1] + min(0.5 * edges[-1], longest))
    return edges
