"""Certificate C2, on real targets: two samplers of different kinds agree, and the chains mix. It is empirical."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import arviz as az
import numpy as np
from scipy.spatial.distance import pdist, squareform

from fsvi_bench.networks.sampling.evidence import Estimate, agreement
from fsvi_bench.networks.sampling.nuts import Chain
from fsvi_bench.statistics.ranks import holm
from fsvi_bench.strict import Strict

#: What each number must be. A number that is NaN is none of it.
LIMITS = {
    "r_hat": (operator.lt, 1.01),  # rank-normalised split, the worst of f and log p
    "ess_bulk": (operator.ge, 4000.0),  # the worst of f, f² and log p
    "ess_tail": (operator.ge, 4000.0),
    "e_bfmi": (operator.gt, 0.2),
    "mmd_p": (operator.gt, 0.01),  # the smallest over the groups of inputs, Holm-adjusted
    "evidence_p": (operator.gt, 0.01),  # of equal log Z
    "evidence_error": (operator.lt, 0.5),  # the larger of both, in nats: what is vague agrees with everything
}
MMD_DRAWS = 500  #: of each sampler, at most
PERMUTATIONS = 999


class Certificate(Strict):
    """The numbers that were judged, and the names of those that are outside their limits."""

    numbers: dict[str, float]
    failures: tuple[str, ...]


def certify(
    chains: Sequence[Chain],
    f: np.ndarray,
    particles: np.ndarray,
    ladder: Estimate,
    smc: Estimate,
    groups: Mapping[str, slice],
    generator: np.random.Generator,
) -> Certificate:
    """Judges NUTS by its own diagnostics and by the particles.

    Args:
        chains: chains of equal length.
        f: their functions [chains, draws, P], from `function_draws`.
        particles: functions of pooled particles [n, P].
        ladder: log Z by NUTS.
        smc: log Z by the particle runs.
        groups: columns of f that are tested together, such as training inputs and test inputs.
        generator: chooses draws and permutations.
    """
    log_p = np.stack([chain.log_joint for chain in chains])
    numbers = mixing(f, log_p)
    numbers["e_bfmi"] = float(az.bfmi(np.stack([chain.energy for chain in chains])).min())
    # Permutations take draws for independent: keep as many as are worth one.
    flat = f.reshape(-1, f.shape[-1])
    worth = min(numbers["ess_bulk"], numbers["ess_tail"])
    n = int(min(worth, len(flat), len(particles), MMD_DRAWS)) if worth >= 2 else 0
    nuts = flat[((np.arange(n) + 0.5) * (len(flat) / max(n, 1))).astype(int)]
    others = particles[generator.choice(len(particles), n, replace=False)]
    p = np.array([mmd_p_value(nuts[:, group], others[:, group], generator) for group in groups.values()])
    numbers["mmd_p"] = float(holm(p).min()) if np.isfinite(p).all() else np.nan
    numbers["evidence_p"] = agreement(ladder, smc)
    numbers["evidence_error"] = float(np.max([ladder.error, smc.error]))
    numbers["divergences"] = float(sum(chain.divergent.sum() for chain in chains))
    return Certificate(numbers=numbers, failures=tuple(judge(numbers)))


def judge(numbers: Mapping[str, float]) -> list[str]:
    """The names of the limits that the numbers do not keep; a missing number keeps none."""
    return [name for name, (holds, limit) in LIMITS.items() if not holds(numbers.get(name, np.nan), limit)]


def mixing(f: np.ndarray, log_p: np.ndarray) -> dict[str, float]:
    """The worst R̂ and effective sample sizes of f [chains, draws, P] and log p [chains, draws]; NaN if any is."""
    data = az.convert_to_dataset({"f": f, "square": f**2, "log_p": log_p})

    def all_of(result: object) -> np.ndarray:
        return np.concatenate([np.ravel(values) for values in result.data_vars.values()])  # type: ignore[attr-defined]

    return {
        "r_hat": float(all_of(az.rhat(data[["f", "log_p"]], method="rank")).max()),
        "ess_bulk": float(all_of(az.ess(data, method="bulk")).min()),
        "ess_tail": float(all_of(az.ess(data, method="tail")).min()),
    }


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
