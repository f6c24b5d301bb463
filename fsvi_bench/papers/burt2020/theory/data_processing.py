"""Propositions 3 and 6: divergences between distributions of function values never exceed those of the parameters.

The paper's statement that equality holds if g is injective lacks a condition. Its proof uses a left inverse of g, which
must be measurable in the product σ-algebra, whose events depend on countably many inputs only. By a theorem of Lusin
and Souslin it suffices that g is injective at countably many inputs; whether this is necessary is left open here.
Injectivity alone does not suffice: g(θ)(x) = 1[x = θ] is injective and measurable, but if θ has a density, every
countable set of values is 0 with probability one. All functional divergences are then 0, whatever those of the
parameters. The condition holds for linear models with k independent feature vectors, and for injective g that are
continuous in x.

Divergences are computed from the distributions of the values, without using that they are functions of the weights.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy import special, stats
from torch import Tensor

from fsvi_bench.maths.features import rbf_grid_features
from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.maths.projection import row_space
from fsvi_bench.papers.burt2020.feature_roots import random_rotation
from fsvi_bench.papers.burt2020.theory.f_divergence import GENERATORS, Relative, relative
from fsvi_bench.papers.burt2020.theory.settings import Settings

CELLS = (1.0, 1e-1, 1e-2, 1e-4, 1e-8, 0.0)


def measure_nested(settings: Settings) -> pd.DataFrame:
    """f-divergences of a random q = N(μ, FFᵀ) against N(0, I_k), of the weights and of values at random inputs.

    One row per draw, set of inputs (the first 1, 2, ..., and k − 1 inputs three times; each set contains the previous
    one) and divergence. If the rank of the features is k, g is injective.
    """
    k, generator = settings.features, settings.generator("data processing")
    points, rows = k + settings.extra_points, []
    for draw in range(1, settings.draws + 1):
        mean, factor = random_posterior(k, generator)
        Phi = random_features(points, k, generator)
        sets = [(f"M = {M}", Phi[:M]) for M in range(1, points + 1)]
        sets.insert(k - 1, (f"{k - 1} points, each three times", Phi[: k - 1].repeat(3, 1)))
        of_weights = relative(mean, factor, torch.eye(k, dtype=torch.float64))
        weights = {f: float(f.divergence(of_weights)) for f in GENERATORS}
        for inputs, Phi_A in sets:
            seen = of_values(mean, factor, Phi_A)
            rows += [
                (draw, inputs, len(Phi_A), len(seen.shift), f.name, of_all, float(f.divergence(seen)))
                for f, of_all in weights.items()
            ]
    columns = ["draw", "inputs", "points", "rank", "divergence", "weights", "functional"]
    return relative_to_weights(pd.DataFrame(rows, columns=columns), k)


def relative_to_weights(nested: pd.DataFrame, k: int) -> pd.DataFrame:
    """The functional divergence as a fraction of that of the weights, and its decrease from one set to the next."""
    functional = nested["functional"]
    # With no inputs the divergence is 0.
    rise = nested.groupby(["draw", "divergence"])["functional"].diff().fillna(functional)
    return nested.assign(injective=nested["rank"] == k, share=functional / nested["weights"], fall=-rise)


def random_posterior(k: int, generator: torch.Generator) -> tuple[Float[Tensor, " k"], Float[Tensor, "k k"]]:
    """A q close to N(0, I), with standard deviations of 0.4 to 1; otherwise total variation would always be about 1."""
    rotation = random_rotation(k, generator)
    scales = 0.4 + 0.6 * torch.rand(k, generator=generator, dtype=torch.float64)
    return 0.4 * torch.randn(k, generator=generator, dtype=torch.float64), rotation * scales


def random_features(points: int, k: int, generator: torch.Generator) -> Float[Tensor, "points k"]:
    """k radial basis functions on [−2, 2], as wide as their spacing, at inputs near the centres in random order, and
    then at arbitrary inputs."""
    centres = torch.linspace(-2, 2, k, dtype=torch.float64)
    spacing = centres[1] - centres[0]
    uniform = torch.rand(points, generator=generator, dtype=torch.float64)
    near = centres[torch.randperm(k, generator=generator)] + spacing * (0.8 * uniform[:k] - 0.4)
    x = torch.cat([near, 5 * uniform[k:] - 2.5])
    return rbf_grid_features(x[:, None], centres[:, None], spacing[None])


def of_values(mean: Float[Tensor, " k"], factor: Float[Tensor, "k k"], Phi_A: Float[Tensor, "M k"]) -> Relative:
    """The distributions of the values Φ_A w: N(Φ_A mean, Φ_A F(Φ_A F)ᵀ) and N(0, Φ_A Φ_Aᵀ).

    If Φ_A has rank r < M they have no density. They are therefore expressed in the coordinates Uᵀf of its column space,
    which contains every function, with U (M×r) orthonormal.
    """
    within = row_space(Phi_A.mT).mT @ Phi_A
    return relative(within @ mean, within @ factor, tril_of_gram(within.mT))


def folded_shortfall(mean: float, scale: float) -> float:
    """KL of w minus that of |w| for q = N(mean, scale²) and p = N(0, 1), by adaptive quadrature.

    The density of |w| at |w| is q(w) + q(−w), and 2p(w): the difference is E_q log[2 q(w)/(q(w) + q(−w))].
    """
    reach, slope = 12 * scale, -2 * mean / scale**2  # of log q(−w)/q(w) in w
    return stats.norm(mean, scale).expect(
        lambda w: math.log(2) - np.logaddexp(0, slope * w),
        lb=mean - reach, ub=mean + reach, epsabs=1e-13, limit=200,
    )  # fmt: skip


def indicator_kl(cell: float) -> float:
    """Functional KL of g(θ)(x) = 1[|x − θ| ≤ cell/2], θ ~ N(1, 1) and N(0, 1), at x = −4, −3, …, 5, for cells up to 1.

    At most one value is 1, so there are eleven states. A cell of 0 gives 1[x = θ].
    """
    away = np.arange(-4.0, 6.0) - np.array([[1.0], [0.0]])
    inside = special.ndtr(away + cell / 2) - special.ndtr(away - cell / 2)
    q, p = np.column_stack([inside, 1 - inside.sum(1)])
    return float(special.rel_entr(q, p).sum())


def of_data_processing(settings: Settings) -> dict[str, pd.DataFrame]:
    """Frames for propositions 2, 3 and 6."""
    nested = measure_nested(settings)
    shares = nested.pivot_table("share", "divergence", "inputs", sort=False)
    groups = nested[nested["inputs"].str.startswith("M")].groupby(["divergence", "points"], sort=False)["share"]
    folds = {"apart": folded_shortfall(settings.folded_mean, 1.0), "symmetric": folded_shortfall(0.0, 0.5)}
    weights = nested.groupby("divergence")["weights"].mean()
    return {
        "nested": nested,
        "shares": shares.assign(weights=weights, k=settings.features).reset_index(),
        "bands": groups.agg(["min", "median", "max"]).assign(k=settings.features).reset_index(),
        "folds": pd.DataFrame({"laws": folds.keys(), "shortfall": folds.values()}),
        "indicators": pd.DataFrame({"width": CELLS, "functional": map(indicator_kl, CELLS), "weight": 0.5}),
    }
