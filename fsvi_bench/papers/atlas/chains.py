"""Full-batch SGLD, run: are the last states of its chains draws of N(m*, Λ⁻¹(I − εΛ/4)⁻¹)?

The chains are independent, since gradients of all rows share no noise. Along an eigenvector of Λ, ν = n − 1 times the
sample variance over the predicted one has the χ² distribution with ν degrees of freedom. Its quantile, as that of a
standard normal, is the direction's z. The sample correlations of the k directions have the statistic of Schott (2005,
Biometrika 92, 951-956), and the KL of the sample variances, ½Σ(r − 1 − log r), is compared with the closed form's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import stats
from scipy.special import digamma, polygamma

from fsvi_bench.maths.langevin import precision_basis, stationary_kl
from fsvi_bench.methods.sgld import Sgld
from fsvi_bench.papers.atlas.optima import stationary_variances
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.task import Task
from fsvi_bench.training.trainer import train

Samples = Float[np.ndarray, "n k"]  # NumPy 2.5 makes NDArray an alias, which jaxtyping refuses


def run_chains(problems: Sequence[Task], share: float, chains: int, rounds: float) -> pd.DataFrame:
    """One row per problem and eigenvector of Λ, the stiffest first, of problems with equal shapes, side by side.

    Args:
        share: ε as a fraction of the largest stable step, 4/λ_max.
        rounds: steps over λ_max/share. A chain starts at a draw of the prior. Along an eigenvector with the eigenvalue
            λ a share e^(−4·rounds·λ) of the start's variance is left, which is the target's where λ = 1.
    """
    bases = [precision_basis(problem.Phi, problem.noise_variance) for problem in problems]
    steps = math.ceil(rounds * max(float(eigenvalues[0]) for eigenvalues, _ in bases) / share)
    seeds = [derive_seed("atlas", problem.sha256, f"{share}") for problem in problems]
    method = Sgld(problems, seeds=seeds, step_size=share, particles=chains, max_steps=steps)
    train(method, "cpu")
    posterior = method.posterior()
    found = []
    for place, (problem, (eigenvalues, V)) in enumerate(zip(problems, bases, strict=True)):
        w = (posterior[place].particles @ V).numpy()
        predicted = stationary_variances(eigenvalues, share).numpy()
        closed_form = stationary_kl(eigenvalues, share)
        own: dict[str, Any] = {"dataset": problem.dataset, "split": problem.split, "share": share, "steps": steps}
        found.append(compare(w, predicted, eigenvalues.numpy(), closed_form).assign(**own))
    return pd.concat(found, ignore_index=True)


def compare(
    w: Samples, predicted: NDArray[np.float64], eigenvalues: NDArray[np.float64], closed_form: float
) -> pd.DataFrame:
    """Sample variances by direction, and z of each, of all correlations and of the KL.

    Args:
        w: independent samples in the basis of Λ's eigenvectors.
        predicted: their variances.
        closed_form: KL of the predicted distribution to the exact posterior [nats].
    """
    nu = len(w) - 1
    variances = w.var(0, ddof=1)
    z = normal_of_chi_square(nu * variances / predicted, nu)
    correlations = np.corrcoef(w, rowvar=False)
    kl, kl_error = kl_of_variances(variances * eigenvalues, predicted * eigenvalues, nu)
    frame = pd.DataFrame({"direction": range(len(z)), "variance": variances, "predicted": predicted, "z": z})
    of_all = {"z_correlations": schott(np.asarray(correlations), nu), "kl": kl, "closed_form": closed_form}
    return frame.assign(exact=1 / eigenvalues, **of_all, kl_error=kl_error, z_kl=(kl - closed_form) / kl_error)


def normal_of_chi_square(values: NDArray[np.float64], nu: int) -> NDArray[np.float64]:
    """The standard normal numbers at the same quantiles, each from its nearer tail."""
    upper = values > nu
    tail = np.where(upper, stats.chi2.sf(values, nu), stats.chi2.cdf(values, nu))
    return np.where(upper, -1.0, 1.0) * stats.norm.ppf(tail)  # type: ignore[no-any-return]


def schott(correlations: NDArray[np.float64], nu: int) -> float:
    """Σ r² over pairs, less its mean, in its standard deviations, for independent normal variables."""
    k = len(correlations)
    squares = float((np.tril(correlations, -1) ** 2).sum())
    deviation = math.sqrt(k * (k - 1) * (nu - 1) / (nu**2 * (nu + 2)))
    return (squares - k * (k - 1) / (2 * nu)) / deviation


def kl_of_variances(ratios: NDArray[np.float64], predicted: NDArray[np.float64], nu: int) -> tuple[float, float]:
    """½Σ(r − 1 − log r) of sampled variances over the exact ones, corrected for the bias of log χ²; its standard error.

    With r = ρX/ν, X ~ χ²_ν: E log r = log ρ + ψ(ν/2) − log(ν/2), and the variance of r − log r is
    2ρ²/ν − 4ρ/ν + ψ′(ν/2), since Cov(X, log X) = 2.
    """
    bias = float(digamma(nu / 2) - math.log(nu / 2))
    kl = 0.5 * float((ratios - 1 - np.log(ratios) + bias).sum())
    variances = 2 * predicted**2 / nu - 4 * predicted / nu + polygamma(1, nu / 2)
    return kl, 0.5 * math.sqrt(float(variances.sum()))
