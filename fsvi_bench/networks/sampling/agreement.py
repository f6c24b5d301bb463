"""What every certificate rests on: the chains mix, and two samplers of different kinds agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import arviz as az
import numpy as np
from scipy.spatial.distance import pdist, squareform

from fsvi_bench.networks.reference import Agreement
from fsvi_bench.networks.reference import Estimate as Reported
from fsvi_bench.networks.sampling.evidence import Estimate, equal_means
from fsvi_bench.networks.sampling.nuts import Chain, thin
from fsvi_bench.statistics.ranks import holm

MMD_DRAWS = 500  #: of each sampler, at most
PERMUTATIONS = 999


def agreement(
    chains: Sequence[Chain],
    f: np.ndarray,
    particles: np.ndarray,
    ladder: Estimate,
    smc: Estimate,
    groups: Mapping[str, slice],
    generator: np.random.Generator,
) -> Agreement:
    """NUTS by its own diagnostics and against the particles; a number that cannot be computed is NaN.

    Args:
        chains: chains of equal length.
        f: their functions [chains, draws, P], from `function_draws`.
        particles: functions of pooled particles [n, P], in random order; at most `MMD_DRAWS` of them are used.
        ladder: log Z by NUTS.
        smc: log Z by the particle runs.
        groups: columns of f that are tested together, such as training inputs and test inputs.
        generator: chooses draws and permutations.
    """
    log_p = np.stack([chain.log_joint for chain in chains])
    numbers = mixing(f, log_p)
    # Permutations take draws for independent: keep as many as are worth one.
    flat = f.reshape(-1, f.shape[-1])
    worth = min(numbers["ess_bulk"], numbers["ess_tail"])
    n = int(min(worth, len(flat), len(particles), MMD_DRAWS)) if worth >= 2 else 0
    nuts = thin(flat, n)
    p = np.array([mmd_p_value(nuts[:, group], particles[:n, group], generator) for group in groups.values()])
    return Agreement(
        log_z_nuts=Reported(value=ladder.value, error=ladder.error),
        log_z_smc=Reported(value=smc.value, error=smc.error),
        log_z_p=equal_means(ladder, smc),
        **numbers,
        e_bfmi=float(az.bfmi(np.stack([chain.energy for chain in chains])).min()),
        divergences=int(sum(chain.divergent.sum() for chain in chains)),
        mmd_p=float(holm(p).min()) if np.isfinite(p).all() else np.nan,
    )


def mixing(f: np.ndarray, log_p: np.ndarray) -> dict[str, float]:
    """The worst R̂ of f [chains, draws, P] and log p [chains, draws], and the smallest effective sample sizes of these
    and f²; NaN if any is."""
    data = az.convert_to_dataset({"f": f, "square": f**2, "log_p": log_p})

    def all_of(result: object) -> np.ndarray:
        return np.concatenate([np.ravel(values) for values in result.data_vars.values()])  # type: ignore[attr-defined]

    return {
        "r_hat": float(all_of(az.rhat(data[["f", "log_p"]], method="rank")).max()),
        "ess_bulk": float(all_of(az.ess(data, method="bulk")).min()),
        "ess_tail": float(all_of(az.ess(data, method="tail")).min()),
    }


def monte_carlo_errors(values: np.ndarray) -> np.ndarray:
    """Standard errors of the means [P] of chains [chains, draws, P], by their own effective sample sizes."""
    return np.asarray(az.mcse(az.convert_to_dataset({"values": values}), method="mean")["values"])


def mmd_p_value(a: np.ndarray, b: np.ndarray, generator: np.random.Generator) -> float:
    """The permutation test of MMD² (Gretton et al. 2012) of independent draws [n, d] and [m, d]; NaN if any is.

    The kernel is Gaussian; its length is the median distance.
    """
    both = np.concatenate([a, b])
    if len(a) < 2 or len(b) < 2 or not np.isfinite(both).all():
        return np.nan
    distances = pdist(both)
    kernel = np.exp(-0.5 * np.square(squareform(distances) / np.median(distances)))
    signs = np.concatenate([np.full(len(a), 1 / len(a)), np.full(len(b), -1 / len(b))])
    rows = np.stack([signs, *(generator.permutation(signs) for _ in range(PERMUTATIONS))])
    values = np.einsum("pi,pi->p", rows @ kernel, rows)
    return float((values >= values[0]).mean())
