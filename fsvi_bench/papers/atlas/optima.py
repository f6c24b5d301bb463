"""Each method's closed-form optimum as a function of its one parameter, and GWI's and GFSVI's against predictions.

A method's parameter is λ for GWI; γN/σ² for GFSVI, since at 1 all directions collapse; the number of context points
over k for FSP-Laplace; the fraction of the largest stable step for SGLD; the number of draws over k for VIP; and the
rank over k for low-rank Laplace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.maths.langevin import precision_basis
from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.maths.projection import row_space
from fsvi_bench.methods.data import Rows, expected_nll, fill_columns
from fsvi_bench.methods.fsp_laplace import FspLaplace
from fsvi_bench.methods.gfsvi import Gfsvi
from fsvi_bench.methods.gwi import Gwi, best_map, squared_distance
from fsvi_bench.methods.inputs import root_of_second_moment, training_rows
from fsvi_bench.methods.laplace import Laplace
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.vip import Vip
from fsvi_bench.methods.weight_space import kl_to
from fsvi_bench.papers.burt2020.toy import curve
from fsvi_bench.posteriors.gaussian import FactorGaussian, FullGaussian
from fsvi_bench.presenting.plots import readable
from fsvi_bench.scoring.predictive import predictive_kl
from fsvi_bench.tasks.task import BOX_POINTS, Task

Gauss = FullGaussian | FactorGaussian
#: Checks are about directions with singular values of Φ above this share of the largest. In others rounding decides:
#: their eigenvectors are not determined to float64, and GWI's formula for any ρ loses the digits of their condition.
SEEN_BY_GWI, SEEN_BY_GFSVI = 1e-4, 1e-6
COLLAPSED = 1e-6  #: a variance below this share of the exact one counts as 0


def count(share: float, k: int, least: int = 1) -> int:
    """A share of k as a number of points, draws or eigenvalues."""
    return max(least, round(share * k))


def gwi(problem: Task, weight: float, seed: int) -> Gauss:
    return Gwi(problem, weight=weight).posterior()[0]  # type: ignore[no-any-return]


def gfsvi(problem: Task, share: float, seed: int) -> Gauss:
    gamma = share * float(problem.noise_variance) / problem.N
    return Gfsvi(problem, gamma=gamma).posterior()[0]  # type: ignore[no-any-return]


def fsp_laplace(problem: Task, share: float, seed: int, truncation: str = "none") -> Gauss:
    points = min(count(share, problem.k), BOX_POINTS)
    method = FspLaplace(problem, context="box", context_points=points, truncation=truncation)
    return method.posterior()[0]  # type: ignore[no-any-return]


def sgld(problem: Task, share: float, seed: int) -> FullGaussian:
    """The stationary N(m*, Λ⁻¹(I − εΛ/4)⁻¹) of chains with gradients of all rows, ε = 4·share/λ_max."""
    eigenvalues, V = precision_basis(problem.Phi, problem.noise_variance)
    variances = stationary_variances(eigenvalues, share)
    return FullGaussian(problem.truth.posterior.mean, tril_of_gram((V * variances.sqrt()).mT))


def vip(problem: Task, share: float, seed: int) -> Gauss:
    return Vip(problem, seeds=seed, draws=count(share, problem.k, 2)).posterior()[0]  # type: ignore[no-any-return]


def laplace(problem: Task, share: float, seed: int) -> Gauss:
    method = Laplace(problem, structure="low-rank", rank=count(share, problem.k))
    return method.posterior()[0]  # type: ignore[no-any-return]


#: The optimum of each method for a problem, the value of its parameter, and a seed, which only VIP's draws depend on.
OPTIMA: Mapping[str, Callable[[Task, float, int], Gauss]] = {
    "gwi": gwi, "gfsvi": gfsvi, "fsp-laplace": fsp_laplace, "sgld": sgld, "vip": vip, "laplace": laplace,
}  # fmt: skip


def stationary_variances(eigenvalues: Float[Tensor, " k"], share: float) -> Float[Tensor, " k"]:
    """1/(λ(1 − ελ/4)) with ε = 4·share/λ_max."""
    epsilon = 4 * share / eigenvalues.max()
    return 1 / (eigenvalues * (1 - epsilon * eigenvalues / 4))


# --- What is drawn ----------------------------------------------------------------------------------------------------


def sweep(problem: Task, method: str, values: Sequence[float], seeds: int) -> pd.DataFrame:
    """KL and mean predictive KL at the box inputs, by value and seed, of which methods without draws have one."""
    rows = []
    for value in values:
        for seed in range(seeds if method == "vip" else 1):
            rows.append({"value": value, "seed": seed, **divergences(problem, OPTIMA[method](problem, value, seed))})
    return pd.DataFrame(rows).assign(dataset=problem.dataset, method=method)


def divergences(problem: Task, q: Gauss) -> dict[str, float]:
    """`kl`, infinite if q is singular, and `predictive_kl`, which is finite for all q."""
    integrals = predictive_kl(q, problem, problem.Phi_box)
    assert integrals is not None  # a closed form for Gaussians
    return {"kl": kl_to(problem.truth.posterior, q), "predictive_kl": float(integrals.kl.mean())}


def bands(problem: Task, shown: Mapping[str, float]) -> pd.DataFrame:
    """f's mean ± 2 sd under each method's optimum at the shown value, and under the exact posterior (toy)."""
    exact = FullGaussian(problem.truth.posterior.mean, problem.truth.covariance_tril)
    curves = [curve(problem, exact).assign(method="exact")]
    for method, value in shown.items():
        q = OPTIMA[method](problem, value, 0)
        found = divergences(problem, q)
        curves.append(
            curve(problem, q).assign(method=method, value=value, told=readable(float(f"{found['kl']:.2g}")), **found)
        )
    return pd.concat(curves, ignore_index=True)


def spectra(problem: Task, shown: Mapping[str, float]) -> pd.DataFrame:
    """Eigenvalues of each optimum's covariance and of the exact posterior, descending; zeros are left out."""
    roots = {"exact": problem.truth.covariance_tril}
    for method, value in shown.items():
        q = OPTIMA[method](problem, value, 0)
        roots[method] = q.root if q.root.ndim == 2 else torch.diag_embed(q.root)
    found = []
    for method, root in roots.items():
        variances = torch.linalg.svdvals(root).square()
        kept = variances[variances > variances[0] * torch.finfo(torch.float64).eps]
        places = (torch.arange(len(kept)) + 1) / problem.k
        found.append(pd.DataFrame({"place": places, "variance": kept}).assign(method=method))
    return pd.concat(found, ignore_index=True).assign(dataset=problem.dataset)


# --- GWI --------------------------------------------------------------------------------------------------------------


def check_gwi(problem: Task, weights: Sequence[float]) -> pd.DataFrame:
    """For ρ = training inputs and each λ, how far the optimum is from S = sI, s = (λ/(λ + N/2σ²))².

    `deviation`: largest relative difference of the covariance by the formula for any ρ, λ²A⁻¹G²A⁻¹, from sI, in the
    directions that the data see. The method itself replaces it by sI.
    `gradient`: norm of the objective's gradient in a factor of the covariance at sI, as a share of the gradient of
    its likelihood term. The objective is convex in the covariance, so that a gradient of 0 proves the optimum.
    """
    data = TrainingData.of(problem)
    R, (Phi, y) = root_of_second_moment(data, "data"), training_rows(data)
    V = row_space(Phi, SEEN_BY_GWI)
    identity = torch.eye(V.shape[1], dtype=torch.float64)
    rows = []
    for weight in weights:
        share = weight / (weight + problem.N / (2 * float(problem.noise_variance)))
        root = V.mT @ best_map(Phi, y, R, weight).root / share
        deviation = float(torch.linalg.matrix_norm(root @ root.mT - identity, 2))
        rows.append({"weight": weight, "deviation": deviation, "gradient": gwi_gradient(data, R, weight, share)})
    return pd.DataFrame(rows).assign(dataset=problem.dataset)


def gwi_gradient(data: TrainingData, R: Float[Tensor, "k k"], weight: float, share: float) -> float:
    """At S = share²·I; the terms of the mean do not depend on the covariance."""
    root = (share * torch.eye(data.k, dtype=torch.float64))[None].requires_grad_()
    q = Gaussian(torch.zeros(1, data.k, dtype=torch.float64), root)
    (likelihood,) = torch.autograd.grad(expected_nll(q, Rows.whole(data)).sum(), root)
    (distance,) = torch.autograd.grad(squared_distance(q, fill_columns(R[None])).sum(), root)
    # The likelihood's own gradient is lower triangular, as its factor is.
    return float((likelihood + weight * distance).tril().norm() / likelihood.tril().norm())


# --- GFSVI ------------------------------------------------------------------------------------------------------------


def check_gfsvi(problem: Task, shares: Sequence[float]) -> pd.DataFrame:
    """For ρ = training inputs and each γ, the optimum's variances along G's eigenvectors against the prediction.

    An eigenvector with the eigenvalue g has the variance ((1/(g + γ) + N/σ²)⁻¹ − γ)/g, or 0 where that is negative,
    which is where g/(γ(g + γ)) ≤ N/σ². `mismatches` counts directions that collapsed and were predicted not to, or the
    reverse; `deviation` is the largest difference of variances, divided by the exact posterior's; `density` is 1 if the
    KL is finite although a direction collapses, or infinite although none does.
    """
    eigenvalues, V = precision_basis(problem.Phi, problem.noise_variance)
    precision = problem.N / float(problem.noise_variance)
    g = ((eigenvalues - 1) / precision).numpy()
    seen = slice(row_space(problem.Phi, SEEN_BY_GFSVI).shape[1])
    rows = []
    for share in shares:
        gamma, q = share / precision, gfsvi(problem, share, 0)
        variances = (V.mT @ q.covariance_tril()).square().sum(-1)
        relative = (variances * eigenvalues)[seen].numpy()  # to the exact posterior's
        collapses = g / (gamma * (g + gamma)) <= precision
        optimal = (1 / (1 / (g[seen] + gamma) + precision) - gamma) / g[seen]
        predicted = np.where(collapses[seen], 0.0, optimal * eigenvalues[seen].numpy())
        found = {
            "share": share,
            "collapsed": int(collapses.sum()),
            "mismatches": int(((relative < COLLAPSED) != collapses[seen]).sum()),
            "deviation": float(np.abs(relative - predicted).max()),
            "density": int((not q.singular) == bool(collapses.any())),
        }
        rows.append(found)
    return pd.DataFrame(rows).assign(dataset=problem.dataset, split=problem.split)


# --- FSP-Laplace ------------------------------------------------------------------------------------------------------


def check_fsp_laplace(problem: Task, shares: Sequence[float]) -> pd.DataFrame:
    """By the number of nested context points: rank of their features, and the KL for both truncations."""
    rows: list[dict[str, Any]] = []
    for points in sorted({min(count(share, problem.k), BOX_POINTS) for share in shares}):
        rank = row_space(problem.Phi_box[:points]).shape[1]
        for truncation in ("none", "context-span"):
            q = fsp_laplace(problem, points / problem.k, 0, truncation)
            kl = kl_to(problem.truth.posterior, q)
            rows.append({"points": points, "rank": rank, "truncation": truncation, "kl": kl})
    return pd.DataFrame(rows).assign(dataset=problem.dataset, full=lambda at: at["rank"] == problem.k)
