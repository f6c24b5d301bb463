"""GWI: the likelihood with a Wasserstein distance between Gaussian measures in place of the KL (Wild et al. 2022).

For a distribution ρ of inputs, with G = E_ρ[φφᵀ] = RᵀR, the distance in L²(ρ) between q = N(m, FFᵀ) and the prior is

    W₂² = mᵀGm + tr G + tr GFFᵀ − 2‖GF‖_* = ‖Rm‖² + min over orthogonal U of ‖R(FU − I)‖_F²

(a Procrustes problem). Let q = N(m, TTᵀ) be the image of the prior under w ↦ Tw + m. Then E NLL + λW₂² is at most

    ½‖y − Φm‖²/σ² + ½‖ΦT‖_F²/σ² + λ(‖Rm‖² + ‖R(T − I)‖_F²) + constant,

a least-squares problem in (m, T) with the solution T = λA⁻¹G, m = ½A⁻¹Φᵀy/σ², A = ΦᵀΦ/2σ² + λG. Since
GT = λGA⁻¹G is symmetric and positive semi-definite, T is the optimal map, the bound is attained, and the optimum of the
full family is S = TTᵀ = λ²A⁻¹G²A⁻¹. For ρ = the training inputs, G = ΦᵀΦ/N, it is a multiple of I whatever the data.

With W₂ in place of W₂² the problem in (m, T) stays convex, since the bound on W₂ is a norm. Its gradient is that of W₂²
with the weight λ' = λ/(2W₂), and 2λ'W₂(λ') rises with λ', so that λ' is one scalar root. The optimum is the prior if
2λ'W₂(λ') < λ for all λ', which is so once λ ≥ √(tr HG⁻¹H + bᵀG⁻¹b) with H = ΦᵀΦ/σ² and b = Φᵀy/σ².
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from pydantic import PositiveFloat
from scipy.optimize import brentq
from torch import Tensor

from fsvi_bench.maths.batching import matvec
from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.maths.linalg import identity, square_norm, tril_of_gram
from fsvi_bench.maths.projection import RANK_TOLERANCE
from fsvi_bench.methods.data import Batch, expected_nll
from fsvi_bench.methods.inputs import LawMethod, LawOptions, training_rows
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian, GaussianPosterior

MAX_ITERATIONS, CONVERGED = 3000, 1e-11  #: of the factorised optimum; the latter for the largest relative change
NO_DISTANCE = 1e-24  #: W₂² over tr G; anything smaller is rounding
LARGEST_WEIGHT = 1e12  #: λ' over tr(ΦᵀΦ/σ²)/tr G at which q counts as the prior


class Gwi(LawMethod):
    """E_q[−log p(y|w)] + weight · W₂²(q, prior) in L²(ρ), or W₂, at its optimum or by Adam."""

    class Options(LawOptions):
        """`distance`: the paper has W₂², its code W₂; `weight`: λ."""

        distance: Literal["w2-squared", "w2"] = "w2-squared"
        weight: PositiveFloat = 1.0

    def loss(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        squared = squared_distance(q, batch.Phi_A)
        if self.options.distance == "w2-squared":
            return expected_nll(q, batch.rows) + self.options.weight * squared
        # At the prior, up to rounding, the root has no gradient; 0 is one of its subgradients.
        moved = squared > NO_DISTANCE * square_norm(batch.Phi_A)
        distance = torch.where(moved, squared, 1.0).sqrt() * moved
        return expected_nll(q, batch.rows) + self.options.weight * distance

    def solve_at(self, place: int, problem: TrainingData) -> GaussianPosterior:
        options, on_data = self.options, self.options.rho == "data"
        (Phi, y), R = training_rows(problem), self.root_at(place)
        best = best_map if on_data or self.family == "full" else best_scales
        solve = partial(best, Phi, y, R)
        weight = options.weight
        if options.distance == "w2":
            largest = LARGEST_WEIGHT * float(square_norm(Phi) / square_norm(R))
            weight = weight_of_square(lambda at: solve(at).distance, weight, largest)
        mean, root, _ = solve(weight)
        if on_data:  # S = sI, also in directions that rounding hides
            share = weight / (weight + problem.N / (2 * problem.noise_variance))
            root = share * torch.ones_like(mean)
        if self.family == "ffg":
            return FactorisedGaussian(mean[None], root[None])
        tril = torch.diag_embed(root) if root.ndim == 1 else tril_of_gram(root.mT)
        return FullGaussian(mean[None], tril[None])


def squared_distance(q: Gaussian, R: Float[Tensor, "B n k"]) -> Float[Tensor, " B"]:
    """W₂² from q to the prior in L²(ρ), with gradients, and without cancellation where the two are close."""
    moved = q.spread(R)
    with torch.no_grad():
        left, _, right = torch.linalg.svd((R.mT @ moved).nan_to_num(0.0), full_matrices=False)
        turn = right.mT @ left.mT  # held constant: the minimum's gradient is that at its minimiser
    return square_norm(moved @ turn - R) + matvec(R, q.mean).square().sum(-1)


class Solution(NamedTuple):
    """The optimum of E NLL + λW₂² for one λ."""

    mean: Float[Tensor, " k"]
    root: Float[Tensor, "k k"] | Float[Tensor, " k"]  #: T with S = TTᵀ, or standard deviations
    distance: float  #: W₂


def best_map(Phi: Float[Tensor, "n k"], y: Float[Tensor, " n"], R: Float[Tensor, "k k"], weight: float) -> Solution:
    """Optimum of the full family, from rows in units of the noise.

    By the singular values of [Φ/√2; √λ R], whose condition number is the root of A's. I − T and T are
    V s⁻¹ (U₁ᵀU₁) s Vᵀ and V s⁻¹ (U₂ᵀU₂) s Vᵀ. Directions that neither the data nor ρ constrain stay at the
    prior, which is one of the optima there.
    """
    U, s, Vh = torch.linalg.svd(torch.cat([Phi / 2**0.5, weight**0.5 * R]), full_matrices=False)
    known = s > RANK_TOLERANCE * s[0]
    of_data, of_rho, s, V = U[: len(Phi), known], U[len(Phi) :, known], s[known], Vh[known].mT
    mean = (V / s) @ (of_data.mT @ (y / 2**0.5))
    deficit = (V / s) @ (of_data.mT @ of_data) @ (V * s).mT
    unseen = identity(len(V), V) - V @ V.mT if len(s) < len(V) else torch.zeros_like(deficit)
    root = (V / s) @ (of_rho.mT @ of_rho) @ (V * s).mT + unseen
    return Solution(mean, root, float(square_norm(R @ deficit) + (R @ mean).square().sum()) ** 0.5)


def best_scales(Phi: Float[Tensor, "n k"], y: Float[Tensor, " n"], R: Float[Tensor, "k k"], weight: float) -> Solution:
    """Optimum of the factorised family, whose mean is the full family's.

    With a_i = ½[ΦᵀΦ/σ²]_ii + λG_ii the scales minimise Σ a_i s_i² − 2λ‖G diag(s)‖_*, convex in s². The norm is the
    maximum of tr(UG diag(s)) over orthogonal U, so with the U of the present s this is majorised by a sum of parabolas,
    whose minima are the next s. No step increases the objective.
    """
    mean, G = best_map(Phi, y, R, weight).mean, R.mT @ R
    curvature = 0.5 * Phi.square().sum(0) + weight * G.diagonal()
    scale = torch.ones_like(mean)
    for _ in range(MAX_ITERATIONS):
        left, _, right = torch.linalg.svd(G * scale)
        target = weight * ((left @ right) * G).sum(0)
        new = torch.where(curvature > 0, target / curvature, 1.0)  # unconstrained: stays at the prior
        change, scale = float((new - scale).abs().max() / new.max()), new
        if change < CONVERGED:
            break
    q = Gaussian(mean[None], scale[None])
    return Solution(mean, scale, float(squared_distance(q, R[None])) ** 0.5)


def weight_of_square(distance: Callable[[float], float], weight: float, largest: float) -> float:
    """λ' with 2λ'W₂(λ') = λ: the weight of W₂² whose optimum is that of W₂ under the weight λ.

    Args:
        distance: W₂ at the optimum for a weight of W₂².
        largest: a weight at which q counts as the prior, which is the optimum if 2λ'W₂ stays below λ.
    """

    def excess(log_weight: float) -> float:
        at = math.exp(log_weight)
        return 2 * at * distance(at) - weight

    low, high = math.log(min(weight, largest)), math.log(largest)
    if excess(high) <= 0:
        return largest
    while excess(low) > 0:
        low -= 3.0
    return math.exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-14))
