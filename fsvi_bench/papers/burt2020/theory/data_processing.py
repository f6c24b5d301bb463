"""Propositions 3 and 6: function values cannot tell two laws apart better than the parameters behind them.

A condition is missing where the paper says that equality holds if g is injective. Its proof takes a left inverse of g
and does not ask whether it is measurable in the product σ-algebra, whose events look at countably many inputs only. It
is, by a theorem of Lusin and Souslin, if g is injective already at countably many inputs, which suffices; whether it is
necessary is not said here. That g is injective is not enough: g(θ)(x) = 1[x = θ] is, and measurable, but under any law
of θ with a density every countable set of values is 0 with probability one. All functional divergences are 0 then,
whatever those of the parameters are. Linear models with k independent feature vectors, and injective g that are
continuous in x, are on the safe side.

Divergences are taken from the laws of the values: nothing here knows that they are functions of the weights.
"""

from __future__ import annotations

import math

import pandas as pd
import torch
from jaxtyping import Float
from scipy import integrate, stats
from torch import Tensor

from fsvi_bench.maths.features import rbf_grid_features
from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.maths.projection import RANK_TOLERANCE
from fsvi_bench.papers.burt2020.theory.f_divergence import Relative, generators, kl, relative
from fsvi_bench.papers.burt2020.theory.settings import Settings
from fsvi_bench.papers.claims import Values
from fsvi_bench.papers.experiment import Findings

CELLS = (1.0, 1e-1, 1e-2, 1e-4, 1e-8, 0.0)


def measure_nested(settings: Settings) -> pd.DataFrame:
    """f-divergences of a random q = N(μ, FFᵀ) against N(0, I_k), of the weights and of values at random inputs.

    A row for each draw, set of inputs (the first 1, 2, ..., each set containing the last, and k − 1 inputs three times)
    and divergence. Where the rank of the features is k, g is injective.
    """
    k, generator = settings.features, settings.generator("data processing")
    points, rows = k + settings.extra_points, []
    for draw in range(1, settings.draws + 1):
        mean, factor = _posterior(k, generator)
        Phi = _features(points, k, generator)
        sets = {f"M = {M}": Phi[:M] for M in range(1, points + 1)}
        sets[f"{k - 1} points, each three times"] = Phi[: k - 1].repeat(3, 1)
        weights = {f.name: float(f.divergence(of_weights(mean, factor))) for f in generators()}
        for name, Phi_A in sets.items():
            seen = of_values(mean, factor, Phi_A)
            rows += [
                (draw, name, len(Phi_A), len(seen.shift), f.name, weights[f.name], float(f.divergence(seen)))
                for f in generators()
            ]
    columns = ["draw", "inputs", "points", "rank", "divergence", "weights", "functional"]
    found = pd.DataFrame(rows, columns=columns)
    return found.assign(share=found["functional"] / found["weights"])


def _posterior(k: int, generator: torch.Generator) -> tuple[Float[Tensor, " k"], Float[Tensor, "k k"]]:
    """Not far from N(0, I), where total variation would be 1 whatever is seen; standard deviations of 0.4 to 1."""
    rotation = torch.linalg.qr(torch.randn(k, k, generator=generator, dtype=torch.float64)).Q
    scales = 0.4 + 0.6 * torch.rand(k, generator=generator, dtype=torch.float64)
    return 0.4 * torch.randn(k, generator=generator, dtype=torch.float64), rotation * scales


def _features(points: int, k: int, generator: torch.Generator) -> Float[Tensor, "points k"]:
    """k radial basis functions on [−2, 2], a spacing wide, at inputs near the centres in random order, then any."""
    centres = torch.linspace(-2, 2, k, dtype=torch.float64)
    spacing = centres[1] - centres[0]
    uniform = torch.rand(points, generator=generator, dtype=torch.float64)
    near = centres[torch.randperm(k, generator=generator)] + spacing * (0.8 * uniform[:k] - 0.4)
    x = torch.cat([near, 5 * uniform[k:] - 2.5])
    return rbf_grid_features(x[:, None], centres[:, None], spacing[None])


def of_weights(mean: Float[Tensor, " k"], factor: Float[Tensor, "k k"]) -> Relative:
    """q = N(mean, FFᵀ) and p = N(0, I), the laws of the weights."""
    return relative(mean, factor, torch.eye(len(mean), dtype=mean.dtype))


def of_values(mean: Float[Tensor, " k"], factor: Float[Tensor, "k k"], Phi_A: Float[Tensor, "M k"]) -> Relative:
    """The laws of the values Φ_A w: N(Φ_A mean, Φ_A F(Φ_A F)ᵀ) and N(0, Φ_A Φ_Aᵀ).

    Where they have no density, Φ_A having a rank r < M, they are taken in the coordinates Uᵀf of its column space, on
    which every function lies, U (M×r) orthonormal.
    """
    values = Phi_A @ torch.cat([mean[:, None], factor, torch.eye(len(mean), dtype=mean.dtype)], dim=1)
    left, singular, _ = torch.linalg.svd(Phi_A, full_matrices=False)
    rank = int((singular > RANK_TOLERANCE * singular[0]).sum())
    if rank < len(Phi_A):
        values = left[:, :rank].mT @ values
    mean_q, factor_q, factor_p = torch.split(values, [1, len(mean), len(mean)], dim=1)
    return relative(mean_q[:, 0], factor_q, tril_of_gram(factor_p.mT))


def folded_shortfall(mean: float, scale: float) -> float:
    """KL of the weight less that of |w|, q = N(mean, scale²) and p = N(0, 1), by adaptive quadrature.

    The density of |w| at |w| is q(w) + q(−w), and 2p(w): the difference is E_q log[2 q(w)/(q(w) + q(−w))].
    """

    def integrand(w: float) -> float:
        apart = -2 * mean * w / scale**2  # log q(−w)/q(w)
        share = math.log(2) - (max(apart, 0.0) + math.log1p(math.exp(-abs(apart))))
        return float(stats.norm.pdf(w, mean, scale)) * share

    ends = mean - 12 * scale, mean + 12 * scale
    return float(integrate.quad(integrand, *ends, points=[0.0], epsabs=1e-13, limit=200)[0])


def indicator_kls(cell: float) -> tuple[float, float]:
    """Functional and weight KL of g(θ)(x) = 1[|x − θ| ≤ cell/2], θ ~ N(1, 1) and N(0, 1), at x = −4, −3, …, 5.

    At most one value is 1 for cells up to 1, so that there are eleven states. A cell of 0 leaves 1[x = θ].

    Raises:
        ValueError: cells overlap.
    """
    if not 0 <= cell <= 1:
        raise ValueError(f"got cells of {cell}, expected between 0 and 1")
    x = torch.arange(-4.0, 6.0, dtype=torch.float64)
    masses = []
    for mean in (1.0, 0.0):
        away = x - mean
        inside = torch.special.ndtr(away + cell / 2) - torch.special.ndtr(away - cell / 2)
        masses.append(torch.cat([inside, 1 - inside.sum()[None]]))
    q, p = masses
    functional = torch.where(q > 0, q * (q.log() - p.log()), torch.zeros_like(q)).sum()
    one = torch.ones(1, dtype=torch.float64)
    return float(functional), float(kl(Relative(one, one)))


def data_processing_statistics(settings: Settings, nested: pd.DataFrame) -> dict[str, Values]:
    """On propositions 2, 3 and 6: numbers by draw, inputs and divergence."""
    case = "draw " + nested["draw"].astype(str) + ", " + nested["inputs"]
    of_kl, full = nested["divergence"] == "KL(Q, P)", nested["rank"] == settings.features
    excess = (nested["functional"] - nested["weights"]).set_axis(case)[of_kl.to_numpy()]
    share = (nested["share"] - 1).set_axis(nested["divergence"] + ", " + case)[~of_kl.to_numpy()]
    kls_full, others_full = full[of_kl].to_numpy(), full[~of_kl].to_numpy()
    in_turn = nested[of_kl & nested["inputs"].str.startswith("M")].pivot(
        index="draw", columns="points", values="functional"
    )
    functional, weight = indicator_kls(0.0)
    return {
        "proposition 3: largest excess of the functional over the weight KL [nats]": excess.to_dict(),
        "proposition 2: largest fall of the functional KL as points are added [nats]": {
            f"M = {M}": fall for M, fall in (-in_turn.diff(axis=1)).iloc[:, 1:].max(skipna=False).items()
        },
        "proposition 3: largest difference of the two where the features' rank is k [nats]": excess[kls_full].to_dict(),
        "proposition 3: least shortfall where the rank is below k [nats]": (-excess[~kls_full]).to_dict(),
        "proposition 3: shortfall of g = |theta|, not injective [nats]": folded_shortfall(settings.folded_mean, 1.0),
        "proposition 3: shortfall of g = |theta| between symmetric laws [nats]": abs(folded_shortfall(0.0, 0.5)),
        "proposition 3 as written: shortfall of g = 1[x = theta], injective [nats]": weight - functional,
        "proposition 6: largest excess of a functional over its weight f-divergence, share": share.to_dict(),
        "proposition 6: largest difference of the two where the features' rank is k, share": share[
            others_full
        ].to_dict(),
    }


def of_data_processing(settings: Settings) -> Findings:
    """On propositions 2, 3 and 6."""
    nested = measure_nested(settings)
    means = nested.pivot_table("share", "divergence", "inputs", sort=False)
    groups = nested[nested["inputs"].str.startswith("M")].groupby(["divergence", "points"], sort=False)["share"]
    cells = [(cell, *indicator_kls(cell)) for cell in CELLS]
    return Findings(
        frames={
            "nested": nested,
            "shares": means.assign(weights=nested.groupby("divergence")["weights"].mean()).reset_index(),
            "bands": groups.agg(["min", "median", "max"]).reset_index(),
            "indicators": pd.DataFrame(cells, columns=["width", "functional", "weight"]),
        },
        statistics=data_processing_statistics(settings, nested),
    )
